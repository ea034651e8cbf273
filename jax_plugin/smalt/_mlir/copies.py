"""MLIR's operations on mbarriers and asynchronous copies (`nvvm`), as inline PTX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smalt import _registry, _versions
from smalt._mlir.text import unsupported

#: name of the op → what translates it.
COPIES: dict[str, Callable[[Any, Any], Any]] = {}


_op = _registry.into(COPIES)


def _emit(cx: Any, instruction: str, predicate: Any = None) -> None:
    guard = "" if predicate is None else f"@{cx.scalar(predicate)} "
    cx.text.emit(f"{guard}{instruction};")


def _number(cx: Any, value: Any) -> str:
    return str(cx.text.immediate(cx.scalar(value)))


def _segments(op: Any) -> list[list[Any]]:
    """The operands, as the op groups them."""
    groups, at = [], 0
    for n in op.ints("operandSegmentSizes"):
        groups.append(op.operands[at : at + n])
        at += n
    return groups


def _one(group: Sequence[Any]) -> Any:
    return group[0] if group else None


def _is_set(attribute: Any) -> bool:
    """Of a flag: true, or merely there."""
    return attribute is not None and "false" not in str(attribute)


def _named(attribute: Any) -> str | None:
    return None if attribute is None else _versions.mlir_dimension(attribute)


# ------------------------------------------------------------------------------------------ mbarriers


def _space(op: Any) -> str:
    """The window of a barrier's address."""
    kind = str(op.operand_type(0))
    if kind not in ("!llvm.ptr<3>", "!llvm.ptr<7>"):
        raise unsupported(f"`{op.name}`", "a barrier in shared memory: !llvm.ptr<3>, or !llvm.ptr<7> of the cluster", kind)
    return "shared::cta" if kind == "!llvm.ptr<3>" else "shared::cluster"


def _semantics(op: Any, strict: str) -> str:
    """`strict`: what it does unless it is relaxed."""
    relaxed, scope = _is_set(op.attr("relaxed")), _named(op.attr("scope")) or "cta"
    far = _space(op) == "shared::cluster"
    return "" if scope == "cta" and not relaxed and not far else f".{'relaxed' if relaxed else strict}.{scope}"


@_op("nvvm.mbarrier.init", "nvvm.mbarrier.inval")
def _init(cx: Any, op: Any) -> None:
    name = op.name.rsplit(".", 1)[1]
    address, *rest = op.operands
    count, rest = (f", {_number(cx, rest[0])}", rest[1:]) if name == "init" else ("", rest)
    _emit(cx, f"mbarrier.{name}.{_space(op)}.b64 [{cx.scalar(address)}]{count}", _one(rest))


@_op("nvvm.mbarrier.arrive", "nvvm.mbarrier.arrive_drop", "nvvm.mbarrier.arrive.expect_tx", "nvvm.mbarrier.arrive_drop.expect_tx")
def _arrive(cx: Any, op: Any) -> Any:
    """One arrival, or several; or one that announces bytes."""
    address, *rest = op.operands
    predicate = rest.pop() if rest and str(rest[-1].type) == "i1" else None
    number = f", {_number(cx, rest[0])}" if rest else ""
    state = cx.text.fresh("b64") if op.results else "_"
    _emit(cx, f"{op.name.removeprefix('nvvm.')}{_semantics(op, 'release')}.{_space(op)}.b64 {state}, [{cx.scalar(address)}]{number}", predicate)
    return (state,) if op.results else None


@_op("nvvm.mbarrier.expect_tx", "nvvm.mbarrier.complete_tx")
def _bytes(cx: Any, op: Any) -> None:
    address, count, *rest = op.operands
    scope = _named(op.attr("scope")) or "cta"
    _emit(cx, f"{op.name.removeprefix('nvvm.')}.relaxed.{scope}.{_space(op)}.b64 [{cx.scalar(address)}], {_number(cx, count)}", _one(rest))


@_op("nvvm.mbarrier.try_wait.parity")
def _wait(cx: Any, op: Any) -> None:
    """Until the phase is over; the third operand is how long a try may sleep."""
    t = cx.text
    address, parity, *hint = op.operands
    again, over = t.label(), t.fresh("pred")
    t.places.add(over)
    sleep = "".join(f", {_number(cx, x)}" for x in hint)
    t.emit(f"{again}:")
    _emit(cx, f"mbarrier.try_wait.parity{_semantics(op, 'acquire')}.{_space(op)}.b64 {over}, [{cx.scalar(address)}], {_number(cx, parity)}{sleep}")
    t.emit(f"@!{over} bra {again};")


@_op("nvvm.mbarrier.test.wait", "nvvm.mbarrier.try_wait")
def _test_wait(cx: Any, op: Any) -> Any:
    """Whether a phase is over: that of a state, or the one of a parity."""
    address, phase, *hint = op.operands
    is_parity = op.kind_of(1).bits == 32
    name = "test_wait" if op.name.endswith("test.wait") else "try_wait"
    awaited = _number(cx, phase) if is_parity else cx.scalar(phase)
    over = cx.text.fresh("pred")
    sleep = "".join(f", {_number(cx, x)}" for x in hint)
    form = f"mbarrier.{name}{'.parity' if is_parity else ''}{_semantics(op, 'acquire')}.{_space(op)}.b64"
    _emit(cx, f"{form} {over}, [{cx.scalar(address)}], {awaited}{sleep}")
    return (over,)


# ------------------------------------------------------------------------------------------ copies


def _no_hints(op: Any, *groups: Sequence[Any]) -> None:
    if any(groups):
        raise unsupported(f"`{op.name}`", "a copy without a cache policy, a mask of bytes, or offsets of im2col", "one with some")


def _box(cx: Any, tensor: Any, coordinates: Sequence[Any]) -> tuple[str, str]:
    """In registers: a number alone in braces would be an operand's."""
    return f"tensor.{len(coordinates)}d", f"[{cx.scalar(tensor)}, {{{', '.join(cx.scalar(c) for c in coordinates)}}}]"


def _tile(op: Any) -> None:
    mode = _named(op.attr("mode")) or "tile"
    if mode != "tile":
        raise unsupported(f"`{op.name}`", "tiles: sm_90 has no gather, and smalt no im2col", mode)


@_op("nvvm.cp.async.bulk.tensor.shared.cluster.global")
def _tensor_load(cx: Any, op: Any) -> None:
    _tile(op)
    to, tensor, coordinates, barrier, im2col, mask, hint, predicate = _segments(op)
    _no_hints(op, im2col, hint)
    dims, box = _box(cx, tensor[0], coordinates)
    multicast = ".multicast::cluster" if mask else ""
    blocks = f", {cx.scalar(mask[0])}" if mask else ""
    opcode = f"cp.async.bulk.{dims}.shared::cluster.global.tile.mbarrier::complete_tx::bytes{multicast}"
    _emit(cx, f"{opcode} [{cx.scalar(to[0])}], {box}, [{cx.scalar(barrier[0])}]{blocks}", _one(predicate))


@_op("nvvm.cp.async.bulk.tensor.global.shared.cta")
def _tensor_store(cx: Any, op: Any) -> None:
    _tile(op)
    tensor, source, coordinates, hint, predicate = _segments(op)
    _no_hints(op, hint)
    dims, box = _box(cx, tensor[0], coordinates)
    _emit(cx, f"cp.async.bulk.{dims}.global.shared::cta.tile.bulk_group {box}, [{cx.scalar(source[0])}]", _one(predicate))


@_op("nvvm.cp.async.bulk.tensor.prefetch")
def _tensor_prefetch(cx: Any, op: Any) -> None:
    _tile(op)
    tensor, coordinates, im2col, hint, *rest = _segments(op)
    _no_hints(op, im2col, hint)
    dims, box = _box(cx, tensor[0], coordinates)
    _emit(cx, f"cp.async.bulk.prefetch.{dims}.L2.global.tile {box}", _one(rest[0]) if rest else None)


@_op("nvvm.cp.async.bulk.shared.cluster.global")
def _bulk_load(cx: Any, op: Any) -> None:
    to, source, barrier, size, mask, hint, *rest = _segments(op)
    _no_hints(op, hint)
    multicast = ".multicast::cluster" if mask else ""
    blocks = f", {cx.scalar(mask[0])}" if mask else ""
    where = f"[{cx.scalar(to[0])}], [{cx.scalar(source[0])}], {_number(cx, size[0])}, [{cx.scalar(barrier[0])}]{blocks}"
    _emit(cx, f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{multicast} {where}", _one(rest[0]) if rest else None)


@_op("nvvm.cp.async.bulk.global.shared.cta")
def _bulk_store(cx: Any, op: Any) -> None:
    to, source, size, hint, bytes_, *rest = _segments(op)
    _no_hints(op, hint, bytes_)
    where = f"[{cx.scalar(to[0])}], [{cx.scalar(source[0])}], {_number(cx, size[0])}"
    _emit(cx, f"cp.async.bulk.global.shared::cta.bulk_group {where}", _one(rest[0]) if rest else None)


@_op("nvvm.cp.async.bulk.commit.group")
def _bulk_commit(cx: Any, op: Any) -> None:
    _emit(cx, "cp.async.bulk.commit_group")


@_op("nvvm.cp.async.bulk.wait_group")
def _bulk_wait(cx: Any, op: Any) -> None:
    read = ".read" if _is_set(op.attr("read")) else ""
    _emit(cx, f"cp.async.bulk.wait_group{read} {int(_versions.mlir_numbers(op.attr('group'))[0])}")


@_op("nvvm.cp.async.shared.global")
def _small_copy(cx: Any, op: Any) -> None:
    to, source, *taken = op.operands
    size = int(_versions.mlir_numbers(op.attr("size"))[0])
    some = "".join(f", {_number(cx, n)}" for n in taken)
    cache = _named(op.attr("modifier")) or "ca"
    _emit(cx, f"cp.async.{cache}.shared.global [{cx.scalar(to)}], [{cx.scalar(source)}], {size}{some}")


@_op("nvvm.cp.async.commit.group")
def _small_commit(cx: Any, op: Any) -> None:
    _emit(cx, "cp.async.commit_group")


@_op("nvvm.cp.async.wait.group")
def _small_wait(cx: Any, op: Any) -> None:
    _emit(cx, f"cp.async.wait_group {int(_versions.mlir_numbers(op.attr('n'))[0])}")
