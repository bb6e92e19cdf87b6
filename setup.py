"""Build what is written in C; an installation without a C compiler works without it."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "cudnn_backend_py.native._driver_stub",
            sources=["cudnn_backend_py/native/driver_stub.c"],
            extra_link_args=["-Wl,-soname,libcuda.so.1"],
            optional=True,
        ),
        Extension(
            "cudnn_backend_py.native._fast_call",
            sources=["cudnn_backend_py/native/fast_call.c"],
            depends=["cudnn_backend_py/native/fast_call.h"],
            optional=True,
        ),
    ]
)
