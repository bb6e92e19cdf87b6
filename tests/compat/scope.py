"""The files of cudnn-frontend's ``test/python`` with tests of backend graphs."""

from __future__ import annotations

__all__ = ["INTENDED_DIFFERENCES", "LARGE_TEST_FILES", "TEST_FILES"]

# The quick files are first. Not included: test_apply_rope, test_cudnn_sdpa_op, test_moe_grouped_matmul_op, test_sm90_*,
# test_sm100_*, fe_api/ (Python kernels, not backend graphs) and test_utils (a helper).
#
# From 1.32 on, tests are in folders. Not included: cutedsl/, frost/, jax/ and torch/ (kernels outside the backend),
# core/test_dispatch (engines in Python, their table or ranking, or an object in place of the compiled graph),
# core/test_decline_types (exceptions of such engines that count as a refusal), core/test_import_boundaries and
# test_package_data (files of cudnn-frontend's package), norm/graph/test_frost_* and
# test_sm100_rms_norm_silu_graph_api (kernels outside the backend: the latter requests only heur_mode.OPENSOURCE).
TEST_FILES = (
    "conv/graph/test_conv_bias.py",
    "conv/graph/test_conv_fixed.py",
    "conv/graph/test_conv_genstats.py",
    "conv/graph/test_conv_reduction.py",
    "conv/graph/test_wgrads.py",
    "core/test_enum_compatibility.py",
    "core/test_knob_vocabulary.py",
    "core/graph/test_api_signature_parity.py",
    "core/graph/test_cuda_capture_lifetime.py",
    "core/graph/test_ensure_current_context.py",
    "core/graph/test_execute_overload.py",
    "core/graph/test_execute_workspace.py",
    "core/graph/test_graph_native.py",
    "core/graph/test_kernel_cache.py",
    "core/graph/test_native_backend_lowering.py",
    "core/graph/test_set_stream_cache.py",
    "core/graph/test_variant_pack_normalization.py",
    "core/graph/test_wrapper_graph.py",
    "gemm/graph/test_low_precision_matmul.py",
    "gemm/graph/test_moe_grouped_matmul.py",
    "norm/graph/test_batchnorm.py",
    "norm/graph/test_batchnorm_fusion.py",
    "norm/graph/test_instancenorm.py",
    "norm/graph/test_layernorm.py",
    "norm/graph/test_rmsnorm.py",
    "quantize/graph/test_block_scale_quantize.py",
    "quantize/graph/test_block_scale_quantize_dynamic_shape.py",
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
    "norm/graph/test_norm_fuzzer.py",
    "test_norm_fuzzer.py",
    "conv/graph/test_conv_large_tensor_fuzzer.py",
    "conv/graph/test_conv_fuzzer.py",
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
    "sdpa/graph/test_mhas_v2.py",
)

# Each of these runs in its own pytest process; the others share one, as starting it takes longer than their tests.
LARGE_TEST_FILES = (
    "conv/graph/test_conv_large_tensor_fuzzer.py",
    "conv/graph/test_conv_fuzzer.py",
    "norm/graph/test_norm_fuzzer.py",
    "test_norm_fuzzer.py",
    "test_conv_fuzzer.py",
    "test_matmul_fuzzer.py",
    "test_mhas_v2.py",
    "test_mhas.py",
    "sdpa/graph/test_mhas_v2.py",
    *(name for name in TEST_FILES if name.startswith("sdpa/graph/suites/")),
)

_GRAPH_TESTS, _LOWERING_TESTS = "core/graph/test_graph_native.py", "core/graph/test_native_backend_lowering.py"
_EXECUTE_OVERLOAD_TESTS, _WORKSPACE_TESTS = (
    "core/graph/test_execute_overload.py",
    "core/graph/test_execute_workspace.py",
)
_WRAPPER_TESTS, _SIGNATURE_TESTS = "core/graph/test_wrapper_graph.py", "core/graph/test_api_signature_parity.py"
_KNOB_TESTS, _CUDA_GRAPH_LIFETIME_TESTS = "core/test_knob_vocabulary.py", "core/graph/test_cuda_capture_lifetime.py"
_CURRENT_CONTEXT_TESTS, _VARIANT_PACK_TESTS = (
    "core/graph/test_ensure_current_context.py",
    "core/graph/test_variant_pack_normalization.py",
)
_EARLY_REFUSAL_REASON = "an argument of a wrong kind is refused where it is given, not when the graph is built"
_COMPILED_CLASS_REASON = "a class of cudnn-frontend's compiled part, which is not here"
_OWN_KERNEL_REASON = "a kernel of cudnn-frontend's own"
_EXCEPTION_TYPE_REASON = (
    "an engine that the program named and cuDNN refuses is a RuntimeError, too, as it was before 1.32"
)
_PRIVATE_PACK_REASON = "the private pack of buffers that cudnn-frontend's Python and compiled parts share"
#: Tests in which our module differs on purpose, by file and part of the name, with the reason; counted separately.
INTENDED_DIFFERENCES = {
    ("conv/graph/test_conv_bias.py", "test_conv_relu_execution_plan_creation"): _EXCEPTION_TYPE_REASON,
    (_GRAPH_TESTS, "test_with_context"): f"{_EARLY_REFUSAL_REASON}: types as texts",
    (_GRAPH_TESTS, "test_inspect"): f"{_EARLY_REFUSAL_REASON}: types as texts",
    (_GRAPH_TESTS, "test_structured_out_dims"): f"{_EARLY_REFUSAL_REASON}: a mode as text",
    (
        _GRAPH_TESTS,
        "test_all_structured_builders",
    ): f"{_EARLY_REFUSAL_REASON}: texts for numbers; reads a private table",
    (_GRAPH_TESTS, "test_mxfp8_dsink_is_output"): f"{_EARLY_REFUSAL_REASON}: no scales of an operation with scales",
    (_LOWERING_TESTS, "test_planning_one_shot_backend_only"): "plans may be requested again, and are appended",
    (
        _LOWERING_TESTS,
        "test_a_replayed_plan_reports_its_own_notes",
    ): "the graph cuDNN has is ours, whose calls are noted",
    (_WRAPPER_TESTS, "test_workspace_alloc_default_allocates"): "allocated at the first call",
    (_WORKSPACE_TESTS, "recovers[True-"): "other dims of dense attention than were built for were measured to be wrong",
    (_WORKSPACE_TESTS, "recovers[False-"): "slopes of ALiBi are no part of the workspace, so a plan may need none",
    (_WORKSPACE_TESTS, "-raw]"): _COMPILED_CLASS_REASON,
    (_WORKSPACE_TESTS, "cpp_candidate]"): _COMPILED_CLASS_REASON,
    (_SIGNATURE_TESTS, "test_constructor_"): _COMPILED_CLASS_REASON,
    (_SIGNATURE_TESTS, "test_tensor_positional_parity"): "skips where tensor() is not written in the class itself",
    (_SIGNATURE_TESTS, "test_tensor_accepts_classic_positional_call"): "a type that is not set is NOT_SET, not None",
    ("core/graph/test_set_stream_cache.py", "_backend_"): _COMPILED_CLASS_REASON,
    (_EXECUTE_OVERLOAD_TESTS, "frost"): _OWN_KERNEL_REASON,
    (_EXECUTE_OVERLOAD_TESTS, "provider_selection_changes"): _OWN_KERNEL_REASON,
    (_EXECUTE_OVERLOAD_TESTS, "test_ordered_schema_"): _COMPILED_CLASS_REASON,
    (_EXECUTE_OVERLOAD_TESTS, "test_ordered_override_uids_remain_strict"): _COMPILED_CLASS_REASON,
    **dict.fromkeys(
        ((_KNOB_TESTS, "base_engine"), (_KNOB_TESTS, "_round_trip"), (_KNOB_TESTS, "test_frost_sdpa")),
        _OWN_KERNEL_REASON,
    ),
    (_CUDA_GRAPH_LIFETIME_TESTS, "device_buffer"): _OWN_KERNEL_REASON,
    (_CUDA_GRAPH_LIFETIME_TESTS, "test_handle_less_graph_borrows"): _COMPILED_CLASS_REASON,
    **{
        (_CURRENT_CONTEXT_TESTS, f"test_{part}"): "a private function that makes a CUDA context current"
        for part in ("binds", "replaces", "follows", "leaves", "an_unnamed", "the_primary")
    },
    (_VARIANT_PACK_TESTS, "test_shape_overrides_reach"): _OWN_KERNEL_REASON,
    **{
        (_VARIANT_PACK_TESTS, f"test_{part}"): _PRIVATE_PACK_REASON
        for part in ("a_", "describing", "override_many", "reordered", "storage", "the_declared")
    },
}
