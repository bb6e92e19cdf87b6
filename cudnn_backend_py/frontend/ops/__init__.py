"""The families of operations, with cudnn-frontend's signatures."""
