"""Random calls whose steps depend on each other, against JAX's interpreter.

Scratch that lasts, is begun anew at the first step of some axes, or stored in part, piece by piece, in slots of a ring; outputs and inputs
in one buffer, by the same index map and by others; inputs that are stored to; outputs that come back; index maps that narrow, wrap, divide and overlap; indices of every kind in the body.

Everything is float32. What nobody wrote is NaN in the interpreter, and so is all that is made of it: such elements are not compared.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

#: Steps of a grid, and elements of an array.
MAX_STEPS, MAX_ELEMENTS = 24, 6000


# ------------------------------------------------------------------------------------------ index maps


@dataclasses.dataclass(frozen=True)
class Map:
    """A block index along one dimension, as a function of the grid's indices."""

    kind: str
    axes: tuple[int, ...]
    factor: int = 1
    add: int = 0
    dtype: str = "int32"
    modulus: int = 1

    def __call__(self, indices: Sequence[Any]) -> Any:
        total: Any = jnp.int32(self.add)
        for axis in self.axes:
            total = total + indices[axis] * jnp.int32(self.factor)
        match self.kind:
            case "constant":
                return self.add
            case "affine":
                return total
            case "narrow":
                return (indices[self.axes[0]] * self.factor).astype(self.dtype).astype(jnp.int32)
            case "flip":
                return self.modulus - 1 - total
            case "half":
                return jax.lax.div(total, jnp.int32(2))
            case "rotate":
                return jax.lax.rem(total, jnp.int32(self.modulus))
            case "wrap":  # at 32 bits
                wide = indices[self.axes[0]] * jnp.int32(0x40000001)
                return jax.lax.rem(jnp.abs(jnp.maximum(wide, -0x7FFFFFFF)), jnp.int32(self.modulus))
        raise AssertionError(self.kind)

    def values(self, grid: Sequence[int]) -> np.ndarray[Any, Any]:
        """At all points of the grid."""
        at = np.indices(tuple(grid)).reshape(len(grid), -1)
        with np.errstate(over="ignore"):
            total = self.add + sum((at[a] * self.factor for a in self.axes), np.zeros(at.shape[1], np.int64))
            match self.kind:
                case "constant":
                    return np.full(at.shape[1], self.add)
                case "affine":
                    return total
                case "narrow":
                    return (at[self.axes[0]] * self.factor).astype(np.int32).astype(self.dtype).astype(np.int64)
                case "flip":
                    return self.modulus - 1 - total
                case "half":
                    return total // 2
                case "rotate":
                    return total % self.modulus
                case _:
                    wide = (at[self.axes[0]].astype(np.int32) * np.int32(0x40000001)).astype(np.int64)
                    return np.abs(np.maximum(wide, -0x7FFFFFFF)) % self.modulus


def _map(rng: random.Random, grid: Sequence[int], block: int) -> Map:
    axis = rng.randrange(len(grid))
    n = grid[axis]
    kind = rng.choice(["constant", "affine", "affine", "affine", "sum", "flip", "half", "rotate", "rotate", "narrow", "wrap"])
    match kind:
        case "constant":
            return Map("constant", (), add=rng.randrange(2))
        case "sum":
            axes = tuple(rng.sample(range(len(grid)), min(2, len(grid))))
            return Map("affine", axes, add=rng.randrange(2))
        case "affine":
            return Map("affine", (axis,), rng.choice([1, 1, 1, 2]), rng.choice([0, 0, 1]))
        case "flip":
            return Map("flip", (axis,), modulus=n)
        case "half":
            return Map("half", (axis,), add=rng.randrange(2))
        case "rotate":
            axes = (axis,) if rng.random() < 0.5 else tuple(range(len(grid)))
            return Map("rotate", axes, rng.choice([1, 1, 3]), rng.randrange(3), modulus=rng.randint(1, n + 1))
        case "narrow" if block <= 2:
            dtype, factor = rng.choice([("uint8", 128), ("uint8", 86), ("uint16", 16384 * 2), ("int8", 1), ("bool", 1), ("uint8", 64)])
            factor = {"uint16": 32768}.get(dtype, factor)
            if dtype != "uint16":
                return Map("narrow", (axis,), factor, dtype=dtype)
        case "wrap":
            return Map("wrap", (axis,), modulus=rng.randint(1, 4))
    return Map("affine", (axis,))


# ------------------------------------------------------------------------------------------ operands


@dataclasses.dataclass(frozen=True)
class Operand:
    shape: tuple[int, int]
    block: tuple[int, int]
    maps: tuple[Map, Map]
    by_elements: bool  # the maps give positions, and blocks may overlap


def _operand(rng: random.Random, grid: Sequence[int], block: tuple[int, int], partial: bool = True) -> Operand:
    by_elements = rng.random() < 0.12
    while True:
        maps = (_map(rng, grid, block[0]), _map(rng, grid, block[1]) if rng.random() < 0.5 else Map("constant", ()))
        if by_elements and rng.random() < 0.7:
            maps = (Map("affine", (rng.randrange(len(grid)),), rng.randint(1, block[0] + 1)), Map("constant", ()))
        extents = []
        for n, m in zip(block, maps):
            most = int(m.values(grid).max())
            extents.append(most + n if by_elements else (most + 1) * n - (rng.randrange(n) if partial and rng.random() < 0.2 else 0))
        if math.prod(extents) <= MAX_ELEMENTS:
            return Operand((extents[0], extents[1]), block, maps, by_elements)


# ------------------------------------------------------------------------------------------ bodies


@dataclasses.dataclass(frozen=True)
class Index:
    """A part of a block, as wide and high as it is, or smaller: `kind`s of indices along rows and columns."""

    kind: str
    rows: tuple[int, int, int]  # start, size, stride
    columns: tuple[int, int, int]
    moved: int | None  # a dynamic start: this axis' index is added, and taken off again; -1: a number of the data's, which is 0
    ring: tuple[int, int] | None = None  # a row: this axis' index on from the start, of so many slots

    def at(self, indices: Sequence[Any], data: Any) -> tuple[Any, ...]:
        (r, n, s), (c, m, t) = self.rows, self.columns
        start: Any = r
        if self.moved == -1:
            start = r + (data[0, 0] > 1e6).astype(jnp.int32)
        elif self.moved is not None:
            start = r + indices[self.moved] - jax.lax.min(indices[self.moved], indices[self.moved])
        if self.ring is not None:
            start = jax.lax.rem(start + indices[self.ring[0]], jnp.int32(self.ring[1]))
        match self.kind:
            case "slices":
                return (slice(r, r + (n - 1) * s + 1, s), slice(c, c + (m - 1) * t + 1, t))
            case "ds":
                return (pl.ds(start, n, s), pl.ds(c, m, t))
            case "ellipsis":
                return (..., pl.ds(c, m, t))
            case "row":  # the interpreter takes no number for an index
                return (start + 0 * indices[0], pl.ds(c, m, t))
            case "column":
                return (pl.ds(start, n, s), c + 0 * indices[0])
            case "gather":
                return (r + s * jax.lax.iota(jnp.int32, n), slice(None))
            case "gather both":
                rows = r + s * jax.lax.broadcasted_iota(jnp.int32, (n, m), 0)
                return (rows, c + t * jax.lax.broadcasted_iota(jnp.int32, (n, m), 1))
        return (slice(None), slice(None))

    def shape(self, block: tuple[int, int]) -> tuple[int, ...]:
        n, m = self.rows[1], self.columns[1]
        return {
            "whole": block, "slices": (n, m), "ds": (n, m), "ellipsis": (block[0], m), "row": (m,), "column": (n,),
            "gather": (n, block[1]), "gather both": (n, m),
        }[self.kind]  # fmt: skip


def _part(rng: random.Random, extent: int) -> tuple[int, int, int]:
    stride = rng.choice([1, 1, 2, 3])
    start = rng.randrange(extent)
    return start, rng.randint(1, (extent - start - 1) // stride + 1), stride


INDICES = ("slices", "ds", "ds", "ellipsis", "row", "column", "gather", "gather both")


def _index(rng: random.Random, block: tuple[int, int], rank: int, share: float) -> Index:
    kind = rng.choice(INDICES) if rng.random() < share else "whole"
    moved = rng.randrange(-1, rank) if rng.random() < 0.3 else None
    ring = (rng.randrange(rank), block[0]) if kind == "row" and rng.random() < 0.6 else None
    columns = (0, block[1], 1) if ring and rng.random() < 0.8 else _part(rng, block[1])
    return Index(kind, _part(rng, block[0]), columns, moved, ring)


@dataclasses.dataclass(frozen=True)
class Value:
    """What is stored: the sum of loads (kind, number, index; "in", "out" or "scratch"), and of the step's number."""

    loads: tuple[tuple[str, int, Index], ...]
    add: int
    chosen: Condition | None = None  # where it does not hold, without what was loaded


@dataclasses.dataclass(frozen=True)
class Condition:
    kind: str  # first, last, is, odd, before, data
    axes: tuple[int, ...]
    number: int = 0

    def holds(self, indices: Sequence[Any], grid: Sequence[int], x: Any) -> Any:
        match self.kind:
            case "first":
                found = [indices[a] == 0 for a in self.axes]
            case "last":
                found = [indices[a] == pl.num_programs(a) - 1 for a in self.axes]
            case "is":
                found = [indices[a] == self.number for a in self.axes]
            case "odd":
                found = [indices[a] % 2 == 1 for a in self.axes]
            case "before":
                found = [indices[a] < self.number for a in self.axes]
            case _:
                found = [x[0, 0] > 1]
        total = found[0]
        for f in found[1:]:
            total = jnp.logical_and(total, f)
        return total


def _condition(rng: random.Random, grid: Sequence[int]) -> Condition:
    kind = rng.choice(["first", "first", "first", "last", "is", "odd", "before", "data"])
    rank = len(grid)
    # Inner axes mostly, as accumulators have them.
    axes = tuple(range(rng.randrange(rank), rank)) if rng.random() < 0.6 else (rng.randrange(rank),)
    return Condition(kind, axes, rng.randrange(3))


@dataclasses.dataclass(frozen=True)
class Statement:
    when: Condition | None
    otherwise: bool  # `when` does not hold
    target: tuple[str, int]  # "out", "scratch" or "in"
    index: Index
    adds: bool  # to what is there
    value: Value
    rows: tuple[int, int, int] | None = None  # row by row, in a loop: the first one, how many, how far apart
    nested: bool = False  # and each of them column by column


@dataclasses.dataclass(frozen=True)
class Dependent:
    """A call: the generator's form of it."""

    seed: int
    grid: tuple[int, ...]
    block: tuple[int, int]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    alias: bool  # input 0 and output 0
    scratch: int
    statements: tuple[Statement, ...]
    semantics: str  # none, sequential, decided
    steps: int
    batch: int  # 0: no vmap

    def __str__(self) -> str:
        fields = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)]
        lines = [f"{name}: {value}" for name, value in fields if name != "statements"]
        return "\n  ".join([*lines, *(f"statement: {s}" for s in self.statements)])


def generate(seed: int) -> Dependent:
    rng = random.Random(f"dependent {seed}")
    rank = rng.choice([1, 1, 2, 2, 2, 3])
    grid = tuple(rng.randint(1 if rank > 1 else 2, 5 if rank < 3 else 3) for _ in range(rank))
    while math.prod(grid) > MAX_STEPS:
        grid = tuple(max(1, n - 1) for n in grid)
    block = rng.choice([(8, 4), (4, 8), (2, 16), (1, 32), (2, 3), (1, 5), (3, 7), (5, 4), (1, 1), (8, 8), (6, 20)])
    alias = rng.random() < 0.35
    # What lies outside of an output's array the interpreter keeps, and reads again.
    outputs = [_operand(rng, grid, block, partial=not alias and rng.random() < 0.5) for _ in range(rng.choice([1, 1, 2]))]
    divided = [o for o, x in enumerate(outputs) if _divided(x)]
    inputs = [_operand(rng, grid, block) for _ in range(rng.choice([1, 2]))]
    if alias:
        same = rng.random() < 0.4
        inputs[0] = outputs[0] if same else _aliased(rng, grid, outputs[0])
    scratch = rng.choice([0, 1, 1, 1, 2, 3])

    def load() -> tuple[str, int, Index]:
        kind = rng.choice(["in"] * 3 + ["scratch"] * (2 * bool(scratch)) + ["out"] * (bool(divided) and rng.random() < 0.3))
        number = rng.choice({"in": range(len(inputs)), "scratch": range(scratch), "out": divided}[kind])
        return kind, number, _index(rng, block, rank, 0.3)

    def value() -> Value:
        chosen = _condition(rng, grid) if rng.random() < 0.15 else None
        return Value(tuple(load() for _ in range(rng.choice([0, 1, 1, 2]))), rng.randrange(4), chosen)

    statements: list[Statement] = []
    for s in range(scratch):
        if rng.random() < 0.8:  # begun anew
            when = _condition(rng, grid) if rng.random() < 0.85 else None
            rows, nested = None, rng.random() < 0.3
            if rng.random() < 0.3:
                rows = (0, block[0], 1) if rng.random() < 0.6 else _part(rng, block[0])
            whole = _index(rng, block, rank, 0.0)
            statements.append(Statement(when, False, ("scratch", s), whole, False, Value((), rng.randrange(3)), rows, nested))
            if when is not None and rng.random() < 0.2:
                statements.append(Statement(when, True, ("scratch", s), whole, False, value()))
    # What lies outside of an array the interpreter keeps here, too.
    stored = [i for i, x in enumerate(inputs) if not (alias and i == 0) and _divided(x)]
    for i in stored:
        if rng.random() < 0.35:
            when = _condition(rng, grid) if rng.random() < 0.4 else None
            index = _index(rng, block, rank, 0.3)
            statements.append(Statement(when, rng.random() < 0.3, ("in", i), index, rng.random() < 0.6, value()))
    rng.shuffle(statements)
    for _ in range(rng.randint(1, 3)):
        target = ("scratch", rng.randrange(scratch)) if scratch and rng.random() < 0.7 else ("out", rng.randrange(len(outputs)))
        when = _condition(rng, grid) if rng.random() < 0.25 else None
        statements.append(Statement(when, rng.random() < 0.3, target, _index(rng, block, rank, 0.25), rng.random() < 0.5, value()))
    for o in range(len(outputs)):
        when = _condition(rng, grid) if rng.random() < 0.3 else None
        loads = [load()]
        if scratch and rng.random() < 0.8:
            loads.append(("scratch", rng.randrange(scratch), _index(rng, block, rank, 0.1)))
        index = _index(rng, block, rank, 0.15)
        statements.append(Statement(when, False, ("out", o), index, rng.random() < 0.2, Value(tuple(loads), rng.randrange(4))))
    semantics = rng.choice(["none", "none", "none", "sequential", "decided"])
    batch = rng.choice([0, 0, 0, 0, 0, 2]) if not alias else 0
    return Dependent(
        seed, grid, block, tuple(inputs), tuple(outputs), alias, scratch, tuple(statements), semantics, rng.randint(1, 3), batch
    )


def _divided(x: Operand) -> bool:
    return x.by_elements or all(e % n == 0 for e, n in zip(x.shape, x.block))


def _aliased(rng: random.Random, grid: Sequence[int], out: Operand) -> Operand:
    """Other blocks of the same array: a halo's, or any that are in it."""
    for _ in range(50):
        maps = tuple(_map(rng, grid, n) for n in out.block)
        if rng.random() < 0.5:
            maps = (dataclasses.replace(out.maps[0], add=out.maps[0].add + rng.choice([0, 1])), out.maps[1])
        extents = [
            int(m.values(grid).max()) + n if out.by_elements else (int(m.values(grid).max()) + 1) * n for m, n in zip(maps, out.block)
        ]
        if all(e <= s for e, s in zip(extents, out.shape)) and all(m.values(grid).min() >= 0 for m in maps):
            return dataclasses.replace(out, maps=(maps[0], maps[1]))
    return out


# ------------------------------------------------------------------------------------------ to JAX


def _spec(x: Operand) -> Any:
    shape: Any = tuple(pl.Element(n) for n in x.block) if x.by_elements else x.block
    return pl.BlockSpec(shape, lambda *indices: tuple(m(indices) for m in x.maps))


def _fitted(v: Any, shape: tuple[int, ...]) -> Any:
    """Any array as one of this shape."""
    return jnp.resize(v.reshape(-1), shape) if v.shape != shape else v


def build(call: Dependent) -> Callable[..., Any]:
    """The call as a function of the keywords of `pl.pallas_call` that gives a function of arrays."""
    rank = len(call.grid)

    def body(*refs: Any) -> None:
        kinds = {
            "in": refs[: len(call.inputs)],
            "out": refs[len(call.inputs) :][: len(call.outputs)],
            "scratch": refs[len(call.inputs) + len(call.outputs) :],
        }
        indices = [pl.program_id(a) for a in range(rank)]
        data = refs[0] if call.alias else refs[len(call.inputs) - 1]
        step = sum((a + 2) * i for a, i in enumerate(indices)).astype(jnp.float32)

        def value(v: Value, shape: tuple[int, ...]) -> Any:
            loaded = [_fitted(kinds[kind][n][i.at(indices, data)], shape) for kind, n, i in v.loads]
            total = sum(loaded, jnp.full(shape, v.add, jnp.float32))
            if v.chosen is not None and v.chosen.kind != "data":
                total = jnp.where(v.chosen.holds(indices, call.grid, None), total, jnp.full(shape, v.add, jnp.float32))
            total = total + step
            return total - 16 * jnp.floor(total * 0.0625)

        def run(s: Statement) -> None:
            ref = kinds[s.target[0]][s.target[1]]
            if s.rows is not None:
                first, count, apart = s.rows

                def row(r: Any, _: None) -> None:
                    at = pl.ds(first + r * apart, 1)
                    if not s.nested:
                        ref[at, :] = value(s.value, (1, call.block[1]))
                        return
                    made = value(s.value, (1, 1))
                    jax.lax.fori_loop(0, call.block[1], lambda c, _: ref.__setitem__((at, pl.ds(c, 1)), made), None)

                jax.lax.fori_loop(0, count, row, None)
                return
            at, shape = s.index.at(indices, data), s.index.shape(call.block)
            if s.index.kind == "whole":
                at = ...
            v = value(s.value, shape)
            ref[at] = ref[at] + v if s.adds else v

        for s in call.statements:
            if s.when is None:
                run(s)
            else:
                holds = s.when.holds(indices, call.grid, kinds["in"][-1])
                pl.when(jnp.logical_not(holds) if s.otherwise else holds)(lambda s=s: run(s))

    def make(**keywords: Any) -> Callable[..., Any]:
        f = pl.pallas_call(
            body,
            grid=call.grid,
            in_specs=[_spec(x) for x in call.inputs],
            out_specs=[_spec(x) for x in call.outputs],
            out_shape=[jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in call.outputs],
            scratch_shapes=[plgpu.SMEM(call.block, jnp.float32) for _ in range(call.scratch)],
            input_output_aliases={0: 0} if call.alias else {},
            **keywords,
        )
        return jax.vmap(f) if call.batch else f

    return make


def arguments(call: Dependent) -> list[Any]:
    rng = np.random.default_rng(call.seed)
    batch = (call.batch,) if call.batch else ()
    return [rng.integers(0, 4, (*batch, *x.shape)).astype(np.float32) for x in call.inputs]


def parameters(call: Dependent, parallel: Sequence[bool]) -> plgpu.CompilerParams:
    """`parallel`: what smalt decides without being asked; a promise of no more than that is true."""
    semantics = {
        "none": None,
        "sequential": ["sequential"] * len(call.grid),
        "decided": ["parallel" if p else "sequential" for p in parallel],
    }[call.semantics]
    return plgpu.CompilerParams(dimension_semantics=semantics, max_concurrent_steps=call.steps)
