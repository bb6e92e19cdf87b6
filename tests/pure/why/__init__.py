"""Tests of ``cudnn_backend_py.why`` (why torch does not use cuDNN), without a library and without torch."""
