"""Protobuf's wire format, as much of it as the descriptor needs.

Messages are built inside out: `message("Op", id=1, operands=[...])` returns the encoded bytes, marked with
the message's name so that a wrong nesting is an error here and not in the reader. The encoding is the
canonical one: fields in order of number, packed scalars, defaults left out except inside a oneof.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from smalt._schema import ENUMS, MESSAGES


class Message(bytes):
    """Encoded bytes of one message."""

    kind: str


def varint(value: int) -> bytes:
    """Encodes an unsigned 64-bit number; a negative one is taken modulo 2^64."""
    if not -(1 << 63) <= value < 1 << 64:
        raise OverflowError(f"{value} does not fit 64 bits")
    value &= (1 << 64) - 1
    if value < 0x80:
        return _SHORT[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT = [bytes([i]) for i in range(0x80)]
_VARINT, _FIXED64, _LENGTH = 0, 1, 2


def _scalar(kind: str, value: Any) -> tuple[int, bytes]:
    match kind:
        case "uint32" | "uint64":
            if value < 0:
                raise OverflowError(f"{value} is negative")
            return _VARINT, varint(int(value))
        case "int64" | "bool":
            return _VARINT, varint(int(value))
        case "double":
            return _FIXED64, struct.pack("<d", value)
        case "string":
            data = value.encode()
            return _LENGTH, varint(len(data)) + data
        case "bytes":
            return _LENGTH, varint(len(value)) + value
        case _ if kind in ENUMS:
            return _VARINT, varint(ENUMS[kind][value] if isinstance(value, str) else value)
        case _:
            if not isinstance(value, Message) or value.kind != kind:
                raise TypeError(f"expected a {kind}, got {getattr(value, 'kind', type(value).__name__)}")
            return _LENGTH, varint(len(value)) + value


def _is_message(kind: str) -> bool:
    return kind in MESSAGES


class _Field:
    """One field's encoder."""

    def __init__(self, owner: str, name: str, number: int, kind: str) -> None:
        self.name = f"{owner}.{name}"
        self.number = number
        self.repeated = kind.startswith("repeated ")
        self.explicit = kind.startswith("oneof ")
        self.kind = kind.split(" ")[-1]
        wire = _LENGTH if _is_message(self.kind) or self.kind in ("string", "bytes") else _VARINT
        wire = _FIXED64 if self.kind == "double" else wire
        self.packed = self.repeated and wire != _LENGTH
        self.tag = varint(number << 3 | (_LENGTH if self.repeated else wire))

    def encode(self, value: Any) -> bytes:
        try:
            if self.packed:
                data = b"".join(_scalar(self.kind, v)[1] for v in value)
                return self.tag + varint(len(data)) + data if data else b""
            if self.repeated:
                return b"".join(self.tag + _scalar(self.kind, v)[1] for v in value)
            if not self.explicit and not _is_message(self.kind) and (not value or ENUMS.get(self.kind, {}).get(value) == 0):
                return b""
            return self.tag + _scalar(self.kind, value)[1]
        except (TypeError, KeyError, OverflowError, AttributeError) as e:
            raise TypeError(f"{self.name}: {e}") from e


_FIELDS: dict[str, dict[str, _Field]] = {
        owner: {name: _Field(owner, name, number, kind) for name, (number, kind) in sorted(fields.items(), key=lambda f: f[1][0])}
        for owner, fields in MESSAGES.items()
}


def message(kind: str, /, **fields: Any) -> Message:
    """Encodes one message. A field that is None is left out."""
    table = _FIELDS[kind]
    if unknown := fields.keys() - table.keys():
        raise TypeError(f"{kind} has no field {sorted(unknown)}")
    out = Message(b"".join(field.encode(fields[name]) for name, field in table.items() if fields.get(name) is not None))
    out.kind = kind
    return out


def messages(kind: str, items: Iterable[dict[str, Any]]) -> list[Message]:
    return [message(kind, **item) for item in items]
