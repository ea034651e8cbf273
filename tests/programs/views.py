"""Random views of things that have no addresses of their own: parts of accumulators, of `run_state`'s references, operands of wgmma; and of
arrays beyond their ends.

Each is a kernel with a NumPy reference; `Seed.of(n)` is the same in every process. `suite_views.py` runs them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.corpus.case import kernel, like, x64
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar

ACC, SMEM, Barrier = plgpu.ACC, plgpu.SMEM, plgpu.Barrier
Array = np.ndarray[Any, Any]


def tiled(dtype: Any, swizzle: int) -> tuple[Any, ...]:
    return (plgpu.TilingTransform((8, swizzle // jnp.dtype(dtype).itemsize)), plgpu.SwizzleTransform(swizzle))


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Small whole numbers, whose products and sums are exact in whatever order."""
    return rng.integers(-3, 4, shape).astype(dtype)


# ------------------------------------------------------------------------------------------ parts of accumulators

#: Operands and accumulator of a product.
PRODUCTS = (
    (jnp.float16, jnp.float32), (jnp.bfloat16, jnp.float32), (jnp.float16, jnp.float16), (jnp.int8, jnp.int32),
    (jnp.float8_e4m3fn, jnp.float32), (jnp.float32, jnp.float32),
)  # fmt: skip

Rect = tuple[int, int, int, int]  # row, column, rows, columns


@dataclasses.dataclass(frozen=True)
class Parts:
    """Products that are added to parts of an accumulator, parts that are read, and parts that are stored to."""

    seed: int
    dtype: Any
    sums: Any
    m: int
    n: int
    k: int
    #: What happens: a product into a part, a read of a part (which is an output), or a store of a number to a part.
    steps: tuple[tuple[str, Rect], ...]
    #: How often all of it happens, in a loop.
    rounds: int
    warpgroups: int

    @classmethod
    def of(cls, seed: int) -> Parts:
        rng = np.random.default_rng([seed, 1])
        dtype, sums = PRODUCTS[int(rng.integers(len(PRODUCTS)))]
        step = 32 // jnp.dtype(dtype).itemsize
        m, n, k = 64 * int(rng.integers(1, 4)), 8 * int(rng.integers(1, 21)), step * int(rng.integers(1, 4))

        def tiles(size: int, tile: int) -> tuple[int, int]:
            at = int(rng.integers(size // tile))
            return tile * at, tile * int(rng.integers(1, size // tile - at + 1))

        steps: list[tuple[str, Rect]] = []
        for _ in range(int(rng.integers(2, 6))):
            what = str(rng.choice(["product", "product", "product", "read", "store"]))
            # Products are added to whole tiles; what is read and stored need not be.
            (row, rows), (column, columns) = (tiles(m, 64), tiles(n, 8)) if what == "product" else (tiles(m, 1), tiles(n, 1))
            if what == "product" and dtype == jnp.int8 and columns > 24:
                columns -= columns % 16
            steps.append((what, (row, column, rows, columns)))
        # What is stored to a part passes through as much shared memory as the accumulator has.
        warpgroups = int(rng.integers(1, 3)) if m * n <= 128 * 128 else 1
        return cls(seed, dtype, sums, m, n, k, tuple(steps), int(rng.integers(1, 4)), warpgroups)

    def check(self) -> None:
        rng = np.random.default_rng([self.seed, 2])
        a, b = numbers(rng, (self.m, self.k), self.dtype), numbers(rng, (self.n, self.k), self.dtype)
        got = [keep(x) for x in self.kernel()(a, b)]
        for i, (x, y) in enumerate(zip(got, self.reference(a, b), strict=True)):
            np.testing.assert_array_equal(x.astype(np.float64), y, err_msg=f"{self}: output {i}")

    def kernel(self) -> Callable[..., Any]:
        reads = [rect for what, rect in self.steps if what == "read"]
        outputs = [like((self.warpgroups, rect[2], rect[3]), self.sums) for rect in reads]
        outputs.append(like((self.warpgroups, self.m, self.n), self.sums))

        def body(a: Any, b: Any, *refs: Any) -> None:
            out, (a_buf, b_buf, bars) = refs[: len(outputs)], refs[len(outputs) :]
            wg = lax.axis_index("wg")

            @pl.when(wg == 0)
            def _() -> None:
                plgpu.copy_gmem_to_smem(a, a_buf, bars.at[0])
                plgpu.copy_gmem_to_smem(b, b_buf, bars.at[1])

            plgpu.barrier_wait(bars.at[0])
            plgpu.barrier_wait(bars.at[1])

            def compute(acc: Any) -> None:
                def once(i: Any, _: Any) -> None:
                    read = 0
                    for what, (row, column, rows, columns) in self.steps:
                        part = (pl.ds(row, rows), pl.ds(column, columns))
                        if what == "product":
                            right = plgpu.transpose_ref(b_buf.at[pl.ds(column, columns)], (1, 0))
                            plgpu.wgmma(acc.at[part], a_buf.at[pl.ds(row, rows)], right)
                        elif what == "read":
                            out[read][wg] = acc.at[part][...]
                            read += 1
                        else:
                            acc.at[part][...] = lax.broadcast((i + 1).astype(self.sums), (rows, columns))

                lax.fori_loop(0, self.rounds, once, None)
                out[-1][wg] = acc[...]

            pl.run_scoped(compute, ACC((self.m, self.n), self.sums))

        swizzle = next(s for s in (128, 64, 32) if self.k * jnp.dtype(self.dtype).itemsize % s == 0)
        buffers = [SMEM(shape, self.dtype, transforms=tiled(self.dtype, swizzle)) for shape in ((self.m, self.k), (self.n, self.k))]
        return kernel(body, outputs, *buffers, Barrier(num_barriers=2), num_threads=self.warpgroups, thread_name="wg")

    def reference(self, a: Array, b: Array) -> list[Array]:
        product = a.astype(np.float64) @ b.astype(np.float64).T
        acc, reads = np.zeros((self.m, self.n)), {}
        for i in range(self.rounds):
            for at, (what, (row, column, rows, columns)) in enumerate(self.steps):
                part = (slice(row, row + rows), slice(column, column + columns))
                if what == "product":
                    acc[part] += product[part]
                elif what == "read":
                    reads[at] = acc[part].copy()
                else:
                    acc[part] = i + 1
        return [np.stack([x] * self.warpgroups) for x in (*reads.values(), acc)]


# ------------------------------------------------------------------------------------------ views of references to registers


@dataclasses.dataclass(frozen=True)
class Registers:
    """Loads, stores and swaps of views of a reference that `run_state` made of an array."""

    seed: int

    @classmethod
    def of(cls, seed: int) -> Registers:
        return cls(seed)

    def check(self) -> None:
        rng = np.random.default_rng([self.seed, 3])
        shape = tuple(int(rng.integers(1, 24 if i else 70)) for i in range(int(rng.integers(1, 4))))
        dtype = [np.int32, np.float32, np.int8, np.float16][int(rng.integers(4))]
        x = rng.integers(-100, 100, shape).astype(dtype)
        steps = [self._step(rng, shape) for _ in range(int(rng.integers(1, 4)))]
        starts = np.array([0, 1, 2, 3], np.int32)

        def body(x_ref: Any, starts_ref: Any, o: Any) -> None:
            def program(ref: Any) -> None:
                for step in steps:
                    step(_Traced(ref), starts_ref)

            o[...] = pl.run_state(program)(x_ref[...])

        got = keep(kernel(body, like(shape, dtype))(x, starts))
        wanted = x.copy()
        for step in steps:
            step(_Known(wanted), starts)
        np.testing.assert_array_equal(got, wanted, err_msg=f"seed {self.seed}: {shape} {np.dtype(dtype)}")

    @staticmethod
    def _step(rng: np.random.Generator, shape: tuple[int, ...]) -> Callable[[Any, Any], None]:
        """Reads a view, and stores a function of what it holds to another of the same shape."""
        chain: list[tuple[str, Any]] = []
        dims = list(shape)
        for _ in range(int(rng.integers(1, 3))):
            what = str(rng.choice(["index", "index", "reshape", "transpose"]))
            if what == "index":
                index: list[Any] = []
                kept = []
                for n in dims:
                    kind = str(rng.choice(["all", "slice", "at", "dynamic"])) if n > 1 else "all"
                    start = int(rng.integers(min(n, 4)))
                    size = int(rng.integers(1, n - start + 1))
                    if kind == "at" and len(kept) + len(dims) - len(index) <= 1:
                        kind = "slice"
                    index.append({"all": slice(None), "slice": slice(start, start + size), "at": start}.get(kind, (start, size)))
                    kept += {"all": [n], "slice": [size], "at": []}.get(kind, [size])
                chain.append(("index", index))
                dims = kept
            elif what == "transpose":
                order = [int(d) for d in rng.permutation(len(dims))]
                chain.append(("transpose", order))
                dims = [dims[d] for d in order]
            else:
                total = int(np.prod(dims))
                divisor = int(rng.choice([d for d in range(1, total + 1) if total % d == 0]))
                dims = [divisor, total // divisor]
                chain.append(("reshape", dims))
        swap = bool(rng.integers(2))

        def step(ref: Any, starts: Any) -> None:
            for what, how in chain:
                ref = getattr(ref, what)(how, starts)
            value = ref.load()
            if swap:
                ref.store(ref.swap(value + value) + ref.load())
            else:
                ref.store(value * 3 - 1)

        return step


@dataclasses.dataclass(frozen=True)
class _Traced:
    """A view in a kernel."""

    ref: Any

    def index(self, how: Any, starts: Any) -> _Traced:
        return _Traced(self.ref.at[tuple(pl.ds(starts[i[0]], i[1]) if isinstance(i, tuple) else i for i in how)])

    def reshape(self, how: Any, starts: Any) -> _Traced:
        return _Traced(self.ref.reshape(*how))

    def transpose(self, how: Any, starts: Any) -> _Traced:
        return _Traced(self.ref.transpose(how))

    def load(self) -> Any:
        return self.ref[...]

    def store(self, value: Any) -> None:
        self.ref[...] = value.astype(self.ref.dtype)

    def swap(self, value: Any) -> Any:
        return pl.swap(self.ref, ..., value) if hasattr(pl, "swap") else self.ref.swap(value)


@dataclasses.dataclass(frozen=True)
class _Known:
    """The same of an array of NumPy's, as flat positions of the whole."""

    whole: Array
    at: Array | None = None

    @property
    def places(self) -> Array:
        return np.arange(self.whole.size).reshape(self.whole.shape) if self.at is None else self.at

    def index(self, how: Any, starts: Any) -> _Known:
        return _Known(self.whole, self.places[tuple(slice(i[0], i[0] + i[1]) if isinstance(i, tuple) else i for i in how)])

    def reshape(self, how: Any, starts: Any) -> _Known:
        return _Known(self.whole, self.places.reshape(how))

    def transpose(self, how: Any, starts: Any) -> _Known:
        return _Known(self.whole, self.places.transpose(how))

    def load(self) -> Array:
        return self.whole.reshape(-1)[self.places]

    def store(self, value: Any) -> None:
        self.whole.reshape(-1)[self.places] = value

    def swap(self, value: Any) -> Array:
        old = self.load()
        self.store(value)
        return old


# ------------------------------------------------------------------------------------------ operands of wgmma


@dataclasses.dataclass(frozen=True)
class Operands:
    """A product whose operands are found in larger buffers: slots, dimensions of 1, halves of rows and columns, transposed."""

    seed: int

    @classmethod
    def of(cls, seed: int) -> Operands:
        return cls(seed)

    @staticmethod
    def _way(rng: np.random.Generator, rows: int, columns: int) -> tuple[tuple[int, ...], Callable[[Any], Any]]:
        """A buffer's shape, and how a matrix of these rows and columns is seen in it (of a reference and of an array)."""
        n = int(rng.integers(1, 4))
        i = int(rng.integers(n))
        ways: list[tuple[tuple[int, ...], Callable[[Any], Any]]] = [
            ((rows, columns), lambda x: x),
            ((n, rows, columns), lambda x: x[i]),
            ((n, rows, columns), lambda x: x[i : i + 1][0]),
            ((n, rows, columns), lambda x: x[i : i + 1].reshape(rows, columns)),
            ((1, n, rows, columns), lambda x: x[0:1, i : i + 1].reshape(1, rows, columns)[0]),
            ((n, rows, columns), lambda x: x.transpose((1, 0, 2))[:, i]),
            ((rows * n, columns), lambda x: x.reshape(n, rows, columns)[i]),
            ((rows * n, columns), lambda x: x[i * rows : (i + 1) * rows]),
            ((rows, columns * n), lambda x: x.reshape(rows, n, columns)[:, i]),
            ((rows, columns), lambda x: x.reshape(1, rows, columns, 1)[0, :, :, 0]),
            ((rows, columns), lambda x: x.reshape(rows, 1, columns)[:, 0]),
            ((2, rows // 2, columns), lambda x: x.reshape(rows, columns)),
        ]
        return ways[int(rng.integers(len(ways)))]

    def check(self) -> None:
        rng = np.random.default_rng([self.seed, 4])
        dtype = [jnp.float16, jnp.bfloat16, jnp.int8][int(rng.integers(3))]
        sums = jnp.int32 if dtype == jnp.int8 else jnp.float32
        size = jnp.dtype(dtype).itemsize
        swizzle = int(rng.choice([128, 64, 32]))
        width = swizzle // size
        m, n, k = 64 * int(rng.integers(1, 3)), width * int(rng.integers(1, 3)), width * int(rng.integers(1, 3))
        annotated = bool(rng.integers(2))
        flip_a = size == 2 and m % width == 0 and bool(rng.integers(2))
        flip_b = size == 1 or bool(rng.integers(2))
        a_shape, a_way = self._way(rng, *((k, m) if flip_a else (m, k)))
        b_shape, b_way = self._way(rng, *((n, k) if flip_b else (k, n)))
        a, b = numbers(rng, a_shape, dtype), numbers(rng, b_shape, dtype)

        def left(x: Any) -> Any:
            return a_way(x).transpose((1, 0)) if flip_a else a_way(x)

        def right(x: Any) -> Any:
            return b_way(x).transpose((1, 0)) if flip_b else b_way(x)

        def body(a: Any, b: Any, o: Any, a_buf: Any, b_buf: Any, bars: Any) -> None:
            plgpu.copy_gmem_to_smem(a, a_buf, bars.at[0])
            plgpu.copy_gmem_to_smem(b, b_buf, bars.at[1])
            plgpu.barrier_wait(bars.at[0])
            plgpu.barrier_wait(bars.at[1])

            def compute(acc: Any) -> Any:
                plgpu.wgmma(acc, left(_Buffer(a_buf)).ref, right(_Buffer(b_buf)).ref)
                return acc[...]

            o[...] = pl.run_scoped(compute, ACC((m, n), sums))

        transforms = {"transforms": tiled(dtype, swizzle)} if annotated else {}
        buffers = [SMEM(shape, dtype, **transforms) for shape in (a_shape, b_shape)]
        got = keep(kernel(body, like((m, n), sums), *buffers, Barrier(num_barriers=2))(a, b))
        wanted = left(a).astype(np.float64) @ right(b).astype(np.float64)
        np.testing.assert_array_equal(got.astype(np.float64), wanted, err_msg=f"seed {self.seed}: {a_shape} {b_shape} {annotated}")


@dataclasses.dataclass(frozen=True)
class _Buffer:
    """A reference that is indexed as an array is."""

    ref: Any

    def __getitem__(self, index: Any) -> _Buffer:
        return _Buffer(self.ref.at[index])

    def reshape(self, *shape: int) -> _Buffer:
        return _Buffer(self.ref.reshape(*shape))

    def transpose(self, permutation: tuple[int, ...]) -> _Buffer:
        at = self.ref if hasattr(self.ref, "transforms") else self.ref.at[...]
        return _Buffer(at.transpose(permutation))


# ------------------------------------------------------------------------------------------ hints


@dataclasses.dataclass(frozen=True)
class Hints:
    """Slices that begin where memory, a loop or the grid says, and what is known of that: several numbers, vectors too."""

    seed: int

    @classmethod
    def of(cls, seed: int) -> Hints:
        return cls(seed)

    def check(self) -> None:
        rng = np.random.default_rng([self.seed, 5])
        steps = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 6, 8, 12, 16], int(rng.integers(0, 4))))
        unit = int(np.lcm.reduce((16, *steps)))
        size, rounds = unit * int(rng.integers(1, 3)), int(rng.integers(1, 4))
        x = rng.integers(-1000, 1000, (rounds + 4) * size).astype(np.int32)
        kind = [np.int32, np.uint32, np.int16, np.uint8][int(rng.integers(4))]
        first = np.array([unit * int(rng.integers(3))], kind if unit < 100 else np.int32)

        def body(x_ref: Any, first_ref: Any, o: Any, buf: Any, bar: Any) -> None:
            def step(i: Any, at: Any) -> Any:
                at = pl.multiple_of(pl.multiple_of(at, steps), 16)
                plgpu.copy_gmem_to_smem(x_ref.at[pl.ds(at, size)], buf, bar)
                plgpu.barrier_wait(bar)
                o[i] = pl.multiple_of(buf[...] * 12, (4, 6)) + at
                return at + size

            lax.fori_loop(0, rounds, step, first_ref[0].astype(jnp.int32))

        got = keep(kernel(body, like((rounds, size), jnp.int32), SMEM((size,), jnp.int32), Barrier())(x, first))
        at = int(first[0]) + size * np.arange(rounds)
        wanted = np.stack([x[i : i + size] * 12 + i for i in at])
        np.testing.assert_array_equal(got, wanted, err_msg=f"seed {self.seed}: {steps} {size}")


# ------------------------------------------------------------------------------------------ copies shared by a cluster


@dataclasses.dataclass(frozen=True)
class Shared:
    """Copies that blocks of a cluster share, along some of its axes, of boxes that divide by their number or do not."""

    seed: int

    @classmethod
    def of(cls, seed: int) -> Shared:
        return cls(seed)

    def check(self) -> None:
        rng = np.random.default_rng([self.seed, 6])
        cluster = [(2,), (3,), (4,), (5,), (2, 2), (3, 2), (2, 4), (8,)][int(rng.integers(8))]
        names = ("a", "b")[: len(cluster)]
        axes = names if len(names) == 1 or rng.integers(2) else str(rng.choice(names))
        dtype = [np.float32, np.int8, jnp.bfloat16][int(rng.integers(3))]
        size = np.dtype(dtype).itemsize
        # Rows of 16 bytes and more; tiled or not; from a row that a block may choose where the box is its own.
        if tile := bool(rng.integers(2)):
            swizzle = int(rng.choice([128, 64, 32]))
            rows, columns = 8 * int(rng.integers(1, 6)), swizzle // size * int(rng.integers(1, 4))
        else:
            rows, columns = int(rng.integers(1, 20)), 16 // size * int(rng.integers(1, 20))
        shape = (rows, columns)
        if not tile and rng.integers(3) == 0:
            shape = (rows * columns * size // 16 * (16 // size),)
        rounds, blocks = int(rng.integers(1, 3)) if len(cluster) == 1 else 1, int(np.prod(cluster))
        x = rng.integers(-100, 100, (rounds, *shape)).astype(dtype)

        def body(x: Any, o: Any, buf: Any, bar: Any, *everyone: Any) -> None:
            block = lax.axis_index(names[0])
            for name, n in zip(names[1:], cluster[1:]):
                block = block * n + lax.axis_index(name)

            def step(i: Any, _: Any) -> None:
                plgpu.copy_gmem_to_smem(x.at[i], buf, bar, collective_axes=axes)
                plgpu.barrier_wait(bar)
                o[block, i] = buf[...]
                # No buffer is filled again before all blocks have read.
                for barrier in everyone:
                    plgpu.barrier_arrive(barrier)
                    plgpu.barrier_wait(barrier)

            lax.fori_loop(0, rounds, step, None)

        transforms = {"transforms": tiled(dtype, swizzle)} if tile else {}
        scratch = [SMEM(shape, dtype, **transforms), Barrier(), *([plgpu.ClusterBarrier(collective_axes=names)] if rounds > 1 else [])]
        got = keep(kernel(body, like((blocks, rounds, *shape), dtype), *scratch, cluster=cluster, cluster_names=names)(x))
        np.testing.assert_array_equal(got, np.stack([x] * blocks), err_msg=f"seed {self.seed}: {shape} {np.dtype(dtype)} {cluster} {axes}")


# ------------------------------------------------------------------------------------------ copies in and outside of arrays


@dataclasses.dataclass(frozen=True)
class Dim:
    """One dimension of an array of which a copy takes a part."""

    #: "all"; "static" or "dynamic" slices; "at": one index at run time, which drops the dimension.
    how: str
    extent: int
    size: int
    #: What starts are known to be multiples of, and their type.
    multiple: int
    index: str
    #: One for each round.
    starts: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Copies:
    """Loads of slices that may begin anywhere, and stores that begin in the array or behind it: zeros outside, where nothing is written."""

    seed: int
    dtype: Any
    swizzle: int | None
    dims: tuple[Dim, ...]

    @classmethod
    def of(cls, seed: int) -> Copies:
        rng = np.random.default_rng([seed, 7])
        dtype = [np.float32, np.float16, np.int8][int(rng.integers(3))]
        vector = 16 // np.dtype(dtype).itemsize
        rank = int(rng.integers(1, 5))
        swizzle = int(rng.choice([32, 64, 128])) if rank > 1 and rng.random() < 0.4 else None
        row = swizzle // np.dtype(dtype).itemsize if swizzle else vector
        dims = []
        for d in range(rank):
            is_tiled = swizzle is not None and d == rank - 2
            how = str(rng.choice(["all", "static", "dynamic", "dynamic", *(["at"] if d + 1 < rank and not is_tiled else [])]))
            if d + 1 == rank:
                unit, size = vector, row * int(rng.choice([1, 2] if swizzle else [1, 2, 4]))
            else:
                unit, size = 1, int(rng.choice([8, 16] if is_tiled else [1, 2, 3, 4, 8]))
            size = 1 if how == "at" else size
            extent = size if how == "all" else size + unit * int(rng.integers(20 if rank < 4 else 4))
            # A copy begins at a multiple of 16 bytes along the minor dimension.
            multiple = (row if d + 1 == rank else int(rng.choice([1, size]))) if how == "dynamic" else 1
            index = str(rng.choice(["int32", "int32", "uint32", "int64", "uint64"]))
            starts = {
                "all": lambda: (0,) * ROUNDS,
                "static": lambda: (int(rng.integers((extent - size) // row + 1)) * row if d + 1 == rank else int(rng.integers(extent - size + 1)),) * ROUNDS,
            }.get(how, lambda: tuple(_start(rng, index, extent, size, multiple) for _ in range(ROUNDS)))()
            dims.append(Dim(how, extent, size, multiple, index, starts))
        return cls(seed, dtype, swizzle, tuple(dims))

    def check(self) -> None:
        shape = tuple(dim.extent for dim in self.dims)
        box = tuple(dim.size for dim in self.dims)
        part = tuple(dim.size for dim in self.dims if dim.how != "at")
        x = (np.arange(np.prod(shape)).reshape(shape) % 97 + 1).astype(self.dtype)
        computed = [dim for dim in self.dims if dim.how in ("dynamic", "at")]

        def body(x: Any, *rest: Any) -> None:
            starts, (loaded, stored, buf, bar) = rest[: len(computed)], rest[len(computed) :]
            stored[...] = jnp.zeros(shape, self.dtype)

            def step(i: Any, _: Any) -> None:
                begins = [pl.multiple_of(s[i], dim.multiple) for s, dim in zip(starts, computed, strict=True)]
                at = iter(begins)
                index: list[Any] = []
                for dim in self.dims:
                    start = dim.starts[0] if dim.how in ("all", "static") else next(at)
                    index.append(start if dim.how == "at" else pl.ds(start, dim.size))
                plgpu.copy_gmem_to_smem(x.at[tuple(index)], buf, bar)
                plgpu.barrier_wait(bar)
                loaded[i] = buf[...]

                @pl.when(functools.reduce(jnp.logical_and, map(may_store, begins), jnp.bool_(True)))
                def _() -> None:
                    plgpu.copy_smem_to_gmem(buf, stored.at[tuple(index)])

                plgpu.wait_smem_to_gmem(0)

            lax.fori_loop(0, ROUNDS, step, None)

        transforms = {} if self.swizzle is None else {"transforms": tiled(self.dtype, self.swizzle)}
        with x64(True):
            call = kernel(body, (like((ROUNDS, *part), self.dtype), like(shape, self.dtype)), SMEM(part, self.dtype, **transforms), Barrier())
            loaded, stored = (keep(a) for a in call(x, *(np.array(dim.starts, dim.index) for dim in computed)))
        wanted, written = np.zeros((ROUNDS, *box), self.dtype), np.zeros_like(x)
        for i in range(ROUNDS):
            inside = [(max(0, -dim.starts[i]), max(0, min(dim.size, dim.extent - dim.starts[i]))) for dim in self.dims]
            if all(first < end for first, end in inside):
                there = tuple(slice(dim.starts[i] + first, dim.starts[i] + end) for dim, (first, end) in zip(self.dims, inside, strict=True))
                wanted[i][tuple(slice(*s) for s in inside)] = x[there]
                if all(may_store(np.dtype(dim.index).type(dim.starts[i])) for dim in self.dims):
                    written[there] = x[there]
        np.testing.assert_array_equal(loaded, wanted.reshape(ROUNDS, *part), err_msg=str(self))
        np.testing.assert_array_equal(stored, written, err_msg=str(self))


#: Copies of one kernel.
ROUNDS = 16


def may_store(start: Any) -> Any:
    """Whether a slice that begins there may be stored: not in front of its array."""
    return start >= 0


def _start(rng: np.random.Generator, index: str, extent: int, size: int, multiple: int) -> int:
    """Inside, over an end, or around what some integer type holds."""
    info = np.iinfo(index)
    ends = [0, -size, extent, extent - size, *(sign * n << bits for sign in (1, -1) for n in (1, 3) for bits in (27, 28, 31, 32, 34, 62, 63, 64))]
    while True:
        near = ends[int(rng.integers(len(ends)))] + int(rng.integers(-3, 4)) * multiple
        start = (int(rng.integers(extent - size + 1)) if rng.integers(2) else near) // multiple * multiple
        if info.min <= start <= info.max:
            return start


#: Parts of the suite, with the number of seeds that tests of one Python version run.
KINDS: dict[str, tuple[Any, int]] = {
    "parts": (Parts, 30),
    "registers": (Registers, 60),
    "operands": (Operands, 40),
    "hints": (Hints, 20),
    "shared": (Shared, 40),
    "copies": (Copies, 60),
}


VIEWS = Grammar("views", lambda seed: list(KINDS.values())[seed % len(KINDS)][0].of(seed), lambda program: program.check())
VIEWS_OF_KINDS = {kind: dataclasses.replace(VIEWS, name=f"views, {kind}", draw=of.of) for kind, (of, _) in KINDS.items()}
