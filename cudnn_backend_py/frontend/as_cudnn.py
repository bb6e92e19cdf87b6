"""Make ``import cudnn`` return this package, in this process or in the processes it starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from ..system.after_import import call_after_import
from .errors import FrontendUsageError, _DetailedError
from .kernels import KERNELS

__all__ = [
    "SUBMODULES",
    "NotOfferedError",
    "install",
    "install_in_children",
    "make_not_offered_error",
    "patch_torch_with_described_gpu",
    "uninstall",
]

_CUDNN_MODULE = "cudnn"
_FRONTEND_PACKAGE = __name__.rpartition(".")[0]
#: The parts of cudnn-frontend that are here, and which module of ours each is.
SUBMODULES = {
    "_handle": f"{_FRONTEND_PACKAGE}.handles",
    "_pygraph": f"{_FRONTEND_PACKAGE}._pygraph",
    "collect_env": f"{_FRONTEND_PACKAGE}.collect_env",
    "datatypes": f"{_FRONTEND_PACKAGE}.datatypes",
    "engines": f"{_FRONTEND_PACKAGE}.engines",
    "engines.engine_ids": f"{_FRONTEND_PACKAGE}.engines.engine_ids",
    "engines.manifest": f"{_FRONTEND_PACKAGE}.engines.manifest",
    "experimental": f"{_FRONTEND_PACKAGE}.experimental",
    "experimental.ops": f"{_FRONTEND_PACKAGE}.experimental.ops",
    "graph_types": f"{_FRONTEND_PACKAGE}.graph_types",
    "nodes": f"{_FRONTEND_PACKAGE}.recorded",
    "wrapper": f"{_FRONTEND_PACKAGE}.wrapper",
    "yarn": f"{_FRONTEND_PACKAGE}.yarn",
}
_CHILD_STARTUP_CODE = """\
\"\"\"Stands where ``import cudnn`` looks first, and gives cudnn_backend_py.frontend.\"\"\"
{load}
sys.modules.pop("cudnn", None)
from cudnn_backend_py.frontend.as_cudnn import install

install({target!r})
"""


class NotOfferedError(_DetailedError, NotImplementedError, ModuleNotFoundError):
    """Raised on use of a part of cudnn-frontend that this package does not have, as cuDNN's backend lacks it."""


def make_not_offered_error(name: str) -> NotOfferedError:
    """Return the error for a part of cudnn-frontend, given by its name, that this package does not have."""
    return NotOfferedError(
        f"{name} is not part of cudnn_backend_py.frontend, which offers cuDNN's backend graphs only",
        code="frontend-not-offered",
        where=f"{_CUDNN_MODULE} is cudnn_backend_py.frontend in this process",
        fix="for kernels that are not cuDNN's backend (CuTe DSL and others) run the program with nvidia-cudnn-frontend",
    )


class _CudnnModule(ModuleType):
    """The module that ``import cudnn`` returns, with all names of :mod:`cudnn_backend_py.frontend`.

    It is no alias, because its submodules must not be looked for among the files of this package.
    """

    __path__: list[str]

    def __getattr__(self, name: str) -> Any:
        if name in SUBMODULES:
            return import_module(SUBMODULES[name])
        frontend = import_module(_FRONTEND_PACKAGE)
        if name in KERNELS:  # "ops" is a folder of ours, too
            return frontend.__getattr__(name)
        return getattr(frontend, name)

    def __dir__(self) -> list[str]:
        return dir(import_module(_FRONTEND_PACKAGE))


class _ModuleLoader(Loader):
    """Imports a module of this package for the name of a submodule of ``cudnn``."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(SUBMODULES[spec.name.removeprefix(f"{_CUDNN_MODULE}.")])
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # its own: importlib has put the other one there


class _SubmoduleFinder(MetaPathFinder):
    """Finds modules for ``import cudnn.x``."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname.startswith(f"{_CUDNN_MODULE}."):
            if fullname.removeprefix(f"{_CUDNN_MODULE}.") in SUBMODULES:
                return ModuleSpec(fullname, _ModuleLoader())
            raise make_not_offered_error(fullname)
        return None


_submodule_finder = _SubmoduleFinder()


def install(target: str | None = None) -> ModuleType:
    """Make ``import cudnn`` return :mod:`cudnn_backend_py.frontend` in this process.

    Parameters
    ----------
    target
        A described GPU (``"h100"``, ``"sm80"``, a JSON file) that programs are judged for where they name none
        themselves; they run up to the first ``execute``. None: the GPU of this process, if there is one.

    Returns
    -------
    ModuleType
        The module ``cudnn``.

    Raises
    ------
    UsageError
        ``frontend-real-cudnn`` if another ``cudnn`` was imported before; ``unknown-target``.
    """
    found = sys.modules.get(_CUDNN_MODULE)
    if found is not None and not isinstance(found, _CudnnModule):
        raise FrontendUsageError(
            f"another module called {_CUDNN_MODULE!r} is imported already: {getattr(found, '__file__', None)}",
            code="frontend-real-cudnn",
            fix="install() before anything imports cudnn, or: python -m cudnn_backend_py.frontend SCRIPT",
        )
    from .handles import set_default_target

    set_default_target(target)
    if found is None:
        found = sys.modules[_CUDNN_MODULE] = _make_module()
        sys.meta_path.insert(0, _submodule_finder)
    return found


def _make_module() -> _CudnnModule:
    frontend = import_module(_FRONTEND_PACKAGE)
    made = _CudnnModule(_CUDNN_MODULE, frontend.__doc__)
    made.__file__ = frontend.__file__
    made.__path__ = []
    made.__spec__ = ModuleSpec(_CUDNN_MODULE, None, origin=frontend.__file__, is_package=True)
    return made


def patch_torch_with_described_gpu(target: str) -> None:
    """Make torch report a described GPU for the rest of this process, from now on or from torch's import on.

    See :mod:`~cudnn_backend_py.frontend.described_torch` for what programs can do with it.

    Raises
    ------
    UsageError
        ``unknown-target``.
    """
    from ..target import find_profile

    properties = find_profile(target).properties
    call_after_import("torch", lambda: _patch_torch(properties))


def _patch_torch(properties: Mapping[str, Any]) -> None:
    from ..native import library
    from . import described_torch

    described_torch.install(properties, lambda: library().version.number)


def uninstall() -> None:
    """Undo :func:`install`; harmless if nothing is installed."""
    if not isinstance(sys.modules.get(_CUDNN_MODULE), _CudnnModule):
        return
    from .handles import set_default_target

    set_default_target(None)
    sys.meta_path.remove(_submodule_finder)
    for name in (_CUDNN_MODULE, *(f"{_CUDNN_MODULE}.{name}" for name in SUBMODULES)):
        sys.modules.pop(name, None)


def install_in_children(folder: Path, target: str | None = None) -> None:
    """Make ``import cudnn`` return this package in the Python processes that this one starts.

    A package ``cudnn`` that calls :func:`install` is written into `folder`, and `folder` put in front of
    ``PYTHONPATH``.

    Parameters
    ----------
    folder
        An empty folder that exists as long as the children do.
    target
        As :func:`install` takes it.
    """
    from ..system.child import make_package_import_source

    package = folder / _CUDNN_MODULE
    package.mkdir()
    (package / "__init__.py").write_text(_CHILD_STARTUP_CODE.format(target=target, load=make_package_import_source()))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.path.insert(1, str(folder))  # multiprocessing gives its children this list; the first is the program's folder
