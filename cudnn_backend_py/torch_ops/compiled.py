"""The compiled step of torch's operators, and what it is taught.

``compiled.cpp`` says what it does. A call it has no plan for, or that is not plain eager execution, it answers with
None: the operator's Python does it then, and teaches it the plan that ran. Nothing but time depends on it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..execution.executable import Executable
from ..native.fast_call import Call, compiled_library

__all__ = ["INPUT", "NUMBER", "OUTPUT", "PIECE", "Compiled", "Recipe", "exact_recipe"]

INPUT, OUTPUT, PIECE, NUMBER = range(4)
Number = int | tuple[int, int, int]
Place = tuple[int, int, int, Number]
Named = Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """How the compiled step runs a plan; one thread's, on one stream.

    A number is an int, or (base, factor, slot) for ``base + factor * slot``: slots hold those numbers of a call in
    which calls of one plan may differ. A place is (where it is written, kind, index, offset or number) with the
    address of an INPUT, an OUTPUT or a PIECE of the workspace, or a NUMBER.

    Parameters
    ----------
    outputs
        A tensor of their type, dims, strides, and whether it is cleared first.
    row
        Of the variant pack.
    limits
        (slot, least, most) of the calls it serves.
    prepared, parameters
        Address of the parameters of the kernel that runs before the plan, and what of them is written.
    pieces, own_piece
        Sizes of the pieces of a workspace that is allocated for each call, and which one the plan itself uses.
    copied
        Inputs that are copied first.
    token
        By which it is forgotten.
    cost
        Where several serve a call, that of least cost runs.
    holds
        What must live as long as it.
    """

    call: Call
    outputs: tuple[tuple[Any, tuple[Number, ...], tuple[Number, ...], bool], ...]
    row: tuple[Place, ...]
    token: int
    holds: Any
    limits: tuple[tuple[int, int, int], ...] = ()
    prepared: int = 0
    parameters: tuple[Place, ...] = ()
    pieces: tuple[Number, ...] = ()
    own_piece: int = -1
    copied: int = 0
    cost: int = 0

    def taught(self) -> tuple[Any, ...]:
        """Return it as ``compiled.cpp`` reads it."""
        return (
            *(self.call.address, self.prepared, self.limits, self.outputs, self.row, self.parameters),
            *(self.pieces, self.own_piece, self.copied, self.token, self.cost, (self.call, self.holds)),
        )


def sources(inputs: Named, outputs: Named) -> dict[str, tuple[int, int, int]]:
    """Return kind, index and offset of each tensor of a plan, by its name."""
    found = {name: (INPUT, index, 0) for index, (name, _) in enumerate(inputs)}
    found |= {name: (OUTPUT, index, 0) for index, (name, _) in enumerate(outputs)}
    if "rng" in found:
        _, index, _ = found["rng"]
        found |= {"dropout_seed": (INPUT, index, 0), "dropout_offset": (INPUT, index, 16)}
    return found


def like(x: Any, *, cleared: bool = False) -> tuple[Any, tuple[Number, ...], tuple[Number, ...], bool]:
    """Return the description of an output that is always as this one."""
    return x.new_empty((0,)), tuple(x.shape), tuple(x.stride()), cleared


def exact_recipe(executable: Executable, inputs: Named, outputs: Named, copied: Sequence[str] = ()) -> Recipe:
    """Return the recipe of a plan that ran with these tensors on the current stream; its outputs are made anew."""
    state = executable.state_for([x for _, x in inputs if x is not None])
    known, names = sources(inputs, outputs), [name for name, _ in inputs]
    offsets, scratch_bytes = executable.scratch
    count = len(executable.names)
    row: list[Place] = [(at, *known[name]) for at, name in enumerate(executable.names)]
    if executable.allocates:
        base, pieces, own = 0, (scratch_bytes, executable.plan.workspace_bytes), 1
        row += [(count + at, PIECE, 0, offset) for at, offset in enumerate(offsets) if offset is not None]
    else:
        base, pieces, own = state.base, (), -1
    call = Call(
        state.launch,
        state.launcher.empty_pack(),
        state.launcher.filler,
        None,
        given=count,
        wanted=None,
        tail=executable.tail(base),
        workspace=executable.plan_workspace(base),
        device=0,
        ask_stream=False,
    )
    return Recipe(
        call,
        tuple(like(x) for _, x in outputs),
        tuple(row),
        id(executable),
        (state, executable),
        pieces=pieces,
        own_piece=own if pieces and pieces[1] else -1,
        copied=sum(1 << names.index(name) for name in copied),
    )


class Compiled:
    """The compiled step, once its extension is loaded.

    Attributes
    ----------
    call
        ``call(operator, *tensors, *numbers, wants_stats)``: the output, with its statistics if wanted; None for a call
        that it does not do.
    """

    def __init__(self, module: Any, torch: Any, differentiate: Callable[..., Any]) -> None:
        library = compiled_library()
        cuda = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
        module.connect(_address(library.cudnn_backend_py_go), _address(cuda.aoti_torch_get_current_cuda_stream), differentiate, "cuda")
        self.call: Callable[..., Any] = module.call
        self.define: Callable[..., int] = module.define
        self.forget: Callable[[int | None], int] = module.forget
        self.used: Callable[[int], int] = module.used
        self._learn: Callable[..., bool] = module.learn

    def teach(self, recipe: Recipe, arguments: Sequence[Any], *, backward: bool = False, wanted: int = 0) -> bool:
        """Teach it the plan of a call that just ran, with the arguments of :attr:`call`.

        Of a backward pass: d_o, o and statistics come before the tensors, and no `wants_stats` behind the numbers;
        `wanted` has the bits of the inputs whose gradient is made only if wanted.
        """
        return self._learn(recipe.taught(), backward, wanted, *arguments)


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value
