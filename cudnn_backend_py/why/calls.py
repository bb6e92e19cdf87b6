"""torch's attention calls as plain data: tensors, settings, machine, and call site. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "DEFAULT_ORDER",
    "CallKind",
    "CallSite",
    "Machine",
    "TensorFacts",
    "TensorForm",
    "TorchBackendChoice",
    "TorchCall",
    "TorchSwitches",
]

TensorForm = Literal["dense", "nested", "jagged"]
CallKind = Literal["sdpa", "flex", "varlen", "encoder"]

#: torch's backends by the numbers of ``torch.nn.attention.SDPBackend``.
BACKENDS = {-1: "none", 0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
#: The order in which torch asks its backends where nothing else was set.
DEFAULT_ORDER = ("flash", "efficient", "math", "cudnn")


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """The properties of a tensor that torch's conditions check; strides in elements, ``lengths`` if nested."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str = "cuda"
    requires_grad: bool = False
    form: TensorForm = "dense"
    lengths: tuple[int, ...] = ()

    def __str__(self) -> str:
        inside = ",".join(map(str, self.dims)) if self.form == "dense" else f"{len(self.lengths)} sequences"
        return f"{self.dtype}[{inside}]"


@dataclass(frozen=True, slots=True)
class TorchSwitches:
    """torch's settings during a call: enabled backends, deterministic algorithms, backend order (None: not set)."""

    cudnn: bool = True
    flash: bool = True
    efficient: bool = True
    math: bool = True
    deterministic: bool = False
    warn_only: bool = False
    order: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a program, or the described GPU it is judged for.

    ``torch``, ``cudnn`` and ``cuda`` are versions as tuples; ``sm`` is 90 for capability 9.0. ``environment`` holds the
    variables that torch's gates read. ``live`` says whether torch has this GPU.
    """

    torch: tuple[int, int, int]
    cudnn: tuple[int, int, int] | None
    sm: int | None
    cuda: tuple[int, int] | None = None
    gpu: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    live: bool = False

    def read_variable(self, name: str) -> bool | None:
        """Return torch's reading of an environment variable: "1" is True, "0" False, anything else None."""
        return {"1": True, "0": False}.get(self.environment.get(name, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCall:
    """The arguments of an attention call after autocast, as torch's conditions see them.

    Only the graphs that torch would build of it are attention problems; the gates also look at masks, gradients,
    switches and nested tensors.
    """

    kind: CallKind = "sdpa"
    q: TensorFacts
    k: TensorFacts
    v: TensorFacts
    mask: TensorFacts | None = None
    dropout: float = 0.0
    causal: bool = False
    scale: float | None = None
    gqa: bool = False
    grad_enabled: bool = True
    switches: TorchSwitches = field(default_factory=TorchSwitches)
    autocast: str = ""
    note: str = ""

    @property
    def tensors(self) -> dict[str, TensorFacts]:
        """q, k and v by name."""
        return {"q": self.q, "k": self.k, "v": self.v}

    @property
    def training(self) -> bool:
        """Whether torch will compute gradients of q, k or v."""
        return self.grad_enabled and any(one.requires_grad for one in self.tensors.values())

    @property
    def nested(self) -> bool:
        """Whether one of q, k, v is a strided nested tensor."""
        return any(one.form == "nested" for one in self.tensors.values())

    def __str__(self) -> str:
        said = [f"q {self.q}", f"k {self.k}", f"v {self.v}"]
        said += [f"mask {self.mask}"] * (self.mask is not None)
        said += [f"dropout {self.dropout:g}"] * bool(self.dropout) + ["causal"] * self.causal + ["gqa"] * self.gqa
        return ", ".join(
            [*said, *["for training"] * self.training, *[f"autocast to {self.autocast}"] * (self.autocast != "")]
        )


@dataclass(frozen=True, slots=True)
class CallSite:
    """Where a call was made: file, line and function of the nearest frame outside torch, and of the program."""

    file: str
    line: int
    function: str
    program: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class TorchBackendChoice:
    """torch's own report about a call: chosen backend, whether cuDNN may run, and the message if not."""

    choice: str | None = None
    cudnn: bool | None = None
    words: tuple[str, ...] = ()
    flash: bool | None = None
    efficient: bool | None = None
    error: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TorchBackendChoice:
        """Rebuild an answer from the output of :func:`~dataclasses.asdict`."""
        return cls(**{**data, "words": tuple(data.get("words", ()))})
