"""The files of cudnn-frontend's ``test/python`` which are about backend graphs."""

from __future__ import annotations

__all__ = ["FILES", "LARGE", "ON_PURPOSE"]

# The quick ones first. Left out: test_apply_rope, test_cudnn_sdpa_op, test_moe_grouped_matmul_op, test_sm90_*,
# test_sm100_*, fe_api/ (Python kernels, not backend graphs) and test_utils (a helper).
#
# From 1.32 on they lie in folders. Left out there: cutedsl/, frost/, jax/ and torch/ (kernels that are not the
# backend's), core/test_dispatch, test_decline_types and test_knob_vocabulary (engines in Python),
# test_import_boundaries and test_package_data (files of a package), core/graph/test_ensure_current_context (contexts of
# a GPU), test_cuda_capture_lifetime (buffers of Python kernels), test_variant_pack_normalization (packs in C++).
FILES = (
    "core/test_enum_compatibility.py",
    "core/graph/test_api_signature_parity.py",
    "core/graph/test_execute_overload.py",
    "core/graph/test_execute_workspace.py",
    "core/graph/test_graph_native.py",
    "core/graph/test_kernel_cache.py",
    "core/graph/test_native_backend_lowering.py",
    "core/graph/test_set_stream_cache.py",
    "core/graph/test_wrapper_graph.py",
    "norm/graph/test_instancenorm.py",
    "norm/graph/test_layernorm.py",
    "norm/graph/test_rmsnorm.py",
    "sdpa/graph/test_flexible_sdpa.py",
    "sdpa/graph/test_flexible_sdpa_bprop.py",
    "sdpa/graph/test_sdpa_custom_features.py",
    "sdpa/graph/test_sdpa_edge_cases.py",
    "test_slice.py",
    "test_wgrads.py",
    "test_conv_fprop.py",
    "test_conv_genstats.py",
    "test_conv_reduction.py",
    "test_conv_bias.py",
    "test_instancenorm.py",
    "test_batchnorm.py",
    "test_layernorm.py",
    "test_rmsnorm.py",
    "test_matmul_bias_relu.py",
    "test_moe_grouped_matmul.py",
    "test_flexible_sdpa.py",
    "test_flexible_sdpa_bprop.py",
    "test_sdpa_thd.py",
    "test_sdpa_chunked_prefill.py",
    "test_sdpa_with_caching.py",
    "test_silu_and_mul.py",
    "test_kernel_cache.py",
    "test_deviceless_aot_compilation.py",
    "test_sdpa_fp8_serialization.py",
    "test_block_scale_quantize.py",
    "test_block_scale_quantize_dynamic_shape.py",
    "test_low_precision_matmul.py",
    "test_sdpa_mxfp8.py",
    "test_oss_rope.py",
    "test_yarn_rope.py",
    "test_norm_fuzzer.py",
    "test_conv_fuzzer.py",
    "test_matmul_fuzzer.py",
    "test_mhas_v2.py",
    "test_mhas.py",
    "sdpa/graph/suites/context/test_context_f16.py",
    "sdpa/graph/suites/context/test_context_fp8.py",
    "sdpa/graph/suites/context/test_context_mxfp8.py",
    "sdpa/graph/suites/generation/test_generation_f16.py",
    "sdpa/graph/suites/generation/test_generation_fp8.py",
    "sdpa/graph/suites/bprop/test_bprop_f16.py",
    "sdpa/graph/suites/bprop/test_bprop_fp8.py",
    "sdpa/graph/suites/bprop/test_bprop_mxfp8.py",
    "sdpa/graph/suites/models/test_models_context.py",
    "sdpa/graph/suites/models/test_models_generation.py",
    "sdpa/graph/suites/models/test_models_bprop.py",
)

# Each of these gets a pytest of its own; the others share one, since starting costs more than their tests.
LARGE = (
    "test_norm_fuzzer.py",
    "test_conv_fuzzer.py",
    "test_matmul_fuzzer.py",
    "test_mhas_v2.py",
    "test_mhas.py",
    *(name for name in FILES if name.startswith("sdpa/graph/suites/")),
)

_NATIVE, _LOWERING = "core/graph/test_graph_native.py", "core/graph/test_native_backend_lowering.py"
_OVERLOAD, _WORKSPACE = "core/graph/test_execute_overload.py", "core/graph/test_execute_workspace.py"
_WRAPPER, _PARITY = "core/graph/test_wrapper_graph.py", "core/graph/test_api_signature_parity.py"
_AT_ONCE = "an argument of a wrong kind is refused where it is given, not when the graph is built"
_COMPILED = "a class of cudnn-frontend's compiled part, which is not here"
_KERNEL = "a kernel of cudnn-frontend's own"
#: Tests by their file and a part of their name in which ours differs because it means to, and why; counted apart.
ON_PURPOSE = {
    (_NATIVE, "test_with_context"): f"{_AT_ONCE}: types as texts",
    (_NATIVE, "test_inspect"): f"{_AT_ONCE}: types as texts",
    (_NATIVE, "test_structured_out_dims"): f"{_AT_ONCE}: a mode as text",
    (_NATIVE, "test_all_structured_builders"): f"{_AT_ONCE}: texts for numbers; reads a private table",
    (_NATIVE, "test_mxfp8_dsink_is_output"): f"{_AT_ONCE}: no scales of an operation with scales",
    (_LOWERING, "test_planning_one_shot_backend_only"): "plans may be asked for again, and are appended",
    (_LOWERING, "test_a_replayed_plan_reports_its_own_notes"): "the graph cuDNN has is ours, whose calls are noted",
    (_WRAPPER, "test_workspace_alloc_default_allocates"): "allocated at the first call",
    (_WORKSPACE, "recovers[True-"): "other dims of dense attention than were built for were measured to be wrong",
    (_WORKSPACE, "recovers[False-"): "slopes of ALiBi are no part of the workspace, so a plan may need none",
    (_WORKSPACE, "-raw]"): _COMPILED,
    (_WORKSPACE, "cpp_candidate]"): _COMPILED,
    (_PARITY, "test_constructor_"): _COMPILED,
    (_PARITY, "test_tensor_positional_parity"): "skips where tensor() is not written in the class itself",
    (_PARITY, "test_tensor_accepts_classic_positional_call"): "a type that is not set is NOT_SET, not None",
    ("core/graph/test_set_stream_cache.py", "_backend_"): _COMPILED,
    (_OVERLOAD, "frost"): _KERNEL,
    (_OVERLOAD, "provider_selection_changes"): _KERNEL,
    (_OVERLOAD, "test_ordered_schema_"): _COMPILED,
    (_OVERLOAD, "test_ordered_override_uids_remain_strict"): _COMPILED,
}
