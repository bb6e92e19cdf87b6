"""Execution plans: build, measure, save, load."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CudnnStatusError, EnvironmentNotReady, UsageError
from ..generated.enums import AttributeName as Attr
from ..generated.enums import CudaGraphRetention, DescriptorType, Status
from ..graph import Graph
from ..native import Descriptor, library
from ..printable import format_in_angle_brackets
from ..system.notebook import HtmlDisplay
from ..target import Target, open_target
from .engine import EngineConfig

if TYPE_CHECKING:
    from .kernels import Kernel
    from .record import PlanRecord

__all__ = ["Plan", "build_plan", "load_plan"]


class Plan(HtmlDisplay):
    """A finalized execution plan: one engine config, compiled for one target.

    C: ``CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR``. Owns: its descriptor. Borrows: the target's handle.
    """

    def __init__(self, descriptor: Descriptor, graph: Graph, target: Target, tag: str) -> None:
        self.descriptor = descriptor
        self.graph = graph
        self.target = target
        self.tag = tag

    def __repr__(self) -> str:
        size = "closed" if self.descriptor.closed else f"{self.workspace_bytes} bytes"
        return format_in_angle_brackets(f"Plan {self.tag} of {self.graph.name!r} for {self.target.name}, {size}")

    @cached_property
    def workspace_bytes(self) -> int:
        """The bytes of device memory that the plan needs while it runs."""
        return int(self.descriptor.get(Attr.EXECUTION_PLAN_WORKSPACE_SIZE))

    def json(self) -> str:
        """Return cuDNN's serialization of the plan, including compiled kernels.

        C: ``CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION``.
        """
        return str(self.descriptor.get(Attr.EXECUTION_PLAN_JSON_REPRESENTATION))

    def kernels(self) -> tuple[Kernel, ...] | None:
        """The kernels that cuDNN compiled for the plan; None if they come from cuDNN's libraries or are unknown."""
        from .kernels import read_kernels

        try:
            return read_kernels(self.json())
        except CudnnStatusError:  # not every engine's plan can be written down
            return None

    def save_code(self, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write the machine code of each kernel to a file ``NAME.ARCHITECTURE.HASH.cubin`` in a folder.

        Returns
        -------
        tuple of Path
            The files, in cuDNN's order; none where some of the code is in cuDNN's libraries.

        Raises
        ------
        OSError
            If there is no such folder, or a file cannot be written.
        """
        from ..system.atomic_file import write_atomically
        from .kernels import read_cubins

        kernels = self.kernels() or ()
        paths = tuple(Path(folder, f"{kernel.file_name}.cubin") for kernel in kernels)
        for path, (_, cubin) in zip(paths, read_cubins(self.json()) if paths else (), strict=True):
            write_atomically(path, cubin)
        return paths

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan with its graph, cuDNN version and target, which are checked on loading."""
        from .record import save_record

        save_record(self.record(), path)

    def record(self) -> PlanRecord:
        """Return the plan as plain data: cuDNN's serialization, graph, target, engine config and cuDNN version."""
        from ..graph.serial import graph_to_json
        from .record import PlanRecord

        library = self.target.library
        return PlanRecord(
            library.build_text, self.target.name, self.target.sm, self.tag, graph_to_json(self.graph), self.json()
        )

    def close(self) -> None:
        """Release the plan; harmless when repeated. Work on the device must have finished."""
        self.descriptor.close()


def build_plan(
    config: EngineConfig, *, kernel_cache: Descriptor | None = None, retention: CudaGraphRetention | None = None
) -> Plan:
    """Finalize the execution plan of an engine config; this compiles its kernels.

    Parameters
    ----------
    kernel_cache
        A finalized ``CUDNN_BACKEND_KERNEL_CACHE_DESCRIPTOR`` to take compiled kernels from and to put them into.
    retention
        Whether CUDA graphs that are captured from the plan keep its kernels; cuDNN 9.28.

    Raises
    ------
    CudnnStatusError
        Also for configs that passed their support check: a failed compilation shows only here.
    """
    target = config.graph.target
    plan = Descriptor(DescriptorType.EXECUTION_PLAN, on=target.library)
    if target.handle is not None:
        plan.set(Attr.EXECUTION_PLAN_HANDLE, target.handle)
    plan.set(Attr.EXECUTION_PLAN_ENGINE_CONFIG, config.descriptor)
    if target.device is not None:
        plan.set(Attr.EXECUTION_PLAN_DEVICEPROP, target.device)
    if kernel_cache is not None:
        plan.set(Attr.EXECUTION_PLAN_KERNEL_CACHE, kernel_cache)
    if retention is not None:
        plan.set(Attr.EXECUTION_PLAN_CUDA_GRAPH_RETENTION, retention)
    return Plan(plan.finalize(), config.graph.graph, target, config.tag)


def load_plan(path: str | os.PathLike[str], target: Target | str | None = None) -> Plan:
    """Load a plan that :meth:`Plan.save` wrote, ready to run on `target`.

    Without a target it is the GPU of this process, or, where there is none, the described GPU of the plan's file. A
    plan holds code that runs on the GPU: load only files you trust.

    Raises
    ------
    EnvironmentNotReady
        ``plan-version-mismatch``, ``plan-architecture-mismatch``: cuDNN reads plans of its own version only, and the
        code inside is for GPUs of one architecture, number of multiprocessors and, from cuDNN 9.27 on, bus width.
    GraphError
        ``plan-file`` if the file cannot be read, is larger than ``MAX_BYTES``, is no plan, or was changed since; what
        :func:`graph_from_json` refuses.
    """
    from .record import load_record

    record = load_record(path)
    return restore_plan(record, record.read_graph(), _open_target_of_record(record, target), os.fspath(path))


def _open_target_of_record(record: PlanRecord, target: Target | str | None) -> Target:
    driver = library().driver
    if target is not None or (driver.kind == "real" and driver.devices > 0):
        return open_target(target)
    try:
        return open_target(record.target)
    except UsageError:  # of a GPU that is not described here: its architecture is
        return open_target(f"sm{record.sm}")


def restore_plan(record: PlanRecord, graph: Graph, target: Target, source: str) -> Plan:
    """Restore a plan from its record, ready to run on `target`; errors name `source`.

    Raises
    ------
    EnvironmentNotReady
        As :func:`load_plan`; `source` is named in the message.
    """
    record.check_target(target, source)
    plan = Descriptor(DescriptorType.EXECUTION_PLAN, on=target.library)
    if target.handle is not None:
        plan.set(Attr.EXECUTION_PLAN_HANDLE, target.handle)
    elif target.device is not None:
        plan.set(Attr.EXECUTION_PLAN_DEVICEPROP, target.device)
    plan.set(Attr.EXECUTION_PLAN_JSON_REPRESENTATION, record.plan)
    try:
        plan.finalize()
    except CudnnStatusError as error:
        plan.close()
        if error.status is not Status.NOT_SUPPORTED_ARCH_MISMATCH or not (
            why := record.describe_gpu_difference(target)
        ):
            raise
        raise EnvironmentNotReady(
            f"{source} was built for {record.target}, and cuDNN refuses it for {target.name}: {why}",
            code="plan-architecture-mismatch",
            cudnn=error.sections["cudnn"],
            fix=f"build the plan for {target.name}",
        ) from error
    return Plan(plan, graph, target, record.tag)
