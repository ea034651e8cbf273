"""Static parameters as attributes."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any

import numpy as np

from smalt._messages import types
from smalt._messages.wire import Message, message


@dataclasses.dataclass(frozen=True)
class Axes:
    """Axis ids, already interned."""

    ids: tuple[int, ...]


class Opaque(Exception):
    """A parameter that has no encoding (a function, a PyTree definition, …)."""


_MESSAGE_FIELD = {
    "Layout": "layout",
    "Type": "type",
    "Literal": "literal",
    "TransformLists": "transforms",
    "Attrs": "attrs",
}


def numbered_attributes(items: Iterable[Any]) -> Message:
    """A sequence as attributes 000, 001, …"""
    return message("Attrs", attrs=[attr(f"{i:03}", item) for i, item in enumerate(items)])


def named_attributes(items: dict[str, Any]) -> Message:
    return message("Attrs", attrs=attributes(items))


def attributes(items: dict[str, Any]) -> list[Message]:
    """Attributes sorted by name, without those that are None."""
    return [attr(name, items[name]) for name in sorted(items) if items[name] is not None]


def attr(name: str, value: Any) -> Message:
    """One attribute; raises Opaque for what has no encoding."""
    field, encoded = _value(value)
    return message("Attr", name=name, **{field: encoded})


def _value(value: Any) -> tuple[str, Any]:
    match value:
        case None:
            return "none", message("None")
        case Message():
            return _MESSAGE_FIELD[value.kind], value
        case Axes():
            return "axes", message("Axes", ids=value.ids)
        case _ if hasattr(value, "to_mgpu"):
            return "layout", types.layout(value)
        case enum.Enum():
            return "text", value.name.lower()
        case bool() | np.bool_():
            return "bool", bool(value)
        case int() | np.integer():
            return "int", int(value)
        case float() | np.floating():
            return "float", float(value)
        case str():
            return "text", value
        case bytes():
            return "bytes", value
        case np.ndarray():
            return "literal", types.literal(value)
        case tuple() if hasattr(value, "_fields"):
            return "attrs", named_attributes({f: getattr(value, f) for f in value._fields})
        case tuple() | list():
            if all(isinstance(v, (int, np.integer)) and not isinstance(v, (bool, enum.Enum)) for v in value):
                return "ints", message("Ints", values=[int(v) for v in value])
            return "attrs", numbered_attributes(value)
        case dict():
            return "attrs", named_attributes({str(k): v for k, v in value.items()})
    if types.is_dtype(value) or type(value).__name__ == "KeyTy":
        return "dtype", types.dtype(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "attrs", named_attributes({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "__array__"):
        return "literal", types.literal(np.asarray(value))
    raise Opaque(type(value).__name__)
