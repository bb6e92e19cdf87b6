"""Error messages of programs that use cuDNN: their meaning, how to get cuDNN's reasons, and which command helps."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from ..errors import UsageError
from ..graph.attention.selections import SELECTIONS
from ..known_issues import FAULTS
from ..plans.choice import EngineChoice
from .causes.conditions import CONDITION_PATTERN, describe_condition
from .causes.rule_texts import find_rule_name_for_reason, find_rule_text

__all__ = [
    "COMMANDS",
    "LOG_INSTRUCTIONS",
    "MESSAGE_ENTRIES",
    "STATUS_ENTRIES",
    "MessageExplanation",
    "MessagePattern",
    "explain_message",
    "find_program_that_printed_message",
    "find_titles_of_similar_messages",
]

MAX_REASONS = 3  # rules for cuDNN's own reasons that a text of a whole log leads to
_MAX_TEXT_CHARACTERS = 1_000_000  # characters of a text that are read
_MAX_PART_CHARACTERS = 400  # characters of a text that is compared with parts of messages
_MIN_PART_WORDS = 4
_MAX_LINES = 8
_MAX_LINE_CHARACTERS = 100
_MAX_QUOTED_CHARACTERS = 170  # of a line of the text, in two lines


@dataclass(frozen=True, slots=True)
class MessagePattern:
    """An error message of a program: a case-insensitive regular expression with its meaning and fix.

    `command` is ``log``, ``why``, ``frontend`` or ``doctor``: the command that helps; if empty, it depends on the
    program. `program` prints the message; it is empty if several do.
    """

    code: str
    pattern: str
    program: str
    title: str
    meaning: str
    fix: str
    command: str = ""

    @property
    def phrases(self) -> list[str]:
        """The alternatives of the regular expression as texts, without its syntax."""
        return [re.sub(r"\(\?[:!]|\\\w|\[.*?\]|\{.*?\}|[?*+]", "", part) for part in self.pattern.split("|")]


#: How to recognize the program in a text; the first that matches.
_PROGRAMS = {
    "TransformerEngine": r"transformer.?engine|fused_attn|\bnvte_|DotProductAttention\b|dot product attention backend",
    "onnxruntime": r"onnxruntime|CUDNN_FE failure|CUDNN failure \d|CUDNN Frontend$|running \w+ node",
    "JAX": r"\bjax|xla|org_tensorflow|custom.call",
    "TensorFlow": r"tensorflow|stream_executor|Conv2D|conv_ops|\bcuda_dnn\.cc",
    "torch": r"torch|cuDNN Frontend error:|mha_graph|scaled_dot_product|RuntimeError|cuDNN error: CUDNN",
    "cudnn-frontend": r"cudnn_frontend|cudnnGraphNotSupported|cudnn\._compiled",
}

_CUDNN_LOG = "Set CUDNN_LOGLEVEL_DBG=2 and CUDNN_LOGDEST_DBG=stderr"
_FRONTEND_LOG = "CUDNN_FRONTEND_LOG_INFO=1 and CUDNN_FRONTEND_LOG_FILE=stderr"
#: How to get cuDNN's own reasons, by program.
LOG_INSTRUCTIONS = {
    "torch": f"{_CUDNN_LOG} before Python starts; TORCH_LOGS does not show them.",
    "cudnn-frontend": f"{_CUDNN_LOG}, and {_FRONTEND_LOG} for the graph.",
    "TransformerEngine": f"{_CUDNN_LOG}, and NVTE_DEBUG=1 and NVTE_DEBUG_LEVEL=2 for its choice of backend.",
    "JAX": f"{_CUDNN_LOG}, and TF_CPP_MIN_LOG_LEVEL=0; XLA_FLAGS=--xla_dump_to=FOLDER writes the operations.",
    "TensorFlow": f"{_CUDNN_LOG}, and TF_CPP_MIN_LOG_LEVEL=0.",
    "onnxruntime": f"{_CUDNN_LOG}; its own log needs log_severity_level=0 in the session options.",
    "": f"{_CUDNN_LOG} before the program starts.",
}
COMMANDS = {
    "log": "`cudnn-backend log -- PROGRAM` runs the program and explains each graph it builds.",
    "why": "`cudnn-backend why PROGRAM.py` says what excluded cuDNN from each attention call.",
    "frontend": "`cudnn-backend frontend PROGRAM.py`, or `log -- PROGRAM` for C++, adds cause and remedy.",
    "doctor": "`cudnn-backend doctor` shows the libraries that are found, and each problem with its fix.",
}
_COMMAND_BY_PROGRAM = {"torch": "why", "cudnn-frontend": "frontend"}

#: Sentences of programs, the most specific first.
MESSAGE_ENTRIES = (
    MessagePattern(
        "no-attention-backend",
        r"no dot product attention (?:backend|support)|selected backend = nobackend|"
        r"disabling (?:fused|flash|unfused)\w*attention|"
        r"fused attention is not enabled|no fused attention kernel|invalid combination of .{0,40}\bfor fused attention",
        "TransformerEngine",
        "TransformerEngine excluded every attention backend",
        "Its own conditions for versions, architecture, layout and options excluded cuDNN (FusedAttention), and also "
        "flash-attn and its unfused attention.",
        "Change what the lines 'Disabling ...' name: head dims, layout, cuDNN's version.",
    ),
    MessagePattern(
        "sdpa-gradient-strides",
        r"cudnn sdpa (?:backward got|expected) grad_output\.strides",
        "torch",
        "torch copies the gradient of O for cuDNN attention",
        "A torch that was built with a cuDNN before 9.5.1 gives dO the strides of O, as its backward pass needs. It "
        "warns once; programs that printed it were reported to have NaN gradients.",
        "Install a torch built with cuDNN 9.5.1 or later, or torch.backends.cuda.enable_cudnn_sdp(False).",
        "why",
    ),
    MessagePattern(
        "sdpa-plan-not-executed",
        r"mha_graph\w*(?:->|\.)\w+\(.{0,200}(?:is_good|assert|failed)",
        "torch",
        "cuDNN attention in torch: a step of the graph failed",
        "scaled_dot_product_attention chose cuDNN, and cuDNN refused the graph or could not execute its plan. torch "
        "does not print the reason.",
        "Until it is known: torch.backends.cuda.enable_cudnn_sdp(False).",
        "why",
    ),
    MessagePattern(
        "sdpa-gate",
        r"cudnn attention (?:kernel )?(?:not used|has been|is not)|cudnn version (?:is )?too old|"
        r"cudnn version does not support|cudnn sdpa (?:is not|requires|does not|supports|nested|on sm)|"
        r"cudnn (?:mha only supports|attention does not support|dropout probability)|"
        r"\bhead_dim should be (?:no|a)|not in cudnn-supported|sdpa fprop requires|dropout reference is only supported|"
        r"\bs_q (?:not a multiple|less than)|seq_kv is not supported below",
        "torch",
        "A condition of torch excluded cuDNN attention",
        "torch checks data types, dims, mask, dropout, architecture and cuDNN's version before it calls cuDNN; this "
        "line or the one after it names the condition.",
        "Change the call as the condition says, or use another backend.",
        "why",
    ),
    MessagePattern(
        "sdpa-condition",
        r"query, key and value to all be of dtype|(?:both|all) fused kernels|\bfused kernels do not support|"
        r"(?:flash|mem(?:ory)?[ _]efficient) attention (?:requires|does|currently|only|kernel not|has been|on)|"
        r"flashattentionv2 only supports|flash attention only supports|for nestedtensor inputs|"
        r"tensors need to be on cuda device|use the following attn mask shapes",
        "torch",
        "A condition of torch excluded an attention backend",
        "torch checks a call for each backend: cuDNN, flash and memory-efficient attention share conditions such as 4 "
        "dims and equal data types; cuDNN and flash need half or bfloat16. The line is the condition.",
        "Change the call as the line says (dtype: .half() or .bfloat16()), or use another backend.",
        "why",
    ),
    MessagePattern(
        "torch-without-cudnn-attention",
        r"not compiled with cudnn attention",
        "torch",
        "This torch has no cuDNN attention",
        "It was built without cuDNN, as builds for AMD GPUs and for CPUs are, so no call of attention uses cuDNN.",
        "Install a torch wheel for CUDA; torch.backends.cudnn.version() is None without cuDNN.",
        "why",
    ),
    MessagePattern(
        "no-sdpa-kernel",
        r"no available kernel",
        "torch",
        "torch found no attention backend that is allowed",
        "The backends that sdpa_kernel allows all refuse the call, before cuDNN is called. torch's warnings before "
        "this line name the conditions.",
        "Allow more backends in sdpa_kernel, or change the call as the warnings say.",
        "why",
    ),
    MessagePattern(
        "torch-not-supported",
        r"may appear if you passed in a non-contiguous input",
        "torch",
        "cuDNN does not support this call of torch",
        "The status is CUDNN_STATUS_NOT_SUPPORTED. torch appends the sentence about non-contiguous inputs whatever "
        "the reason is: very large tensors, data types and an empty batch end here too.",
        "Try x.contiguous() once, then a smaller batch; else get cuDNN's reason.",
        "log",
    ),
    MessagePattern(
        "torch-plan-warning",
        r"plan failed with a (?:cudnn)?exception",
        "torch",
        "torch tried an engine config of a convolution that cuDNN refused",
        "This is a warning: torch takes the next engine config, so that results are not affected. It was reported for "
        "torch 2.3.0.",
        "Ignore it, or update torch. If no engine config works, torch raises an error after it.",
        "log",
    ),
    MessagePattern(
        "no-engine-for-computation",
        r"unable to find an engine to execute|unable to find a valid cudnn algorithm",
        "torch",
        "torch tried every engine config of a convolution, and none worked",
        "cuDNN refused them, or they failed while they ran: not enough GPU memory, a data type or layout without an "
        "engine, or libraries that do not fit together.",
        "Try a smaller batch first; then look for mixed cuDNN versions: `cudnn-backend doctor`.",
        "log",
    ),
    MessagePattern(
        "frontend-code",
        r"CUDNN_FE failure|failed to initialize cudnn frontend",
        "onnxruntime",
        "onnxruntime could not build a cuDNN graph",
        "A step of cudnn-frontend failed; the name after the number says which: HEURISTIC_QUERY_FAILED and "
        "GRAPH_EXECUTION_PLAN_CREATION_FAILED mean that no engine config supports the graph.",
        "CUDNN_BACKEND_API_FAILED is often a library that is missing: see `cudnn-backend doctor`.",
        "log",
    ),
    MessagePattern(
        "jax-without-cudnn",
        r"\bcudnn is not detected",
        "JAX",
        "JAX found no cuDNN",
        "implementation='cudnn' needs jaxlib with its CUDA plugin, and a GPU; JAX for CPUs has neither.",
        "pip install 'jax[cuda12]' (or cuda13), and check that jax.devices() lists the GPU.",
        "doctor",
    ),
    MessagePattern(
        "jax-attention-condition",
        r"require at least \w+ arch|jax requires cudnn|unsupported sequence length q|\bhead dim must be <=|"
        r"\b(?:kv|bias|q_seqlen|kv_seqlen) must have (?:same|int32|a rank)|"
        r"query, key and value should have same|sharding on \w* ?(?:sequence|head) dim is not|"
        r"currently only support batch_dim|"
        r"flash attention is not supported in your current jax",
        "JAX",
        "A condition of JAX excluded cuDNN attention",
        "JAX checks dims, data types, sharding, architecture and cuDNN's version before it calls cuDNN; the sentence "
        "is the condition. Newer versions of JAX lifted some.",
        "Change the call as the sentence says, update JAX, or use implementation='xla'.",
    ),
    MessagePattern(
        "no-engine-configs",
        r"no valid engine configs|heuristic_query_failed",
        "",
        "Heuristics found no engine config for the graph",
        "The name lists the operations of the graph. No engine serves them with these dims, data types and strides on "
        "this GPU and version, or a library that compiles kernels is missing.",
        "Change the graph as cuDNN's reason says, or take another version or GPU.",
    ),
    MessagePattern(
        "no-plan-built",
        r"no (?:valid )?execution plans? (?:were |could be )?(?:built|finalized)",
        "",
        "Heuristics listed engine configs, and no plan of them could be built",
        "The support check passed or was skipped; building the plan failed. Often the run-time compilation of a "
        "kernel fails: NVRTC or the driver is too old, or libraries are of different versions.",
        "See `cudnn-backend doctor`; `cudnn-backend explain GRAPH --build` gives the reason.",
    ),
    MessagePattern(
        "no-plan-supports-graph",
        r"no execution plans? supports?|check_support\(.{0,60}\bfailed",
        "",
        "No engine config supports the graph",
        "cuDNN accepted the operations, and every engine config refused this graph: dims, data types, strides, an "
        "option, the GPU's architecture or cuDNN's version.",
        "Get cuDNN's reasons; `cudnn-backend explain GRAPH --whatif` finds the smallest change that helps.",
    ),
    MessagePattern(
        "no-algorithm",
        r"best cudnn convolution|none of the algorithms provided by cudnn|no algorithm worked|all algorithms tried|"
        r"profiling failure on cudnn|autotuning failed|failing autotuning|autotuner could not find|"
        r"no reference output found|strict_conv_algorithm_picker|GetConvolveAlgorithms\(",
        "",
        "Autotuning tried every engine config, and none worked",
        "cuDNN refused them or they failed while they ran. The lines 'Profiling failure' name engine and status; "
        "ALLOC_FAILED and EXECUTION_FAILED often mean that GPU memory is used up.",
        "Leave GPU memory to cuDNN (XLA_PYTHON_CLIENT_MEM_FRACTION, set_memory_growth), then check versions.",
        "log",
    ),
    MessagePattern(
        "versions-differ",
        r"cudnn version (?:incompatibility|mismatch)|loaded runtime cudnn library|"
        r"(?:status|sublibrary)_version_mismatch",
        "",
        "The cuDNN that was loaded is not the one the program was built for",
        "Another cuDNN was found first: one in LD_LIBRARY_PATH, of the system, of conda, or of another wheel; or "
        "sub-libraries of different versions are in one folder.",
        "Remove the other cuDNN from LD_LIBRARY_PATH, or install the version that the message names.",
        "doctor",
    ),
    MessagePattern(
        "rnn-failed",
        r"\bThenRnn(?:Forward|Backward)|fail to find the dnn implementation",
        "TensorFlow",
        "A recurrent layer with cuDNN failed",
        "cuDNN could not be initialized, GPU memory is used up, or a sequence is empty or not padded on the right. "
        "Recurrent layers do not use cuDNN's graphs.",
        "Set set_memory_growth, and check the mask; the line before names cuDNN's status.",
        "doctor",
    ),
    MessagePattern(
        "library-missing",
        r"(?:unable to load|could(?: not|n't) (?:load|locate|open)).{0,40}cudnn|cannot load symbol cudnn|"
        r"(?:cudnn|nvrtc)\S*: cannot open shared object|sublibrary_loading_failed|"
        r"ExecutionProvider_Cuda: failed to load|failed to create cudaexecutionprovider",
        "",
        "A library of cuDNN, or one that it needs, was not found",
        "cuDNN loads its sub-libraries (graph, ops, cnn, adv, engines, heuristic), NVRTC and cuBLAS by name at first "
        "use, and one is missing or of another version.",
        "Install the whole wheel of one version; remove or extend LD_LIBRARY_PATH.",
        "doctor",
    ),
    MessagePattern(
        "did-not-initialize",
        r"cudnn failed to initialize|dnn library (?:initialization failed|is not found)|could not create cudnn handle|"
        r"without dnn support|dnn != nullptr|CUDNN_STATUS_NOT_INITIALIZED(?! ==)",
        "",
        "cuDNN could not be initialized",
        "The line above names the reason: no GPU memory left, a driver older than the CUDA of this cuDNN, or a "
        "cuDNN that is missing or of another version.",
        "Leave GPU memory free (XLA_PYTHON_CLIENT_PREALLOCATE=false, set_memory_growth), then check versions.",
        "doctor",
    ),
    MessagePattern(
        "descriptor-refused",
        r"CUDNN_BACKEND_\w+:? (?:cudnn ?finalize|[sg]etattribute)\b.{0,80}\bfailed|cudnnfinalize ?failed",
        "",
        "cuDNN refused a descriptor of the graph",
        "An attribute of a tensor, operation or plan is missing or has a value that cuDNN does not allow; the name "
        "before the colon says of which descriptor.",
        "Get cuDNN's reason; `cudnn-backend explain GRAPH` names the attribute.",
    ),
    MessagePattern(
        "missing-buffer",
        r"variant pack is missing|requires a \d+-byte workspace|execute\(\) received none",
        "cudnn-frontend",
        "execute was not given the memory of a tensor, or no workspace",
        "The plan is fine. A tensor of the graph that is not virtual has no buffer in the variant pack, or the "
        "workspace is missing or too small.",
        "Pass a buffer for the tensor that is named, and get_workspace_size() bytes of workspace.",
        "frontend",
    ),
    MessagePattern(
        "frontend-attention-condition",
        r"\bhidden_dim (?:d_\w+ )?shou?l?d be|\bhead_dim should be less|\bsdpa (?:fp8|fp16|node|operation)\b|"
        r"mxfp8 sdpa|attention, number of heads|bottom right causal mask|decode only mode|\bragged offsets? are only|"
        r"THD \(ragged|for bprop thd|paged (?:caches|attention) (?:only|with|are not|can only)|"
        r"sliding window attention (?:is|with|requires)|alibi mask is used|"
        r"(?:left|right) bounds?\b.{0,60}(?:zero|supported)|"
        r"(?:padding mask requires|only if padding mask)|bias mask data type|\bdbias (?:not|with|is not)\b|"
        r"deterministic algorithm|attention score mod|dropout probability cannot|attn_scale with tensor",
        "cudnn-frontend",
        "A condition of cudnn-frontend excluded this attention",
        "cudnn-frontend checks data types, dims, masks, architecture and cuDNN's version before it calls cuDNN. The "
        "sentence is the condition; hidden_dim is the head dim, which zeros can pad.",
        "Change the call as the sentence says, or use a newer cuDNN and cudnn-frontend.",
        "frontend",
    ),
    MessagePattern(
        "framework-condition",
        r"cudnn (?:frontend )?error: (?!CUDNN_STATUS|\[cudnn_frontend|no )\w+ \w|requires? cudnn version|"
        r"with cudnn version (?:below|above)|\bonly supported (?:from|with|on|for) cudnn",
        "",
        "The framework or cudnn-frontend refused the call before it called cuDNN",
        "The sentence is a condition of the framework's or cudnn-frontend's own code for a cuDNN version or "
        "architecture. Newer versions may have lifted it.",
        "Change the call as the sentence says, or update the framework and cuDNN.",
    ),
)

# Messages of programs that refuse a call before they call cuDNN, so that its log has no reasons.
_BEFORE_CUDNN = {
    "framework-condition",
    "frontend-attention-condition",
    "jax-attention-condition",
    "no-sdpa-kernel",
    "sdpa-condition",
    "sdpa-gate",
    "torch-without-cudnn-attention",
}

# What a status says that has no explanation of its own below; the names are those of the header.
_STATUS_MEANINGS = {
    "SERIALIZATION_VERSION_MISMATCH": "The plan was serialized by another cuDNN version, which this one cannot load.",
    "DEPRECATED": "The call is deprecated.",
    "LICENSE_ERROR": "The call needs a license, and checking it failed.",
    "RUNTIME_IN_PROGRESS": "Work in the stream is not complete; cudnnQueryRuntimeError answers this.",
    "RUNTIME_FP_OVERFLOW": "A number overflowed while a kernel ran.",
    "BAD_PARAM_NULL_POINTER": "A pointer of a call is null.",
    "BAD_PARAM_MISALIGNED_POINTER": "A pointer has a smaller alignment than its tensor states.",
    "BAD_PARAM_NOT_FINALIZED": "A descriptor of the call is not finalized.",
    "BAD_PARAM_OUT_OF_BOUND": "A value is outside its range.",
    "BAD_PARAM_SIZE_INSUFFICIENT": "A buffer or an array of the call is too small.",
    "BAD_PARAM_STREAM_MISMATCH": "The streams of two objects differ.",
    "BAD_PARAM_SHAPE_MISMATCH": "The dims of two tensors do not match.",
    "BAD_PARAM_DUPLICATED_ENTRIES": "An entry is given twice, such as the uid of a tensor.",
    "BAD_PARAM_ATTRIBUTE_TYPE": "The element type given for an attribute is not the one that it has.",
    "BAD_PARAM_CUDA_GRAPH_MISMATCH": "The CUDA graph does not match the plan.",
    "BAD_PARAM_DESCRIPTOR_TYPE": "The descriptor is of another type than the call needs.",
    "NOT_SUPPORTED_GRAPH_PATTERN": "No engine takes this combination of operations.",
    "NOT_SUPPORTED_SHAPE": "The engine does not take these dims.",
    "NOT_SUPPORTED_DATA_TYPE": "The engine does not take these data types.",
    "NOT_SUPPORTED_LAYOUT": "The engine does not take these strides.",
    "NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER": "The CUDA driver does not serve this call; mostly it is too old.",
    "NOT_SUPPORTED_INCOMPATIBLE_CUDART": "The CUDA runtime does not serve this call; mostly it is too old.",
    "NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING": "A library that is loaded at run time was not found, such as NVRTC.",
    "NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE": "The sub-library with this engine is not installed.",
    "NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT": "The kernel needs more shared memory per block than the GPU has. It is "
    "on-chip memory: free GPU memory and the batch do not matter.",
    "NOT_SUPPORTED_PADDING": "The engine does not take this padding.",
    "NOT_SUPPORTED_BAD_LAUNCH_PARAM": "The kernel cannot be launched with this grid, these blocks or this memory.",
    "NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API": "The engine has no kernels that can be added to a CUDA graph natively.",
    "NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE": "The engine does not take these dims as dynamic ones.",
    "INTERNAL_ERROR_COMPILATION_FAILED": "A kernel could not be compiled at run time. NVRTC may be too old.",
    "INTERNAL_ERROR_UNEXPECTED_VALUE": "A value inside cuDNN is not what it expects.",
    "INTERNAL_ERROR_BAD_LAUNCH_PARAM": "cuDNN launched a kernel with arguments that are not allowed.",
    "INTERNAL_ERROR_TEXTURE_CREATION_FAILED": "cuDNN could not create a texture.",
    "EXECUTION_FAILED_CUDA_DRIVER": "A call of the CUDA driver failed while the plan ran or its kernel was loaded.",
    "EXECUTION_FAILED_CUBLAS": "A call of cuBLAS failed while the plan ran.",
    "EXECUTION_FAILED_CUDART": "A call of the CUDA runtime failed while the plan ran.",
    "EXECUTION_FAILED_CURAND": "A call of cuRAND failed while the plan ran.",
}

#: Statuses alone, where a text has neither a sentence above nor a reason of cuDNN; the first that matches counts.
STATUS_ENTRIES = (
    *(
        MessagePattern(
            f"status-{name.lower().replace('_', '-')}",
            rf"CUDNN_STATUS_(?:NOT_SUPPORTED_)?{name.removeprefix('NOT_SUPPORTED_')}\b",
            "",
            f"CUDNN_STATUS_{name}",
            meaning,
            "Get cuDNN's reason.",
            "log",
        )
        for name, meaning in _STATUS_MEANINGS.items()
    ),
    MessagePattern(
        "out-of-memory",
        r"CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_(?:HOST|DEVICE)_ALLOCATION_FAILED)",
        "",
        "cuDNN could not allocate memory",
        "Mostly GPU memory is used up: by this program's own memory pool, or by other processes (see nvidia-smi).",
        "Take a smaller batch, or leave memory to cuDNN (XLA_PYTHON_CLIENT_MEM_FRACTION, set_memory_growth).",
        "log",
    ),
    MessagePattern(
        "execution-failed",
        r"CUDNN_STATUS_EXECUTION_FAILED",
        "",
        "A kernel of cuDNN failed while it ran or was loaded",
        "Often an earlier kernel of the program failed (an illegal address), GPU memory is used up, or a kernel was "
        "compiled for another architecture. Errors of the GPU are reported late.",
        "Run with CUDA_LAUNCH_BLOCKING=1 to find the call; then `cudnn-backend doctor`.",
        "log",
    ),
    MessagePattern(
        "internal-error",
        r"CUDNN_STATUS_(?:INTERNAL|MAPPING)_ERROR",
        "",
        "An operation inside cuDNN failed",
        "Often GPU memory is used up, an earlier kernel failed, or the GPU is newer than this cuDNN. The status says "
        "nothing about the graph.",
        "Watch GPU memory, and run with CUDA_LAUNCH_BLOCKING=1; then `cudnn-backend doctor`.",
        "log",
    ),
    MessagePattern(
        "architecture",
        r"CUDNN_STATUS_\w*ARCH_MISMATCH",
        "",
        "cuDNN does not support this operation on the GPU's architecture",
        "The GPU is older than the operation needs, or newer than this cuDNN and CUDA know.",
        "Install builds for this GPU, or take a GPU that the operation supports.",
        "doctor",
    ),
    MessagePattern(
        "not-supported",
        r"CUDNN_STATUS_NOT_SUPPORTED",
        "",
        "cuDNN does not support this call",
        "Dims, strides, data types or options have no implementation on this GPU and version. Tensors of 2^31 bytes "
        "or more are a frequent case.",
        "Get cuDNN's reason; try a smaller batch.",
        "log",
    ),
    MessagePattern(
        "call-refused",
        r"CUDNN_STATUS_(?:BAD_PARAM|INVALID_VALUE)|== CUDNN_STATUS_SUCCESS \(3 vs|cudnn error executing|"
        r"cudnn failure \d",
        "",
        "cuDNN refused an argument of a call",
        "A dimension, stride, data type or pointer is not allowed, or is empty; the message names the call.",
        "Check the dims and data types of this call; get cuDNN's reason.",
        "log",
    ),
    MessagePattern(
        "attention-failed",
        r"fused_attn\w*\.(?:cu|cpp)\b|nvte_fused_attn|_quantizer_fp8\b",
        "TransformerEngine",
        "A call of cuDNN attention in TransformerEngine failed",
        "The text after 'cuDNN Error:' or 'Assertion failed:' is the condition that was not met.",
        "Until it is known: NVTE_FUSED_ATTN=0 excludes cuDNN attention.",
        "log",
    ),
)

# A reason of cuDNN without its status is one short sentence that refuses something and addresses no person.
_REFUSAL_TEXT = re.compile(r"\bnot supported\b|\bnot a multiple\b|\bonly supports?\b|^Reason: ", re.IGNORECASE)
_PROSE_TEXT = re.compile(r"\b(?:we|you|your|our|my|please|yet|the docs)\b|[?]|\. \w", re.IGNORECASE)
_FRAMEWORK_MESSAGE = re.compile("|".join(row.pattern for row in MESSAGE_ENTRIES), re.IGNORECASE)
# A condition of cuDNN's source names variables and members as C++ does.
_CPP_NAME = re.compile(r"[a-z][A-Z]|\w_\w|->|::")
_REASON_LINE = re.compile(r"(CUDNN_STATUS_(?!SUCCESS)\w+)(?:; Reason: |: )(\S.*)")


@dataclass(frozen=True, slots=True)
class MessageExplanation:
    """The explanation of a message: meaning, how to get cuDNN's reasons, what to do, and the command that helps.

    `details` has the condition of a reason in plain English, what is known about an engine, or the line of a longer
    text that names a condition of a program; mostly empty. `reasons` is empty if cuDNN was not called.
    """

    code: str
    program: str
    title: str
    meaning: str
    details: str
    reasons: str
    fix: str
    command: str

    def lines(self) -> list[str]:
        """Return the explanation as at most 8 lines of at most 100 characters; longer texts end with ``...``."""
        program = "" if self.program and self.program in self.title else f" ({self.program or 'cuDNN'})"
        lines = [textwrap.shorten(f"{self.title}{program}", _MAX_LINE_CHARACTERS, placeholder=" ...")]
        for name, most in (("details", 3), ("meaning", 3), ("reasons", 2), ("fix", 2), ("command", 1)):
            most = min(most, _MAX_LINES - len(lines) - (name == "fix"))
            text = f"{name:9}{getattr(self, name)}" if getattr(self, name) else ""
            lines += textwrap.wrap(
                text, _MAX_LINE_CHARACTERS, subsequent_indent=" " * 9, max_lines=most, placeholder=" ..."
            )
        return lines

    def to_dict(self) -> dict[str, str]:
        """Return the explanation as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


def find_program_that_printed_message(text: str) -> str:
    """Return the name of the program that printed a text, empty if unknown."""
    return next((name for name, pattern in _PROGRAMS.items() if re.search(pattern, text, re.IGNORECASE)), "")


def explain_message(text: str, *, is_reason: bool = False) -> tuple[MessageExplanation, ...]:
    """Return the explanations of an error message, log or engine tag, the most specific first; empty if unknown.

    First the messages of programs, then the rules for cuDNN's own reasons, of which at most three are returned; a
    status alone counts if there is neither, and else four or more words that follow each other in a message.
    `is_reason` says that the text is a reason of cuDNN, although it has no status.
    """
    text = text[:_MAX_TEXT_CHARACTERS]
    flat = " ".join(text.split())
    with suppress(UsageError):
        return (_explain_engine_tag(EngineChoice.parse(flat)),)
    program = find_program_that_printed_message(flat)
    found = [
        _make_explanation(one, program, text) for one in MESSAGE_ENTRIES if re.search(one.pattern, flat, re.IGNORECASE)
    ]
    found += _explain_cudnn_reasons_in_text(text, program, is_reason=is_reason)
    if not found:
        found = [
            _make_explanation(one, program) for one in STATUS_ENTRIES if re.search(one.pattern, flat, re.IGNORECASE)
        ][:1]
    if not found and len(words := _list_words(flat[:_MAX_PART_CHARACTERS])) >= _MIN_PART_WORDS:
        part = f" {' '.join(words)} "
        parts = ((one, f" {' '.join(_list_words(phrase))} ") for one in MESSAGE_ENTRIES for phrase in one.phrases)
        found = [_make_explanation(one, program) for one in dict.fromkeys(one for one, said in parts if part in said)]
    return tuple(found)


def find_titles_of_similar_messages(text: str) -> list[str]:
    """Return the titles of at most three known messages, those that share the most words with a text."""
    words = {word for word in _list_words(text[:_MAX_PART_CHARACTERS]) if len(word) > 3} - {"cudnn"}
    shared = {
        one.title: len(words.intersection(_list_words(" ".join((one.title, *one.phrases)))))
        for one in (*MESSAGE_ENTRIES, *STATUS_ENTRIES)
    }
    near = (title for title, count in shared.items() if count >= 2 and 2 * count >= len(words))
    return sorted(near, key=lambda title: -shared[title])[:MAX_REASONS]


def _list_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without the s of a plural."""
    return [word.removesuffix("s") for word in re.findall(r"[a-z_]+", text.lower())]


def _make_explanation(row: MessagePattern, program: str, text: str = "") -> MessageExplanation:
    """Return the explanation of a row; where the message is a condition, with its line of a longer text."""
    program = row.program or program
    command = row.command or _COMMAND_BY_PROGRAM.get(program, "log")
    is_condition = row.code in _BEFORE_CUDNN
    how = "" if is_condition or row.command == "doctor" else LOG_INSTRUCTIONS[program]
    lines = text.strip().splitlines() if is_condition else []
    line = next((one for one in lines if re.search(row.pattern, one, re.IGNORECASE)), "") if len(lines) > 1 else ""
    details = textwrap.shorten(line, _MAX_QUOTED_CHARACTERS, placeholder=" ...")
    return MessageExplanation(row.code, program, row.title, row.meaning, details, how, row.fix, COMMANDS[command])


def _explain_cudnn_reasons_in_text(text: str, program: str, *, is_reason: bool) -> Iterator[MessageExplanation]:
    """Yield an explanation for each rule that matches a reason of cuDNN in the text."""
    found = _REASON_LINE.findall(re.sub(r"\n(?=at: )", " ", text))
    flat = " ".join(text.split())
    if not found and (is_reason or _is_bare_reason(flat)):
        found = [("", flat.removeprefix("Reason: "))]
    by_rule: dict[str, str] = {}  # with the first reason of each
    for status, said in found:
        by_rule.setdefault(find_rule_name_for_reason(status, said), said)
    known = [name for name in by_rule if name not in ("step", "none")][:MAX_REASONS] or list(by_rule)[:1]
    for name in known:
        rule = find_rule_text(name)
        words = describe_condition(by_rule[name])
        details = f"cuDNN refuses where {words}." if words else ""
        code = f"rule-{name.replace('_', '-')}"
        yield MessageExplanation(code, program, rule.title, rule.problem, details, "", rule.remedy, COMMANDS["log"])


def _is_bare_reason(flat: str) -> bool:
    """Return whether a text is a reason of cuDNN without its status: a short refusal, or a condition in C++."""
    if len(flat) >= 200 or _FRAMEWORK_MESSAGE.search(flat):
        return False
    statement, _, condition = flat.partition(" at: ")
    if re.search(CONDITION_PATTERN, condition or flat):
        return bool(_CPP_NAME.search(condition or flat))
    return bool(_REFUSAL_TEXT.search(flat)) and not _PROSE_TEXT.search(statement)


def _explain_engine_tag(choice: EngineChoice) -> MessageExplanation:
    """Return the explanation of an engine tag such as ``eng5_k14=3``."""
    knobs = ", ".join(f"{getattr(knob, 'name', f'knob {knob}')} = {value}" for knob, value in choice.knobs.items())
    facts = dict.fromkeys(
        f"Selected by cudnn-frontend for {row.what}, sm_{row.sm[0]} to sm_{row.sm[-1]}, cuDNN {row.versions}"
        for row in SELECTIONS
        if row.engine == choice.engine and dict(row.knobs) == dict(choice.knobs)
    )
    issues = [row.code for row in FAULTS if choice.engine in row.engines]
    if issues:
        facts[f"Known issues of graphs with an engine {choice.engine}: {', '.join(issues)}"] = None
    return MessageExplanation(
        "engine-tag",
        "",
        f"Engine {choice.engine}{f' with {knobs}' if knobs else ', all knobs chosen by cuDNN'}",
        "An engine config: the number of an engine, and values of its knobs by number of CUDNN_KNOB_TYPE. Numbers of "
        "engines are those of one kind of graph and of one cuDNN version: others have another engine of that number.",
        ". ".join(facts),
        "",
        f"`plan build --engine {choice.tag}` builds it; so does plan(graph, engine={choice.tag!r}).",
        "`cudnn-backend explain GRAPH -v` lists the engine configs that support a graph.",
    )
