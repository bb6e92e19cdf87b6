"""The files of cudnn-frontend's ``test/python`` which are about backend graphs."""

from __future__ import annotations

__all__ = ["FILES", "LARGE"]

# The quick ones first. Left out: test_apply_rope, test_cudnn_sdpa_op, test_moe_grouped_matmul_op, test_sm90_*,
# test_sm100_*, fe_api/ (Python kernels, not backend graphs) and test_utils (a helper).
FILES = (
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
)

# Each of these gets a pytest of its own; the others share one, since starting costs more than their tests.
LARGE = ("test_norm_fuzzer.py", "test_conv_fuzzer.py", "test_matmul_fuzzer.py", "test_mhas_v2.py", "test_mhas.py")
