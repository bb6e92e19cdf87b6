"""Import graphs of other programs: from cuDNN's log and JSON, and from cudnn-frontend's JSON."""
