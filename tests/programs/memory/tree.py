"""Programs as data: declarations, expressions, statements.

Values are i32 arrays and scalars, whatever the type of the memory they come from or go to: conversions to and from it are exact
(`stored`). A statement has its nested ones in `blocks`, so that edits need not know it. A place in a program is a path:
index, block, index, block, …, index.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

DTYPES = {
    "int32": np.dtype(np.int32),
    "uint32": np.dtype(np.uint32),
    "int16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
#: Floats hold integers of so many bits, which all of them represent.
FLOAT_MASK = 63


def stored(value: Array, dtype: str) -> Array:
    """What a memory of `dtype` holds of i32 values, as i32."""
    if "float" in dtype:
        return value & np.int32(FLOAT_MASK)
    return value.astype(DTYPES[dtype]).astype(np.int32)


# ------------------------------------------------------------------------------------------ declarations


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Memory: `space` is "in", "out", "mut" (a mutable ref) or "smem"; a tiled one has the tiles of wgmma."""

    name: str
    space: str
    shape: Shape
    dtype: str = "int32"
    tiled: bool = False

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * DTYPES[self.dtype].itemsize


@dataclasses.dataclass(frozen=True)
class Union:
    """A `RefUnion`: groups of buffers that share memory."""

    name: str
    groups: tuple[tuple[Buffer, ...], ...]


@dataclasses.dataclass(frozen=True)
class Bar:
    """Barriers, of a block or of all blocks of its cluster."""

    name: str
    arrivals: int = 1
    count: int = 1
    cluster: bool = False


Decl = Buffer | Union | Bar


# ------------------------------------------------------------------------------------------ expressions


class Expr:
    pass


@dataclasses.dataclass(frozen=True)
class Const(Expr):
    value: int


@dataclasses.dataclass(frozen=True)
class Var(Expr):
    """A name that `Let`, a loop or a branch bound; "wg", "cta", "block" and "warp" are the axes."""

    name: str


@dataclasses.dataclass(frozen=True)
class At:
    """One index of a dimension."""

    at: Expr


@dataclasses.dataclass(frozen=True)
class Part:
    """`size` indices from `start` on."""

    start: Expr
    size: int


@dataclasses.dataclass(frozen=True)
class View:
    """A part of a buffer: an index for each of its first dimensions. `peer`: of the cluster's other block."""

    buffer: str
    index: tuple[At | Part, ...] = ()
    transposed: bool = False
    peer: bool = False


@dataclasses.dataclass(frozen=True)
class Load(Expr):
    view: View


@dataclasses.dataclass(frozen=True)
class AccLoad(Expr):
    acc: str


@dataclasses.dataclass(frozen=True)
class Bin(Expr):
    """Two arrays of one shape, or one and a scalar; `op` is one of `BINARY`."""

    op: str
    a: Expr
    b: Expr


@dataclasses.dataclass(frozen=True)
class Reduce(Expr):
    """Over `axis`, or all; "sum", "max", "min"."""

    op: str
    a: Expr
    axis: int | None = None


@dataclasses.dataclass(frozen=True)
class Full(Expr):
    shape: Shape
    a: Expr


@dataclasses.dataclass(frozen=True)
class Spread(Expr):
    """A vector along dimension `dim` of `shape`."""

    shape: Shape
    a: Expr
    dim: int


@dataclasses.dataclass(frozen=True)
class Iota(Expr):
    shape: Shape
    dim: int


@dataclasses.dataclass(frozen=True)
class Transpose(Expr):
    a: Expr


@dataclasses.dataclass(frozen=True)
class Reshape(Expr):
    shape: Shape
    a: Expr


@dataclasses.dataclass(frozen=True)
class Cast(Expr):
    """In a layout: `layout` is what follows `plgpu.Layout.`."""

    layout: str
    a: Expr


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "^": np.bitwise_xor,
    "&": np.bitwise_and,
    "max": np.maximum,
    "min": np.minimum,
    "rem": np.fmod,
    # Scalars only: conditions.
    "<": np.less,
    "==": np.equal,
}


# ------------------------------------------------------------------------------------------ statements


@dataclasses.dataclass(frozen=True)
class Stmt:
    blocks: tuple[tuple[Stmt, ...], ...] = dataclasses.field(default=(), kw_only=True)


@dataclasses.dataclass(frozen=True)
class Store(Stmt):
    dst: View
    value: Expr


@dataclasses.dataclass(frozen=True)
class Let(Stmt):
    name: str
    value: Expr


@dataclasses.dataclass(frozen=True)
class CopyIn(Stmt):
    """GMEM to SMEM. `multicast`: to both blocks of the cluster, each of which copies a half."""

    src: View
    dst: View
    bar: str
    slot: Expr = Const(0)
    multicast: bool = False


@dataclasses.dataclass(frozen=True)
class CopyOut(Stmt):
    """SMEM to GMEM."""

    src: View
    dst: View
    commit: bool = True


@dataclasses.dataclass(frozen=True)
class CommitGroup(Stmt):
    pass


@dataclasses.dataclass(frozen=True)
class WaitOut(Stmt):
    """`wait_smem_to_gmem`."""

    n: int = 0
    read_only: bool = False


@dataclasses.dataclass(frozen=True)
class Arrive(Stmt):
    bar: str
    slot: Expr = Const(0)


@dataclasses.dataclass(frozen=True)
class Wait(Stmt):
    """`barrier_wait`; with `polls`, asks until it is so."""

    bar: str
    slot: Expr = Const(0)
    polls: bool = False


@dataclasses.dataclass(frozen=True)
class Commit(Stmt):
    """`commit_smem`."""


@dataclasses.dataclass(frozen=True)
class Carry:
    """A value from iteration to iteration: `name` in the body, `result` behind the loop."""

    name: str
    init: Expr
    next: Expr
    result: str


@dataclasses.dataclass(frozen=True)
class For(Stmt):
    var: str
    count: Expr
    carry: tuple[Carry, ...] = ()


@dataclasses.dataclass(frozen=True)
class While(Stmt):
    """`condition` is evaluated anew before each iteration, its loads too."""

    condition: Expr


@dataclasses.dataclass(frozen=True)
class Pick:
    """A value that a branch gives."""

    result: str
    values: tuple[Expr, Expr]


@dataclasses.dataclass(frozen=True)
class If(Stmt):
    """Two blocks."""

    condition: Expr
    picks: tuple[Pick, ...] = ()


@dataclasses.dataclass(frozen=True)
class Warps(Stmt):
    """A warp region: block i is for warp `which[i]`; -1: for each of them, which know theirs as Var("warp")."""

    which: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Roles(Stmt):
    """Block i is for warpgroup `which[i]`."""

    which: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Scope(Stmt):
    decls: tuple[Decl, ...]


@dataclasses.dataclass(frozen=True)
class Accumulate(Stmt):
    """A scope with an accumulator."""

    acc: str
    shape: Shape


@dataclasses.dataclass(frozen=True)
class Mma(Stmt):
    """acc += a @ b; `a` in shared memory or in registers. An operand with `View.transposed` is a transposed ref."""

    acc: str
    a: View | Expr
    b: View


@dataclasses.dataclass(frozen=True)
class MmaWait(Stmt):
    n: int = 0


@dataclasses.dataclass(frozen=True)
class Signal(Stmt):
    """The kernel's semaphore."""

    inc: int = 1


@dataclasses.dataclass(frozen=True)
class Await(Stmt):
    """Until the semaphore is at least `value`, which stays; with `polls`, reads it until it is so."""

    value: Expr
    polls: bool = False


Body = tuple[Stmt, ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """A kernel. `ctas`: of a cluster; `blocks`: of the grid. `name` seeds its data; `indices`: what short vectors, which often are
    indices, hold everywhere, None: anything."""

    name: str
    decls: tuple[Decl, ...]
    body: Body
    warpgroups: int = 1
    ctas: int = 1
    blocks: int = 1
    semaphore: bool = False
    indices: int | None = None

    def of(self, *spaces: str) -> list[Buffer]:
        return [d for d in self.decls if isinstance(d, Buffer) and d.space in spaces]

    def inputs(self) -> list[Array]:
        """Small integers, the same in every process: the values of `in` and `mut` buffers, as i32."""
        return [x.copy() for x in _inputs(self.name, tuple(b.shape for b in self.of("in", "mut")), self.indices)]


@functools.lru_cache(maxsize=64)
def _inputs(name: str, shapes: tuple[Shape, ...], indices: int | None) -> list[Array]:
    """Below 64; short vectors, which often are indices, below 4."""
    rng = np.random.default_rng(list(name.encode()))
    arrays = [rng.integers(0, 4 if shape == (4,) else 64, shape, np.int32) for shape in shapes]
    return [np.full_like(x, indices) if indices is not None and x.shape == (4,) else x for x in arrays]


# ------------------------------------------------------------------------------------------ walking and editing

Path = tuple[int, ...]


def statements(body: Body, at: Path = ()) -> Iterator[tuple[Path, Stmt]]:
    """Every statement, outer ones before inner ones."""
    for i, s in enumerate(body):
        yield (*at, i), s
        for b, block in enumerate(s.blocks):
            yield from statements(block, (*at, i, b))


def edited(body: Body, path: Path, change: Callable[[Body, int], Body]) -> Body:
    """With the block that `path` ends in changed."""
    i, rest = path[0], path[1:]
    if not rest:
        return change(body, i)
    s = body[i]
    blocks = list(s.blocks)
    blocks[rest[0]] = edited(blocks[rest[0]], rest[1:], change)
    return (*body[:i], dataclasses.replace(s, blocks=tuple(blocks)), *body[i + 1 :])


def replaced(program: Program, path: Path, by: Body) -> Program:
    """With the statement at `path` replaced by others, or none."""
    return dataclasses.replace(program, body=edited(program.body, path, lambda block, i: (*block[:i], *by, *block[i + 1 :])))


def inserted(program: Program, path: Path, what: Body) -> Program:
    return dataclasses.replace(program, body=edited(program.body, path, lambda block, i: (*block[:i], *what, *block[i:])))


def parts(node: Any) -> Iterator[Any]:
    """Every dataclass and name in a node, itself first."""
    yield node
    if dataclasses.is_dataclass(node):
        for field in dataclasses.fields(node):
            yield from parts(getattr(node, field.name))
    elif isinstance(node, tuple):
        for inner in node:
            yield from parts(inner)
