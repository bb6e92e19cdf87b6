"""Tests of ``cudnn_backend_py.why`` (why torch does not use cuDNN) with torch, and with verdicts of cuDNN."""
