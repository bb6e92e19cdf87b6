"""``FrozenValue``: base of frozen dataclasses that import fast, as no methods are generated for each class.

``dataclasses`` writes and compiles methods for each class, which is most of the time of importing a small module: half
a millisecond for six fields, two for the forty of an attention problem.
"""

from __future__ import annotations

from dataclasses import Field, FrozenInstanceError, dataclass, field, replace
from typing import Any, ClassVar, Self, dataclass_transform

__all__ = ["FrozenValue"]


class _LazyDataclassFields:
    """The class attribute ``__dataclass_fields__``, which makes the class a dataclass when it is first read."""

    def __get__(self, value: FrozenValue | None, kind: type[FrozenValue]) -> dict[str, Field[Any]]:
        for name, default in vars(kind).copy().items():
            if name in kind.field_names and type(default).__hash__ is None:  # which ``dataclass`` refuses
                setattr(kind, name, field(default_factory=default.copy))
        dataclass(frozen=True, init=False, repr=False, eq=False, kw_only=kind._kw_only)(kind)
        found: dict[str, Field[Any]] = kind.__dict__["__dataclass_fields__"]
        return found


_FIELDS_ON_DEMAND = _LazyDataclassFields()


@dataclass_transform(frozen_default=True)
class FrozenValue:
    """Base of frozen dataclasses: a subclass's annotations are its fields, their values the defaults.

    A default is shared by all values: annotate one that could be changed, such as a dict, as what cannot (``Mapping``).
    A subclass says in its head whether fields are given by name only (``kw_only``), and which fields have no part in
    equality (``uncompared``).
    """

    field_names: ClassVar[tuple[str, ...]] = ()
    field_defaults: ClassVar[dict[str, Any]] = {}
    _known: ClassVar[frozenset[str]] = frozenset()
    _kw_only: ClassVar[bool] = False
    _compared: ClassVar[tuple[str, ...]] = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, kw_only: bool | None = None, uncompared: tuple[str, ...] = ()) -> None:
        own = [name for name, kind in cls.__annotations__.items() if "ClassVar[" not in str(kind)]
        cls.__dataclass_fields__ = _FIELDS_ON_DEMAND  # type: ignore[assignment]
        cls.field_names += (*own,)
        cls._known = frozenset(cls.field_names)
        cls.field_defaults = cls.field_defaults | {name: cls.__dict__[name] for name in own if name in cls.__dict__}
        cls._compared += tuple(name for name in own if name not in uncompared)
        if kw_only is not None:
            cls._kw_only = kw_only

    def __init__(self, *values: Any, **named: Any) -> None:
        if values:
            named |= self._map_positional_values(values, named)
        fields = self.__dict__
        fields.update(self.field_defaults)
        fields.update(named)
        if len(fields) != len(self.field_names) or not named.keys() <= self._known:
            raise self._make_type_error(named)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check and complete a new value."""

    def _map_positional_values(self, values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Return values given by position as a dict by field name."""
        most = 0 if self._kw_only else len(self.field_names)
        if len(values) > most:
            raise TypeError(f"{type(self).__name__} takes at most {most} values by position, got {len(values)}")
        placed = dict(zip(self.field_names, values, strict=False))
        if twice := placed.keys() & named.keys():
            raise TypeError(f"{type(self).__name__} got {', '.join(sorted(twice))} twice")
        return placed

    def _make_type_error(self, named: dict[str, Any]) -> TypeError:
        """Return the error for names that no field has, or fields that were not given."""
        unknown = [name for name in named if name not in self.field_names]
        missing = [name for name in self.field_names if name not in self.field_defaults and name not in named]
        wrong = f"needs {', '.join(missing)}"
        if unknown:
            from difflib import get_close_matches  # for this error alone

            near: dict[str, None] = {}
            for word in unknown:
                alike = [name for name in self.field_names if name[0] == word[0]]
                near |= dict.fromkeys(get_close_matches(word, alike, cutoff=0.55))
            suggestion = f"; did you mean {' or '.join(near)}?" if near else "."
            wrong = f"has no field {', '.join(unknown)}{suggestion} It has {', '.join(self.field_names)}"
        return TypeError(f"{type(self).__name__} {wrong}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def _get_compared_values(self) -> tuple[Any, ...]:
        return tuple(map(self.__dict__.__getitem__, self._compared))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FrozenValue) or type(other) is not type(self):
            return NotImplemented
        return self._get_compared_values() == other._get_compared_values()

    def __hash__(self) -> int:
        return hash(self._get_compared_values())

    def __repr__(self) -> str:
        pairs = (f"{name}={getattr(self, name)!r}" for name in self.field_names)
        return f"{type(self).__qualname__}({', '.join(pairs)})"

    def __replace__(self, /, **changes: Any) -> Self:  # for copy.replace of Python 3.13
        return replace(self, **changes)

    def __getstate__(self) -> dict[str, Any]:  # without what a subclass remembers of a value
        return {name: self.__dict__[name] for name in self.field_names}
