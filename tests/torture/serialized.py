"""Load randomly damaged serialized graphs of this package and of cudnn-frontend: bytes, UBJSON or plan changed."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from cudnn_backend_py import explain
from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.frontend import serialize
from cudnn_backend_py.frontend.runner import InternalTensorPlacement
from cudnn_backend_py.frontend.ubjson import read_ubjson, write_ubjson
from cudnn_backend_py.target import Target, open_target
from tests.support.damaged_texts import assert_safe_to_print, mutate_json
from tests.support.varied_graphs import VARIED_GRAPHS
from tests.torture.harness import BrokenGuarantee

BLOBS_PER_ROUND = 150
_CODE_KEY, _PACKAGE_DATA_KEY, _CHECKSUM_KEY = "cudnn_backend_data", "cudnn_backend_py", "cudnn_backend_py_sha256"
_PLACEMENT_FIELDS: dict[str, Any] = {  # fields of a graph with constants, workspace, scalars and slices
    "workspace_modifications": {"1": [0, 0, ["3f800000"]], "2": [2, 0, []]},
    "fe_workspace_size": 1 << 20,
    "pass_by_values": {"1": {"index": 3, "value": "3f800000"}, "2": {"index": 0, "value": 3}},
    "variant_pack_replacements": [[1, [2, 0]]],
}


_INSERTED_BYTES = (b"[", b"{", b"i", b"SL" + b"\x7f" * 8, b"Sl" + b"\xff" * 4, b"D\x7f\xf0" + bytes(6), b"[" * 99)


@cache
def _open_sm90_target() -> Target:
    return open_target("sm90")


@cache
def _serialize_plan() -> bytes:
    graph = VARIED_GRAPHS["matmul f16 64"]()
    plans: list[Any] = []
    explain(graph, _open_sm90_target(), build=True, plans=plans)
    return serialize.serialize_plan(plans[0], InternalTensorPlacement(graph, {}, {}))


def _damage_bytes(rng: random.Random, content: dict[str, Any]) -> bytes:
    data = bytearray(rng.choice([_serialize_plan(), write_ubjson(_remove_data_added_by_package(content))]))
    for _ in range(rng.randrange(1, 6)):
        at, what = rng.randrange(min(len(data), 6000)), rng.random()
        if what < 0.5:
            data[at] = rng.randrange(256)
        elif what < 0.7:
            del data[at : at + rng.randrange(1, 9)]
        else:
            data[at:at] = rng.choice(_INSERTED_BYTES)
    return bytes(data)


def _damage_frontend_data(rng: random.Random, content: dict[str, Any]) -> bytes:
    theirs = _remove_data_added_by_package(content) | (_PLACEMENT_FIELDS if rng.random() < 0.6 else {})
    code = theirs.pop(_CODE_KEY)
    if rng.random() < 0.4:
        code = json.dumps(mutate_json(rng, json.loads(code)))
    changed = mutate_json(rng, theirs)
    return write_ubjson({**changed, _CODE_KEY: code} if isinstance(changed, dict) else changed)


def _damage_data_added_by_package(rng: random.Random, content: dict[str, Any]) -> bytes:
    own = json.dumps(mutate_json(rng, json.loads(content[_PACKAGE_DATA_KEY])))
    return write_ubjson(
        {**content, _PACKAGE_DATA_KEY: own, _CHECKSUM_KEY: serialize._compute_checksum(own, content[_CODE_KEY])}
    )


def _remove_data_added_by_package(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in (_PACKAGE_DATA_KEY, _CHECKSUM_KEY)}


DAMAGE_BY_NAME: dict[str, Callable[[random.Random, dict[str, Any]], bytes]] = {
    "bytes": _damage_bytes,
    "cudnn-frontend": _damage_frontend_data,
    "own": _damage_data_added_by_package,
}


def run_random_round(seed: int, folder: Path) -> Counter[str]:
    """Load damaged serialized graphs, and check that each gives a plan or an error of this package."""
    rng, content = random.Random(seed), read_ubjson(_serialize_plan())
    counts: Counter[str] = Counter()
    for number in range(BLOBS_PER_ROUND):
        kind = rng.choice(list(DAMAGE_BY_NAME))
        try:
            data = DAMAGE_BY_NAME[kind](rng, content)
        except (
            CudnnBackendError,
            AttributeError,
            OverflowError,
            UnicodeEncodeError,
        ):  # UBJSON cannot represent the value
            continue
        try:
            serialize.deserialize_plan(data, _open_sm90_target())[0].close()
            counts[f"{kind}: loaded"] += 1
        except CudnnBackendError as error:
            assert_safe_to_print(error.render())
            counts[f"{kind}: refused"] += 1
        except Exception as error:
            kept = Path(tempfile.gettempdir()) / f"broken-{seed}-{number}.ubj"
            kept.write_bytes(data)
            raise BrokenGuarantee(f"{kind}, {kept}: {type(error).__name__}: {error}") from error
    return counts
