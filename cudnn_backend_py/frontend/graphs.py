"""``pygraph``: cudnn-frontend's graph object, translated into graph values of this package."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from ..errors import CudnnStatusError, EnvironmentNotReady, NotSupportedStatus
from ..generated.enums import DescriptorType
from ..graph.ir import Graph, Tensor
from ..known_issues import KnownIssue, Sharing, find_known_issues, warn_about_issues
from ..native.launch import Overrides
from ..plans.engine import OperationGraph
from ..plans.plan import Plan
from .arguments import check_instance, to_int, to_int_list, to_list
from .context import Context
from .enums import (
    build_plan_policy,
    cuda_graph_retention,
    data_type,
    heur_mode,
    knob_type,
    to_data_type,
)
from .errors import (
    EngineNotSupported,
    FrontendRuntimeError,
    GraphRefused,
    convert_error,
    convert_errors,
    cudnnGraphNotSupportedError,
    get_headline,
    make_attribute_not_set_error,
    make_error_for_tensor_of_other_graph,
    make_invalid_value_error,
    make_kernel_not_offered_error,
    make_missing_plan_error,
    make_not_supported_error,
)
from .handles import device_properties, find_target, kernel_cache
from .kernels import OPERATIONS as KERNEL_OPERATIONS
from .log import log_graph
from .ops.attention import AttentionOps
from .ops.linear import ConvOps, MatmulOps, MoeOps, ReductionOps
from .ops.node import (
    Emitter,
    FrontendKnownIssueWarning,
    Node,
    add_dims_to_errors,
    check_and_infer_properties,
    fill_data_type,
    warn_about_known_issues,
)
from .ops.norm import NormOps
from .ops.pointwise import PointwiseOps
from .ops.shape import BlockScaleOps, ShapeOps
from .overrides import read_shape_overrides
from .plan_choice import PlanChoice, make_engine_choice, to_cuda_graph_retention
from .plan_list import PlanList
from .private_names import FrontendPrivateAliases
from .recorded import GraphRecord, make_class_record_operations
from .runner import InternalTensorPlacement, Runner
from .tensors import tensor as UserTensor
from .written import GraphTensors

__all__ = ["make_launch_arguments", "pygraph"]

MIN_DYNAMIC_SHAPE_VERSION = (9, 4, 0)
MIN_OVERRIDE_SHAPE_VERSION = (9, 21, 0)
MIN_WORKSPACE_QUERY_VERSION = (9, 23, 0)
JSON_VERSION, FRONTEND_VERSION = "2.0", 13200  # of cudnn-frontend's text of a graph
_DEFAULT_HEURISTICS_MODES = (heur_mode.A, heur_mode.FALLBACK)
_KERNEL_CACHE_TYPE, _DEVICE_PROPERTIES_TYPE = kernel_cache, device_properties  # parameters have these names, too
_CACHE_REQUIREMENT = "what create_kernel_cache returned"


#: What our builder refuses of an operation, and cuDNN only where it is requested engines.
_CODES_RAISED_AS_GRAPH_REFUSED = ("dim-not-positive", "missing-producer", "pointwise-not-broadcastable", "uid-twice")


@contextmanager
def _convert_errors_to_graph_refused(codes: Sequence[str] | None = None) -> Iterator[None]:
    """Convert runtime errors with these codes (default: all) to GraphRefused, a ``cudnnGraphNotSupportedError``."""
    try:
        yield
    except cudnnGraphNotSupportedError:
        raise
    except FrontendRuntimeError as error:
        if codes is not None and error.code not in codes:
            raise
        raise GraphRefused(get_headline(error), code=error.code, **error.sections) from error


@make_class_record_operations
class pygraph(
    GraphTensors,
    PlanChoice,
    FrontendPrivateAliases,
    PointwiseOps,
    MatmulOps,
    ReductionOps,
    ConvOps,
    MoeOps,
    NormOps,
    ShapeOps,
    BlockScaleOps,
    AttentionOps,
):
    """A graph under construction, its plans, and their execution, under cudnn-frontend's names.

    Parameters
    ----------
    io_data_type, intermediate_data_type, compute_data_type
        Types of tensors in memory, of virtual tensors, and of arithmetic, where nothing else is set: a
        ``cudnn.data_type`` or a torch dtype. The other two are `io_data_type` where they are None, and
        FLOAT where that is None, too.
    handle
        Of :func:`~cudnn_backend_py.frontend.create_handle`; None for one that all such graphs share.
    sm_count
        Multiprocessors the plan may use.
    sm_version
        Architecture rules are checked for, if it is not the device's.
    kernel_cache
        Kernels shared over shapes.
    device_property
        Build for a described GPU, with no GPU in this process.
    is_dynamic_shape_enabled, is_override_shape_enabled
        Share kernels over shapes; let an execution give other dims and strides (cuDNN 9.21).
    cuda_graph_retention
        Whether CUDA graphs that are captured from :meth:`execute` keep the plan's kernels: cuDNN is reported since
        9.28; with an older one keep the graph as long as they are launched, whatever is requested.
    is_cuda_graph_replay_expected
        Taken and kept; launches of this module need no CUDA graph of their own.

    Raises
    ------
    RuntimeError
        Where no GPU is described and none is there.
    """

    context: Context

    def __init__(
        self,
        name: str = "test_graph",
        io_data_type: Any = None,
        intermediate_data_type: Any = None,
        compute_data_type: Any = None,
        handle: Any = None,
        sm_count: int | None = None,
        sm_version: int | None = None,
        kernel_cache: kernel_cache | None = None,
        device_property: device_properties | None = None,
        is_dynamic_shape_enabled: bool = False,
        is_override_shape_enabled: bool = False,
        cuda_graph_retention: cuda_graph_retention | None = None,
        *,
        is_cuda_graph_replay_expected: bool = False,
    ) -> None:
        io = to_data_type(io_data_type)
        intermediate, compute = (
            io if kind is None else to_data_type(kind) for kind in (intermediate_data_type, compute_data_type)
        )
        self.name = check_instance("name", name, str, "a text")
        self._nodes: list[Node] = []
        self.record = GraphRecord(weakref.ref(self))
        self._bound = self.record.bound_buffers
        self.is_cuda_graph_replay_expected = bool(is_cuda_graph_replay_expected)
        self._retention = to_cuda_graph_retention(cuda_graph_retention)
        self._created: list[UserTensor] = []
        self._cache = (
            None
            if kernel_cache is None
            else check_instance("kernel_cache", kernel_cache, _KERNEL_CACHE_TYPE, _CACHE_REQUIREMENT)
        )
        self._override_shapes = is_override_shape_enabled
        if device_property is not None:
            check_instance(
                "device_property", device_property, _DEVICE_PROPERTIES_TYPE, "what create_device_properties returned"
            )
        self.target = find_target(handle, device_property)
        self._handle = handle if handle is not None else self.target.handle
        self.sm_count = None if sm_count is None else to_int("sm_count", sm_count)
        self.context = Context(
            io_data_type=io,
            intermediate_data_type=intermediate,
            compute_data_type=compute,
            target=self.target,
            sm_version=None if sm_version is None else to_int("sm_version", sm_version),
            is_dynamic_shape_enabled=is_dynamic_shape_enabled or kernel_cache is not None,
        )
        self._validated = False
        self._emitter: Emitter | None = None
        self._operation_graph: OperationGraph | None = None
        self._plans = PlanList(self)
        self._memory: InternalTensorPlacement | None = None
        self._runners: dict[int, Runner] = {}
        self._current: Runner | None = None
        self._wrong_ways: dict[Sharing, KnownIssue] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in KERNEL_OPERATIONS:
            raise AttributeError(f"a pygraph has no attribute {name!r}")

        def raise_not_offered(*_args: Any, **_options: Any) -> Any:
            raise make_kernel_not_offered_error(f"pygraph.{name} needs a kernel of cudnn-frontend's own")

        return raise_not_offered

    # building

    def validate(self) -> None:
        """Check the nodes, and infer missing properties.

        Raises
        ------
        ValueError
            Something is missing.
        cudnnGraphNotSupportedError
            A combination that is refused before cuDNN is queried.
        RuntimeError
            A value out of range.
        """
        self.record.remove_inferred_shapes()
        self.record.shown_results.clear()
        context = self.context
        if context.is_dynamic_shape_enabled and context.version < MIN_DYNAMIC_SHAPE_VERSION:
            raise make_not_supported_error(f"dynamic shapes need cuDNN 9.4, the loaded library is {context.version}")
        for node in self._nodes:
            check_and_infer_properties(node, context)
        for item in self._created:
            fill_data_type(item, context)
            if item.dim and len(item.dim) != len(item.stride):
                item.validate()
        for item in self._list_used_tensors():
            item.validate()
        self._check_uids()
        self._validated = True

    def _invalidate(self, what: str, item: UserTensor | None = None) -> None:
        """Discard checks and inferred values before a change, which `what` names; raise if the graph is finalized.

        Raises
        ------
        RuntimeError
            If cuDNN has its operations already, unless only an `item` changes that is in none of them.
        """
        read = self._memory is not None and not self._nodes
        if self._operation_graph is not None or self._plans.has_built_plan or read:
            if item is not None and item not in self._list_used_tensors():
                return
            raise make_invalid_value_error(
                f"{what} a graph that is already finalized", fix="change it earlier, or make a new graph"
            )
        self._validated, self._emitter, self._memory = False, None, None

    def _check_uids(self) -> None:
        owners: dict[int, UserTensor] = {}
        for item in self._list_used_tensors():
            if not item.uid or (other := owners.setdefault(item.uid, item)) is item:
                continue
            if item.owner is not self.record.owner and item.owner is not None:  # an offset, which no operation names
                raise make_error_for_tensor_of_other_graph(item.name, item.uid, other.name)
            raise make_invalid_value_error(
                f"uid {item.uid} belongs to two tensors, {other.name!r} and {item.name!r}",
                fix="give each a unique number with set_uid()",
            )

    def _list_used_tensors(self) -> list[UserTensor]:
        """Return every tensor used by nodes, including ragged offsets, each once."""
        seen: dict[UserTensor, None] = {}
        for node in self._nodes:
            for item in node.iterate_tensors():
                seen.setdefault(item)
                if item.ragged_offset is not None:
                    seen.setdefault(item.ragged_offset)
        return list(seen)

    def graph(self) -> Graph:
        """Return the graph as an immutable graph value of this package, to lower, explain or save."""
        if self._emitter is None:
            self._emit_graph()
        return self._graph

    def _emit_graph(self) -> None:
        if not self._validated:
            self.validate()
        if not self._nodes:
            raise FrontendRuntimeError(
                "the graph has no operations", code="empty-graph", fix="add one, such as graph.matmul(A=a, B=b)"
            )
        with (
            _convert_errors_to_graph_refused(_CODES_RAISED_AS_GRAPH_REFUSED),
            convert_errors(FrontendRuntimeError, "the graph cannot be built"),
        ):
            emitter = Emitter(self.context, self.name, (*self._created, *self._list_used_tensors()), self._nodes)
            for item in self._list_used_tensors():
                if item.uid_given:
                    emitter.emit_tensor(item)
            for item in self._created:  # those only a score modifier uses
                if item.uid_given and item.dim and item.stride and item.data_type.backend is not None:
                    emitter.emit_tensor(item)
            for node in self._nodes:
                with add_dims_to_errors(node):
                    node.emit(emitter)
            self._graph = emitter.make_graph()
        self._emitter = emitter
        self._memory = InternalTensorPlacement(self._graph, emitter.constants, emitter.slices)

    def build_operation_graph(self) -> None:
        """Build and finalize cuDNN's operation graph.

        Raises
        ------
        RuntimeError
            What cuDNN refuses about an operation, with its text.
        """
        graph, version = self.graph(), self.target.library.version
        dynamic = self.context.is_dynamic_shape_enabled
        overridden = self._override_shapes and version >= MIN_OVERRIDE_SHAPE_VERSION
        ways: dict[Sharing, bool] = {"kernel cache": dynamic, "override shapes": overridden}
        for way in (way for way, wanted in ways.items() if wanted):
            warn_about_issues(self._find_plan_sharing_issues(graph, way), FrontendKnownIssueWarning)
        fault = self._wrong_ways.get("kernel cache")
        if fault is not None and self._cache is not None:
            self._cache.check_dims([item.dims for item in graph.variant_pack_tensors], fault)
        log_graph(self.to_json)
        with convert_errors(FrontendRuntimeError, "cuDNN refuses the operation graph"):
            self._operation_graph = OperationGraph(
                graph,
                self.target,
                dynamic_shapes=dynamic,
                override_shapes=overridden,
                must_write=False,  # as with cudnn-frontend
            )
            if self._cache is not None:
                self._cache.get_or_make_descriptor(self._operation_graph.descriptor)

    def _find_plan_sharing_issues(self, graph: Graph, way: Sharing) -> list[KnownIssue]:
        """Return the known issues of sharing a plan between shapes; if any exist, calls with new dims are refused."""
        faults = find_known_issues(graph, self.target.sm, self.target.library.version, way)
        if faults:
            self._wrong_ways[way] = faults[0]
        return faults

    @property
    def operation_graph(self) -> OperationGraph:
        """The finalized operation graph.

        Raises
        ------
        RuntimeError
            Before :meth:`build_operation_graph`.
        """
        if self._operation_graph is None:
            raise make_invalid_value_error("the operation graph is not built", fix="call build_operation_graph() first")
        return self._operation_graph

    @property
    def cache(self) -> kernel_cache | None:
        """The kernel cache that plans are built with, None if there is none."""
        return self._cache

    def create_execution_plans(self, heuristics: Sequence[heur_mode] | None = None) -> None:
        """Query cuDNN's heuristics for engine configs, in modes A and FALLBACK by default.

        The operation graph is built first if it is not yet.

        Raises
        ------
        cudnnGraphNotSupportedError
            If there are none; its ``verdict`` says why.
        """
        if self._override_shapes and self.context.version < MIN_OVERRIDE_SHAPE_VERSION:
            raise make_not_supported_error(
                f"override shapes need cuDNN 9.21.0, the loaded library is {self.target.library.build_text}",
                fix="load a newer cuDNN (cudnn-backend cudnn install 9.21.0), or build a graph for each shape",
            )
        self._require_operation_graph()
        choices = [choice for node in self._nodes if (choice := node.choose_engine(self.context)) is not None]
        if choices:
            self._plans.add_sole_usable_engine(choices[0])
        else:
            self._plans.query_heuristics(heuristics or _DEFAULT_HEURISTICS_MODES)

    def _require_operation_graph(self) -> None:
        if self._operation_graph is None:
            with _convert_errors_to_graph_refused():
                if not self._validated:
                    self.validate()
                self.build_operation_graph()

    def _require_plans(self) -> None:
        """Query the heuristics for engine configs, unless already done."""
        if self._memory is None or not len(self._plans):
            self.create_execution_plans()

    def create_execution_plan(self, engine_id: int, knobs: Mapping[knob_type, int] | None = None) -> Self:
        """Append an engine with these knob values to :attr:`plans`.

        Raises
        ------
        RuntimeError
            If the engine does not support the graph or a value, or cuDNN has no such knob.
        ValueError
            For an engine of cudnn-frontend's own.
        TypeError
            For knobs that are no mapping of ``cudnn.knob_type`` to int.
        """
        self._require_operation_graph()
        choice = make_engine_choice(engine_id, knobs)
        with convert_errors(
            FrontendRuntimeError, f"engine {engine_id}", fix="get_engine_count() says how many there are"
        ):
            try:
                self._plans.add_engine(choice)
            except NotSupportedStatus as error:
                if error.descriptor is not DescriptorType.ENGINECFG:
                    raise
                fix = f"get_knobs_for_engine({engine_id}) says the ranges"
                raise convert_error(EngineNotSupported, f"engine {engine_id}", error, fix) from error
        return self

    def check_support(self) -> None:
        """Check that an engine config remains after the filters; queries the heuristics first if necessary.

        Raises
        ------
        cudnnGraphNotSupportedError
            If none is.
        """
        self._require_plans()
        self._plans.check_support()

    def build_plans(self, policy: build_plan_policy = build_plan_policy.HEURISTICS_CHOICE) -> None:
        """Build the first plan that can be built, or all; queries the heuristics first if necessary.

        Raises
        ------
        cudnnGraphNotSupportedError
            If none can.
        """
        self._require_plans()
        self._plans.build(policy)
        self._select_candidate_plan()

    def build_plan_at_index(self, index: int) -> Self:
        """Build one plan and make :meth:`execute` run it."""
        self._plans.build_plan_at(index)
        self._select_candidate_plan()
        return self

    def select_plan(self, index: int) -> Self:
        """Make :meth:`execute` run this plan; :meth:`build_plans` builds it if necessary.

        Raises
        ------
        IndexError
            If there is no such plan.
        RuntimeError
            Before :meth:`create_execution_plans`.
        """
        count = len(self._plans)
        if not count:
            raise make_invalid_value_error(
                "there are no plans to select from", fix="call create_execution_plans() first"
            )
        if not 0 <= index < count:
            raise make_missing_plan_error(index, count)
        self._plans.select_candidate(index)
        self._current = self._get_runner(index) if self._plans.is_built(index) else None
        return self

    def build(self, heuristics: Sequence[heur_mode] | None = None, ctx: Any = None) -> None:
        """Validate, build the operation graph, query the heuristics if needed, check and build a plan.

        `ctx` is for the kernels of cudnn-frontend's own; plans of cuDNN make no use of it, there as here.
        """
        if not len(self._plans):
            self._require_operation_graph()
            self.create_execution_plans(heuristics)
        self.check_support()
        self.build_plans()

    def _select_candidate_plan(self) -> None:
        self._current = self._get_runner(self._plans.candidate)

    def _get_runner(self, index: int) -> Runner:
        runner = self._runners.get(index)
        if runner is None:
            plan = self._plans.get_built_plan(index)
            assert self._memory is not None
            assert self._emitter is not None
            with convert_errors(FrontendRuntimeError, "the plan cannot be run"):
                runner = self._runners[index] = self._create_runner(plan, self._memory, self._emitter.tensors)
        return runner

    def _create_runner(
        self, plan: Plan, memory: InternalTensorPlacement, tensors: Mapping[UserTensor, Tensor]
    ) -> Runner:
        retains = self.get_cuda_graph_retention() is cuda_graph_retention.PER_GRAPH
        return Runner(plan, memory, tensors, retains=retains)

    # workspace

    def get_workspace_size(
        self, handle: Any = None, override_uids: Any = None, override_shapes: Any = None, override_strides: Any = None
    ) -> int:
        """Return the workspace bytes that :meth:`execute` needs, with other dims and strides if given.

        Raises
        ------
        RuntimeError
            Before a plan is built.
        cudnnGraphNotSupportedError
            For other dims than the plan was built with, before cuDNN 9.23 or where it gets them wrong.
        """
        if self._current is not None and override_uids is None:
            return self._current.workspace_bytes
        index = self._plans.get_chosen_index()
        return self.get_workspace_size_plan_at_index(index, handle, override_uids, override_shapes, override_strides)

    def get_workspace_size_plan_at_index(
        self,
        index: int,
        handle: Any = None,
        override_uids: Any = None,
        override_shapes: Any = None,
        override_strides: Any = None,
    ) -> int:
        """Return the workspace bytes that a plan needs; known before it is built since cuDNN 9.2.

        With other dims cuDNN wants a device's handle; for a described target it is what the plan as built needs.
        """
        self._plans.check_not_excluded(index)
        config = self._plans.get_config(index)
        assert self._memory is not None
        overrides = self._read_overrides(override_uids, override_shapes, override_strides)
        if overrides is not None:
            if self.target.library.version < MIN_WORKSPACE_QUERY_VERSION:
                raise make_not_supported_error(
                    "the workspace size for other dims than the plan's needs cuDNN 9.23.0, "
                    f"the loaded library is {self.target.library.build_text}",
                    fix="build the plan with the largest dims, and give get_workspace_size() bytes of it",
                )
            if self.target.device is None:
                return self._get_runner(index).query_workspace_with_overrides(handle or self._handle, overrides)
        if self._plans.is_built(index):
            return self._get_runner(index).workspace_bytes
        return self._memory.scratch_bytes + config.workspace_bytes

    def _read_overrides(self, uids: Any, shapes: Any, strides: Any) -> Overrides | None:
        """Return override dims and strides, checked by :func:`read_shape_overrides`; None if there are no uids."""
        if uids is None:
            return None
        assert self._memory is not None
        return read_shape_overrides(self._memory, self._wrong_ways.get("override shapes"), uids, shapes, strides)

    def query_tensor_attributes_of_uid(self, uid: int) -> UserTensor:
        """Return the tensor that has this uid.

        Raises
        ------
        RuntimeError
            If there is none.
        """
        for item in self._list_used_tensors():
            if item.uid == uid:
                return item
        if self._memory is not None and not self._nodes:  # a graph that was built elsewhere
            for made in self._memory.graph.tensors:
                if made.uid == uid:
                    return UserTensor(
                        made.dims,
                        made.strides,
                        data_type[made.data_type.name],
                        made.virtual,
                        made.by_value,
                        name=made.name,
                        uid=uid,
                    )
        raise make_invalid_value_error(
            f"no tensor of the graph has uid {uid}", fix="see graph.tensors and tensor.get_uid()"
        )

    # execution

    def execute(
        self,
        tensor_dict: Mapping[Any, Any] | Sequence[Any],
        workspace: Any = None,
        handle: Any = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
        tensor_uids: Sequence[int] | None = None,
    ) -> None:
        """Build the chosen plan if necessary, and run it on the handle's stream; return before the device has finished.

        Parameters
        ----------
        tensor_dict
            Tensor, uid or name to an address, a torch tensor or any DLPack object; None keys and what the graph does
            not have are ignored. With `tensor_uids` a list of the buffers alone. Tensors the graph was written with
            need not be given again.
        workspace
            At least :meth:`get_workspace_size` bytes of device memory.
        override_uids, override_shapes, override_strides
            Other dims and strides for some tensors, where the graph allows it.

        Raises
        ------
        ValueError
            A tensor is missing.
        RuntimeError
            cuDNN refuses the launch.
        cudnnGraphNotSupportedError
            No plan is built, and none can be.
        """
        runner = self._current
        if runner is None:
            self.build()
            runner = self._get_chosen_runner()
        if self._bound or type(tensor_dict) is not dict or tensor_uids is not None:
            tensor_dict = self._make_variant_pack(tensor_dict, tensor_uids)
        if override_uids is not None:
            overrides = self._read_overrides(override_uids, override_shapes, override_strides)
            if overrides is not None:
                runner.execute_with_overrides(tensor_dict, workspace, handle or self._handle, overrides)
                return
        runner.execute(tensor_dict, workspace, handle or self._handle)

    def _make_variant_pack(
        self, given: Mapping[Any, Any] | Sequence[Any], uids: Sequence[int] | None
    ) -> dict[Any, Any]:
        """Return the buffers by tensor or uid: those given, and the framework tensors with which the graph was written.

        Raises
        ------
        ValueError
            If buffers and uids are not as many, or a uid comes twice.
        """
        if isinstance(given, Mapping):
            if uids is not None:
                raise make_attribute_not_set_error(
                    "tensor_uids applies to a list of buffers, but a dict was given", fix="give a list"
                )
            return {**self.record.bound_buffers, **given}
        given = to_list("the variant pack", given, "a dict of buffers by tensor, name or uid, or a list of them")
        names = self._get_variant_pack_uids_sorted() if uids is None else to_int_list("tensor_uids", uids)
        if len(names) != len(given) or len(set(names)) != len(names):
            raise make_attribute_not_set_error(
                f"{len(given)} buffers were given for the uids {names}, one is needed for each, "
                "and no uid may be repeated",
                fix="call execute([buffers ...], workspace, tensor_uids=[...])",
            )
        bound = {item.uid: value for item, value in self.record.bound_buffers.items()}
        return {**bound, **dict(zip(names, given, strict=True))}

    def execute_plan_at_index(
        self,
        tensor_dict: Mapping[Any, Any] | Sequence[Any],
        workspace: Any = None,
        index: int = 0,
        handle: Any = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
        tensor_uids: Sequence[int] | None = None,
    ) -> None:
        """Run one of the built plans, otherwise as :meth:`execute`."""
        self._plans.check_not_excluded(index)
        runner = self._get_runner(index)
        pack = self._make_variant_pack(tensor_dict, tensor_uids)
        overrides = self._read_overrides(override_uids, override_shapes, override_strides)
        if overrides is None:
            runner.execute(pack, workspace, handle or self._handle)
        else:
            runner.execute_with_overrides(pack, workspace, handle or self._handle, overrides)

    def _execute(self, var_pack: Mapping[int, int], workspace: int, handle: Any = None, *overrides: Any) -> None:
        self.execute(var_pack, workspace, handle, *overrides)

    def _execute_plan_at_index(
        self, var_pack: Mapping[int, int], workspace: int, index: int, handle: Any = None, *overrides: Any
    ) -> None:
        self.execute_plan_at_index(var_pack, workspace, index, handle, *overrides)

    def _get_variant_pack_uids_sorted(self) -> list[int]:
        if self._memory is None:
            self._emit_graph()
        assert self._memory is not None
        return sorted(self._memory.list_user_uids())

    _variant_pack_uids = _get_variant_pack_uids_sorted

    def _prepare_variant_pack_template(self) -> None:
        """Do nothing: buffers and addresses are prepared when a plan is built."""

    def _execute_with_ptrs(self, user_ptrs: Sequence[int], workspace: int, handle: Any = None) -> None:
        self.execute(dict(zip(self._get_variant_pack_uids_sorted(), user_ptrs, strict=True)), workspace, handle)

    def populate_cuda_graph(
        self, handle: Any, variant_pack: Mapping[Any, Any], workspace: Any, cuda_graph: int
    ) -> None:
        """Add the plan's nodes to an empty ``cudaGraph_t``, given by its address."""
        pack = self._make_variant_pack(variant_pack, None)
        self._get_chosen_runner().populate_cuda_graph(pack, workspace, handle or self._handle, cuda_graph)

    def update_cuda_graph(self, handle: Any, variant_pack: Mapping[Any, Any], workspace: Any, cuda_graph: int) -> None:
        """Replace the addresses in a populated ``cudaGraph_t`` by those of another variant pack."""
        pack = self._make_variant_pack(variant_pack, None)
        self._get_chosen_runner().update_cuda_graph(pack, workspace, handle or self._handle, cuda_graph)

    def _get_chosen_runner(self) -> Runner:
        return self._current if self._current is not None else self._get_runner(self._plans.get_chosen_index())

    # text and files

    def to_json(self) -> dict[str, Any]:
        """Return the graph as plain data, in cudnn-frontend's terms."""
        context = self.context
        kinds = {"io": context.io_type, "intermediate": context.intermediate_type, "compute": context.compute_type}
        return {
            "context": {
                "name": self.name,
                **{f"{key}_data_type": None if kind.backend is None else kind.name for key, kind in kinds.items()},
                "is_dynamic_shape_enabled": context.is_dynamic_shape_enabled,
                "is_override_shape_enabled": self._override_shapes,
                "sm_count": -1 if self.sm_count is None else self.sm_count,
            },
            "json_version": JSON_VERSION,
            "cudnn_frontend_version": FRONTEND_VERSION,
            "gid": 0,
            "cudnn_backend_version": self.target.library.version_text,
            "nodes": [self._node_to_json(node) for node in self._nodes],
            "tensors": [item.to_json() for item in self._list_used_tensors()],
        }

    def _node_to_json(self, node: Node) -> dict[str, Any]:
        """Return a node as plain data; a node without a compute type gets the graph's."""
        kind = self.context.compute_data_type
        compute = None if kind.backend is None else kind.name
        shown = node.to_json()
        return {**shown, "compute_data_type": shown["compute_data_type"] or compute}

    def __repr__(self) -> str:
        return json.dumps(self.to_json(), indent=4)

    def key(self) -> int:
        """Return a hash of the graph that is equal in all processes and independent of the graph's name."""
        content = self.to_json()
        del content["context"]["name"]
        if any("score_mod" in node for node in content["nodes"]):  # a function, known by what it writes
            from ..graph.serial import graph_to_json

            content["graph"] = graph_to_json(self.graph()) | {"name": ""}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
        return int.from_bytes(digest[:8], "little", signed=True)

    def serialize(self, *, as_bytes: bool = False, include_kernels: bool = True) -> list[int] | bytes:
        """Return the built plan with everything needed to run it, as a list of byte values or as bytes.

        They are in cudnn-frontend's format, whose Python and C++ read them, too, unless the graph has a scalar of
        another type than FLOAT, INT32 and INT64, or several slices of one tensor, which that format cannot hold.

        `include_kernels` is for cudnn-frontend's own kernels; cuDNN's plans always have theirs.

        Raises
        ------
        cudnnGraphNotSupportedError
            Before a plan is built.
        """
        if self._current is None or self._memory is None:
            raise make_not_supported_error(
                "no plan is built, so there is nothing to serialize", fix="call build() first"
            )
        from . import serialize as saved

        notes = [note.name for note in self.get_behavior_notes()]
        data = saved.serialize_plan(self._current.plan, self._memory, notes)
        return data if as_bytes else list(data)

    def deserialize(
        self, *source: Any, handle_: Any = None, pyobj: Any = None, enforce_precompiled: bool = False
    ) -> None:
        """Load the result of :meth:`serialize`, cudnn-frontend's or ours, or the JSON of a graph.

        The arguments are ``(data)`` or ``(handle, data)``.

        A serialized plan is ready to run, and never compiled again. It holds code that runs on the GPU: take it from
        sources you trust. JSON, a str, is cudnn-frontend's text of a graph; its graph is then built as any other,
        which `enforce_precompiled` refuses. That may also be the last of the arguments.

        Raises
        ------
        RuntimeError
            If it is no such data.
        cudnnGraphNotSupportedError
            If it is of another cuDNN version or architecture (a ``RuntimeError``, too), or a plan is wanted of JSON.
        TypeError
            If it is neither bytes, nor a list of their numbers, nor text.
        """
        if len(source) == 3 or (len(source) == 2 and isinstance(source[1], bool)):
            *source, enforce_precompiled = source  # type: ignore[assignment]
        if pyobj is not None:
            source = (*source, pyobj)
        if handle_ is not None:
            source = (handle_, *source)
        if not 1 <= len(source) <= 2:
            raise TypeError(f"deserialize takes (data) or (handle, data), got {len(source)} arguments")
        handle = source[0] if len(source) == 2 else None
        if handle is not None:
            self.target = self.context.target = find_target(handle, None)
            self._handle = handle
        if isinstance(source[-1], str):
            if enforce_precompiled:
                raise make_not_supported_error(
                    "enforce_precompiled needs a serialized plan, but the JSON of a graph was given",
                    fix="give what serialize() returned, or leave enforce_precompiled out",
                )
            self._load_json(source[-1])
            return
        from . import serialize as saved

        data = source[-1]
        if not isinstance(data, (bytes, bytearray, memoryview)):
            data = to_list("the serialized graph", data, "bytes, a list of their numbers, or the JSON of a graph")
        with convert_errors(
            FrontendRuntimeError, "the serialized graph", fix="build the graph and serialize() it again"
        ):
            try:
                plan, memory = saved.deserialize_plan(data, self.target)
            except (EnvironmentNotReady, CudnnStatusError) as error:  # a program builds the graph then
                raise convert_error(GraphRefused, "the serialized graph", error) from error
            runner = self._create_runner(plan, memory, {})
        self._load_serialized_plan(memory)
        self._current, self._runners = runner, {0: runner}
        self._plans.use_loaded_plan(plan)
        self._wrong_ways.clear()
        self._find_plan_sharing_issues(memory.graph, "override shapes")
        warn_about_known_issues(memory.graph, self.target.sm, self.target.library.version)

    def _load_json(self, text: str) -> None:
        """Load a graph from JSON text, without plans."""
        from .from_json import add_nodes_from_json, check_nodes
        from .serialize import read_graph_json

        with convert_errors(GraphRefused, "the JSON of the graph"):
            data = read_graph_json(text)
            check_nodes(data)
            self._apply_graph_settings_from_json(data.get("context"))
            add_nodes_from_json(self, data)

    def _load_serialized_plan(self, memory: InternalTensorPlacement) -> None:
        """Use the graph of a serialized plan, and the placement of its internal tensors in the workspace."""
        self._graph, self._memory = memory.graph, memory
        self._emitter = Emitter(self.context, self.name)

    def _apply_graph_settings_from_json(self, said: Any) -> None:
        """Apply the graph-wide settings in a graph's JSON, except those that the program requested."""
        if not isinstance(said, Mapping):
            return
        self.context.read_json(said)
        self._override_shapes |= said.get("is_override_shape_enabled") is True
        name, count = said.get("name"), said.get("sm_count")
        if isinstance(name, str):
            self.name = name
        if type(count) is int and count >= 0:
            self.sm_count = count

    # timing

    def _list_runnable_plans(self) -> list[int]:
        """Return the indices of the built plans, without those deselected by name."""
        built = self._plans.list_runnable_indices()
        if not built:
            raise make_invalid_value_error(
                "no plan is built", fix="call build_plans(cudnn.build_plan_policy.ALL) first"
            )
        return built

    def get_autotune_workspace_size(self) -> int:
        """Return the workspace bytes of the built plan that needs the most."""
        return max(self._get_runner(index).workspace_bytes for index in self._list_runnable_plans())

    def autotune(self, variant_pack: Mapping[Any, Any], workspace: Any, handle: Any = None) -> None:
        """Run every built plan, and make :meth:`execute` run the fastest.

        GPU times are medians of CUDA events. Build the plans to compare first (``build_plan_policy.ALL``).

        Raises
        ------
        RuntimeError
            No plan is built, the target is described, or cuDNN refuses a launch.
        """
        from ..execution.timing import measure_gpu_time

        chosen: Any = handle or self._handle
        pack = self._make_variant_pack(variant_pack, None)
        times = {}
        for index in self._list_runnable_plans():
            runner = self._get_runner(index)
            runner.check_handle(chosen)
            with convert_errors(FrontendRuntimeError, f"plan {index} could not be timed"):
                times[index] = measure_gpu_time(
                    partial(runner.execute, pack, workspace, chosen), chosen.stream, device=chosen.device or 0
                )
        self._plans.candidate = min(times, key=times.__getitem__)
        self._select_candidate_plan()


def make_launch_arguments(
    graph: pygraph, given: Any, workspace: Any, handle: Any = None, uids: Any = None, index: int | None = None
) -> tuple[Plan, dict[int, int], int]:
    """Return the arguments of a launch: plan, addresses by uid (0 for a missing tensor), and stream.

    Parameters
    ----------
    given, workspace, handle, uids, index
        What :meth:`pygraph.execute` is given, or :meth:`pygraph.execute_plan_at_index`.
    """
    runner = graph._get_chosen_runner() if index is None else graph._get_runner(index)
    places = runner.resolve_addresses(graph._make_variant_pack(given, uids), workspace)[1:]
    where = dict(zip(runner.launcher.uids, places, strict=True))
    found: Any = handle or graph._handle
    return runner.plan, where, 0 if found is None else int(found.stream)
