"""``cudnn.engines.manifest``: families of cudnn-frontend's own kernels, none of which is available here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .engine_ids import PYTHON_ENGINE_ID_BASE

__all__ = ["MANIFEST", "EngineFamily", "opt_in_engines_enabled"]

_NUMBERS_PER_FAMILY = 100  # numbers of one family
_FAMILY_POSITIONS = {
    "gdn": 1,
    "kda": 2,
    "gdn2": 3,
    "gdp": 7,
    "mamba2": 9,
    "frost_gemm": 4,
    "frost_sdpa_fwd": 5,
    "frost_sdpa_bwd": 6,
    "frost_conv": 8,
    "frost_norm_fwd": 10,
    "frost_norm_bwd": 11,
}


@dataclass(frozen=True)
class EngineFamily:
    """A family of cudnn-frontend's own kernels for one kind of graph; ``engine_id`` is its lowest engine number."""

    engine_id: int
    name: str

    @property
    def id_end(self) -> int:
        """The engine number after the last one of the family."""
        return self.engine_id + _NUMBERS_PER_FAMILY

    @property
    def slots(self) -> Mapping[str, object]:
        """The kernels of the family by name: empty, as this package has none."""
        return {}

    def owns(self, engine_id: int) -> bool:
        """Return whether an engine number belongs to the family."""
        return self.engine_id <= engine_id < self.id_end

    def offered_ids(self) -> dict[str, int]:
        """Return the engine numbers of available kernels by name: empty, as this package has none."""
        return {}


MANIFEST = tuple(
    EngineFamily(PYTHON_ENGINE_ID_BASE + block * _NUMBERS_PER_FAMILY, name) for name, block in _FAMILY_POSITIONS.items()
)


def opt_in_engines_enabled() -> bool:
    """Return whether opt-in kernels are offered: never by this package, whatever the environment requests."""
    return False
