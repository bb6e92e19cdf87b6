"""Calls from public threads in which cuDNN was not used: `why` names the condition that each thread found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cudnn_backend_py.why.calls import Machine, TensorFacts, TorchBackendChoice, TorchCall, TorchSwitches
from cudnn_backend_py.why.conditions import PACKED_SEQUENCES_NOTE, find_blocker, find_other_blockers

BHSD = (1, 16, 1024, 128)


def make_tensor_facts(*dims: int, dtype: str = "bfloat16", strides: tuple[int, ...] = (), **facts: Any) -> TensorFacts:
    made, run = [1] * len(dims), 1
    for place in reversed(range(len(dims))):
        made[place], run = run, run * max(dims[place], 1)
    return TensorFacts(dims, strides or tuple(made), dtype, **facts)


def make_call(*dims: int, dtype: str = "bfloat16", **facts: Any) -> TorchCall:
    q = make_tensor_facts(*(dims or BHSD), dtype=dtype)
    return TorchCall(**{"q": q, "k": q, "v": q, **facts})


def make_call_with_nested_tensors(form: str) -> TorchCall:
    one = TensorFacts((2, 8, -1, 64), (), "float16", form=form, lengths=(700, 300))  # type: ignore[arg-type]
    return TorchCall(q=one, k=one, v=one)


H100 = Machine((2, 6, 0), (9, 5, 1), 90, (12, 4), "H100")
V100 = Machine((2, 4, 0), (9, 1, 0), 70)
RTX_5090 = Machine((2, 8, 0), (9, 10, 2), 120)


@dataclass(frozen=True)
class PublicReport:
    """A public thread: the author's observation, the call, the machine, and the condition that excluded cuDNN."""

    thread: str
    observed: str
    call: TorchCall
    machine: Machine
    gate: str
    also: tuple[str, ...] = field(default=())


REPORTS = (
    PublicReport(
        "pytorch/pytorch#142132",
        "On an H100 the release notes promised cuDNN by itself, and half its speed was measured: 2.6 asks flash first.",
        make_call(1, 24, 4608, 128),
        H100,
        "order",
    ),
    PublicReport(
        "meta-pytorch/tritonbench#41",
        "Plain calls are much slower than those under sdpa_kernel(CUDNN_ATTENTION) on the same H100.",
        make_call(4, 48, 4096, 64, dtype="float16"),
        replace(H100, torch=(2, 5, 1), cudnn=(9, 1, 0)),
        "order",
    ),
    PublicReport(
        "pytorch/torchtitan#1042",
        "Llama 3 on H100s runs flash attention; choosing cuDNN by hand gives 10 % end to end.",
        make_call(1, 32, 8192, 128, causal=True),
        replace(H100, torch=(2, 7, 0)),
        "order",
    ),
    PublicReport(
        "huggingface/transformers#48163",
        "torch 2.11 should query cuDNN first on Hopper, but LD_LIBRARY_PATH gave it an older cuDNN than its wheel has.",
        make_call(8, 16, 2048, 128, causal=True),
        replace(H100, torch=(2, 11, 0), cudnn=(9, 10, 2), cuda=(13, 0)),
        "order",
    ),
    PublicReport(
        "pytorch/pytorch#181379",
        "Heads of 256 on an RTX 5090 end in the math backend and in want of memory: torch stops at 128 there.",
        make_call(1, 8, 256, 256, causal=True, switches=TorchSwitches(flash=False, efficient=False, math=False)),
        RTX_5090,
        "shapes",
    ),
    PublicReport(
        "Comfy-Org/ComfyUI#15135",
        "A text encoder in float32, with a mask and grouped heads: cuDNN declines, memory runs out at 16,000 tokens.",
        TorchCall(
            q=make_tensor_facts(1, 28, 16000, 128, dtype="float32"),
            k=make_tensor_facts(1, 4, 16000, 128, dtype="float32"),
            v=make_tensor_facts(1, 4, 16000, 128, dtype="float32"),
            mask=make_tensor_facts(16000, 16000, dtype="float32"),
            gqa=True,
            switches=TorchSwitches(order=("cudnn", "efficient", "flash", "math")),
        ),
        Machine((2, 9, 1), (9, 13, 0), 120, (13, 0)),
        "dtype",
    ),
    PublicReport(
        "huggingface/transformers#46960",
        "Grouped heads of 512 fall back to the math kernel without a word.",
        TorchCall(
            q=make_tensor_facts(1, 16, 4096, 512),
            k=make_tensor_facts(1, 8, 4096, 512),
            v=make_tensor_facts(1, 8, 4096, 512),
            causal=True,
            gqa=True,
        ),
        replace(H100, torch=(2, 11, 0), cudnn=(9, 19, 0)),
        "shapes",
    ),
    PublicReport(
        "NVIDIA/cudnn-frontend#242",
        "Heads of 192 for q, k and v, grouped, on a B300 with torch 2.12: no cuDNN.",
        TorchCall(
            q=make_tensor_facts(32, 64, 1024, 192),
            k=make_tensor_facts(32, 16, 1024, 192),
            v=make_tensor_facts(32, 16, 1024, 192),
            causal=True,
            gqa=True,
        ),
        Machine((2, 12, 0), (9, 20, 0), 103, (13, 2)),
        "shapes",
    ),
    PublicReport(
        "pytorch/pytorch#122695",
        "After an internal assertion somebody switched cuDNN off for the whole process, as advised there.",
        make_call(switches=TorchSwitches(cudnn=False)),
        replace(H100, torch=(2, 11, 0), cudnn=(9, 19, 0)),
        "disabled",
    ),
    PublicReport(
        "pytorch/pytorch#174245",
        "A dropout of 0.1 is rounded to sixteenths by cuDNN's kernels, so torch keeps other shares from them.",
        make_call(2, 8, 128, 128, dtype="float16", dropout=0.1),
        Machine((2, 14, 0), (9, 24, 0), 90),
        "dropout-steps",
    ),
    PublicReport(
        "pytorch/pytorch#163903",
        "Dropout with cuDNN 9.11 to 9.13 runs into broken heuristics, so torch 2.9 keeps it away.",
        make_call(dropout=0.125),
        replace(H100, torch=(2, 9, 0), cudnn=(9, 13, 0)),
        "dropout-of-version",
    ),
    PublicReport(
        "pytorch/pytorch#141178",
        "Nested tensors reach cuDNN only after an environment variable.",
        make_call_with_nested_tensors("nested"),
        replace(H100, torch=(2, 9, 0), cudnn=(9, 10, 2)),
        "nested",
    ),
    PublicReport(
        "openvdb/fvdb-core#364",
        "Jagged voxels become nested tensors of views, for attention on Hopper: without the variable never by cuDNN.",
        make_call_with_nested_tensors("nested"),
        replace(H100, torch=(2, 11, 0), cudnn=(9, 19, 0)),
        "nested",
    ),
    PublicReport(
        "pytorch/pytorch#152068",
        "Attention over jagged nested tensors, compiled: their own order asks flash first.",
        make_call_with_nested_tensors("jagged"),
        replace(H100, torch=(2, 11, 0), cudnn=(9, 19, 0)),
        "order",
    ),
    PublicReport(
        "Dao-AILab/flash-attention#1321",
        "torch 2.4 says that cuDNN wants a variable set, next to all else that it refuses.",
        make_call(mask=make_tensor_facts(1024, 1024), switches=TorchSwitches(efficient=False, math=False)),
        Machine((2, 4, 1), (9, 1, 0), 80),
        "variable",
    ),
    PublicReport(
        "clessig/atmorep#17",
        "A V100 under torch 2.4: no fused kernel at all, and the warning about cuDNN names the variable.",
        make_call(dtype="float16"),
        V100,
        "variable",
    ),
    PublicReport(
        "pytorch/pytorch#182551",
        "With deterministic algorithms requested strictly, cuDNN is out and sdpa_kernel(CUDNN_ATTENTION) raises.",
        make_call(switches=TorchSwitches(deterministic=True, flash=False, efficient=False, math=False)),
        replace(H100, torch=(2, 12, 0), cudnn=(9, 19, 0)),
        "deterministic",
    ),
    PublicReport(
        "ostris/ai-toolkit#933",
        "sdpa_kernel(CUDNN_ATTENTION) written into a model: on an AMD card no kernel is left.",
        make_call(1, 24, 4096, 128, switches=TorchSwitches(flash=False, efficient=False, math=False)),
        Machine((2, 11, 0), None, 94, live=True),
        "build",
    ),
    PublicReport(
        "pytorch/pytorch#188302",
        "Only the additive mask is learned, q, k and v are not.",
        make_call(mask=make_tensor_facts(1024, 1024, requires_grad=True)),
        replace(H100, torch=(2, 11, 0), cudnn=(9, 19, 0)),
        "mask",
    ),
    PublicReport(
        "vllm-project/vllm-omni#3121",
        "A head dim that torch.compile keeps symbolic is refused while tracing; models with fixed ones run.",
        TorchCall(
            q=make_tensor_facts(1, 32, 1, -1),
            k=make_tensor_facts(1, 32, 1, -1),
            v=make_tensor_facts(1, 32, 1, 64),
            switches=TorchSwitches(flash=False, efficient=False, math=False),
        ),
        Machine((2, 11, 0), (9, 19, 0), 120),
        "shapes",
    ),
    PublicReport(
        "pytorch/pytorch#191085",
        "One head of k and v for all of q, without enable_gqa: every fused kernel is refused.",
        TorchCall(
            q=make_tensor_facts(2, 8, 128, 64, dtype="float16"),
            k=make_tensor_facts(2, 1, 128, 64, dtype="float16"),
            v=make_tensor_facts(2, 1, 128, 64, dtype="float16"),
        ),
        replace(H100, torch=(2, 11, 0), cudnn=(9, 19, 0)),
        "batch-and-heads",
    ),
    PublicReport(
        "pytorch/pytorch#138531",
        "One token of q against a long cache: torch of that time gives cuDNN no lengths of 1.",
        TorchCall(
            q=make_tensor_facts(1, 16, 1, 64),
            k=make_tensor_facts(1, 16, 65536, 64),
            v=make_tensor_facts(1, 16, 65536, 64),
        ),
        replace(H100, torch=(2, 5, 1), cudnn=(9, 1, 0)),
        "shapes",
    ),
    PublicReport(  # these and the following were collected after the table was written, which was not changed for them
        "pytorch/pytorch#129579",
        "Values of 144 next to keys of 128 on Ampere failed in cuDNN's frontend; since then torch refuses them.",
        TorchCall(
            q=make_tensor_facts(8, 2, 128, 128),
            k=make_tensor_facts(8, 2, 128, 128),
            v=make_tensor_facts(8, 2, 128, 144),
        ),
        Machine((2, 5, 1), (9, 1, 0), 80, (12, 4), "A100"),
        "shapes",
    ),
    PublicReport(
        "pytorch/pytorch#149904",
        "Heads of 256 on Hopper, which cuDNN 9.5.1 has, are refused by a limit of 128 in torch.",
        make_call(2, 8, 1024, 256, switches=TorchSwitches(flash=False, efficient=False, math=False)),
        H100,
        "shapes",
    ),
    PublicReport(
        "pytorch/pytorch#130494",
        "Heads of 256 are refused everywhere, since cuDNN had them in forward passes on Hopper only.",
        make_call(2, 8, 1024, 256, switches=TorchSwitches(flash=False, efficient=False, math=False)),
        replace(H100, torch=(2, 5, 1), cudnn=(9, 1, 0)),
        "shapes",
    ),
    PublicReport(
        "pytorch/pytorch#138522",
        "The release after 2.5.0 puts cuDNN after all others: it is chosen by hand only.",
        make_call(),
        replace(H100, torch=(2, 5, 1), cudnn=(9, 1, 0)),
        "order",
    ),
    PublicReport(
        "pytorch/torchtitan#1196",
        "On a B200 the trainer's own list of backends leaves cuDNN out; with it a step is 12 % faster.",
        make_call(1, 32, 8192, 128, causal=True, switches=TorchSwitches(cudnn=False)),
        Machine((2, 8, 0), (9, 10, 2), 100, (12, 8), "B200"),
        "disabled",
    ),
    PublicReport(  # collected later, and tried before the table was changed: 7 of these and those below were wrong
        "pytorch/pytorch#128207",
        "A nightly torch of its time came with cuDNN 8.9, and says that it is too old.",
        make_call(32, 8, 128, 64, dtype="float16", switches=TorchSwitches(flash=False, efficient=False, math=False)),
        Machine((2, 5, 0), (8, 9, 7), 89, (12, 1)),
        "cudnn-version",
    ),
    PublicReport(
        "pytorch/pytorch#128571",
        "torch 2.4 with its variable set still gives cuDNN no inputs that require gradients.",
        TorchCall(**dict.fromkeys("qkv", make_tensor_facts(2, 8, 1024, 64, requires_grad=True))),
        Machine((2, 4, 1), (9, 1, 0), 90, environment={"TORCH_CUDNN_SDPA_ENABLED": "1"}),
        "gradients",
    ),
    PublicReport(
        "pytorch/pytorch#139586",
        "Grouped heads: torch 2.5.1 asks flash before cuDNN, although cuDNN has them, too.",
        TorchCall(
            q=make_tensor_facts(4, 32, 512, 128),
            k=make_tensor_facts(4, 8, 1024, 128),
            v=make_tensor_facts(4, 8, 1024, 128),
            gqa=True,
        ),
        replace(H100, torch=(2, 5, 1), cudnn=(9, 1, 0)),
        "order",
    ),
    PublicReport(
        "pytorch/pytorch#150318",
        "One token of q: cuDNN 9.8 has it, and torch 2.7 still keeps it away.",
        TorchCall(
            q=make_tensor_facts(1, 16, 1, 64),
            k=make_tensor_facts(1, 16, 2048, 64),
            v=make_tensor_facts(1, 16, 2048, 64),
            switches=TorchSwitches(flash=False, efficient=False, math=False),
        ),
        replace(H100, torch=(2, 7, 0), cudnn=(9, 8, 0)),
        "shapes",
    ),
    PublicReport(
        "pytorch/pytorch#165801",
        "torch 2.9 for CUDA 12.8 runs on cuDNN 9.10, and was compiled with 9.8, which it holds for too old.",
        make_call(1, 16, 4096, 128),
        replace(H100, torch=(2, 9, 0), cudnn=(9, 10, 2), cuda=(12, 8)),
        "order",
    ),
    PublicReport(
        "pytorch/pytorch#171895",
        "Since torch 2.10 cuDNN up to 9.15 comes last again.",
        make_call(1, 24, 261, 64),
        replace(H100, torch=(2, 10, 0), cudnn=(9, 10, 2), cuda=(12, 8)),
        "order",
    ),
    PublicReport(
        "Comfy-Org/ComfyUI#9299",
        "Windows has no flash attention, and torch 2.8 asks the efficient kernel before cuDNN on a consumer GPU.",
        make_call(1, 24, 4608, 128),
        Machine((2, 8, 0), (9, 10, 2), 120, (12, 8)),
        "order",
    ),
    PublicReport(
        "numz/ComfyUI-SeedVR2_VideoUpscaler#317",
        "On a DGX Spark cuDNN is among the backends that may run, and not the first of them.",
        make_call(1, 20, 4096, 128),
        Machine((2, 9, 0), (9, 13, 0), 121, (13, 0)),
        "order",
    ),
    PublicReport(
        "pytorch/pytorch#192799",
        "On sm_89 cuDNN is faster than flash, which torch asks first.",
        make_call(2, 16, 2048, 64, dtype="float16"),
        Machine((2, 13, 0), (9, 20, 0), 89, (13, 0)),
        "order",
    ),
    PublicReport(
        "pytorch/pytorch#176559",
        "Heads of 6 on an A100: flash says yes, cuDNN no.",
        make_call(2, 16, 64, 6, dtype="float16"),
        Machine((2, 11, 0), (9, 19, 0), 80),
        "shapes",
    ),
    PublicReport(
        "huggingface/transformers#45636",
        "A model with heads of 320 is pinned to the efficient kernel, which does not group heads.",
        TorchCall(
            q=make_tensor_facts(1, 16, 4096, 320),
            k=make_tensor_facts(1, 8, 4096, 320),
            v=make_tensor_facts(1, 8, 4096, 320),
            gqa=True,
            switches=TorchSwitches(cudnn=False, flash=False, math=False),
        ),
        replace(H100, torch=(2, 11, 0), cudnn=(9, 19, 0)),
        "disabled",
    ),
    PublicReport(
        "kyutai-labs/pocket-tts#264",
        "After gradients that were no numbers the trainer switches cuDNN off.",
        make_call(128, 16, 1024, 64, switches=TorchSwitches(cudnn=False)),
        replace(H100, torch=(2, 12, 0), cudnn=(9, 20, 0)),
        "disabled",
    ),
    PublicReport(
        "pytorch/torchtitan#4458",
        "A server that embeds torch switches cuDNN off for the process, and packed sequences heed it.",
        TorchCall(
            kind="varlen",
            q=make_tensor_facts(4096, 32, 128),
            k=make_tensor_facts(4096, 8, 128),
            v=make_tensor_facts(4096, 8, 128),
            gqa=True,
            switches=TorchSwitches(cudnn=False),
        ),
        Machine((2, 14, 0), (9, 24, 0), 100),
        "disabled",
    ),
    PublicReport(
        "pytorch/pytorch#136270",
        "Nested tensors in training: torch 2.5 gives none of them to cuDNN.",
        make_call_with_nested_tensors("nested"),
        replace(H100, torch=(2, 5, 0), cudnn=(9, 1, 0)),
        "nested",
    ),
    PublicReport(
        "lucidrains/x-transformers#143",
        "No kernel is left on a V100 with torch 2.0, which has none of cuDNN.",
        make_call(1, 71, 2048, 64, dtype="float16"),
        Machine((2, 0, 1), (8, 7, 0), 70),
        "version",
    ),
    PublicReport(
        "intel/torch-xpu-ops#3229",
        "sdpa_kernel(CUDNN_ATTENTION) on a GPU that is not NVIDIA's.",
        TorchCall(
            **dict.fromkeys("qkv", make_tensor_facts(2, 8, 128, 64, dtype="float16", device="xpu")),
            switches=TorchSwitches(flash=False, efficient=False, math=False),
        ),
        Machine((2, 11, 0), None, None),
        "device",
    ),
    PublicReport(
        "intel/torch-xpu-ops#3546",
        "Jagged tensors on such a GPU: every backend refuses them, cuDNN since they are not on CUDA.",
        TorchCall(**dict.fromkeys("qkv", replace(make_call_with_nested_tensors("jagged").q, device="xpu"))),
        Machine((2, 11, 0), None, None),
        "device",
    ),
    PublicReport(
        "meta-pytorch/attention-gym#20",
        "A learned bias inside flex_attention.",
        make_call(2, 8, 512, 64, kind="flex"),
        replace(H100, torch=(2, 5, 0)),
        "flex",
    ),
    PublicReport(
        "pytorch/pytorch#96099",
        "Biases in the fast path of nn.TransformerEncoderLayer, whose kernel is its own.",
        make_call(2, 512, 512, kind="encoder"),
        replace(H100, torch=(2, 13, 0), cudnn=(9, 20, 0)),
        "fast-path",
    ),
)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.thread)
def test_found_blocker_is_the_condition_named_in_the_report(report: PublicReport) -> None:
    blocker = find_blocker(report.call, report.machine)
    assert blocker is not None, "cuDNN would run, says the table, and the thread says it did not"
    assert blocker.gate == report.gate
    assert blocker.cure
    assert blocker.found


def test_public_reports_come_from_forty_web_discussions() -> None:
    assert len({report.thread for report in REPORTS}) >= 40


def test_a_llama_backward_pass_that_ran_on_cudnn_has_no_blocker() -> None:
    """meta-pytorch/torchtune#1652: a Llama backward pass on an H100 warns in cuDNN's name, so cuDNN ran."""
    llama = make_call(4, 32, 2048, 128, causal=True)
    assert find_blocker(llama, replace(H100, torch=(2, 5, 0), cudnn=(9, 1, 0))) is None


ONLY_CUDNN = TorchSwitches(flash=False, efficient=False, math=False)
MASKED = make_tensor_facts(64, 1, 512, 512, dtype="bool")
RAN = {
    "sgl-project/sglang#30090": (make_call(4, 16, 1024, 64, switches=ONLY_CUDNN), replace(H100, torch=(2, 11, 0))),
    "sgl-project/sglang#33655": (
        make_call(1, 12, 8192, 128, switches=ONLY_CUDNN),
        Machine((2, 11, 0), (9, 19, 0), 100),
    ),
    "pytorch/pytorch#193893": (
        TorchCall(
            q=make_tensor_facts(64, 14, 512, 64),
            k=make_tensor_facts(64, 2, 512, 64),
            v=make_tensor_facts(64, 2, 512, 64),
            mask=MASKED,
            gqa=True,
        ),
        Machine((2, 11, 0), (9, 19, 0), 100, (12, 8)),
    ),
    "huggingface/trl#7181": (
        make_call(1, 1, 704, 64, mask=make_tensor_facts(1, 1, 704, 704, dtype="bool")),
        replace(H100, torch=(2, 13, 0), cudnn=(9, 20, 0), cuda=(13, 0)),
    ),
    "pytorch/pytorch#191612": (
        make_call(2, 4, 32, 16, dtype="float16", mask=make_tensor_facts(32, 32, dtype="float32")),
        replace(H100, torch=(2, 13, 0), cudnn=(9, 20, 0)),
    ),
    "pytorch/pytorch#162073": (make_call(), replace(H100, torch=(2, 9, 0), cudnn=(9, 13, 0), cuda=(13, 0))),
    "pytorch/pytorch#192843": (make_call(), Machine((2, 14, 0), (9, 24, 0), 107, (13, 4))),
    "pytorch/pytorch#187770": (
        make_call(4096, 16, 64, kind="varlen", note=PACKED_SEQUENCES_NOTE),
        replace(H100, torch=(2, 13, 0), cudnn=(9, 20, 0)),
    ),
}


@pytest.mark.parametrize("thread", RAN)
def test_calls_that_ran_on_cudnn_have_no_blocker(thread: str) -> None:
    """These threads are about cuDNN's results or speed, not about why it was not used."""
    assert find_blocker(*RAN[thread]) is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (make_call(mask=make_tensor_facts(1024, 1024, dtype="float16")), "the mask is float16"),
        (make_call(mask=make_tensor_facts(1024, 1024, dtype="int64")), "the mask is int64"),
        (make_call(dropout=2.0), "dropout_p=2"),
        (replace(make_call(), k=make_tensor_facts(1, 16, 1024, 64)), "q has head dim 128 and k 64"),
        (replace(make_call(), v=make_tensor_facts(1, 16, 512, 128)), "k has length 1024 and v 512"),
    ],
)
def test_invalid_arguments_are_reported_as_blocker(wrong: TorchCall, said: str) -> None:
    blocker = find_blocker(wrong, replace(H100, torch=(2, 13, 0), cudnn=(9, 20, 0)), TorchBackendChoice("cudnn", True))
    assert blocker is not None
    assert blocker.gate == "arguments"
    assert said in blocker.found


def test_certain_blockers_are_listed_before_uncertain_ones() -> None:
    """torch 2.8 is between two known versions: both have the same backend order, one lacks the architecture."""
    machine = Machine((2, 8, 0), (9, 10, 2), 120)
    first = find_blocker(make_call(), machine)
    assert first is not None
    assert (first.gate, first.sure) == ("order", True)
    also = {one.gate: one.sure for one in find_other_blockers(make_call(), machine, first)}
    assert also == {"architecture": False}


@pytest.mark.parametrize(
    ("dims", "machine"),
    [
        ((1, 24, 4608, 128), replace(H100, torch=(2, 11, 0), cudnn=(9, 19, 0))),
        ((1, 24, 4608, 128), replace(H100, torch=(2, 5, 0), cudnn=(9, 1, 0))),
        ((1, 8, 256, 128), Machine((2, 11, 0), (9, 19, 0), 103)),
        ((2, 8, 128, 256), replace(H100, torch=(2, 11, 0), cudnn=(9, 19, 0))),
    ],
    ids=["2.11", "2.5.0", "GB300", "256 on Hopper"],
)
def test_calls_changed_by_a_reported_remedy_can_use_cudnn(dims: tuple[int, ...], machine: Machine) -> None:
    assert find_blocker(make_call(*dims), machine) is None


@pytest.mark.parametrize(
    ("torch", "cudnn", "sm", "refused"),
    [
        ((2, 15, 0), (9, 24, 0), 100, True),
        ((2, 15, 0), (9, 25, 0), 110, True),
        ((2, 15, 0), (9, 24, 1), 100, False),
        ((2, 15, 0), (9, 25, 1), 100, False),
        ((2, 15, 0), (9, 24, 0), 120, False),
        ((2, 14, 0), (9, 24, 0), 100, False),
    ],
)
def test_query_length_one_is_refused_on_blackwell_before_9_24_1(
    torch: tuple[int, int, int], cudnn: tuple[int, int, int], sm: int, refused: bool
) -> None:
    one = TorchCall(
        q=make_tensor_facts(2, 8, 1, 64), k=make_tensor_facts(2, 8, 512, 64), v=make_tensor_facts(2, 8, 512, 64)
    )
    blocker = find_blocker(one, Machine(torch, cudnn, sm, (13, 0)))
    found = blocker is not None and blocker.found.startswith("q has length 1")
    assert found == refused
