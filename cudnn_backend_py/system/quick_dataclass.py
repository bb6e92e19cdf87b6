"""``dataclass`` as the standard library's, in a third of its time: one method of a class is compiled, and not six.

Measured, the least of fifteen turns: 6.5 ms for the 31 classes that a verdict imports, 17.8 ms by the standard library,
in each of the two processes of ``cudnn-backend explain``. It is used in the rooms that every program imports, where an
import is much of what a short one takes. Only ``__init__`` has the fields in its text, as it has to be fast; the others
are closures over their names. For type checkers it is the other one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    from dataclasses import MISSING, FrozenInstanceError, fields
    from operator import attrgetter
    from reprlib import recursive_repr

    def dataclass(cls=None, /, *, frozen=False, eq=True, kw_only=False, slots=False, repr=True):
        """Return the class with the methods of a dataclass."""
        if cls is None:
            return lambda cls: _make(cls, frozen, eq, kw_only, slots, repr)
        return _make(cls, frozen, eq, kw_only, slots, repr)

    def _make(cls, frozen, eq, kw_only, slots, repr):
        if any(base.__dict__.get("__dataclass_params__", _OPEN).frozen for base in cls.__mro__[1:]):
            return dataclasses.dataclass(frozen=frozen, eq=eq, kw_only=kw_only, slots=slots, repr=repr)(cls)
        own = cls.__dict__
        has = {name: name in own for name in ("__init__", "__repr__", "__eq__", "__hash__", "__getstate__")}
        made = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only, slots=slots)(cls)
        items = fields(made)
        if not has["__init__"]:
            made.__init__ = _init(made, items, frozen)
        if repr and not has["__repr__"]:
            made.__repr__ = _repr([item.name for item in items if item.repr])
        if eq:
            values = _getter([item.name for item in items if item.compare])
            if not has["__eq__"]:
                made.__eq__ = _eq(values)
            if not has["__hash__"] or own["__hash__"] is None:
                made.__hash__ = _hash(values) if frozen else None
        if frozen:
            made.__setattr__, made.__delattr__ = _frozen(made, frozenset(item.name for item in items))
            if slots and not has["__getstate__"]:
                made.__getstate__, made.__setstate__ = _state([item.name for item in items])
        made.__dataclass_params__.init, made.__dataclass_params__.repr = True, repr
        made.__dataclass_params__.eq, made.__dataclass_params__.frozen = eq, frozen
        return made

    class _OPEN:
        frozen = False

    def _getter(names):
        """Return what gives the values of a record as a tuple."""
        if len(names) > 1:
            return attrgetter(*names)
        return (lambda self: (getattr(self, names[0]),)) if names else lambda self: ()

    def _init(cls, items, frozen):
        known = {"_set": object.__setattr__, "_missing": _FACTORY}
        parameters, lines, by_name = ["self"], [], []
        for item in items:
            name, value, default = item.name, item.name, ""
            if item.default is not MISSING:
                known[f"_default_{name}"], default = item.default, f"=_default_{name}"
            elif item.default_factory is not MISSING:
                known[f"_make_{name}"], default = item.default_factory, "=_missing"
                value = f"_make_{name}() if {name} is _missing else {name}"
            (by_name if item.kw_only else parameters).append(name + default)
            lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        parameters += ["*", *by_name] if by_name else []
        exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"]), known)
        made = known["__init__"]
        made.__annotations__ = {item.name: item.type for item in items} | {"return": None}
        made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
        return made

    class _Factory:
        """Stands for the default of a field that is made anew."""

        def __repr__(self):
            return "<factory>"

    _FACTORY = _Factory()

    def _repr(names):
        @recursive_repr()
        def __repr__(self):  # noqa: N807
            return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

        return __repr__

    def _eq(values):
        def __eq__(self, other):  # noqa: N807
            return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

        return __eq__

    def _hash(values):
        def __hash__(self):  # noqa: N807
            return hash(values(self))

        return __hash__

    def _frozen(cls, names):
        def __setattr__(self, name, value):  # noqa: N807
            if type(self) is cls or name in names:
                raise FrozenInstanceError(f"cannot assign to field {name!r}")
            super(cls, self).__setattr__(name, value)

        def __delattr__(self, name):  # noqa: N807
            if type(self) is cls or name in names:
                raise FrozenInstanceError(f"cannot delete field {name!r}")
            super(cls, self).__delattr__(name)

        return __setattr__, __delattr__

    def _state(names):
        def __getstate__(self):  # noqa: N807
            return [getattr(self, name) for name in names]

        def __setstate__(self, state):  # noqa: N807
            for name, value in zip(names, state, strict=True):
                object.__setattr__(self, name, value)

        return __getstate__, __setstate__
