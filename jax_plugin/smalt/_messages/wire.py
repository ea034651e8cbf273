"""Protobuf's wire format, as much of it as the descriptor needs.

Messages are built inside out: `message("Op", id=1, operands=[...])` returns the encoded bytes, marked with
the message's name so that a wrong nesting is an error here and not in the reader. The encoding is the
canonical one: fields in order of number, packed scalars, defaults left out except inside a oneof.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from smalt._messages.schema import ENUMS, MESSAGES


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


def _length_delimited(data: bytes) -> bytes:
    return varint(len(data)) + data


def _unsigned(value: Any) -> bytes:
    if value < 0:
        raise OverflowError(f"{value} is negative")
    return varint(int(value))


def _enum(kind: str) -> Callable[[Any], bytes]:
    members = {name: varint(number) for name, number in ENUMS[kind].items()}
    return members.__getitem__


def _message(kind: str) -> Callable[[Any], bytes]:
    def encode(value: Any) -> bytes:
        if type(value) is not Message or value.kind != kind:
            raise TypeError(f"expected a {kind}, got {getattr(value, 'kind', type(value).__name__)}")
        return varint(len(value)) + value

    return encode


_SCALARS: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "uint32": (_VARINT, _unsigned),
    "uint64": (_VARINT, _unsigned),
    "int64": (_VARINT, lambda value: varint(int(value))),
    "bool": (_VARINT, lambda value: varint(int(value))),
    "double": (_FIXED64, lambda value: struct.pack("<d", value)),
    "string": (_LENGTH, lambda value: _length_delimited(value.encode())),
    "bytes": (_LENGTH, _length_delimited),
    **{kind: (_VARINT, _enum(kind)) for kind in ENUMS},
    **{kind: (_LENGTH, _message(kind)) for kind in MESSAGES},
}


def _field(number: int, kind: str) -> tuple[int, Callable[[Any], bytes]]:
    """A field's number and its encoder, which gives nothing for a default outside a oneof."""
    label, _, scalar = kind.rpartition(" ")
    wire, encode = _SCALARS[scalar]
    tag = varint(number << 3 | (_LENGTH if label == "repeated" else wire))
    if label == "repeated" and wire != _LENGTH:

        def packed(values: Any) -> bytes:
            data = b"".join([encode(v) for v in values])
            return tag + varint(len(data)) + data if data else b""

        return number, packed
    if label == "repeated":
        return number, lambda values: b"".join([tag + encode(v) for v in values])
    if label == "oneof" or scalar in MESSAGES:
        return number, lambda value: tag + encode(value)
    default = next(name for name, n in ENUMS[scalar].items() if n == 0) if scalar in ENUMS else None
    return number, lambda value: tag + encode(value) if value and value != default else b""


_FIELDS: dict[str, dict[str, tuple[int, Callable[[Any], bytes]]]] = {
    owner: {name: _field(number, kind) for name, (number, kind) in fields.items()} for owner, fields in MESSAGES.items()
}


def message(kind: str, /, **fields: Any) -> Message:
    """Encodes one message. A field that is None is left out."""
    table = _FIELDS[kind]
    parts = []
    for name, value in fields.items():
        if value is None:
            continue
        if name not in table:
            raise TypeError(f"{kind} has no field {name}")
        number, encode = table[name]
        try:
            parts.append((number, encode(value)))
        except (TypeError, KeyError, OverflowError, AttributeError) as e:
            raise TypeError(f"{kind}.{name}: {e}") from e
    parts.sort()
    out = Message(b"".join([data for _, data in parts]))
    out.kind = kind
    return out
