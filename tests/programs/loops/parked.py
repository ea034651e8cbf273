"""Random loops that carry accumulators, many of which need more registers than a thread has.

One to three accumulators are carried by a loop as references or as arrays. Each step adds a product or two to each of them: all of them
at once, one after the other, or one still running while the next begins, beside arithmetic with other arrays. Some accumulators are read
in each step, some are computed with between their products, so that they are no accumulators of the loop; some products have a condition.

Each kernel has a NumPy reference that does one statement after the other. Numbers are small and whole, so sums are exact.
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

from tests.corpus.case import kernel, like
from tests.corpus.case import load as load_whole
from tests.programs.loops.loops import Loops, grammar, picker
from tests.programs.views import tiled

Array = np.ndarray[Any, Any]

#: With types.
_when: Callable[[Any], Callable[[Callable[[], None]], Any]] = pl.when
_loop: Callable[[Any, Any], Callable[[Callable[[Any], None]], Any]] = pl.loop

#: Operands and accumulator of a product.
TYPES = (
    (jnp.float16, jnp.float32), (jnp.bfloat16, jnp.float32), (jnp.float16, jnp.float16), (jnp.float32, jnp.float32),
    (jnp.float8_e4m3fn, jnp.float32), (jnp.int8, jnp.int32),
)  # fmt: skip

#: Right operands of each accumulator, one step's after the other's.
SLOTS = 2
#: Rows of the array that is no accumulator.
ROWS = 64
#: Bytes of shared memory that a block may have, and those that are left to reductions and changes of layout; the least of them.
SMEM, SPARE, LEAST = 227 * 1024, 40 * 1024, 1800


@dataclasses.dataclass(frozen=True)
class Sum:
    """An accumulator.

    Attributes:
        m, n, k: Its rows and columns, and the products' depth.
        types: The number of its types in `TYPES`.
        left: The left operand is in shared memory ("smem"), loaded in every step ("loaded") or before the loop ("kept"), or is what another
            product of the step has given ("computed").
        is_transposed: The right operand's rows lie in shared memory as columns.
        is_left_transposed: So do the left one's.
        init: What it begins with: "zeros", "ones", or what is "loaded".
        is_array: The loop carries the array that each step reads, and not the reference.
        products: Of a step.
        also: What else happens to it in a step: it is "read" behind its products, "negated" before them, its products have a condition
            ("when"), or they are added up "fresh", and then to it.
    """

    m: int
    n: int
    k: int
    types: int
    left: str
    is_transposed: bool
    is_left_transposed: bool
    init: str
    is_array: bool
    products: int
    also: str | None

    @property
    def operand(self) -> Any:
        return TYPES[self.types][0]

    @property
    def dtype(self) -> Any:
        return TYPES[self.types][1]

    @property
    def words(self) -> int:
        """32-bit registers of a thread."""
        return self.m * self.n * int(jnp.dtype(self.dtype).itemsize) // 512

    def swizzle(self, minor: int) -> int:
        """The widest that a row of so many elements has."""
        return next(s for s in (128, 64, 32) if minor * jnp.dtype(self.operand).itemsize % s == 0)

    @property
    def left_shape(self) -> tuple[int, int]:
        return (self.k, self.m) if self.is_left_transposed else (self.m, self.k)

    @property
    def right_shape(self) -> tuple[int, int]:
        return (self.n, self.k) if self.is_transposed else (self.k, self.n)

    def smem_bytes(self, workers: int) -> int:
        squares = SLOTS * self.k * self.k if self.left == "computed" else 0
        return (workers * self.m * self.k + SLOTS * self.n * self.k + squares) * int(jnp.dtype(self.operand).itemsize)


@dataclasses.dataclass(frozen=True)
class Parked(Loops):
    """A kernel.

    Attributes:
        sums: The accumulators.
        workers: Warpgroups that multiply.
        own: Each worker has every second accumulator only.
        memory: Another warpgroup fills the slots; else all of them are there before the loop.
        limits: Where there is one, the workers ask for registers.
        trips, dynamic: The loop over steps, and whether its bounds are loaded.
        tiles: Loops over steps in a loop of their own; 0: one, in none.
        is_inside: Each of those begins with new accumulators, and gives an output.
        unroll: Steps are unrolled by so much.
        order: Products wait for each other ("each"), or are waited for all at once ("together"), or one behind the other ("late"), or where
            they are read ("never").
        wide: Columns of an array that is computed with between products; 0: there is none.
        is_kept: The loop carries it.
        ballast: Bytes of shared memory that something else has.
    """

    seed: int
    sums: tuple[Sum, ...]
    workers: int
    own: bool
    memory: bool
    limits: int
    trips: int
    dynamic: bool
    tiles: int
    is_inside: bool
    unroll: int
    order: str
    wide: int
    is_kept: bool
    ballast: int

    @classmethod
    def of(cls, seed: int) -> Parked:
        pick = picker(seed, 17)
        sums = tuple(cls._sum(pick) for _ in range(pick(1, 2, 2, 2, 3)))
        workers, memory = pick(1, 1, 2), bool(pick(0, 0, 1))
        tiles = pick(0, 0, 0, 1, 2)
        program = cls(
            seed=seed,
            sums=sums,
            workers=workers,
            own=workers == 2 and len(sums) > 1 and bool(pick(0, 0, 1)),
            memory=memory,
            limits=pick(0, 232, 240) if memory else 0,
            trips=pick(0, 1, 2, 2, 2, 5) if not tiles else pick(1, 2, 2),
            dynamic=bool(pick(0, 0, 1)),
            tiles=tiles,
            is_inside=bool(pick(0, 1)),
            unroll=pick(1, 1, 1, 2),
            order=pick("each", "together", "together", "late", "late", "never"),
            wide=pick(0, 0, 16, 32, 64),
            is_kept=bool(pick(0, 1)),
            ballast=0,
        )
        return program.legal(pick(0.0, 0.0, 0.6, 0.9, 1.0, 1.0))

    @staticmethod
    def _sum(pick: Callable[..., Any]) -> Sum:
        types = pick(0, 0, 0, 1, 1, 2, 3, 4, 5)
        # Most of them are as large as they may be.
        small, large = (64, pick(32, 64, 96)), (64, pick(160, 192, 224, 256))
        m, n = pick(small, large, *[(64, 256)] * 3, *[(128, pick(96, 128, 160, 224, 256))] * 3, (192, pick(32, 64, 96, 160)))
        step = 32 // jnp.dtype(TYPES[types][0]).itemsize
        is_half = jnp.dtype(TYPES[types][0]).itemsize == 2
        return Sum(
            m=m,
            n=n,
            k=step * pick(1, 1, 2),
            types=types,
            left=pick("smem", "smem", "loaded", "kept", "computed") if is_half else "smem",
            is_transposed=not is_half or bool(pick(0, 1)),
            is_left_transposed=is_half and bool(pick(0, 0, 0, 1)),
            init=pick("zeros", "zeros", "ones", "loaded"),
            is_array=bool(pick(0, 1)),
            products=pick(1, 1, 1, 2),
            also=pick(*[None] * 12, "read", "read", "negated", "when", "fresh"),
        )

    def legal(self, full: float) -> Parked:
        """Left operands in registers are not transposed, arrays are not conditional; what is left of shared memory is used up as asked."""

        def legal(x: Sum) -> Sum:
            instead = {"when": None} if x.is_array else {"negated": "when", "fresh": None}
            also = instead.get(str(x.also), x.also)
            return dataclasses.replace(x, is_left_transposed=x.is_left_transposed and x.left == "smem", also=also)

        sums = tuple(legal(x) for x in self.sums)
        workers = self.workers
        while sum(x.smem_bytes(workers) for x in sums) > SMEM - SPARE or (len(sums) > 1 and sum(x.words for x in sums) > 700):
            sums = sums[:-1]
        left = SMEM - LEAST - sum(x.smem_bytes(workers) for x in sums)
        return dataclasses.replace(
            self,
            sums=sums,
            own=self.own and len(sums) > 1,
            trips=max(1, self.trips) if self.unroll > 1 else self.trips,
            dynamic=self.dynamic and self.unroll == 1,
            is_inside=self.is_inside and self.tiles > 0,
            order="together" if self.memory and self.order == "never" else self.order,
            ballast=int(full * left) // 1024 * 1024,
        )

    @property
    def steps(self) -> int:
        """Of all loops."""
        return self.trips * max(1, self.tiles)

    @property
    def outer(self) -> int:
        """Outputs of each accumulator."""
        return self.tiles if self.is_inside else 1

    def owners(self, j: int) -> range:
        """The workers that have this accumulator."""
        return range(j % 2, j % 2 + 1) if self.own else range(self.workers)

    # ------------------------------------------------------------ as a kernel

    def function(self) -> Any:
        sums, workers, count = self.sums, self.workers, len(self.sums)
        squares = [j for j, x in enumerate(sums) if x.left == "computed"]

        def body(*refs: Any) -> None:
            every = iter(refs)

            def take(n: int) -> list[Any]:
                return [next(every) for _ in range(n)]

            lefts, rights, starts, small = take(count), take(count), take(count), take(len(squares))
            [rows, bounds], outs, [tops, others] = take(2), take(count), take(2)
            left_bufs, right_bufs, small_bufs = take(count), take(count), take(len(squares))
            left_full, full, empty = take(3)
            ballast = take(1 if self.ballast else 0)
            wg = lax.axis_index("wg")
            lower, upper = (bounds[0], bounds[1]) if self.dynamic else (0, self.trips)
            at = {"lefts": left_bufs, "rights": right_bufs, "squares": dict(zip(squares, small_bufs, strict=True)), "starts": starts, "rows": rows}
            at |= {"outs": outs, "tops": tops, "others": others, "full": full, "empty": empty}

            def fill(slot: Any) -> None:
                for j in range(count):
                    plgpu.copy_gmem_to_smem(rights[j].at[slot], right_bufs[j].at[slot], full.at[slot])
                for src, dst in zip(small, small_bufs, strict=True):
                    plgpu.copy_gmem_to_smem(src.at[slot], dst.at[slot], full.at[slot])

            def slot_of(step: Any) -> Any:
                return lax.rem(step, jnp.int32(SLOTS))

            if self.memory:

                @_when(wg == workers)
                def _() -> None:
                    if self.limits:
                        plgpu.set_max_registers(24, action="decrease")
                    total = (upper - lower) * max(1, self.tiles)

                    @_loop(0, total)
                    def _(step: Any) -> None:
                        @_when(step >= SLOTS)
                        def _() -> None:
                            plgpu.barrier_wait(empty.at[slot_of(step)])

                        fill(slot_of(step))

            def compute(mine: list[int]) -> None:
                if self.limits:
                    plgpu.set_max_registers(self.limits, action="increase")
                for j in mine:
                    plgpu.copy_gmem_to_smem(lefts[j].at[wg], left_bufs[j].at[wg], left_full.at[wg * count + j])
                for j in mine:
                    plgpu.barrier_wait(left_full.at[wg * count + j])
                if not self.memory:

                    @_when(wg == 0)
                    def _() -> None:
                        for slot in range(SLOTS):
                            fill(slot)

                    for slot in range(SLOTS):
                        plgpu.barrier_wait(full.at[slot])
                if ballast:
                    ballast[0][wg, :] = load_whole(rows.at[0, 0], layout=plgpu.Layout.WG_STRIDED((ROWS * 2,), 1), optimized=False)

                def tile(t: Any) -> None:
                    self._tile(mine, wg, t, lower, upper, slot_of, at)

                if self.is_inside:
                    _loop(0, self.tiles)(tile)
                else:
                    tile(0)

            if self.own:
                for w in range(workers):
                    _when(wg == w)(functools.partial(compute, [j for j in range(count) if w in self.owners(j)]))
            elif self.memory:
                _when(wg < workers)(lambda: compute(list(range(count))))
            else:
                compute(list(range(count)))

        def buffer(x: Sum, lead: int, shape: tuple[int, int]) -> Any:
            return plgpu.SMEM((lead, *shape), x.operand, transforms=tiled(x.operand, x.swizzle(shape[1])))

        scratch = [buffer(x, workers, x.left_shape) for x in sums] + [buffer(x, SLOTS, x.right_shape) for x in sums]
        scratch += [buffer(sums[j], SLOTS, (sums[j].k, sums[j].k)) for j in squares]
        scratch += [plgpu.Barrier(num_barriers=workers * count), plgpu.Barrier(num_barriers=SLOTS, num_arrivals=count + len(squares))]
        scratch += [plgpu.Barrier(num_barriers=SLOTS, num_arrivals=workers)]
        if self.ballast:
            scratch += [plgpu.SMEM((self.ballast // (ROWS * 8), ROWS * 2), jnp.float32)]
        outs = [like((self.outer, workers, x.m, x.n), x.dtype) for x in sums]
        outs += [like((self.outer, workers, self.sums[0].m)), like((self.outer, workers, ROWS, max(16, self.wide)))]
        return kernel(body, outs, *scratch, num_threads=workers + self.memory, thread_name="wg")

    def _tile(self, mine: list[int], wg: Any, t: Any, lower: Any, upper: Any, slot_of: Any, at: dict[str, Any]) -> None:
        """All steps with the same accumulators."""
        sums, trips = self.sums, upper - lower
        by_ref, by_array = [j for j in mine if not sums[j].is_array], [j for j in mine if sums[j].is_array]

        def start(j: int) -> Any:
            x = sums[j]
            if x.init == "loaded":
                return load_whole(at["starts"][j].at[wg], layout=plgpu.Layout.WGMMA, optimized=False)
            return plgpu.layout_cast(jnp.full((x.m, x.n), int(x.init == "ones"), x.dtype), plgpu.Layout.WGMMA)

        def keep(j: int) -> Any:
            return load_whole(at["lefts"][j].at[wg], layout=plgpu.Layout.WGMMA, optimized=False)

        def loops(refs: dict[int, Any]) -> None:
            kept = {j: keep(j) for j in mine if sums[j].left == "kept"}

            def step(n: Any, carry: Any) -> Any:
                arrays, top, other = carry
                slot = slot_of(n)
                if self.memory:
                    plgpu.barrier_wait(at["full"].at[slot])
                arrays = dict(zip(by_array, arrays, strict=True))
                given: dict[int, Any] = {}

                def mix(other: Any) -> Any:
                    if not self.wide:
                        return other
                    row = load_whole(at["rows"].at[1, slot, pl.ds(0, self.wide)], layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
                    block = lax.broadcast_in_dim(row, (ROWS, self.wide), (1,))
                    if self.is_kept:
                        return _small(jnp, block - other)
                    y = block * lax.broadcast_in_dim(other, (ROWS, self.wide), (0,))
                    return _small(jnp, y.max(axis=1) - other)

                def left(j: int) -> Any:
                    x = sums[j]
                    a = at["lefts"][j].at[wg]
                    if x.left == "kept":
                        return kept[j]
                    if x.left == "loaded":
                        return keep(j)
                    if x.left == "computed":
                        return given[j]
                    return plgpu.transpose_ref(a, (1, 0)) if x.is_left_transposed else a

                def score(j: int) -> None:
                    def product(acc: Any) -> Any:
                        plgpu.wgmma(acc, at["lefts"][j].at[wg], plgpu.transpose_ref(at["squares"][j].at[slot], (1, 0)))
                        return acc[...]

                    found = pl.run_scoped(product, plgpu.ACC((sums[j].m, sums[j].k), jnp.float32))
                    given[j] = _small(jnp, found).astype(sums[j].operand)

                def multiply(j: int, ref: Any) -> None:
                    right = at["rights"][j].at[slot]

                    def product() -> None:
                        for _ in range(sums[j].products):
                            plgpu.wgmma(ref, left(j), plgpu.transpose_ref(right, (1, 0)) if sums[j].is_transposed else right)

                    if sums[j].also == "when":
                        _when(lax.rem(n, jnp.int32(2)) == 0)(product)
                    else:
                        product()

                def begin(j: int) -> Any:
                    if sums[j].also == "fresh":
                        return plgpu.layout_cast(jnp.zeros((sums[j].m, sums[j].n), sums[j].dtype), plgpu.Layout.WGMMA)
                    return -arrays[j] if sums[j].also == "negated" else arrays[j]

                def end(j: int, new: Any) -> None:
                    arrays[j] = arrays[j] + new if sums[j].also == "fresh" else new

                for j in mine:
                    if sums[j].left == "computed":
                        score(j)
                if self.order == "each":
                    for j in mine:
                        if j in refs:
                            multiply(j, refs[j])
                            plgpu.wgmma_wait(0)
                        else:
                            end(j, pl.run_state(functools.partial(multiply, j))(plgpu.ACC.init(begin(j))))
                        other = mix(other)
                else:

                    def products(own: Any) -> None:
                        every = {**refs, **dict(zip(by_array, own, strict=True))}
                        for k, j in enumerate(mine):
                            multiply(j, every[j])
                            if k and self.order == "late":
                                plgpu.wgmma_wait(1)
                        if self.order != "never":
                            plgpu.wgmma_wait(0)

                    if by_array:
                        for j, new in zip(by_array, pl.run_state(products)([plgpu.ACC.init(begin(j)) for j in by_array]), strict=True):
                            end(j, new)
                    else:
                        products([])
                    other = mix(other)
                for j in mine:
                    if sums[j].also == "read" and sums[j].m == sums[0].m and sums[j].dtype == jnp.float32:
                        now = refs[j][...] if j in refs else arrays[j]
                        top = _small(jnp, now.max(axis=1) - top)
                if self.memory:
                    plgpu.barrier_arrive(at["empty"].at[slot])
                return [arrays[j] for j in by_array], top, other

            top = plgpu.layout_cast(jnp.zeros((sums[0].m,), jnp.float32), plgpu.Layout.WGMMA.reduce(1))
            shape, layout = ((ROWS, self.wide), plgpu.Layout.WGMMA) if self.wide and self.is_kept else ((ROWS,), plgpu.Layout.WGMMA.reduce(1))
            carry: Any = ([start(j) for j in by_array], top, plgpu.layout_cast(jnp.ones(shape, jnp.float32), layout))

            def some(first: Any, carry: Any) -> Any:
                unroll = {"unroll": self.unroll} if self.unroll > 1 else {}
                return lax.fori_loop(lower, upper, lambda i, c: step(first + (i - lower), c), carry, **unroll)

            if self.tiles and not self.is_inside:
                carry = lax.fori_loop(0, self.tiles, lambda i, c: some(i * trips, c), carry)
            else:
                carry = some(t * trips, carry)
            for j, array in zip(by_array, carry[0], strict=True):
                at["outs"][j].at[t, wg][...] = array
            if 0 in mine:
                at["tops"].at[t, wg][...] = carry[1]
            other = carry[2] if carry[2].ndim == 2 else lax.broadcast_in_dim(carry[2], (ROWS, max(16, self.wide)), (0,))
            at["others"].at[t, wg][...] = other

        zeros = [j for j in by_ref if sums[j].init == "zeros"]
        rest = [j for j in by_ref if j not in zeros]

        def scoped(refs: Any) -> None:
            if zeros:

                def inner(*fresh: Any) -> None:
                    every = {**refs, **dict(zip(zeros, fresh, strict=True))}
                    loops({j: every[j] for j in by_ref})
                    for j in zeros:
                        at["outs"][j].at[t, wg][...] = every[j][...]

                pl.run_scoped(inner, *[plgpu.ACC((sums[j].m, sums[j].n), sums[j].dtype) for j in zeros])
            else:
                loops(refs)

        if rest:
            ends = pl.run_state(lambda refs: scoped(dict(zip(rest, refs, strict=True))))([plgpu.ACC.init(start(j)) for j in rest])
            for j, array in zip(rest, ends, strict=True):
                at["outs"][j].at[t, wg][...] = array
        else:
            scoped({})

    def inputs(self) -> list[Array]:
        rng = np.random.default_rng([self.seed, 18])

        def numbers(x: Sum, *shape: int) -> Array:
            most = 1 if x.dtype == jnp.float16 else 2
            return rng.integers(-most, most + 1, shape).astype(x.operand)

        lefts = [numbers(x, self.workers, *x.left_shape) for x in self.sums]
        rights = [numbers(x, SLOTS, *x.right_shape) for x in self.sums]
        starts = [rng.integers(-9, 10, (self.workers, x.m, x.n)).astype(x.dtype) for x in self.sums]
        squares = [numbers(x, SLOTS, x.k, x.k) for x in self.sums if x.left == "computed"]
        rows = rng.integers(-3, 4, (2, SLOTS, ROWS * 2)).astype(np.float32)
        return [*lefts, *rights, *starts, *squares, rows, np.array([0, self.trips], np.int32)]

    # ------------------------------------------------------------ in NumPy

    def reference(self) -> list[Array]:
        given = iter(self.inputs())
        count = len(self.sums)
        lefts, rights, starts = ([next(given) for _ in range(count)] for _ in range(3))
        squares = {j: next(given) for j, x in enumerate(self.sums) if x.left == "computed"}
        rows = next(given)
        outs = [np.zeros((self.outer, self.workers, x.m, x.n), x.dtype) for x in self.sums]
        tops = np.zeros((self.outer, self.workers, self.sums[0].m), np.float32)
        others = np.zeros((self.outer, self.workers, ROWS, max(16, self.wide)), np.float32)
        each = self.steps // self.outer
        for t in range(self.outer):
            for w in range(self.workers):
                mine = [j for j in range(count) if w in self.owners(j)]
                accs = {}
                for j in mine:
                    x = self.sums[j]
                    accs[j] = starts[j][w].astype(np.float64) if x.init == "loaded" else np.full((x.m, x.n), float(x.init == "ones"))
                top, other = np.zeros(self.sums[0].m), np.ones((ROWS, self.wide) if self.wide and self.is_kept else ROWS)

                def mix(other: Array, slot: int) -> Array:
                    if not self.wide:
                        return other
                    block = np.broadcast_to(rows[1, slot, : self.wide], (ROWS, self.wide))
                    if self.is_kept:
                        return np.asarray(_small(np, block - other))
                    return np.asarray(_small(np, (block * other[:, None]).max(axis=1) - other))

                for n in range(t * each, (t + 1) * each):
                    slot = n % SLOTS
                    for j in mine:
                        x = self.sums[j]
                        a = lefts[j][w].astype(np.float64)
                        a = a.T if x.is_left_transposed else a
                        if x.left == "computed":
                            a = _small(np, a @ squares[j][slot].astype(np.float64).T)
                        b = rights[j][slot].astype(np.float64)
                        product = x.products * (a @ (b.T if x.is_transposed else b))
                        if x.also == "negated":
                            accs[j] = -accs[j]
                        if x.also != "when" or n % 2 == 0:
                            accs[j] = accs[j] + product
                        if self.order == "each":
                            other = mix(other, slot)
                    if self.order != "each":
                        other = mix(other, slot)
                    for j in mine:
                        x = self.sums[j]
                        if x.also == "read" and x.m == self.sums[0].m and x.dtype == jnp.float32:
                            top = _small(np, accs[j].max(axis=1) - top)
                for j in mine:
                    outs[j][t, w] = accs[j]
                if 0 in mine:
                    tops[t, w] = top
                others[t, w] = other if other.ndim == 2 else other[:, None]
        return [*outs, tops, others]

    def written(self) -> list[Array]:
        """Which elements of each output the kernel writes."""
        at = [np.zeros(x.shape, bool) for x in self.reference()]
        for j, mask in enumerate(at[:-2]):
            mask[:, list(self.owners(j))] = True
        at[-2][:, list(self.owners(0))] = True
        at[-1][:] = True
        return at


def _small(np_: Any, x: Any) -> Any:
    return np_.clip(x, -3, 3)


PARKED = grammar("parked accumulators", Parked.of)
