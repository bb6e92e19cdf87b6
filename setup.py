"""Build what is written in C; an installation without a C compiler works without it.

Nothing in C includes a header of Python, so one wheel of a machine's architecture serves every Python 3.
"""

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class PlainLibraries(build_ext):
    """Libraries for ctypes: no Python's suffix in the name, no ``PyInit`` to export."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return ext.export_symbols


class AnyPython(bdist_wheel):
    """A wheel for any Python 3 on one architecture."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": PlainLibraries, "bdist_wheel": AnyPython},
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
    ],
)
