"""A text of inline PTX as it is written: registers, constants, and elements joined and split.

Every register is written once, but those that stand for what goes round in loops and through branches. Constants stand in front
of all else, so that they are known everywhere.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from smalt._errors import Unsupported

_STEM = {"pred": "smalt_p", "b16": "smalt_h", "b32": "smalt_r", "b64": "smalt_d"}
_NAME = re.compile(r"smalt_[phrd]\d+")
#: Branches and labels.
_CONTROL = re.compile(r"\bbra\b|(?<![:\w])[\w$]+:(?!:)")

#: Floats by the names that MLIR prints: how NumPy has them, and their bits.
_FLOATS: dict[str, tuple[Any, int]] = {
    "f64": (np.float64, 64),
    "f32": (np.float32, 32),
    "f16": (np.float16, 16),
    "bf16": (ml_dtypes.bfloat16, 16),
    "f8E4M3FN": (ml_dtypes.float8_e4m3fn, 8),
    "f8E5M2": (ml_dtypes.float8_e5m2, 8),
    "f8E8M0FNU": (ml_dtypes.float8_e8m0fnu, 8),
    "f4E2M1FN": (ml_dtypes.float4_e2m1fn, 4),
}


def unsupported(what: str, expected: str, got: str) -> Unsupported:
    return Unsupported(
        f"{what}\n  expected: {expected}\n  got: {got}"
        "\n  remedy: write this part with plgpu and jax.numpy operations or with smalt.inline_ptx, or leave the kernel to JAX's own compiler"
    )


@dataclasses.dataclass(frozen=True)
class Kind:
    """An element type: its name in MLIR, its bits, and the class of the register that holds it."""

    name: str
    bits: int

    @property
    def is_float(self) -> bool:
        return self.name in _FLOATS

    @property
    def cls(self) -> str:
        return "pred" if self.bits == 1 else "b64" if self.bits == 64 else "b16" if self.bits == 16 else "b32"

    @property
    def ptx(self) -> str:
        """The PTX name of a float, or the bits."""
        return self.name if self.is_float and self.bits >= 16 else self.cls

    def of_sign(self, signed: bool) -> str:
        """The PTX name of an integer: of narrow ones, of what they are extended to."""
        return f"{'s' if signed else 'u'}{max(self.bits, 32) if self.bits != 16 else 16}"

    def encode(self, value: float) -> int:
        """The bits of a float."""
        array = np.asarray(value, np.float64).astype(_FLOATS[self.name][0])
        return int(array.view(np.dtype(f"u{array.dtype.itemsize}")))


def int_kind(bits: int) -> Kind:
    return Kind(f"i{bits}", bits)


INDEX = Kind("index", 64)
I1, I32, I64, F32 = int_kind(1), int_kind(32), int_kind(64), Kind("f32", 32)


def kind_of(element: Any) -> Kind:
    """Of an MLIR element type."""
    name = str(element)
    if name in _FLOATS:
        return Kind(name, _FLOATS[name][1])
    if name == "index":
        return INDEX
    if name[:1] == "i" and name[1:].isdigit() and int(name[1:]) in (1, 2, 4, 8, 16, 32, 64):
        return int_kind(int(name[1:]))
    if name.startswith("!llvm.ptr"):
        return I32 if name == "!llvm.ptr<3>" else I64
    raise unsupported("a type", "integers of 1, 2, 4, 8, 16, 32 or 64 bits, floats of up to 64 bits, pointers, and vectors of them", name)


class Text:
    """The text so far."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._counts = dict.fromkeys(_STEM, 0)
        self._constants: dict[tuple[str, int], str] = {}
        self._labels = 0
        #: What is known of registers: the number in one, and the low word of one of 64 bits.
        self.known: dict[str, int] = {}
        self._low: dict[str, str] = {}
        #: Registers that are written more than once.
        self.places: set[str] = set()
        #: Parts that another one was taken into, and the lines that did so.
        self._whole: dict[tuple[str, ...], str] = {}
        self._splits: list[tuple[int, Sequence[str]]] = []
        #: Of registers with addresses: the state space.
        self.space: dict[str, str] = {}

    def finish(self) -> str:
        declared = [f".reg .{cls} {_STEM[cls]}<{n}>;" for cls, n in self._counts.items() if n]
        constants = []
        for (cls, bits), reg in self._constants.items():
            if cls == "pred":
                constants.append(f"setp.{'eq' if bits else 'ne'}.u32 {reg}, {self._constants['b32', 0]}, 0;")
            else:
                constants.append(f"mov.{cls} {reg}, {_number(bits)};")
        return "\n".join([*declared, *constants, *self._needed()])

    def _needed(self) -> list[str]:
        """The lines. Registers are split where that is needed, and not where they are joined again: a `wgmma` may have them."""
        if not any("wgmma." in line for line in self.lines):
            return self.lines
        names = [set(_NAME.findall(line)) for line in self.lines]
        before: dict[int, list[str]] = {}
        moved = set()
        for at, parts in self._splits:
            end = at + 1
            while end < len(self.lines) and not names[end].intersection(parts) and not _CONTROL.search(self.lines[end]):
                end += 1
            moved.add(at)
            if any(n.intersection(parts) for n in names[end:]):
                before.setdefault(end, []).append(self.lines[at])
        return [x for at, line in enumerate(self.lines) for x in (*before.get(at, ()), *([] if at in moved else [line]))]

    # ---------------------------------------------------------------- registers

    def fresh(self, cls: str) -> str:
        n = self._counts[cls]
        self._counts[cls] += 1
        return f"{_STEM[cls]}{n}"

    def label(self) -> str:
        self._labels += 1
        return f"smalt_L{self._labels}"

    def emit(self, line: str) -> None:
        self.lines.append(line)

    def op(self, opcode: str, cls: str, *operands: str) -> str:
        """An instruction with one result."""
        d = self.fresh(cls)
        self.lines.append(f"{opcode} {', '.join((d, *operands))};")
        return d

    def constant(self, kind: Kind, bits: int) -> str:
        bits &= (1 << kind.bits) - 1
        key = (kind.cls, bits)
        if key not in self._constants:
            if kind.cls == "pred":
                self.constant(I32, 0)  # of which it is made
            reg = self._constants[key] = self.fresh(kind.cls)
            self.known[reg] = bits
        return self._constants[key]

    def number(self, reg: str, bits: int) -> int | None:
        """The signed number that a register is known to hold."""
        n = self.known.get(reg)
        return None if n is None else n - (1 << bits) if n >> (bits - 1) & 1 else n

    def immediate(self, reg: str) -> str:
        """A register, or the number in it."""
        return str(self.known[reg]) if reg in self.known else reg

    # ---------------------------------------------------------------- integers

    def extended(self, kind: Kind, x: str, signed: bool) -> str:
        """A narrow integer as a word; wider ones as they are."""
        if kind.bits == 1:
            return self.op("selp.b32", "b32", "-1" if signed else "1", "0", x)
        if kind.bits in (2, 4, 8):
            return self.op(f"bfe.{'s' if signed else 'u'}32", "b32", x, "0", str(kind.bits))
        return x

    def word(self, kind: Kind, x: str) -> str:
        """At least the low bits of a word."""
        if kind.cls == "b16":
            return self.op("cvt.u32.u16", "b32", x)
        return self.extended(kind, x, False) if kind.bits == 1 else x

    def from_word(self, kind: Kind, x: str) -> str:
        """A number of at most 32 bits from the low bits of a word."""
        if kind.bits == 1:
            return self.op("setp.ne.u32", "pred", self.op("and.b32", "b32", x, "1"), "0")
        return self.op("cvt.u16.u32", "b16", x) if kind.cls == "b16" else x

    def wide(self, x: str, signed: bool) -> str:
        """A word as 64 bits."""
        if x in self.known:
            return self.constant(I64, (self.number(x, 32) if signed else self.known[x]) or 0)
        d = self.op("cvt.s64.s32" if signed else "cvt.u64.u32", "b64", x)
        self._low[d] = x
        return d

    def low(self, x: str) -> str:
        """The low word of 64 bits."""
        if x in self.known:
            return self.constant(I32, self.known[x])
        if x not in self._low:
            return self.op("cvt.u32.u64", "b32", x)
        return self._low[x]

    def arithmetic(self, op: str, a: str, b: str) -> str:
        """`add`, `sub`, `mul.lo` of 64 bits, whose low word is made of low words where those are known."""
        x, y = self.number(a, 64), self.number(b, 64)
        if x is not None and y is not None:
            return self.constant(I64, {"add": x + y, "sub": x - y, "mul.lo": x * y}[op])
        if y == (1 if op == "mul.lo" else 0):
            return a
        if x == (1 if op == "mul.lo" else 0) and op != "sub":
            return b
        d = self.op(f"{op}.s64", "b64", a, b)
        if all(r in self._low or r in self.known for r in (a, b)):
            self._low[d] = self.op(f"{op}.s32", "b32", self.low(a), self.low(b))
        return d

    # ---------------------------------------------------------------- bits

    def rebits(self, elements: Sequence[str], kind: Kind, to: Kind) -> list[str]:
        """The bits of neighbouring elements, the first one lowest, as elements of another type."""
        if kind.bits == to.bits:
            return list(elements)
        if kind.bits > to.bits:
            return [part for x in elements for part in self._split(x, kind, to)]
        n = to.bits // kind.bits
        return [self._join(elements[i : i + n], kind, to) for i in range(0, len(elements), n)]

    def _join(self, parts: Sequence[str], kind: Kind, to: Kind) -> str:
        whole = self._whole.get(tuple(parts))
        if whole is not None:
            return whole
        if kind.bits >= 16:
            return self.op(f"mov.b{to.bits}", to.cls, "{" + ", ".join(parts) + "}")
        if to.bits == 64:
            half = len(parts) // 2
            return self._join([self._join(p, kind, I32) for p in (parts[:half], parts[half:])], I32, to)
        word = self.word(kind, parts[0])
        for i, part in enumerate(parts[1:], 1):
            word = self.op("bfi.b32", "b32", self.word(kind, part), word, str(i * kind.bits), str(kind.bits))
        return self.from_word(to, word)

    def _split(self, x: str, kind: Kind, to: Kind) -> list[str]:
        n = kind.bits // to.bits
        if to.bits >= 16:
            parts = [self.fresh(to.cls) for _ in range(n)]
            if x not in self.places:
                self._whole[tuple(parts)] = x
                self._splits.append((len(self.lines), parts))
            self.emit(f"mov.b{kind.bits} {{{', '.join(parts)}}}, {x};")
            return parts
        if kind.bits == 64:
            return [part for half in self._split(x, kind, I32) for part in self._split(half, I32, to)]
        word = self.word(kind, x)
        shifted = [word if i == 0 else self.op("shr.u32", "b32", word, str(i * to.bits)) for i in range(n)]
        return [self.from_word(to, part) for part in shifted]


def _number(bits: int) -> str:
    return str(bits) if bits < 1 << 31 else f"0x{bits:x}"
