"""Cases from issue threads of PyTorch, JAX, XLA, TransformerEngine, FlashInfer, MaxText, llm.c and TensorRT-LLM.

If a thread names no size, the size is the usual one of its model or test. A thread about a guard of the framework
is rebuilt as the graph that the guard rejects: cuDNN refuses it too, or ("supported") no longer does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, attention
from cudnn_backend_py.generated.enums import ConvolutionMode
from cudnn_backend_py.graph import Parameters
from cudnn_backend_py.graph.strides import channels_last

from .case import NEWEST_VERSION, ReportedGraph

__all__ = ["CASES"]

BF16, HALF, FLOAT, DOUBLE = DataType.BFLOAT16, DataType.HALF, DataType.FLOAT, DataType.DOUBLE
E4M3, INT8, INT32 = DataType.FP8_E4M3, DataType.INT8, DataType.INT32

GraphMaker = Callable[[], Graph]
Dims = tuple[int, ...]


def _make_attention_forward_builder(**options: Any) -> GraphMaker:
    return lambda: attention.sdpa_forward(**options)


def _make_attention_backward_builder(**options: Any) -> GraphMaker:
    return lambda: attention.sdpa_backward(**options)


def _make_mha_fprop_builder(**options: Any) -> GraphMaker:
    return lambda: attention.mha_fprop(**options)


def _make_convolution_builder(
    kind: str,
    tensors: dict[str, Dims],
    data_type: DataType,
    *,
    padding: Dims = (0, 0),
    compute_type: DataType = FLOAT,
    last: bool = False,
) -> GraphMaker:
    """Return a function that builds one convolution; `tensors` maps its ports to dims n, c, h, w."""

    def make_graph() -> Graph:
        g = GraphBuilder("convolution", io_type=data_type)
        made: dict[str, Any] = {
            port: g.tensor(port, dims, strides=channels_last(dims) if last else "packed")
            for port, dims in tensors.items()
        }
        fields = {
            "comp_type": compute_type,
            "conv_mode": ConvolutionMode.CROSS_CORRELATION,
            "spatial_dims": 2,
            "dilations": (1, 1),
            "filter_strides": (1, 1),
            "pre_paddings": padding,
            "post_paddings": padding,
        }
        convolution = Parameters(DescriptorType.CONVOLUTION, fields)
        operation = DescriptorType[f"OPERATION_CONVOLUTION_{kind}"]
        g.operation(operation, convolution=convolution, alpha=1.0, beta=0.0, **made)
        return g.graph()

    return make_graph


_DEEPSEEK_OPTIONS: dict[str, Any] = {
    "batch": 2,
    "heads": 16,
    "seq_q": 1024,
    "head_dim": 192,
    "head_dim_v": 128,
    "causal": True,
    "data_type": BF16,
}
_QWEN3_OPTIONS: dict[str, Any] = {
    "batch": 8,
    "heads": 32,
    "kv_heads": 8,
    "seq_q": 2048,
    "head_dim": 128,
    "causal": True,
    "ragged": True,
    "ragged_stats": True,
    "data_type": BF16,
}
_LLAMA_OPTIONS: dict[str, Any] = {
    "batch": 2,
    "heads": 32,
    "seq_q": 2048,
    "head_dim": 128,
    "causal": True,
    "data_type": BF16,
}
_HEAD_DIM_256_OPTIONS: dict[str, Any] = {
    "batch": 2,
    "heads": 16,
    "seq_q": 1024,
    "head_dim": 256,
    "causal": True,
    "data_type": BF16,
}
_FP8_OPTIONS: dict[str, Any] = {"batch": 2, "heads": 16, "seq_q": 2048, "head_dim": 128, "data_type": E4M3}
_MXFP8_OPTIONS: dict[str, Any] = {**_FP8_OPTIONS, "output_type": BF16, "mx": True}
_GPT_OSS_OPTIONS: dict[str, Any] = {
    "batch": 2,
    "heads": 64,
    "kv_heads": 8,
    "seq_q": 1024,
    "head_dim": 64,
    "causal": True,
    "ragged": True,
    "sink": True,
    "dsink": True,
    "data_type": BF16,
}
_MEMORY_FAULT_OPTIONS: dict[str, Any] = {
    **_GPT_OSS_OPTIONS,
    "batch": 9,
    "seq_q": 598,
    "head_dim": 192,
    "left_bound": 512,
    "ragged_stats": True,
}
_LLM_C_OPTIONS: dict[str, Any] = {
    "batch": 4,
    "heads": 12,
    "seq_q": 1024,
    "head_dim": 64,
    "causal": True,
    "stats": True,
    "layout": "packed",
    "data_type": BF16,
}
_GEMMA2_OPTIONS: dict[str, Any] = {**_LLAMA_OPTIONS, "kv_heads": 16, "score_modifier": attention.SoftCap(50.0)}
_BIAS_OPTIONS: dict[str, Any] = {
    "batch": 2,
    "heads": 16,
    "seq_q": 2048,
    "head_dim": 128,
    "bias": (1, 16, 2048, 2048),
    "dbias": True,
    "data_type": BF16,
}
_DECODING_OPTIONS: dict[str, Any] = {
    "batch": 1,
    "heads": 16,
    "seq_q": 1,
    "seq_kv": 1 << 16,
    "head_dim": 64,
    "data_type": BF16,
    "layout": "bhsd",
}
_EXPANDED_GRADIENT_OPTIONS: dict[str, Any] = {
    "layout": {"q": "bhsd", "k": "bhsd", "v": "bhsd", "o": "bhsd", "do": (0, 0, 0, 0)},
}
_DEPTHWISE_DIMS: dict[str, Dims] = {"dx": (2, 64, 1, 32), "w": (64, 1, 1, 4)}
_FP8_CONVOLUTION_DIMS: dict[str, Dims] = {"x": (4, 64, 28, 28), "w": (64, 64, 3, 3), "y": (4, 64, 26, 26)}
_INT8_CONVOLUTION_DIMS: dict[str, Dims] = {"x": (1, 1, 6, 6), "w": (1, 1, 3, 3), "y": (1, 1, 6, 6)}

_TRANSFORMER_ENGINE_URL = "https://github.com/NVIDIA/TransformerEngine"
_PYTORCH_URL = "https://github.com/pytorch/pytorch"
_JAX_URL = "https://github.com/jax-ml/jax"

CASES: list[ReportedGraph] = [
    # Head dims
    ReportedGraph(
        name="torch-head-dim-256-training",
        source=f"{_PYTORCH_URL}/pull/130494",
        title="cuDNN takes head dim 256 in inference and not in training, so torch limits both to 128",
        graph=_make_attention_backward_builder(**_HEAD_DIM_256_OPTIONS),
        target="a100",
        cause="the head dim of Q and K is 256 in a backward pass, below sm_90 at most 128",
        cause_words=("head dim", "256", "128"),
        expected_message="Embedding dim per head for q and k is not less than equal to 128",
        remedy="train on Hopper, where backward kernels support 256",
        remedy_kinds=("target",),
        fixed_target="h100",
    ),
    ReportedGraph(
        name="te-mla-below-hopper",
        source=f"{_TRANSFORMER_ENGINE_URL}/issues/1610",
        title="training with head dims above 128 is refused below sm_90, and no message explains why",
        graph=_make_attention_backward_builder(**_DEEPSEEK_OPTIONS, layout="sbhd"),
        target="a100",
        version="9.19.0",
        cause="the head dim of Q and K is 192, the backward kernels of sm_80 take at most 128",
        cause_words=("head dim", "192", "128"),
        expected_message="Embedding dim per head for q and k is not less than equal to 128",
        remedy="train on Hopper",
        remedy_kinds=("target",),
        fixed_target="h100",
    ),
    ReportedGraph(
        name="jax-mla-ada",
        source=f"{_JAX_URL}/pull/28872",
        title="latent attention (head dims 192 and 128) works from Hopper on only",
        graph=_make_attention_backward_builder(**_DEEPSEEK_OPTIONS),
        target="rtx-4090",
        cause="the head dim of Q and K is 192 in a backward pass, on sm_89 at most 128",
        cause_words=("head dim", "192", "128"),
        expected_message="Embedding dim per head for q and k is not less than equal to 128",
        remedy="train on Hopper or a Blackwell of the data center",
        remedy_kinds=("target",),
        fixed_target="b200",
    ),
    ReportedGraph(
        name="te-head-dim-256-blackwell",
        source=f"{_TRANSFORMER_ENGINE_URL}/pull/3056",
        title="no fused attention for training with head dim 256 on a B200",
        graph=_make_attention_backward_builder(**_HEAD_DIM_256_OPTIONS),
        target="b200",
        version="9.19.0",
        cause="the head dim is 256, the backward kernels for sm_100 of this cuDNN take at most 128",
        cause_words=("head dim", "256", "128"),
        expected_message="Embedding dim per head for q and k is not less than equal to 128",
        remedy="train on Hopper; from 9.23 on there is a kernel, which only the knobs of the deterministic pass reach",
        remedy_kinds=("target",),
        fixed_target="h100",
    ),
    ReportedGraph(
        name="te-any-head-dim-blackwell",
        source=f"{_TRANSFORMER_ENGINE_URL}/pull/2838",
        title="a guard opened for every head dim in training on Blackwell, since cuDNN were to take them",
        graph=_make_attention_backward_builder(**{**_HEAD_DIM_256_OPTIONS, "head_dim": 192}),
        target="b200",
        cause="Q, K and V have a head dim of 192: on sm_100 that is neither up to 128, nor 192 with 128 for V, nor 256",
        cause_words=("head dim", "192", "128"),
        expected_message="Embedding dim per head for q and k is not less than equal to 128",
        remedy="train on Hopper",
        remedy_kinds=("target",),
        fixed_target="h100",
    ),
    ReportedGraph(
        name="torch-head-dim-256-consumer",
        source=f"{_PYTORCH_URL}/issues/181379",
        title="on an RTX 5090 torch never takes cuDNN for head dim 256 and runs out of memory elsewhere",
        graph=_make_attention_forward_builder(
            batch=1, heads=8, seq_q=256, head_dim=256, causal=True, data_type=BF16, layout="bhsd"
        ),
        target="rtx-5090",
        complaint="supported",
        cause="the limit of 128 is torch's own: cuDNN takes this inference graph on sm_120",
        cause_words=(),
        expected_message="",
        remedy="call cuDNN directly, or lift the guard for inference",
        remedy_kinds=(),
    ),
    ReportedGraph(
        name="trtllm-mxfp8-head-dim",
        source="https://github.com/NVIDIA/TensorRT-LLM/pull/18075",
        title="block-scaled fp8 attention fails late for head dims that are not whole blocks",
        graph=_make_attention_forward_builder(**{**_MXFP8_OPTIONS, "head_dim": 72}),
        target="b200",
        cause="the head dim is 72, fp8 needs a multiple of 16",
        cause_words=("head dim", "72", "16"),
        expected_message="Embedding dim per head for q and k is not a multiple of 16",
        remedy="pad the head dim with zeros to 96, whole blocks of 32",
        remedy_kinds=("pad_head_dim", "data_type"),
        fixed_graph=_make_attention_forward_builder(**{**_MXFP8_OPTIONS, "head_dim": 96}),
    ),
    # Ragged sequences and layouts
    ReportedGraph(
        name="maxtext-packing-a100",
        source="https://github.com/AI-Hypercomputer/maxtext/pull/4478",
        title="training with packed sequences crashes on A100s, where the fused kernels are not chosen",
        graph=_make_attention_backward_builder(**_QWEN3_OPTIONS),
        target="a100",
        version="9.14.0",
        cause="the tensors have ragged offsets in a backward pass, which this cuDNN takes on sm_90 and above only",
        cause_words=("ragged",),
        expected_message="Flash Attention with ragged offset can only be run with sm_90 instructions",
        remedy="cuDNN 9.18.1 or later",
        remedy_kinds=("version", "target", "layout"),
        fixed_version="9.19.0",
    ),
    ReportedGraph(
        name="te-thd-ada",
        source=f"{_TRANSFORMER_ENGINE_URL}/pull/3092",
        title="the THD layout is chosen on Ampere and Ada with a cuDNN that cannot run it",
        graph=_make_attention_backward_builder(
            batch=4, heads=16, seq_q=2048, head_dim=64, ragged=True, ragged_stats=True, data_type=BF16
        ),
        target="l40s",
        version="9.14.0",
        cause="the tensors have ragged offsets in a backward pass, which this cuDNN takes on sm_90 and above only",
        cause_words=("ragged",),
        expected_message="Flash Attention with ragged offset can only be run with sm_90 instructions",
        remedy="pad the sequences instead, or a newer cuDNN",
        remedy_kinds=("layout", "version", "target"),
        fixed_graph=_make_attention_backward_builder(
            batch=4, heads=16, seq_q=2048, head_dim=64, padding=True, data_type=BF16
        ),
    ),
    ReportedGraph(
        name="xla-segment-mask-ampere",
        source="https://github.com/openxla/xla/pull/22826",
        title="sequence packing must be switched off below Hopper",
        graph=_make_attention_backward_builder(batch=4, heads=4, seq_q=512, head_dim=64, ragged=True, data_type=BF16),
        target="a10",
        version="9.14.0",
        cause="the tensors have ragged offsets in a backward pass, which this cuDNN takes on sm_90 and above only",
        cause_words=("ragged",),
        expected_message="Flash Attention with ragged offset can only be run with sm_90 instructions",
        remedy="run it on Hopper",
        remedy_kinds=("target", "version", "layout"),
        fixed_target="h100",
    ),
    ReportedGraph(
        name="te-interleaved-thd-consumer",
        source=f"{_TRANSFORMER_ENGINE_URL}/pull/2693",
        title="ragged sequences with Q, K and V interleaved in one buffer are not taken on sm_120",
        graph=_make_attention_backward_builder(**_LLAMA_OPTIONS, ragged=True, layout="packed"),
        target="rtx-5090",
        cause="Q, K and V are interleaved in one buffer and ragged, which the kernels of sm_120 do not take",
        cause_words=("interleaved",),
        expected_message="Interleaved layouts are not supported",
        remedy="one buffer each for Q, K and V",
        remedy_kinds=("layout", "target"),
        fixed_graph=_make_attention_backward_builder(**_LLAMA_OPTIONS, ragged=True),
    ),
    ReportedGraph(
        name="torch-expanded-gradient-crash",
        source=f"{_PYTORCH_URL}/issues/138529",
        title="backward of one query row, with the gradient of a sum (all strides 0), ends in a frontend error",
        graph=_make_attention_backward_builder(
            **{**_DECODING_OPTIONS, **_EXPANDED_GRADIENT_OPTIONS}, allow_hazards=True
        ),
        target="h100",
        complaint="crash",
        cause="dO has a stride of 0 over d, 1 is needed",
        cause_words=("do", "stride"),
        expected_message="SIGSEGV",
        remedy="make the gradient contiguous",
        remedy_kinds=("layout",),
        fixed_graph=_make_attention_backward_builder(**_DECODING_OPTIONS),
    ),
    ReportedGraph(
        name="torch-expanded-gradient",
        source=f"{_PYTORCH_URL}/pull/141147",
        title="the innermost stride of the output's gradient has to be 1, sum().backward() gives 0",
        graph=_make_attention_backward_builder(
            batch=8, heads=16, seq_q=512, head_dim=64, data_type=BF16, **_EXPANDED_GRADIENT_OPTIONS
        ),
        target="h100",
        complaint="refused by us",
        cause="dO has a stride of 0 over d, 1 is needed",
        cause_words=("stride", "d"),
        expected_message="a stride over d that is not 1",
        remedy="make the gradient contiguous",
        remedy_kinds=("layout",),
        fixed_graph=_make_attention_backward_builder(
            batch=8, heads=16, seq_q=512, head_dim=64, data_type=BF16, layout="bhsd"
        ),
    ),
    # Architectures
    ReportedGraph(
        name="llmc-turing",
        source="https://github.com/karpathy/llm.c/issues/761",
        title="training GPT-2 with cuDNN stops with 'No execution plans support the graph'; the GPU is a Turing",
        graph=_make_attention_forward_builder(**_LLM_C_OPTIONS),
        target="t4",
        cause="the GPU is sm_75, fused attention needs sm_80 or above",
        cause_words=("sm_75",),
        expected_message="only Ampere or above is supported for this engine",
        remedy="a GPU of Ampere or later",
        remedy_kinds=("target",),
        fixed_target="a100",
    ),
    ReportedGraph(
        name="te-short-sequences-ada",
        source=f"{_TRANSFORMER_ENGINE_URL}/pull/393",
        title="the kernels for up to 512 tokens fail on GPUs other than sm_80 and sm_90",
        graph=_make_mha_fprop_builder(batch=32, heads=16, seq_q=512, padding=True, store_s=True),
        target="l40s",
        version="9.19.0",
        cause="the kernel needs more shared memory per block than sm_89 has (99 KiB)",
        cause_words=("shared memory", "101376"),
        expected_message="Kernel request for shared memory is exceeding the shared memory in the GPU",
        remedy="the flash pattern, or a GPU with more shared memory",
        remedy_kinds=("target", "composite", "unified"),
        fixed_graph=_make_attention_forward_builder(
            batch=32, heads=16, seq_q=512, head_dim=64, padding=True, stats=True
        ),
    ),
    ReportedGraph(
        name="te-short-sequences-head-dim",
        source=f"{_TRANSFORMER_ENGINE_URL}/pull/260",
        title="the fused kernels for short sequences take a head dim of 64 only",
        graph=_make_mha_fprop_builder(batch=32, heads=16, seq_q=512, head_dim=128, padding=True, data_type=BF16),
        target="a100",
        version="9.19.0",
        cause="the head dim is 128, the kernels for short sequences need 64",
        cause_words=("128", "64"),
        expected_message="MHA needs hidden dims to be 64",
        remedy="the flash pattern takes head dim 128",
        remedy_kinds=("composite", "unified"),
        fixed_graph=_make_attention_forward_builder(
            batch=32, heads=16, seq_q=512, head_dim=128, padding=True, data_type=BF16
        ),
    ),
    ReportedGraph(
        name="te-short-sequences-length",
        source=f"{_TRANSFORMER_ENGINE_URL}/issues/341",
        title="both fused backends answer NOT_SUPPORTED for 32 tokens, and work for 64 to 512",
        graph=_make_mha_fprop_builder(batch=16, heads=32, seq_q=32, causal=True, store_s=True),
        target="a100",
        version="9.19.0",
        cause="the sequences have 32 tokens, training with these kernels needs a multiple of 64",
        cause_words=("32", "64"),
        expected_message="s_q and s_kv must be multiples of 64 for training",
        remedy="pad the sequences to 64, or the flash pattern",
        remedy_kinds=("pad_sequence", "composite", "unified"),
        fixed_graph=_make_mha_fprop_builder(batch=16, heads=32, seq_q=64, causal=True, store_s=True),
    ),
    # 8-bit floats
    ReportedGraph(
        name="te-fp8-ada",
        source=f"{_TRANSFORMER_ENGINE_URL}/issues/15",
        title="the RTX 40 series has fp8 tensor cores, and no fp8 attention",
        graph=_make_attention_forward_builder(**{**_FP8_OPTIONS, "seq_q": 512}, padding=True, stats=True),
        target="rtx-4090",
        version="9.19.0",
        cause="Q, K and V are fp8, which attention takes from sm_90 on",
        cause_words=("fp8",),
        expected_message="MHA only supports FP16/BF16 I/O for selected engine config",
        remedy="bfloat16, or Hopper",
        remedy_kinds=("data_type", "target"),
        fixed_graph=_make_attention_forward_builder(
            **{**_FP8_OPTIONS, "seq_q": 512, "data_type": BF16}, padding=True, stats=True
        ),
    ),
    ReportedGraph(
        name="torch-fp8-before-hopper",
        source=f"{_PYTORCH_URL}/pull/182919",
        title="fp8 attention needs a check of the GPU, not every one has it",
        graph=_make_attention_forward_builder(**_FP8_OPTIONS, causal=True),
        target="a100",
        cause="Q, K and V are fp8, which attention takes from sm_90 on",
        cause_words=("fp8",),
        expected_message="MHA only supports FP16/BF16 I/O for selected engine config",
        remedy="Hopper, or bfloat16",
        remedy_kinds=("target", "data_type"),
        fixed_target="h100",
    ),
    ReportedGraph(
        name="te-fp8-current-scaling-hopper",
        source=f"{_TRANSFORMER_ENGINE_URL}/pull/2316",
        title="fp8 attention with current scaling, so with a 16-bit output, is not there below sm_100",
        graph=_make_attention_forward_builder(**_FP8_OPTIONS, output_type=BF16, causal=True, stats=True),
        target="h100",
        cause="Q, K and V are fp8 and O is bfloat16, which only Blackwell takes",
        cause_words=("fp8", "output"),
        expected_message="FP8 input with F16 output is only supported on Blackwell",
        remedy="write O as fp8, or run on Blackwell",
        remedy_kinds=("data_type", "target"),
        fixed_graph=_make_attention_forward_builder(**_FP8_OPTIONS, causal=True, stats=True),
    ),
    ReportedGraph(
        name="trtllm-fp8-current-scaling-hopper",
        source="https://github.com/NVIDIA/TensorRT-LLM/pull/17849",
        title="an fp8 attention backend can be made on an H100 and fails at its first forward pass",
        graph=_make_attention_forward_builder(
            batch=1, heads=24, seq_q=4096, head_dim=128, data_type=E4M3, output_type=BF16
        ),
        target="h100",
        version="9.19.0",
        cause="Q, K and V are fp8 and O is bfloat16, which only Blackwell takes",
        cause_words=("fp8", "output"),
        expected_message="FP8 input with F16 output is only supported on Blackwell",
        remedy="run on Blackwell, or write O as fp8",
        remedy_kinds=("target", "data_type"),
        fixed_target="b200",
    ),
    ReportedGraph(
        name="te-fp8-thd-training-hopper",
        source=f"{_TRANSFORMER_ENGINE_URL}/pull/2994",
        title="fp8 with ragged sequences is for inference only on an H100",
        graph=_make_attention_backward_builder(**_FP8_OPTIONS, causal=True, ragged=True, version=(9, 28, 0), sm=90),
        target="h100",
        complaint="refused by us",
        cause="ragged sequences in an fp8 backward pass come out wrong on sm_90",
        cause_words=("ragged", "fp8"),
        expected_message="ragged sequences in an fp8 backward pass",
        remedy="train on Blackwell, or pad the sequences",
        remedy_kinds=("target", "layout", "data_type"),
        fixed_graph=_make_attention_backward_builder(
            **_FP8_OPTIONS, causal=True, ragged=True, version=(9, 28, 0), sm=100
        ),
        fixed_target="b200",
    ),
    ReportedGraph(
        name="te-mxfp8-version",
        source=f"{_TRANSFORMER_ENGINE_URL}/pull/2719",
        title="attention with block-scaled fp8 needs a newer cuDNN than most have",
        graph=_make_attention_forward_builder(**_MXFP8_OPTIONS, causal=True, stats=True),
        target="b200",
        version="9.19.0",
        cause="the graph has block scale operations, which attention of this cuDNN does not know",
        cause_words=("scale",),
        expected_message="Not supported node in flash fprop",
        remedy="cuDNN 9.21 or later, or plain fp8",
        remedy_kinds=("version", "data_type"),
        fixed_version=NEWEST_VERSION,
    ),
    ReportedGraph(
        name="flashinfer-fp8-paged",
        source="https://github.com/flashinfer-ai/flashinfer/pull/2035",
        title="fp8 queries with a paged fp8 cache work from cuDNN 9.18 on",
        graph=_make_attention_forward_builder(
            batch=4,
            heads=32,
            kv_heads=8,
            seq_q=128,
            seq_kv=1024,
            head_dim=128,
            data_type=E4M3,
            padding=True,
            page_size=16,
        ),
        target="h100",
        version="9.14.0",
        cause="K and V are paged and fp8, which this cuDNN does not take on sm_90",
        cause_words=("paged",),
        expected_message="Paged Attention supported with only the SM80/SM100 instruction set kernel",
        remedy="cuDNN 9.18 or later, or a cache of 16-bit floats",
        remedy_kinds=("version", "data_type", "target"),
        fixed_version="9.19.0",
    ),
    ReportedGraph(
        name="xla-fp8-convolution",
        source="https://github.com/openxla/xla/pull/45534",
        title="an fp8 convolution has no plan on GPUs without fp8, and that shows when it is to run",
        graph=_make_convolution_builder("FORWARD", _FP8_CONVOLUTION_DIMS, E4M3, last=True),
        target="a100",
        cause="x and w are fp8, the GPU has no fp8 tensor cores",
        cause_words=("fp8",),
        expected_message="QMMA kernels are only executable on specific architectures",
        remedy="bfloat16, or a GPU with fp8",
        remedy_kinds=("data_type", "target"),
        fixed_graph=_make_convolution_builder("FORWARD", _FP8_CONVOLUTION_DIMS, BF16, last=True),
    ),
    # Options of attention
    ReportedGraph(
        name="torch-int32-seed",
        source=f"{_PYTORCH_URL}/pull/146734",
        title="dropout with int32 seed and offset is refused on sm_100",
        graph=_make_attention_forward_builder(**_LLAMA_OPTIONS, dropout=0.1, seed_type=INT32, stats=True),
        target="b200",
        cause="dropout_seed is int32, sm_100 needs int64",
        cause_words=("seed", "int64"),
        expected_message="SM100 version does not support seed tensor of data type != int64",
        remedy="give seed and offset as int64",
        remedy_kinds=("data_type", "drop_dropout", "target"),
        fixed_graph=_make_attention_forward_builder(**_LLAMA_OPTIONS, dropout=0.1, stats=True),
    ),
    ReportedGraph(
        name="te-dropout-bias-gradient-blackwell",
        source=f"{_TRANSFORMER_ENGINE_URL}/pull/2584",
        title="training with dropout and a bias has no kernel on sm_100, deterministic or not",
        graph=_make_attention_backward_builder(**_BIAS_OPTIONS, dropout=0.1),
        target="b200",
        cause="the backward pass has dropout and writes dbias, which the kernels of sm_100 do not do together",
        cause_words=("dropout", "dbias"),
        expected_message="kcfg.cta_tile.M != 64 || kcfg.cta_tile.N != 64",
        remedy="leave dropout or the gradient of the bias out",
        remedy_kinds=("drop_dropout", "drop_bias", "target"),
        fixed_graph=_make_attention_backward_builder(**_BIAS_OPTIONS),
    ),
    ReportedGraph(
        name="te-max-and-stats",
        source=f"{_TRANSFORMER_ENGINE_URL}/pull/3091",
        title="the row maximum next to the statistics fails when the graph is built, below cuDNN 9.21",
        graph=_make_attention_forward_builder(
            batch=2, heads=16, seq_q=2048, head_dim=64, data_type=BF16, stats=True, max=True, version=(9, 14, 0)
        ),
        target="a100",
        version="9.14.0",
        complaint="refused by us",
        cause="max is requested next to stats, which the softmax of this cuDNN does not write",
        cause_words=("max", "stats"),
        expected_message="max or sum_exp alone, or next to stats",
        remedy="cuDNN 9.21 or later, where softmax is one operation; or only one of the two",
        remedy_kinds=("version", "drop_stats"),
        fixed_graph=_make_attention_forward_builder(
            batch=2, heads=16, seq_q=2048, head_dim=64, data_type=BF16, stats=True, max=True, version=(9, 21, 0)
        ),
        fixed_version=NEWEST_VERSION,
    ),
    ReportedGraph(
        name="te-soft-cap-training",
        source=f"{_TRANSFORMER_ENGINE_URL}/pull/3391",
        title="the soft cap of Gemma 2 keeps training off the cuDNN kernels",
        graph=_make_attention_backward_builder(**_GEMMA2_OPTIONS),
        target="a100",
        cause="a tanh on the scores, in the backward pass, on sm_80",
        cause_words=("backward", "activation"),
        expected_message="Backward activations are not supported in Ampere",
        remedy="train on Hopper",
        remedy_kinds=("target", "unified", "drop_operation"),
        fixed_target="h100",
    ),
    ReportedGraph(
        name="te-sink-thd",
        source=f"{_TRANSFORMER_ENGINE_URL}/issues/2483",
        title="a learnable softmax offset together with the THD layout turns the fused kernels off",
        graph=_make_attention_backward_builder(**_GPT_OSS_OPTIONS, ragged_stats=True, version=(9, 19, 0), sm=90),
        target="h100",
        version="9.19.0",
        complaint="refused by us",
        cause="dsink of ragged sequences with ragged stats comes out wrong in this cuDNN",
        cause_words=("dsink", "ragged"),
        expected_message="dsink of ragged sequences with ragged stats",
        remedy="leave the statistics unragged, or a newer cuDNN",
        remedy_kinds=("layout", "version"),
        fixed_graph=_make_attention_backward_builder(**_GPT_OSS_OPTIONS, version=(9, 19, 0), sm=90),
    ),
    ReportedGraph(
        name="te-sink-thd-memory-fault",
        source=f"{_TRANSFORMER_ENGINE_URL}/issues/3249",
        title="the backward pass with a sink and THD ends with an illegal address, or in wrong gradients",
        graph=_make_attention_backward_builder(**_MEMORY_FAULT_OPTIONS, version=(9, 25, 0), sm=90),
        target="h100",
        complaint="refused by us",
        cause="dsink of ragged sequences with ragged stats comes out wrong before cuDNN 9.27",
        cause_words=("dsink", "ragged"),
        expected_message="dsink of ragged sequences with ragged stats",
        remedy="a newer cuDNN",
        remedy_kinds=("version",),
        fixed_graph=_make_attention_backward_builder(**_MEMORY_FAULT_OPTIONS, version=(9, 28, 0), sm=90),
    ),
    ReportedGraph(
        name="jax-float32",
        source=f"{_JAX_URL}/issues/23560",
        title="physics needs float32 attention with gradients, cuDNN's takes 16 bits",
        graph=_make_attention_backward_builder(batch=8, heads=4, seq_q=256, head_dim=64, data_type=FLOAT),
        target="a100",
        cause="Q is float32, the backward kernels take 16-bit floats and fp8",
        cause_words=("q", "float"),
        expected_message="Data type for Q tensor should be half / bf16 / e4m3 / e5m2",
        remedy="bfloat16",
        remedy_kinds=("data_type",),
        fixed_graph=_make_attention_backward_builder(batch=8, heads=4, seq_q=256, head_dim=64, data_type=BF16),
    ),
    ReportedGraph(
        name="jax-mask-only",
        source=f"{_JAX_URL}/issues/28974",
        title="a mask [b, 1, 1, s_kv] is refused as a bias of the wrong shape",
        graph=_make_attention_forward_builder(
            batch=4, heads=4, seq_q=32, head_dim=16, bias=(4, 1, 1, 32), data_type=BF16
        ),
        target="h100",
        complaint="supported",
        cause="the shape check is JAX's own: cuDNN broadcasts a bias over heads and rows",
        cause_words=(),
        expected_message="",
        remedy="broadcast the mask, until the framework does",
        remedy_kinds=(),
    ),
    ReportedGraph(
        name="jax-bias-gradient",
        source=f"{_JAX_URL}/issues/30593",
        title="a gradient of the bias is refused for every batch but 1",
        graph=_make_attention_backward_builder(
            batch=2, heads=8, seq_q=128, head_dim=64, bias=(2, 8, 128, 128), dbias=True, data_type=BF16
        ),
        target="h100",
        complaint="supported",
        cause="the limit to batch 1 is JAX's own: cuDNN writes dbias for a whole batch",
        cause_words=(),
        expected_message="",
        remedy="call cuDNN directly, or lift the guard",
        remedy_kinds=(),
    ),
    # Convolutions
    ReportedGraph(
        name="torch-int8-convolution",
        source=f"{_PYTORCH_URL}/issues/152992",
        title="an int8 convolution: GET was unable to find an engine to execute this computation",
        graph=_make_convolution_builder("FORWARD", _INT8_CONVOLUTION_DIMS, INT8, padding=(1, 1)),
        target="rtx-3090",
        cause="x and w are int8 and the convolution computes in float32, int32 is needed",
        cause_words=("int8", "int32"),
        expected_message="!is_input_compute_type_match",
        remedy="compute in int32, or convert to float32",
        remedy_kinds=("data_type",),
        fixed_graph=_make_convolution_builder(
            "FORWARD", _INT8_CONVOLUTION_DIMS, INT8, padding=(1, 1), compute_type=INT32
        ),
    ),
    ReportedGraph(
        name="torch-convolution-gradient-shape",
        source=f"{_PYTORCH_URL}/issues/136812",
        title="the gradients of a causal depthwise conv1d end in BAD_PARAM with float16 only",
        graph=_make_convolution_builder(
            "BACKWARD_DATA", {**_DEPTHWISE_DIMS, "dy": (2, 64, 1, 32)}, HALF, padding=(0, 3)
        ),
        target="h100",
        cause="dy has 32 columns: 32 of x, a filter of 4 and a padding of 3 give 35; the forward pass cut 3 off",
        cause_words=("dy", "35"),
        expected_message="is_valid_spatial_dim",
        remedy="pad dy with zeros to 35 columns",
        remedy_kinds=("pad_sequence",),
        fixed_graph=_make_convolution_builder(
            "BACKWARD_DATA", {**_DEPTHWISE_DIMS, "dy": (2, 64, 1, 35)}, HALF, padding=(0, 3)
        ),
    ),
]
