"""Random calls as their authors spell them for a TPU or for Triton, and their derivatives, against their steps one after the other.

A program is written once and executed twice: by Pallas, in a kernel, and step by step over arrays, by NumPy (`values`: small integers, equal bit
for bit) or by JAX in 64 bits, which differentiates it (`jvp`, `vjp`). JAX's interpreter knows neither references of references, strides of 0,
nor bounded slices.

Drawn: named grids (`axis_index`, `axis_size`, `psum`), blocks spelled as numbers, `Blocked`, `Element` (overlapping, too), `BoundedSlice`,
`Squeezed`, None; `Buffered`; VMEM, SMEM, device memory; prefetched tables, under `vmap` batched or not; scratch and outputs carried over steps;
counters; buffers that are shared; blocks that reach outside; `x_ref[-1]`, strides, strides of 0, `.at` chains, masked loads and stores, rows by
arrays of indices.
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
from jax.experimental.pallas import triton as plt

from smalt import _versions
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar

KINDS = ("values", "jvp", "vjp")
NAMES = ("i", "j", "k")
#: Steps of a grid.
MAX_STEPS = 12
Shape = tuple[int, int]


# ------------------------------------------------------------------------------------------ blocks


@dataclasses.dataclass(frozen=True)
class Dim:
    """A dimension of an operand. Its block begins at `number * apart`, where `number` is what the index map says by `turn`, from an axis' index."""

    block: int
    axis: int | None  # None: the block stays at 0
    turn: str  # step, flip, first, half, rotate, table
    spelled: str  # number, Blocked, Element, BoundedSlice, None, Squeezed
    apart: int
    extent: int

    def number(self, indices: Sequence[Any], sizes: Sequence[int], table: Any) -> Any:
        if self.axis is None or self.turn == "first":
            return 0
        i, n = indices[self.axis], sizes[self.axis]
        return {
            "step": lambda: i, "flip": lambda: n - 1 - i, "half": lambda: i // 2, "rotate": lambda: (i + 1) % n, "table": lambda: table[i],
        }[self.turn]()  # fmt: skip

    def mapped(self, number: Any) -> Any:
        """What the index map gives."""
        match self.spelled:
            case "Element":
                return number * self.apart
            case "BoundedSlice":
                return pl.ds(number * self.apart, self.block)
            case _:
                return number

    def dim(self) -> Any:
        return {
            "number": self.block, "Blocked": pl.Blocked(self.block), "Element": pl.Element(self.block),
            "BoundedSlice": pl.BoundedSlice(self.block), "None": None, "Squeezed": pl.Squeezed(),
        }[self.spelled]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array of rows and columns, and perhaps of a dimension in front of which blocks have one position."""

    name: str
    dims: tuple[Dim, ...]
    space: str  # default, VMEM, device (a block of device memory), whole (an array without blocks), SMEM (a scalar)
    buffers: int  # 0: not said
    dtype: str
    batched: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(d.extent for d in self.dims)

    @property
    def block(self) -> Shape:
        return self.dims[-2].block, self.dims[-1].block

    @property
    def is_partial(self) -> bool:
        return any(d.extent % d.block for d in self.dims if d.spelled in ("number", "Blocked"))

    def starts(self, indices: Sequence[Any], sizes: Sequence[int], table: Any) -> list[Any]:
        return [d.number(indices, sizes, table) * d.apart for d in self.dims]

    def spec(self, sizes: Sequence[int]) -> pl.BlockSpec:
        if self.space == "whole":
            return pl.BlockSpec(memory_space=pl.ANY)

        def index_map(*args: Any) -> tuple[Any, ...]:
            table = args[len(sizes)] if len(args) > len(sizes) else None
            return tuple(d.mapped(d.number(args, sizes, table)) for d in self.dims)

        how: dict[str, Any] = {"pipeline_mode": pl.Buffered(self.buffers)} if self.buffers else {}
        if self.space != "default":
            how["memory_space"] = {"VMEM": pltpu.VMEM, "SMEM": pltpu.SMEM, "device": plgpu.GMEM}[self.space]
        return pl.BlockSpec(tuple(d.dim() for d in self.dims), index_map, **how)


# ------------------------------------------------------------------------------------------ accesses


class Machine:
    """What a step's statements ask of whoever executes them. `xp`: of NumPy's functions."""

    xp: Any
    indices: Sequence[Any]

    def load(self, name: str, access: Access) -> Any:
        raise NotImplementedError

    def store(self, name: str, access: Access, value: Any) -> None:
        raise NotImplementedError

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        raise NotImplementedError

    def loop(self, n: int, body: Callable[[Any], None]) -> None:
        raise NotImplementedError

    def size(self, axis: int) -> Any:
        raise NotImplementedError

    def count(self) -> None:
        """One more step: a scalar in memory, which lasts."""
        raise NotImplementedError

    def counted(self) -> Any:
        raise NotImplementedError

    def iota(self, shape: Shape, axis: int) -> Any:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Access:
    """A part of a block. `rows`: start, size, stride; `columns` likewise."""

    kind: str
    rows: tuple[int, int, int]
    columns: tuple[int, int, int]
    axis: int = 0  # whose index moves what moves

    def shape(self, block: Shape) -> Shape:
        n, m = self.rows[1], self.columns[1]
        return {
            "whole": block, "last row": (1, block[1]), "last column": (block[0], 1), "element": (1, 1), "moving row": (1, block[1]),
            "masked": block, "gather": (n, block[1]), "repeated": (n, block[1]),
        }.get(self.kind, (n, m))  # fmt: skip

    def _gathered(self) -> np.ndarray[Any, Any]:
        start, size, stride = self.rows
        return np.arange(start, start + (size - 1) * stride + 1, stride)

    def mask(self, m: Machine, block: Shape) -> tuple[Any, Any]:
        """Of a masked access: where its rows begin, and which of them are inside."""
        start = (m.indices[self.axis] + self.rows[0]) % block[0]
        return start, m.iota(block, 0) + start < block[0]

    # -- in a kernel

    def _of(self, ref: Any, m: Machine) -> Any:
        """The reference and what indexes it."""
        (r, n, s), (c, k, t) = self.rows, self.columns
        match self.kind:
            case "whole":
                return ref, ...
            case "last row":
                return ref, -1
            case "last column":
                return ref, (slice(None), -1)
            case "element":
                return ref, (r, -1)
            case "moving row":
                return ref, (m.indices[self.axis] % ref.shape[0], slice(None))
            case "slices":
                return ref, (slice(r, r + (n - 1) * s + 1, s), slice(c, c + (k - 1) * t + 1, t))
            case "parts":
                return ref, (pl.ds(r, n, s), pl.ds(c, k, t))
            case "repeated":
                return ref, (pl.ds(r, n, 0), slice(None))
            case "chain":  # of the rest behind a start, the part
                return ref.at[pl.ds(r, ref.shape[0] - r), :].at[pl.ds(0, (n - 1) * s + 1), pl.ds(c, ref.shape[1] - c)], (pl.ds(0, n, s), pl.ds(0, k, t))
            case "gather":
                return ref, (r + s * jax.lax.iota(jnp.int32, n), slice(None))
        raise AssertionError(self.kind)

    def load_ref(self, ref: Any, m: Machine, other: float) -> Any:
        if self.kind == "masked":
            start, inside = self.mask(m, ref.shape)
            return plt.load(ref.at[pl.ds(start, ref.shape[0]), :], mask=inside, other=jnp.full(ref.shape, other, ref.dtype))
        of, at = self._of(ref, m)
        return of[at].reshape(self.shape(ref.shape))

    def store_ref(self, ref: Any, m: Machine, value: Any) -> None:
        if self.kind == "masked":
            start, inside = self.mask(m, ref.shape)
            plt.store(ref.at[pl.ds(start, ref.shape[0]), :], value.astype(ref.dtype), mask=inside)
            return
        of, at = self._of(ref, m)
        kept = {"last row": value[0], "moving row": value[0], "last column": value[:, 0], "element": value[0, 0]}.get(self.kind, value)
        of[at] = kept.astype(ref.dtype)

    # -- over arrays

    def positions(self, m: Machine, block: Shape) -> tuple[list[int], list[int]]:
        """Its rows and columns."""
        (r, n, s), (c, k, t) = self.rows, self.columns
        rows, columns = [r + i * s for i in range(n)], [c + i * t for i in range(k)]
        whole = list(range(block[0])), list(range(block[1]))
        match self.kind:
            case "whole" | "masked":
                return whole
            case "last row":
                return [block[0] - 1], whole[1]
            case "last column":
                return whole[0], [block[1] - 1]
            case "element":
                return [r], [block[1] - 1]
            case "moving row":
                return [m.indices[self.axis] % block[0]], whole[1]
            case "repeated":
                return [r] * n, whole[1]
            case "gather":
                return rows, whole[1]
            case _:
                return rows, columns


LOADS = ("whole", "whole", "last row", "last column", "element", "moving row", "slices", "parts", "repeated", "chain", "masked", "gather")
STORES = ("whole", "last row", "last column", "moving row", "slices", "parts", "chain", "masked", "gather")


def _part(rng: random.Random, extent: int) -> tuple[int, int, int]:
    stride, start = rng.choice([1, 1, 2, 3]), rng.randrange(extent)
    return start, rng.randint(1, (extent - start - 1) // stride + 1), stride


class InKernel(Machine):
    xp = jnp

    def __init__(self, program: Program, refs: dict[str, Any], table: Any) -> None:
        self.program, self.refs = program, refs
        self.indices = [jax.lax.axis_index(NAMES[a]) if program.named and a % 2 == 0 else pl.program_id(a) for a in range(len(program.grid))]
        self.starts = {x.name: x.starts(self.indices, program.grid, table) for x in program.operands}

    def size(self, axis: int) -> Any:
        if not self.program.named:
            return pl.num_programs(axis)
        return jax.lax.psum(1, NAMES[axis]) if axis else jax.lax.axis_size(NAMES[axis])

    def load(self, name: str, access: Access) -> Any:
        ref = self.refs[name]
        x = self.program.operand(name)
        if x is not None and x.space == "whole":
            at = [pl.ds(s, d.block) if d.spelled not in ("None", "Squeezed") else s for s, d in zip(self.starts[name], x.dims)]
            return ref[tuple(at)].astype(jnp.float32)
        v = access.load_ref(ref, self, self.program.other).astype(jnp.float32)
        if x is None or not x.is_partial:
            return v
        for axis, (start, d) in enumerate(zip(self.starts[name][-2:], x.dims[-2:])):
            v = jnp.where(self.iota(x.block, axis) + start < d.extent, v, 0)
        return v

    def store(self, name: str, access: Access, value: Any) -> None:
        access.store_ref(self.refs[name], self, value)

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        pl.when(condition)(body)

    def loop(self, n: int, body: Callable[[Any], None]) -> None:
        jax.lax.fori_loop(0, n, lambda i, _: body(i), None)

    def count(self) -> None:
        n, first = self.refs["n"], self.indices[0] == 0
        for i in self.indices[1:]:
            first &= i == 0
        pl.when(first)(lambda: n.__setitem__(0, 0))
        n[0] = n[0] + 1

    def counted(self) -> Any:
        return self.refs["n"][0]

    def iota(self, shape: Shape, axis: int) -> Any:
        return jax.lax.broadcasted_iota(jnp.int32, shape, axis)


class OverArrays(Machine):
    """A step, whose blocks are arrays. What is not there is 0."""

    def __init__(self, program: Program, xp: Any, refs: dict[str, Any], indices: Sequence[int], inside: dict[str, Any]) -> None:
        """`inside`: which elements of a block are in its array."""
        self.program, self.xp, self.refs, self.indices, self.inside, self.counter = program, xp, refs, indices, inside, 0

    def size(self, axis: int) -> int:
        return self.program.grid[axis]

    def load(self, name: str, access: Access) -> Any:
        v = self.refs[name]
        if name in self.inside:
            v = self.xp.where(self.inside[name], v, 0)
        rows, columns = access.positions(self, v.shape)
        if access.kind == "masked":
            start, _ = access.mask(self, v.shape)
            outside = self.xp.full((start, v.shape[1]), self.program.other, v.dtype)
            return self.xp.concatenate([v[start:], outside])
        return v[np.asarray(rows)[:, None], np.asarray(columns)]

    def store(self, name: str, access: Access, value: Any) -> None:
        v = self.refs[name]
        rows, columns = access.positions(self, v.shape)
        if access.kind == "masked":
            start, _ = access.mask(self, v.shape)
            rows, value = rows[start:], value[: v.shape[0] - start]
        self.refs[name] = put(self.xp, v, (np.asarray(rows)[:, None], np.asarray(columns)), value) if rows else v

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        if condition:
            body()

    def loop(self, n: int, body: Callable[[Any], None]) -> None:
        for i in range(n):
            body(i)

    def count(self) -> None:
        self.counter += 1

    def counted(self) -> int:
        return self.counter

    def iota(self, shape: Shape, axis: int) -> Any:
        return np.broadcast_to(np.arange(shape[axis]).reshape((-1, 1) if axis == 0 else (1, -1)), shape)


def _is_close(one: Any, other: Any) -> bool:
    return bool(np.allclose(one, other, rtol=1e-3, atol=2e-4))


def put(xp: Any, x: Any, at: Any, value: Any) -> Any:
    if xp is jnp:
        return x.at[at].set(value)
    x = x.copy()
    x[at] = value
    return x


# ------------------------------------------------------------------------------------------ programs

Expression = Callable[[Any], Any]


class Program:
    """Operands `x0`, …, scalars `c0`; outputs `o0`, …; scratch `s0`, …; a counter `n`.

    `kind`: "values" are exact; "jvp" and "vjp" are smooth; of the latter steps are independent of each other.
    """

    def __init__(self, seed: int, kind: str) -> None:
        rng = self._rng = random.Random(f"spelled {kind} {seed}")
        self.seed, self.kind, self.exact, self.apart = seed, kind, kind == "values", kind == "vjp"
        rank = rng.choice([1, 2, 2, 3])
        grid = [rng.randint(1, 4) for _ in range(rank)]
        while np.prod(grid) > MAX_STEPS:
            grid[grid.index(max(grid))] -= 1
        self.grid = tuple(grid)
        self.named = rng.random() < 0.4
        self.block: Shape = (rng.choice([1, 2, 3, 4, 8]), rng.choice([1, 4, 5, 8, 16, 32, 128]))
        self.batch = rng.choice([0, 0, 0, 2, 3])
        self.other = float(rng.randint(0, 5))
        self.summed = not self.apart and rank > 1 and rng.random() < 0.5  # outputs and scratch are carried along the last axis
        self.prefetch = rng.random() < 0.35
        self.table_batched = self.prefetch and bool(self.batch) and rng.random() < 0.5
        self.inputs = [self._input(f"x{i}") for i in range(rng.randint(1, 3))]
        if self.batch and not self.table_batched and not any(x.batched for x in self.inputs):
            self.inputs[0] = dataclasses.replace(self.inputs[0], batched=True)
        self.alias = not self.apart and rng.random() < 0.25
        self.outputs = [self._output(f"o{i}") for i in range(rng.randint(1, 2))]
        if self.alias:
            self.inputs[0] = dataclasses.replace(self.outputs[0], name="x0")
        if rng.random() < 0.3:
            axis = rng.randrange(rank)
            dims = Dim(1, axis, "step", "number", 1, grid[axis]), Dim(1, None, "first", "number", 1, 1)
            self.inputs.append(Operand("c0", dims, "SMEM", 0, "float32", bool(self.batch)))
        self.scratch = [f"s{i}" for i in range(rng.choice([0, 0, 1, 2]))]
        self.carried = {s for s in self.scratch if self.summed and rng.random() < 0.6}
        self.counts = self.exact and rng.random() < 0.25
        #: What a step reads of a buffer that it shares with a sum depends on where the block is loaded.
        if self.alias and self.summed and len(self.inputs) == 1:
            self.inputs.append(self._input("x1"))
        self.operands = [*self.inputs, *self.outputs]
        self.loadable = [x.name for x in self.inputs if not (self.alias and x.name == "x0" and self.summed)]
        self.statements = self._statements()

    # -- what there is

    def _dims(self, axes: Sequence[int | None], output: bool) -> tuple[Dim, ...]:
        rng, dims = self._rng, []
        for n, (block, axis) in enumerate(zip(self.block, axes)):
            turns = ["step", "step", "flip"] if output else ["step", "step", "flip", "first", "half", "rotate", *["table"] * (2 * self.prefetch)]
            turn = rng.choice(turns)
            spelled = rng.choice(["number", "number", "number", "Blocked", "Element", *(["BoundedSlice"] if n == 0 else [])])
            apart = block
            if spelled == "Element" and not output and rng.random() < 0.5:
                apart = rng.randint(1, block)
            count = 1 if axis is None else self.grid[axis]
            extent = (count - 1) * apart + block
            if turn == "step" and spelled in ("number", "Blocked") and block > 1 and rng.random() < 0.2:
                extent -= rng.randrange(1, block)
            dims.append(Dim(block, axis, turn, spelled, apart, extent))
        if any(d.spelled == "BoundedSlice" for d in dims):
            dims = [d if d.spelled != "Element" else dataclasses.replace(d, spelled="number", apart=d.block, extent=self._count(d) * d.block) for d in dims]
        return tuple(dims)

    def _count(self, d: Dim) -> int:
        return 1 if d.axis is None else self.grid[d.axis]

    def _input(self, name: str) -> Operand:
        rng, rank = self._rng, len(self.grid)
        axes = rng.sample([*range(rank), None, None], 2)
        dims = self._dims(axes, False)
        if rng.random() < 0.25:
            axis = rng.randrange(rank)
            front = Dim(1, axis, rng.choice(["step", "flip", "first", "half"]), rng.choice(["None", "Squeezed"]), 1, self.grid[axis])
            dims = (front, *dims)
        space = rng.choice(["default", "default", "VMEM", "device", "whole"])
        if any(d.spelled not in ("number", "None", "Squeezed") or d.extent % d.block for d in dims) and space in ("device", "whole"):
            space = "default"
        dtype = rng.choice(["float32", "bfloat16", "float16", "int32", "int8"]) if self.exact else "float32"
        buffers = rng.choice([0, 0, 1, 2, 3]) if space in ("default", "VMEM") else 0
        return Operand(name, dims, space, buffers, dtype, bool(self.batch) and rng.random() < 0.7)

    def _output(self, name: str) -> Operand:
        """Blocks of its own for each step, or for all steps along the last axis."""
        rng, rank = self._rng, len(self.grid) - self.summed
        axes: list[int | None] = list(range(rank))
        rng.shuffle(axes)
        front: tuple[Dim, ...] = ()
        while len(axes) > 2:
            axis = axes.pop()
            assert axis is not None
            front = (*front, Dim(1, axis, "step", rng.choice(["None", "Squeezed"]), 1, self.grid[axis]))
        axes = [*axes, None, None][:2]
        dtype = rng.choice(["float32", "float32", "bfloat16", "int32", "int8"]) if self.exact else "float32"
        buffers = rng.choice([0, 0, 1, 2])
        return Operand(name, (*front, *self._dims(axes, True)), rng.choice(["default", "default", "VMEM"]), buffers, dtype, bool(self.batch))

    def operand(self, name: str) -> Operand | None:
        return next((x for x in self.operands if x.name == name), None)

    # -- what is done

    def _access(self, name: str, kinds: Sequence[str]) -> Access:
        rng = self._rng
        x = self.operand(name)
        block = self.block if x is None else x.block
        kind = rng.choice(kinds) if rng.random() < 0.6 else "whole"
        if x is not None and (x.is_partial or x.space == "whole"):
            kind = "whole"
        if block == (1, 1):
            kind = "element" if "element" in kinds else "whole"
        rows = _part(rng, block[0])
        if kind == "repeated":
            rows = (rows[0], rng.randint(1, block[0]), 0)
        return Access(kind, rows, _part(rng, block[1]), rng.randrange(len(self.grid)))

    def _expression(self, known: Sequence[str], shape: Shape, depth: int) -> Expression:
        """An array of this shape, of what the step loads."""
        rng = self._rng
        if depth == 0:
            name = rng.choice(known)
            access, factor = self._access(name, LOADS), rng.choice([1.0, 2.0, 3.0]) if self.exact else rng.choice([0.5, 1.0, -1.5])
            return lambda m: _fitted(m.xp, m.load(name, access), shape) * factor
        a, b = (self._expression(known, shape, depth - 1) for _ in range(2))
        axis, constant = rng.randrange(len(self.grid)), float(rng.randint(1, 4))
        kinds = ["add", "maximum", "where", "step", "rows", "size", *(["count"] if self.counts else [])]
        kind = rng.choice([*kinds, "product"] if self.exact else [*kinds, "sin", "tanh", "product"])
        match kind:
            case "add":
                return lambda m: a(m) - b(m)
            case "maximum" if self.exact:
                return lambda m: m.xp.maximum(a(m), b(m))
            case "where":
                return lambda m: m.xp.where(m.iota(shape, 0) % 2 == 1, a(m), b(m))
            case "step":
                return lambda m: a(m) + _number(m, m.indices[axis]) * constant
            case "rows":
                return lambda m: a(m) + (m.iota(shape, 1) % 3).astype(_float(m))
            case "size":
                return lambda m: b(m) + _number(m, m.size(axis))
            case "count":
                return lambda m: b(m) + _number(m, m.counted())
            case "tanh" | "maximum":
                return lambda m: m.xp.tanh(a(m)) * constant
            case "sin":
                return lambda m: m.xp.sin(a(m))
            case _ if self.exact:
                return lambda m: _small(m.xp, a(m)) * _small(m.xp, b(m))
            case _:
                return lambda m: a(m) * m.xp.cos(b(m))

    def _store(self, name: str, access: Access, known: Sequence[str], adds: bool = False) -> Callable[[Any], None]:
        x = self.operand(name)
        shape = access.shape(self.block if x is None else x.block)
        value = self._expression(known, shape, self._rng.randint(1, 2))

        def run(m: Any) -> None:
            v = value(m)
            if adds:
                v = m.load(name, access) + v
            m.store(name, access, _small(m.xp, v) if self.exact else v)

        return run

    def _statements(self) -> list[Callable[[Any], None]]:
        rng, last = self._rng, len(self.grid) - 1
        whole = Access("whole", (0, 1, 1), (0, 1, 1))
        found: list[Callable[[Any], None]] = [lambda m: m.count()] if self.counts else []
        lasting = [*sorted(self.carried), *(x.name for x in self.outputs if self.summed)]
        for name in lasting:
            begin = self._store(name, whole, self.loadable)
            found.append(lambda m, begin=begin: m.when(m.indices[last] == 0, lambda: begin(m)))
        fresh = [*(s for s in self.scratch if s not in self.carried), *(x.name for x in self.outputs if not self.summed)]
        found += [self._store(name, whole, [*self.loadable, *lasting]) for name in fresh]
        known = [*self.loadable, *self.scratch, *(x.name for x in self.outputs)]
        for name in lasting:
            found.append(self._store(name, whole, [*self.loadable, *self.scratch], adds=True))
        for _ in range(rng.randint(1, 3)):
            found.append(self._statement(known, 1))
        return found

    def _statement(self, known: Sequence[str], depth: int) -> Callable[[Any], None]:
        rng = self._rng
        name = rng.choice([*self.scratch, *(x.name for x in self.outputs)])
        kind = rng.choice(["store", "store", "when", "loop"]) if depth else "store"
        if kind == "store":
            return self._store(name, self._access(name, STORES), known, adds=rng.random() < 0.4)
        inner = self._statement(known, depth - 1)
        if kind == "loop":
            return lambda m: m.loop(2, lambda _: inner(m))
        axis, which = rng.randrange(len(self.grid)), rng.randint(0, 1)
        return lambda m: m.when(m.indices[axis] % 2 == which, lambda: inner(m))

    # -- as Pallas has it

    def call(self) -> Callable[..., Any]:
        names = [*(x.name for x in self.operands), *self.scratch, *(["n"] if self.counts else [])]

        def body(*refs: Any) -> None:
            table, refs = (refs[0], refs[1:]) if self.prefetch else (None, refs)
            m = InKernel(self, dict(zip(names, refs)), table)
            for statement in self.statements:
                statement(m)

        grid = tuple(zip(NAMES, self.grid)) if self.named else self.grid
        scratch = [pltpu.VMEM(self.block, jnp.float32) for _ in self.scratch]
        where: dict[str, Any] = {
            "grid": grid,
            "in_specs": [x.spec(self.grid) for x in self.inputs],
            "out_specs": [x.spec(self.grid) for x in self.outputs],
            "scratch_shapes": [*scratch, *([pltpu.SMEM((1,), jnp.int32)] if self.counts else [])],
        }
        if self.prefetch:
            where = {"grid_spec": pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, **where)}
        f = pl.pallas_call(
            body,
            out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in self.outputs],
            input_output_aliases={int(self.prefetch): 0} if self.alias else {},
            **where,
        )
        return jax.vmap(f, self._in_axes()) if self.batch else f

    def _in_axes(self) -> tuple[int | None, ...]:
        tables = [0 if self.table_batched else None] if self.prefetch else []
        return (*tables, *(0 if x.batched else None for x in self.inputs))

    # -- as it is meant

    def same(self, xp: Any, dtype: Any) -> Callable[..., Any]:
        """What the call computes, as a function of arrays, by functions of NumPy's or JAX's."""

        def one(*arrays: Any) -> tuple[Any, ...]:
            table, arrays = (arrays[0], arrays[1:]) if self.prefetch else (None, arrays)
            memory = {x.name: xp.asarray(a).astype(dtype) for x, a in zip(self.inputs, arrays)}
            for x in self.outputs:
                memory[x.name] = xp.zeros(x.shape, dtype)
            if self.alias:
                memory["o0"] = memory["x0"]
            scratch = {s: xp.zeros(self.block, dtype) for s in self.scratch}
            count = 0
            for indices in np.ndindex(*self.grid):
                at = {x.name: self._positions(x, indices, table) for x in self.operands}
                refs = {name: _block(xp, memory[name], where) for name, where in at.items()} | scratch
                inside = {x.name: _inside(at[x.name], x.shape) for x in self.operands if x.is_partial}
                m = OverArrays(self, xp, refs, [int(i) for i in indices], inside)
                m.counter = count
                for statement in self.statements:
                    statement(m)
                count = m.counter
                for x in self.outputs:
                    memory[x.name] = _stored(xp, memory[x.name], at[x.name], m.refs[x.name])
                if self.alias:
                    memory["x0"] = memory["o0"]
                scratch = {s: m.refs[s] for s in self.scratch}
            return tuple(memory[x.name] for x in self.outputs)

        def all_of(*arrays: Any) -> tuple[Any, ...]:
            if not self.batch:
                return one(*arrays)
            axes = self._in_axes()
            found = [one(*(a if axis is None else a[i] for a, axis in zip(arrays, axes))) for i in range(self.batch)]
            return tuple(xp.stack(x) for x in zip(*found))

        return all_of

    def _positions(self, x: Operand, indices: Sequence[int], table: Any) -> list[Any]:
        starts = x.starts(indices, self.grid, table)
        return [np.arange(int(s), int(s) + d.block) for s, d in zip(starts, x.dims)]

    # -- compared

    def arguments(self) -> list[Any]:
        rng = np.random.default_rng([self.seed, KINDS.index(self.kind)])
        found: list[Any] = []
        if self.prefetch:
            tables = [self._count(d) for x in self.inputs for d in x.dims if d.turn == "table"]
            shape = (self.batch, max(self.grid)) if self.table_batched else (max(self.grid),)
            found.append(rng.integers(0, min([*tables, 4]), shape).astype(np.int32))
        for x in self.inputs:
            shape = (self.batch, *x.shape) if x.batched else x.shape
            found.append(rng.integers(0, 5, shape).astype(jnp.dtype(x.dtype)) if self.exact else rng.normal(size=shape).astype(np.float32))
        return found

    def check(self) -> None:
        if self.exact:
            self._check_values()
        else:
            self._check_derivatives()

    def _check_values(self) -> None:
        xs = self.arguments()
        want = self.same(np, np.float32)(*xs)
        got = jax.jit(self.call())(*xs)
        for x, one, other in zip(self.outputs, got, want, strict=True):
            np.testing.assert_array_equal(keep(one).astype(np.float32), other, err_msg=str(self))
            assert one.dtype == jnp.dtype(x.dtype)

    def _check_derivatives(self) -> None:
        """Tangents with respect to some operands, or cotangents of these."""
        rng, xs, first = random.Random(self.seed), self.arguments(), int(self.prefetch)
        numbers = np.random.default_rng(self.seed + 1)
        wanted = [i for i in range(first, len(xs)) if rng.random() < 0.6] or [first]
        shapes = [(*((self.batch,) if self.batch else ()), *x.shape) for x in self.outputs] if self.apart else [xs[i].shape for i in wanted]
        directions = [numbers.normal(size=s).astype(np.float32) for s in shapes]

        def derivative(f: Callable[..., Any], dtype: Any) -> Any:
            given = [x if x.dtype == np.int32 else x.astype(dtype) for x in xs]

            def of_some(*some: Any) -> Any:
                return tuple(f(*(dict(zip(wanted, some)).get(i, x) for i, x in enumerate(given))))

            primals, along = [given[i] for i in wanted], tuple(d.astype(dtype) for d in directions)
            if not self.apart:
                return jax.jvp(of_some, primals, list(along))
            results, pull = jax.vjp(of_some, *primals)
            return results, pull(along)

        got = derivative(self.call(), np.float32)
        with jax.default_device(jax.devices("cpu")[0]):
            with _versions.tracing_mode(wide=True):
                want = derivative(self.same(jnp, jnp.float64), np.float64)
            if not all(map(_is_close, *map(jax.tree.leaves, (got, want)))):  # no further from the truth than JAX's arithmetic of 32 bits
                rounded = jax.tree.leaves(derivative(self.same(jnp, jnp.float32), np.float32))
                for one, other, r in zip(*map(jax.tree.leaves, (got, want)), rounded, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-3, atol=2e-4 + 20 * float(np.abs(r - other).max()), err_msg=str(self))

    def __str__(self) -> str:
        lines = [f"{x.name}: {x}" for x in self.operands]
        names = ("kind", "grid", "named", "block", "batch", "summed", "prefetch", "table_batched", "alias", "scratch", "carried", "counts")
        return "\n  ".join([f"seed {self.seed}", *(f"{n}: {getattr(self, n)}" for n in names), *lines])

def _inside(at: Sequence[Any], shape: Sequence[int]) -> Any:
    rows, columns = (a < n for a, n in zip(at[-2:], shape[-2:]))
    return rows[:, None] & columns


def _float(m: Any) -> Any:
    return jnp.float32 if isinstance(m, InKernel) else next(iter(m.refs.values())).dtype


def _number(m: Any, i: Any) -> Any:
    return jnp.asarray(i, jnp.float32) if isinstance(m, InKernel) else float(i)


def _small(xp: Any, v: Any) -> Any:
    """A number below 16: products of them, and sums of these, are exact."""
    return v - 16 * xp.floor(v * 0.0625)


def _fitted(xp: Any, v: Any, shape: Shape) -> Any:
    """Any array as one of this shape: its sums, broadcast."""
    for axis in range(2):
        if v.shape[axis] not in (1, shape[axis]):
            v = v.sum(axis=axis, keepdims=True)
    return xp.broadcast_to(v, shape)


def _block(xp: Any, array: Any, at: Sequence[Any]) -> Any:
    """The block at these positions; 0 outside of the array."""
    inside = [a < n for a, n in zip(at, array.shape)]
    v = array[np.ix_(*(np.minimum(a, n - 1) for a, n in zip(at, array.shape)))]
    for axis, ok in enumerate(inside):
        v = xp.where(ok.reshape([-1 if k == axis else 1 for k in range(len(at))]), v, xp.zeros_like(v))
    return v.reshape(v.shape[-2:])


def _stored(xp: Any, array: Any, at: Sequence[Any], block: Any) -> Any:
    inside = [a[a < n] for a, n in zip(at, array.shape)]
    value = block.reshape([len(a) for a in at])[np.ix_(*(np.arange(len(a)) for a in inside))]
    return put(xp, array, np.ix_(*inside), value)


#: By kind.
SPELLED = {
    "values": Grammar("pallas calls, spelled", lambda seed: Program(seed, "values"), Program.check),
    "jvp": Grammar("pallas calls, forwards", lambda seed: Program(seed, "jvp"), Program.check),
    "vjp": Grammar("pallas calls, backwards", lambda seed: Program(seed, "vjp"), Program.check),
}
