"""Build the package with its optional C libraries; without a C compiler it is installed without them.

The C code includes no header of Python, so one wheel per machine architecture serves every Python 3.

The metadata and the links of the README use the web address of the repository. It is read from the GitHub workflow
that runs the build, or from the metadata of the sdist; otherwise both have no address.
"""

import os
import re
from email import message_from_string
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class CtypesLibraryBuilder(build_ext):
    """Build plain C libraries for ctypes: file names without Python's suffix, no exported ``PyInit`` function."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return ext.export_symbols


class Python3WheelBuilder(bdist_wheel):
    """Build a wheel for any Python 3 on one architecture."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


ROOT = Path(__file__).parent


def find_repository():
    """Return the web address of the repository, an empty text if it is not known."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    said = ROOT / "PKG-INFO"
    urls = message_from_string(said.read_text(encoding="utf-8")).get_all("Project-URL", []) if said.is_file() else []
    return next((url.partition(", ")[2] for url in urls if url.startswith("Source, ")), "")


def make_description(repository, ref):
    """Return the README with its relative links changed to web addresses of the repository at a tag or branch."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    if not repository:
        return page
    page = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\1{repository}/raw/{ref}/", page)
    return re.sub(r"(?<!!)(\[[^]]*\]\()(?!https?:|#)", rf"\1{repository}/blob/{ref}/", page)


repository = find_repository()

setup(
    author="The authors of cudnn_backend_py",
    author_email=f"{repository.split('/')[-2]}@users.noreply.github.com" if "//github.com/" in repository else None,
    long_description=make_description(repository, os.environ.get("GITHUB_REF_NAME", "main")),
    long_description_content_type="text/markdown",
    project_urls={
        "Source": repository,
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    if repository
    else {},
    cmdclass={"build_ext": CtypesLibraryBuilder, "bdist_wheel": Python3WheelBuilder},
    ext_modules=[
        Extension(
            "cudnn_backend_py.native._driver_stub",
            sources=["cudnn_backend_py/native/driver_stub.c"],
            extra_link_args=["-Wl,-soname,libcuda.so.1"],
            optional=True,
        ),
        Extension(
            "cudnn_backend_py.native._fast_call",
            sources=["cudnn_backend_py/native/fast_call.c", "cudnn_backend_py/native/callbacks.c"],
            depends=["cudnn_backend_py/native/fast_call.h"],
            optional=True,
        ),
    ],
)
