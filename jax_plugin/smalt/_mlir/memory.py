"""MLIR's `memref`, vector loads and stores, and LLVM's pointers, as inline PTX.

A memref is the address of its first element; its strides are those of its type, and offsets are in the address.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from smalt import _registry
from smalt._mlir.text import I64, Kind, Text, int_kind, kind_of, unsupported

#: name of the op → what translates it.
MEMORY: dict[str, Callable[[Any, Any], Any]] = {}


_memory = _registry.into(MEMORY)


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A memref: the address of its first element, and the state space that it is in (none of generic addresses).

    `terms`: indices times strides, in elements, from where the argument begins that it is a part of.
    """

    base: str
    space: str
    terms: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Cells:
    """A memref of a few elements on the stack: registers that are written again."""

    registers: tuple[str, ...]


@dataclasses.dataclass
class Fields:
    """A structure or an array of LLVM's: what its fields hold, by their path."""

    at: dict[tuple[int, ...], Any]


# ------------------------------------------------------------------------------------------ accesses


def access(t: Text, opcode: str, space: str, address: str, kind: Kind, values: Sequence[str] | int) -> list[str]:
    """Loads (`values`: how many elements) or stores neighbouring elements, in pieces of up to 16 bytes."""
    n = values if isinstance(values, int) else len(values)
    if kind.bits == 1:
        raise unsupported("booleans in memory", "numbers", "i1")
    bits = n * kind.bits
    if bits % 8 or bits > 8 and bits % 16:
        raise unsupported("an access to memory", "whole bytes: 1, 2, or a multiple of 4 of them", f"{n} elements of {kind.bits} bits")
    unit = int_kind(64 if kind.bits == 64 else 32 if bits % 32 == 0 else bits if bits in (8, 16) else 16)
    units = bits // unit.bits
    ty = "u8" if unit.bits == 8 else f"b{unit.bits}"
    regs = [] if isinstance(values, int) else t.rebits(values, kind, unit)
    most, i = 128 // unit.bits if unit.bits >= 32 else 1, 0
    while i < units:
        piece = next(k for k in (4, 2, 1) if k <= most and i + k <= units)
        name = f"{opcode}{space and '.' + space}{'' if piece == 1 else f'.v{piece}'}.{ty}"
        at = f"[{address}+{i * unit.bits // 8}]"
        if opcode.startswith("ld"):
            part = [t.fresh(unit.cls) for _ in range(piece)]
            t.emit(f"{name} {_list(part)}, {at};")
            regs += part
        else:
            t.emit(f"{name} {at}, {_list(regs[i : i + piece])};")
        i += piece
    return t.rebits(regs, unit, kind) if opcode.startswith("ld") else []


def _list(regs: Sequence[str]) -> str:
    return regs[0] if len(regs) == 1 else "{" + ", ".join(regs) + "}"


def offset(t: Text, base: str, space: str, terms: Sequence[tuple[str, int]], bits: int) -> str:
    """An address plus indices times strides, in elements of so many bits."""
    short = space == "shared"
    bytes_, narrow = (bits // 8, False) if bits % 8 == 0 else (1, True)
    constant, total = 0, ""
    for index, stride in terms:
        known = t.number(index, 64)
        if known is not None:
            constant += known * stride * bytes_
            continue
        x = t.low(index) if short else index
        ty, cls = ("s32", "b32") if short else ("s64", "b64")
        scale = str(stride * bytes_)
        total = t.op(f"mad.lo.{ty}", cls, x, scale, total) if total else t.op(f"mul.lo.{ty}", cls, x, scale)
    if narrow and (constant or total):
        if total:
            total = t.op("add.s32" if short else "add.s64", "b32" if short else "b64", total, str(constant))
            total = t.op("mul.lo.s32" if short else "mul.lo.s64", "b32" if short else "b64", total, str(bits))
            total, constant = t.op("shr.u32" if short else "shr.u64", "b32" if short else "b64", total, "3"), 0
        else:
            constant = constant * bits // 8
    add = "add.s32" if short else "add.s64"
    cls = "b32" if short else "b64"
    out = t.op(add, cls, base, total) if total else base
    return t.op(add, cls, out, str(constant)) if constant else out


def _strides_of(op: Any, memref: Any) -> list[int]:
    strides, _ = memref.get_strides_and_offset()
    dynamic = -(1 << 63)
    if any(s in (dynamic, None) for s in strides):
        raise unsupported(f"`{op.name}`", "memrefs whose strides are known when the kernel is compiled", str(memref))
    return list(strides)


def _indexed(cx: Any, op: Any, first: int) -> tuple[Buffer, str, Kind]:
    """The buffer that an operand is, and the address at the indices that follow it."""
    memref = cx.memref(op.operands[first])
    buffer = cx.get(op.operands[first])
    kind = kind_of(memref.element_type)
    indices = [cx.scalar(v) for v in op.operands[first + 1 : first + 1 + len(memref.shape)]]
    at = offset(cx.text, buffer.base, buffer.space, list(zip(indices, _strides_of(op, memref))), kind.bits)
    return buffer, at, kind


def _cell(cx: Any, op: Any, cells: Cells, indices: Sequence[Any]) -> str:
    numbers = [cx.text.number(cx.scalar(i), 64) for i in indices]
    if None in numbers or len(numbers) > 1:
        raise unsupported(f"`{op.name}` of memory on the stack", "at most one dimension, and constant indices", f"{len(numbers)} indices")
    return cells.registers[numbers[0] if numbers else 0]


@_memory("memref.alloca")
def _alloca(cx: Any, op: Any) -> Any:
    memref = cx.memref_type(op.result_type())
    n = math.prod(memref.shape)
    if op.operands or len(memref.shape) > 1 or n > 32:
        raise unsupported(f"`{op.name}`", "a scalar, or at most 32 elements in a row", str(memref))
    registers = tuple(cx.text.fresh(kind_of(memref.element_type).cls) for _ in range(n))
    cx.text.places.update(registers)
    return Cells(registers)


@_memory("memref.load", "vector.load")
def _load(cx: Any, op: Any) -> Any:
    cells = cx.get(op.operands[0])
    if isinstance(cells, Cells):
        cls = op.kind_of_result().cls
        return (cx.text.op(f"mov.{cls}", cls, _cell(cx, op, cells, op.operands[1:])),)
    buffer, at, kind = _indexed(cx, op, 0)
    return tuple(access(cx.text, "ld", buffer.space, at, kind, math.prod(op.shape_of_result())))


@_memory("memref.store", "vector.store")
def _store(cx: Any, op: Any) -> None:
    cells = cx.get(op.operands[1])
    if isinstance(cells, Cells):
        cx.text.emit(f"mov.{op.kind_of(0).cls} {_cell(cx, op, cells, op.operands[2:])}, {cx.scalar(op.operands[0])};")
        return
    buffer, at, kind = _indexed(cx, op, 1)
    access(cx.text, "st", buffer.space, at, kind, cx.get(op.operands[0]))


@_memory("memref.subview")
def _subview(cx: Any, op: Any) -> Any:
    memref, buffer = cx.memref(op.operands[0]), cx.get(op.operands[0])
    segments = op.ints("operandSegmentSizes")
    dynamic = iter(op.operands[1 : 1 + segments[1]])
    unknown = -(1 << 63)
    starts = [cx.scalar(next(dynamic)) if n == unknown else cx.text.constant(I64, n) for n in op.ints("static_offsets")]
    bits = kind_of(memref.element_type).bits
    terms = list(zip(starts, _strides_of(op, memref)))
    return Buffer(offset(cx.text, buffer.base, buffer.space, terms, bits), buffer.space, (*buffer.terms, *terms))


def _elements(cx: Any, buffer: Buffer) -> str:
    """How many elements are before it in its argument."""
    t = cx.text
    total = t.constant(I64, 0)
    for index, stride in buffer.terms:
        total = t.arithmetic("add", total, t.arithmetic("mul.lo", index, t.constant(I64, stride)))
    return str(total)


@_memory("memref.extract_strided_metadata")
def _metadata(cx: Any, op: Any) -> Any:
    """The buffer, where in it the memref begins, its extents and strides."""
    buffer, memref = cx.get(op.operands[0]), cx.memref(op.operands[0])
    numbers = [*memref.shape, *_strides_of(op, memref)]
    return [buffer, (_elements(cx, buffer),), *((cx.text.constant(I64, n),) for n in numbers)]


@_memory("memref.reinterpret_cast")
def _reinterpret(cx: Any, op: Any) -> Any:
    """Another shape, from an offset on that is counted from where the argument begins."""
    t = cx.text
    buffer, memref = cx.get(op.operands[0]), cx.memref(op.operands[0])
    segments, (start,) = op.ints("operandSegmentSizes"), op.ints("static_offsets")
    if any(segments[2:]):
        raise unsupported(f"`{op.name}`", "extents and strides that are known when the kernel is compiled", str(op.raw)[:200])
    at = cx.scalar(op.operands[1]) if segments[1] else t.constant(I64, start)
    more = t.arithmetic("sub", at, _elements(cx, buffer))
    base = offset(t, buffer.base, buffer.space, [(more, 1)], kind_of(memref.element_type).bits)
    return Buffer(base, buffer.space, ((at, 1),))


@_memory("memref.collapse_shape", "memref.expand_shape", "memref.transpose", "memref.cast")
def _same_start(cx: Any, op: Any) -> Any:
    return cx.get(op.operands[0])


@_memory("memref.extract_aligned_pointer_as_index")
def _pointer_as_index(cx: Any, op: Any) -> Any:
    buffer = cx.get(op.operands[0])
    return (_as_int(cx.text, buffer.base, buffer.space),)


@_memory("builtin.unrealized_conversion_cast")
def _unrealized(cx: Any, op: Any) -> Any:
    """Between a memref and the structure that stands for it in LLVM: (allocation, address, offset, sizes, strides)."""
    t = cx.text
    x, to = op.operands[0], str(op.result_type())
    if op.operand_type(0) == op.result_type():
        return cx.get(x)
    if cx.is_memref(x) and to.startswith("!llvm.struct"):
        buffer = cx.get(x)
        t.space[buffer.base] = buffer.space
        memref = cx.memref(x)
        at: dict[tuple[int, ...], Any] = {(0,): (buffer.base,), (1,): (buffer.base,), (2,): (t.constant(I64, 0),)}
        strides, _ = memref.get_strides_and_offset()
        for which, numbers in ((3, memref.shape), (4, strides)):
            at |= {(which, i): (t.constant(I64, n),) for i, n in enumerate(numbers)}
        return Fields(at)
    if to.startswith("memref<") and not cx.is_memref(x):
        fields = cx.get(x).at
        memref = op.result_type()
        base = fields[(1,)][0]
        space = "shared" if "workgroup" in to else t.space.get(base, "")
        bits = kind_of(memref.element_type).bits
        return Buffer(offset(t, base, space, [(fields[(2,)][0], 1)], bits), space)
    raise unsupported(f"`{op.name}`", "memrefs and their LLVM structures", f"{op.operand_type(0)} to {to}")


# ------------------------------------------------------------------------------------------ structures and pointers


@_memory("llvm.extractvalue")
def _extract_value(cx: Any, op: Any) -> Any:
    fields, path = cx.get(op.operands[0]).at, tuple(op.ints("position"))
    if path in fields:
        return fields[path]
    inner = {p[len(path) :]: x for p, x in fields.items() if p[: len(path)] == path}
    return Fields(inner)


@_memory("llvm.insertvalue")
def _insert_value(cx: Any, op: Any) -> Any:
    fields, path = dict(cx.get(op.operands[0]).at), tuple(op.ints("position"))
    value = cx.get(op.operands[1])
    if isinstance(value, Fields):
        return Fields(fields | {path + p: x for p, x in value.at.items()})
    return Fields(fields | {path: value})


def _as_int(t: Text, pointer: str, space: str) -> str:
    wide = t.wide(pointer, False) if space == "shared" else pointer
    t.space.setdefault(wide, space)
    return wide


def _is_shared(pointer_type: Any) -> bool:
    return str(pointer_type) == "!llvm.ptr<3>"


def _space(cx: Any, value: Any, reg: str) -> str:
    """The space that a pointer points to: by its type, or by what it was made of; "" for generic addresses."""
    name = str(value.type)
    if name == "!llvm.ptr<3>":
        return "shared"
    if name == "!llvm.ptr<7>":
        return "shared::cluster"
    return "global" if name == "!llvm.ptr<1>" else str(cx.text.space.get(reg, ""))


@_memory("llvm.ptrtoint")
def _ptrtoint(cx: Any, op: Any) -> Any:
    (p,) = cx.get(op.operands[0])
    kind = op.kind_of_result()
    if _is_shared(op.operand_type(0)):
        return (p if kind.bits == 32 else _as_int(cx.text, p, "shared"),)
    return (p if kind.bits == 64 else cx.text.low(p),)


@_memory("llvm.inttoptr")
def _inttoptr(cx: Any, op: Any) -> Any:
    (x,) = cx.get(op.operands[0])
    kind = op.kind_of(0)
    if _is_shared(op.result_type()):
        return (cx.text.low(x) if kind.bits == 64 else x,)
    return (x if kind.bits == 64 else cx.text.wide(x, False),)


@_memory("llvm.addrspacecast")
def _addrspacecast(cx: Any, op: Any) -> Any:
    """Global and generic addresses are the same number."""
    if _is_shared(op.operand_type(0)) or _is_shared(op.result_type()):
        if op.operand_type(0) == op.result_type():
            return cx.get(op.operands[0])
        (p,) = cx.get(op.operands[0])
        if cx.text.space.get(p) == "shared" or str(op.result_type()) == "!llvm.ptr<7>":
            return (p,)
        raise unsupported("`llvm.addrspacecast`", "pointers that stay in their space, or of device memory", f"{op.operand_type(0)} to {op.result_type()}")
    return cx.get(op.operands[0])


@_memory("llvm.getelementptr")
def _getelementptr(cx: Any, op: Any) -> Any:
    (p,) = cx.get(op.operands[0])
    indices = op.ints("rawConstantIndices")
    if len(indices) != 1:
        raise unsupported("`llvm.getelementptr`", "one index", f"{len(indices)} of them")
    element = op.attr("elem_type").value
    shape, kind = cx.shape(element), kind_of(cx.element(element))
    bits = 1 << (math.prod(shape) * kind.bits - 1).bit_length()
    t = cx.text
    space = _space(cx, op.operands[0], p)
    if indices[0] == -(1 << 31):
        (index,) = cx.get(op.operands[1])
        wide = index if kind_of(op.operands[1].type).bits == 64 else t.wide(index, True)
    else:
        wide = t.constant(I64, indices[0])
    out = offset(t, p, space, [(wide, 1)], bits)
    t.space.setdefault(out, space)
    return (out,)


def _ordering(op: Any) -> None:
    ordering = op.attr("ordering")
    if ordering is not None and ordering.value:
        raise unsupported(f"atomic `{op.name}`", "plain loads and stores; llvm.inline_asm of ld.acquire, st.release, atom", str(ordering))


@_memory("llvm.load")
def _llvm_load(cx: Any, op: Any) -> Any:
    _ordering(op)
    (p,) = cx.get(op.operands[0])
    kind, n = op.kind_of_result(), math.prod(op.shape_of_result())
    opcode = "ld.volatile" if op.attr("volatile_") is not None else "ld"
    return tuple(access(cx.text, opcode, _space(cx, op.operands[0], p), p, kind, n))


@_memory("llvm.store")
def _llvm_store(cx: Any, op: Any) -> None:
    _ordering(op)
    (p,) = cx.get(op.operands[1])
    opcode = "st.volatile" if op.attr("volatile_") is not None else "st"
    access(cx.text, opcode, _space(cx, op.operands[1], p), p, op.kind_of(0), cx.get(op.operands[0]))


@_memory("nvvm.ldmatrix", "nvvm.stmatrix")
def _matrix(cx: Any, op: Any) -> Any:
    (p,) = cx.get(op.operands[0])
    if "b8" in str(op.attr("eltType")) or not _is_shared(op.operand_type(0)):
        raise unsupported(f"`{op.name}`", "8×8 matrices of 16-bit elements in shared memory", str(op.attr("eltType")))
    trans = ".trans" if "col" in str(op.attr("layout")) else ""
    if op.name == "nvvm.stmatrix":
        regs = [cx.scalar(v) for v in op.operands[1:]]
        cx.text.emit(f"stmatrix.sync.aligned.m8n8.x{len(regs)}{trans}.shared.b16 [{p}], {{{', '.join(regs)}}};")
        return None
    n = op.attr("num").value
    regs = [cx.text.fresh("b32") for _ in range(n)]
    cx.text.emit(f"ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {{{', '.join(regs)}}}, [{p}];")
    return (regs[0],) if n == 1 else Fields({(i,): (r,) for i, r in enumerate(regs)})


def undefined(cx: Any, value_type: Any) -> Any:
    """Zeros where anything will do."""
    if str(value_type).startswith(("!llvm.struct", "!llvm.array")):
        return Fields({})
    kind = kind_of(cx.element(value_type))
    return (cx.text.constant(kind, 0),) * math.prod(cx.shape(value_type))


