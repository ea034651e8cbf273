"""Random calls: grids, blocks that divide or not, squeezed and permuted dimensions, index maps, reductions, aliases, prefetch.

Values are small integers, which every type adds and multiplies exactly, so that results are equal bit for bit. What lies outside of
an array is never part of a result: sums go over dimensions that blocks divide.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.tpu as pltpu
import jax.numpy as jnp
import numpy as np

DTYPES = ["float32", "bfloat16", "float16", "int32", "int16", "uint8", "int8", "bool", "uint32"]
MAX_ELEMENTS = 20_000
MAX_POINTS = 40


@dataclasses.dataclass(frozen=True)
class Dim:
    """One dimension of an operand: its extent, the block's, and the grid axis that moves it."""

    extent: int
    block: int | None  # None: squeezed
    axis: int | None  # None: the block stays at 0
    turn: str = "plain"  # plain, flip, rotate, half, table
    stride: int = 1  # the body takes each so many-th position, from `offset` on
    offset: int = 0

    @property
    def blocks(self) -> int:
        return -(-self.extent // (self.block or 1))

    @property
    def size(self) -> int:
        return self.block or 1

    @property
    def taken(self) -> int:
        return self.size // self.stride

    @property
    def is_partial(self) -> bool:
        return self.extent % self.size != 0


@dataclasses.dataclass(frozen=True)
class Operand:
    dims: tuple[Dim, ...]
    dtype: str
    order: tuple[int, ...]  # of its dimensions, among the output's (and the summed) dimensions
    whole: str | None = None  # "block": all of it in every step, "gmem": no block; both indexed by the body; "gmem block"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(d.extent for d in self.dims)


@dataclasses.dataclass(frozen=True)
class Call:
    seed: int
    grid: tuple[int, ...]
    out: Operand
    inputs: tuple[Operand, ...]
    summed: tuple[int, ...]  # grid axes that the output's map ignores
    semantics: tuple[str, ...] | None
    steps: int
    alias: bool
    partly: bool  # an aliased output is stored in part only
    prefetch: bool
    scalar: bool
    again: bool  # the body reads what it has stored

    def __str__(self) -> str:
        return "\n  ".join([f"seed {self.seed}", *(f"{f.name}: {getattr(self, f.name)}" for f in dataclasses.fields(self))])


def generate(seed: int) -> Call:
    rng = random.Random(seed)
    rank = rng.choice([1, 1, 2, 2, 2, 3, 3, 4])
    limit = {1: 100, 2: 100, 3: 40, 4: 12}[rank]
    grid: list[int] = []
    dims: list[Dim] = []
    points = 1
    for _ in range(rank):
        extent = rng.choice([1, rng.randint(1, limit), rng.randint(1, limit), min(limit, 2 ** rng.randint(0, 6))])
        kind = rng.random()
        block: int | None
        if kind < 0.3:
            block = extent
        elif kind < 0.45:
            block = None
        else:
            block = rng.choice([rng.randint(1, extent), max(1, extent // 2), max(1, extent // 3), min(extent, 8), min(extent, 16), extent + 3])
        n = -(-extent // (block or 1))
        if points * n > MAX_POINTS:
            extent, block, n = min(extent, 6), min(extent, 6), 1
        points *= n
        if n > 1 or rng.random() < 0.15:
            grid.append(n)
            dims.append(Dim(extent, block, len(grid) - 1))
        else:
            dims.append(Dim(extent, block, None))
    summed = []
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        n = rng.randint(1, 5)
        if points * n <= MAX_POINTS * 2:
            points *= n
            grid.append(n)
            summed.append(len(grid) - 1)
    order = list(range(len(grid)))
    rng.shuffle(order)  # order[new] = old
    place = {old: new for new, old in enumerate(order)}
    grid = [grid[old] for old in order]
    summed = sorted(place[a] for a in summed)
    dims = [dataclasses.replace(d, axis=None if d.axis is None else place[d.axis]) for d in dims]
    dims = [dataclasses.replace(d, turn=rng.choice(["plain", "plain", "flip"])) if d.axis is not None else d for d in dims]
    out = Operand(tuple(dims), rng.choice(DTYPES), tuple(range(rank)))
    alias = not summed and rng.random() < 0.15
    inputs = []
    for i in range(rng.randint(1, 3)):
        if i == 0 and alias:
            inputs.append(out)
        else:
            inputs.append(_input(rng, out, grid, summed))
    prefetch = any(d.turn == "table" for x in inputs for d in x.dims)
    semantics = None
    if rng.random() < 0.5:
        semantics = tuple("sequential" if a in summed else rng.choice(["parallel", "sequential"]) for a in range(len(grid)))
    return Call(
        seed,
        tuple(grid),
        out,
        tuple(inputs),
        tuple(summed),
        semantics,
        rng.randint(1, 3),
        alias,
        alias and rng.random() < 0.4,
        prefetch,
        rng.random() < 0.2,
        rng.random() < 0.2,
    )


def _input(rng: random.Random, out: Operand, grid: Sequence[int], summed: Sequence[int]) -> Operand:
    """Its dimensions are the output's (or 1, or left out), and perhaps some that are summed, in any order."""
    dims: list[Dim] = []
    order: list[int] = []
    whole = rng.choice([None, None, None, None, None, "block", "gmem", "gmem block"])
    for k, d in enumerate(out.dims):
        kind = rng.random()
        if kind < 0.15:
            continue
        if kind < 0.25:
            dims.append(Dim(1, 1, None))
        elif d.axis is None:
            dims.append(d)
        else:
            # What is larger than the output's dimension is never read in part.
            dims.append(dataclasses.replace(d, turn=d.turn if d.is_partial else rng.choice(["plain", "flip", "rotate", "half", "table"])))
        order.append(k)
    for axis in summed:
        if rng.random() < 0.7:
            size = rng.choice([None, 1, 2, 4])
            dims.append(Dim((size or 1) * grid[axis], size, axis, rng.choice(["plain", "flip", "rotate"])))
            order.append(len(out.dims) + axis)
    at = list(range(len(dims)))
    rng.shuffle(at)
    dims, order = [dims[i] for i in at], [order[i] for i in at]
    while np.prod([d.extent for d in dims], dtype=np.int64) > MAX_ELEMENTS:
        dims.pop(), order.pop()
    if any(d.is_partial for d in dims):
        whole = None  # what is not there cannot be read
    if whole in (None, "gmem block"):
        dims = [_strided(rng, d) if not d.is_partial and d.block is not None else d for d in dims]
        while np.prod([d.extent for d in dims], dtype=np.int64) > MAX_ELEMENTS:
            dims.pop(), order.pop()
    return Operand(tuple(dims), rng.choice(DTYPES), tuple(order), whole)


def _strided(rng: random.Random, d: Dim) -> Dim:
    """Blocks of more positions, of which the body takes as many."""
    n = rng.choice([1, 1, 1, 2, 3])
    return dataclasses.replace(d, extent=d.extent * n, block=(d.block or 1) * n, stride=n, offset=rng.randrange(n))


# ------------------------------------------------------------------------------------------ to JAX


def _index(d: Dim, indices: Sequence[Any], tables: Sequence[Any]) -> Any:
    if d.axis is None:
        return 0
    i = indices[d.axis]
    match d.turn:
        case "flip":
            return d.blocks - 1 - i
        case "rotate":
            return jax.lax.rem(i + 1, jnp.int32(d.blocks))
        case "half":
            return jax.lax.div(i, jnp.int32(2))
        case "table":
            return tables[0][i]
        case _:
            return i


def _spec(x: Operand, grid: Sequence[int]) -> Any:
    if x.whole == "gmem":
        return plgpu.BlockSpec(memory_space=plgpu.GMEM)
    if x.whole == "block":
        return pl.BlockSpec(x.shape, lambda *_: (0,) * len(x.dims))

    def index_map(*args: Any) -> tuple[Any, ...]:
        return tuple(_index(d, args[: len(grid)], args[len(grid) :]) for d in x.dims)

    shape = tuple(d.block for d in x.dims)
    if x.whole == "gmem block":
        return plgpu.BlockSpec(shape, index_map, memory_space=plgpu.GMEM)
    return pl.BlockSpec(shape, index_map)


def _as(x: Any, dtype: str) -> Any:
    return x != 0 if dtype == "bool" else x.astype(dtype)


def build(call: Call) -> Callable[[bool], Callable[..., Any]]:
    """The call as a function of `interpret` that gives a function of arrays."""
    out, grid = call.out, call.grid
    rank = len(out.dims)

    def value(x: Operand, ref: Any, indices: Sequence[Any], tables: Sequence[Any]) -> Any:
        """The operand's block in the output's dimensions, int32; summed dimensions are summed."""
        if x.whole in ("gmem", "block"):
            at = []
            for d in x.dims:
                start = _index(d, indices, tables) * d.size
                at.append(start if d.block is None else pl.ds(start, d.size) if d.size != d.extent else slice(None))
            v = ref[tuple(at)] if at else ref[...]
        else:
            taken = [d for d in x.dims if d.block is not None]
            # Slices, and parts with a size, say the same.
            parts = [slice(d.offset, None, d.stride) if n % 2 else pl.ds(d.offset, d.taken, d.stride) for n, d in enumerate(taken)]
            v = ref[tuple(parts)] if any(d.stride != 1 for d in taken) else ref[...]
        v = v.astype(jnp.int32)
        kept = [(d, o) for d, o in zip(x.dims, x.order) if d.block is not None]
        axes = tuple(i for i, (_, o) in enumerate(kept) if o >= rank)
        if axes:
            v = jnp.sum(v, axis=axes)
        kept = [(d, o) for d, o in kept if o < rank]
        by_order = sorted(range(len(kept)), key=lambda i: kept[i][1])
        v = jnp.transpose(v, by_order)
        present = {kept[i][1]: kept[i][0].taken for i in by_order}
        shape = [present.get(k, 1) for k, d in enumerate(out.dims) if d.block is not None]
        return v.reshape(shape)

    def body(*refs: Any) -> None:
        tables, refs = (refs[:1], refs[1:]) if call.prefetch else ((), refs)
        *ins, o = refs
        scale: Any = 1
        if call.scalar:
            scale, *ins = ins
            scale = scale[...].astype(jnp.int32)
        indices = [pl.program_id(a) for a in range(len(grid))]
        shape = tuple(d.block for d in out.dims if d.block is not None)
        total = jnp.zeros(shape, jnp.int32) + (sum((a + 1) * i for a, i in enumerate(indices)) if call.seed % 3 == 0 else 0)
        for n, (x, ref) in enumerate(zip(call.inputs, ins)):
            v = value(x, ref, indices, tables)
            total = total + v if n % 2 == 0 else jnp.where(v > 1, total - v, total)
        total = _as((total * scale) & 3, out.dtype)
        if call.summed:
            first = _all([indices[a] == 0 for a in call.summed])

            @pl.when(first)
            def _() -> None:
                o[...] = jnp.zeros(shape, out.dtype)

            o[...] = o[...] ^ total if out.dtype == "bool" else o[...] + total
        elif call.partly and shape:
            o[: (shape[0] + 1) // 2] = total[: (shape[0] + 1) // 2]
        else:
            o[...] = total
        if call.again and not call.summed and not call.partly:
            o[...] = o[...] ^ total if out.dtype == "bool" else o[...] + total

    inputs = [_spec(x, grid) for x in call.inputs]
    if call.scalar:
        inputs = [pl.BlockSpec((), lambda *_: ()), *inputs]
    result = jax.ShapeDtypeStruct(out.shape, out.dtype)
    at = int(call.prefetch) + int(call.scalar)
    spec: dict[str, Any] = {"grid": grid, "in_specs": inputs, "out_specs": _spec(out, grid)}
    if call.prefetch:
        spec = {"grid_spec": pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, **spec)}

    def make(interpret: bool) -> Callable[..., Any]:
        params = plgpu.CompilerParams(dimension_semantics=call.semantics, max_concurrent_steps=call.steps)
        return pl.pallas_call(
            body,
            out_shape=result,
            interpret=interpret,
            compiler_params=None if interpret else params,
            input_output_aliases={at: 0} if call.alias else {},
            **spec,
        )

    return make


def _all(conditions: Sequence[Any]) -> Any:
    result = conditions[0]
    for c in conditions[1:]:
        result = jnp.logical_and(result, c)
    return result


def arguments(call: Call) -> list[Any]:
    rng = np.random.default_rng(call.seed)
    arrays = []
    if call.prefetch:
        tables = [d for x in call.inputs for d in x.dims if d.turn == "table"]
        n = max(call.grid, default=1)
        arrays.append(jnp.asarray(rng.integers(0, min(d.blocks for d in tables), n), jnp.int32))
    if call.scalar:
        arrays.append(jnp.float32(rng.integers(1, 3)))
    for x in call.inputs:
        arrays.append(_as(jnp.asarray(rng.integers(0, 4, x.shape)), x.dtype))
    return arrays
