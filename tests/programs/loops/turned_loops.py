"""Random loops that begin and end with products: what of a step may begin before the last one has ended, and what must not.

One warpgroup fills rings of slots, one or two others compute as attention does: each step multiplies by what is in one ring, computes
with the sums, and multiplies by what is in the other, into what goes on to the next step. Slots are given back by barriers of their own,
or by what a later arrival, or a later rendezvous of the two, says. Some loops may be turned, so that a step's first products are issued
before the last ones of the step before are waited for; in others something stands against it.

Each kernel has a NumPy reference that does one statement after the other. Numbers are small and whole, so sums are exact.
"""

from __future__ import annotations

import dataclasses
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

N = 64
#: Room for this many steps of one tile.
STEPS = 6


@dataclasses.dataclass(frozen=True)
class Turned(Loops):
    """A kernel.

    Attributes:
        workers: Warpgroups that multiply.
        lower, trips, dynamic: The loop over steps, and whether its bounds are loaded.
        tiles: Loops over steps, in a loop of their own; 0: one, in none.
        next_k: Where a step waits for what is in the first ring: at its "start", or the step before does: in the "middle", or at its "end",
            behind its last product.
        first: What the first product multiplies: "q" in shared memory; the array that the step before has multiplied ("before"); what the
            other worker has stored in the step before ("other"); what the step before ends with ("late").
        products: First products: 1, 2 into "one" accumulator, or into "two".
        rendezvous: Where the workers have a rendezvous in a step: behind the first products' issue, before the last one's.
        skew: One worker is half a step ahead.
        fence: `optimization_barrier` before the second rendezvous.
        row: Where a row that came with the first ring is loaded: never, before the first product, before its wait, or behind it.
        last: What the last product multiplies: "registers", what the worker has stored ("stored"), or what the other one has ("other").
        init: The last accumulator begins with what is carried ("carry"), with a function of it ("mixed"), or with zeros, to which it is added
            ("fresh").
        lasts: Last products, each into an array that is carried.
        free_k: The first ring's slot is given back behind its read ("read"), or at the step's end ("end").
        free_v: The second ring's slot is given back by an arrival ("own"), only if another warpgroup waits for it ("asked"), by the next step's
            arrival for the first ring ("k"), or by one worker, behind the next rendezvous ("rendezvous").
        extra: What else a step does at its end.
        uses_late: What a step ends with is used by the next one's arithmetic.
        counts: The slot is carried from step to step.
        limits: The workers ask for registers.
    """

    seed: int
    workers: int
    slots: int
    lower: int
    trips: int
    dynamic: bool
    tiles: int
    next_k: str
    first: str
    products: str
    rendezvous: tuple[bool, bool]
    skew: bool
    fence: bool
    row: str | None
    last: str
    init: str
    lasts: int
    free_k: str
    free_v: str
    extra: str | None
    uses_late: bool
    counts: bool
    limits: bool

    @classmethod
    def of(cls, seed: int) -> Turned:
        pick = picker(seed, 8)
        workers = pick(1, 2, 2, 2)
        dynamic = bool(pick(0, 0, 1))
        rendezvous = (bool(pick(0, 1, 1)), bool(pick(0, 1)))
        # Who exchanges arrays needs one before each is stored, and behind.
        exchange = pick("", "", "", "first", "last") if workers == 2 else ""
        if exchange:
            rendezvous = (True, True)
        return cls(
            seed=seed,
            workers=workers,
            slots=pick(2, 2, 3),
            lower=pick(0, 0, 0, 1, 2),
            trips=pick(0, 1, 2, 3, 4) if dynamic else pick(1, 2, 2, 3, 3, 5),
            dynamic=dynamic,
            tiles=pick(0, 0, 0, 1, 2),
            next_k=pick("start", "middle", *["end"] * 6),
            first="other" if exchange == "first" else pick(*["q"] * 9, "before", "before", "late"),
            products=pick(*["single"] * 10, "one", "two"),
            rendezvous=rendezvous,
            skew=all(rendezvous) and not exchange and workers == 2 and bool(pick(0, 1)),
            fence=bool(pick(0, 1)),
            row=pick(*[None] * 6, "first", "begun", "begun", "done"),
            last="other" if exchange == "last" else pick("registers", "registers", "registers", "stored"),
            init=pick("carry", *["mixed"] * 7, "fresh"),
            lasts=pick(1, 1, 1, 2),
            free_k=pick("read", "read", "read", "end"),
            free_v=pick("own", "own", "asked", "k", *["rendezvous"] * (2 * rendezvous[0])),
            extra=pick(*[None] * 16, "store", "output", "second", "twice", "rendezvous"),
            uses_late=bool(pick(0, 1)),
            counts=bool(pick(0, 0, 1)),
            limits=bool(pick(0, 1)),
        ).legal()

    def legal(self) -> Turned:
        """Half a step ahead, a rendezvous says less; what the other worker reads, nobody stores to at the step's end."""
        free_v = "own" if self.skew and self.free_v == "rendezvous" else self.free_v
        extra = None if self.extra == "store" and "other" in (self.first, self.last) else self.extra
        return dataclasses.replace(self, free_v=free_v, extra=extra)

    @property
    def products_of_a_step(self) -> int:
        """First ones and last ones."""
        return (1 if self.products == "single" else 2) + self.lasts

    @property
    def carries(self) -> int:
        """Arrays that go from step to step, and are outputs."""
        return self.lasts + (self.extra in ("second", "twice"))

    # ------------------------------------------------------------ as a kernel

    def function(self) -> Any:
        workers, slots, tiles = self.workers, self.slots, max(1, self.tiles)

        def body(q: Any, k: Any, v: Any, row: Any, bounds: Any, *rest: Any) -> None:
            outs, rest = rest[: self.carries + 1], rest[self.carries + 1 :]
            q_buf, p_buf, k_buf, v_buf, row_buf, k_full, v_full, k_empty, v_empty, q_full, go = rest
            wg = lax.axis_index("wg")
            lower, upper = (bounds[0], bounds[1]) if self.dynamic else (self.lower, self.lower + self.trips)
            trips = jnp.maximum(upper - lower, 0) if self.dynamic else self.trips
            total = trips * tiles

            def slot_of(step: Any) -> Any:
                return lax.rem(step, jnp.int32(slots))

            def fill_k(step: Any) -> None:
                at = slot_of(step)
                plgpu.copy_gmem_to_smem(k.at[step], k_buf.at[at], k_full.at[at])
                plgpu.copy_gmem_to_smem(row.at[step], row_buf.at[at], k_full.at[at])

            def fill_v(step: Any) -> None:
                plgpu.copy_gmem_to_smem(v.at[step], v_buf.at[slot_of(step)], v_full.at[slot_of(step)])

            @_when(wg == workers)
            def _() -> None:
                if self.limits:
                    plgpu.set_max_registers(40, action="decrease")

                @_loop(0, total)
                def _(step: Any) -> None:
                    @_when(step >= slots)
                    def _() -> None:
                        plgpu.barrier_wait(k_empty.at[slot_of(step)])

                    fill_k(step)
                    if self.free_v == "k":
                        # When the slot of a step comes back, the step before it has ended.
                        _when(step >= 1)(lambda: fill_v(step - 1))
                        return

                    @_when(step >= slots)
                    def _() -> None:
                        plgpu.barrier_wait(v_empty.at[slot_of(step)])

                    fill_v(step)

                if self.free_v == "k":

                    @_when(total > 0)
                    def _() -> None:
                        @_when(total >= slots)
                        def _() -> None:
                            plgpu.barrier_wait(k_empty.at[slot_of(total)])

                        fill_v(total - 1)

            @_when(wg < workers)
            def _() -> None:
                if self.limits:
                    plgpu.set_max_registers(232, action="increase")
                plgpu.copy_gmem_to_smem(q.at[wg], q_buf.at[wg], q_full.at[wg])
                plgpu.barrier_wait(q_full.at[wg])
                p_buf[wg] = plgpu.layout_cast(jnp.ones((N, N), jnp.float16), plgpu.Layout.WGMMA)
                plgpu.commit_smem()

                def rendezvous() -> None:
                    plgpu.barrier_arrive(go)
                    plgpu.barrier_wait(go)

                def wait_k(step: Any) -> None:
                    @_when(step < total)
                    def _() -> None:
                        plgpu.barrier_wait(k_full.at[slot_of(step)])

                if self.extra == "output":
                    outs[-1].at[wg][...] = plgpu.layout_cast(jnp.zeros((N, N), jnp.float32), plgpu.Layout.WGMMA)
                if self.first == "other":
                    rendezvous()
                if self.next_k != "start":
                    wait_k(0)
                if self.skew:
                    _when(wg == 1)(rendezvous)
                zeros = plgpu.layout_cast(jnp.zeros((N, N), jnp.float32), plgpu.Layout.WGMMA)
                ones = plgpu.layout_cast(jnp.ones((N, N), jnp.float16), plgpu.Layout.WGMMA)
                top = plgpu.layout_cast(jnp.zeros((N,), jnp.float32), plgpu.Layout.WGMMA.reduce(1))

                def tile(t: Any, carries: Any) -> Any:
                    def step(i: Any, carries: Any) -> Any:
                        accs, before, top, count = carries
                        n = t * trips + (i - lower)
                        slot = count if self.counts else slot_of(n)
                        is_asked = n + slots < total
                        if self.next_k == "start":
                            plgpu.barrier_wait(k_full.at[slot])
                        k_slot, v_slot = k_buf.at[slot], v_buf.at[slot]

                        def load_row() -> Any:
                            return load_whole(row_buf.at[slot], layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)

                        first_row = load_row() if self.row == "first" else None
                        left = {"q": q_buf.at[wg], "before": before, "other": p_buf.at[1 - wg]}.get(self.first)
                        if left is None:
                            left = _small(jnp, accs[0]).astype(jnp.float16)

                        def scores(*sums: Any) -> Any:
                            plgpu.wgmma(sums[0], left, plgpu.transpose_ref(k_slot, (1, 0)))
                            if self.products != "single":
                                plgpu.wgmma(sums[-1], q_buf.at[wg], k_slot)
                            begun = load_row() if self.row == "begun" else None
                            if self.rendezvous[0]:
                                rendezvous()
                            if self.free_v == "rendezvous":

                                @_when((wg == 0) & (n >= 1))
                                def _() -> None:
                                    plgpu.barrier_arrive(v_empty.at[slot_of(n + (slots - 1))])

                            return [x[...] for x in sums], begun

                        sums = [plgpu.ACC((N, N), jnp.float32)] * (2 if self.products == "two" else 1)
                        found, begun = pl.run_scoped(scores, *sums)
                        row_now = {"first": first_row, "begun": begun, "done": load_row() if self.row == "done" else None}.get(str(self.row))
                        if self.free_k == "read":
                            plgpu.barrier_arrive(k_empty.at[slot])
                        spread = None if row_now is None else lax.broadcast_in_dim(row_now, (N, N), (1,))
                        p = _mix(jnp, found, accs[0] if self.uses_late else None, spread)
                        top = _small(jnp, top + p.max(axis=1))
                        starts = [self._start(jnp, acc, lax.broadcast_in_dim(top, (N, N), (0,))) for acc in accs[: self.lasts]]
                        p16 = p.astype(jnp.float16)
                        if self.first == "other":
                            rendezvous()
                        if "other" in (self.first, self.last) or self.last == "stored":
                            p_buf[wg] = p16
                            plgpu.commit_smem()
                        if self.next_k == "middle":
                            wait_k(n + 1)
                        if self.counts:
                            count = lax.select(count == slots - 1, 0, count + 1)
                        if self.fence:
                            starts, top, p16 = lax.optimization_barrier((starts, top, p16))
                        if self.rendezvous[1]:
                            plgpu.barrier_arrive(go)
                        plgpu.barrier_wait(v_full.at[slot])
                        if self.rendezvous[1]:
                            plgpu.barrier_wait(go)
                        a = {"registers": p16, "stored": p_buf.at[wg], "other": p_buf.at[1 - wg]}[self.last]

                        def weigh(refs: Any) -> None:
                            for j, ref in enumerate(refs):
                                plgpu.wgmma(ref, a, plgpu.transpose_ref(v_slot, (1, 0)) if j else v_slot)
                            if self.next_k == "end":
                                wait_k(n + 1)

                        if self.init == "fresh":
                            fresh = pl.run_state(weigh)([plgpu.ACC.init(zeros)] * self.lasts)
                            ends = [x + y for x, y in zip(starts, fresh, strict=True)]
                        else:
                            ends = pl.run_state(weigh)([plgpu.ACC.init(x) for x in starts])
                        if self.free_k == "end":
                            plgpu.barrier_arrive(k_empty.at[slot])
                        if self.free_v == "own":
                            plgpu.barrier_arrive(v_empty.at[slot])
                        elif self.free_v == "asked":
                            _when(is_asked)(lambda: plgpu.barrier_arrive(v_empty.at[slot]))
                        if self.extra == "store":
                            p_buf[wg] = _small(jnp, ends[0]).astype(jnp.float16)
                            plgpu.commit_smem()
                        elif self.extra == "output":
                            outs[-1].at[wg][...] = ends[0]
                        elif self.extra == "second":
                            ends = [*ends, _small(jnp, ends[0])]
                        elif self.extra == "twice":
                            ends = [*ends, ends[0]]
                        elif self.extra == "rendezvous":
                            rendezvous()
                        return list(ends), p16, top, count

                    return lax.fori_loop(lower, upper, step, carries)

                carries: Any = ([zeros] * self.carries, ones, top, jnp.int32(0))
                carries = lax.fori_loop(0, tiles, tile, carries) if self.tiles else tile(0, carries)
                if self.skew:
                    _when(wg == 0)(rendezvous)
                for out, array in zip(outs, carries[0], strict=False):
                    out.at[wg][...] = array
                if self.extra != "output":
                    outs[-1].at[wg][...] = lax.broadcast_in_dim(carries[2], (N, N), (0,))

        matrix = {"transforms": tiled(jnp.float16, 128)}
        scratch = [plgpu.SMEM((workers, N, N), jnp.float16, **matrix)] * 2 + [plgpu.SMEM((slots, N, N), jnp.float16, **matrix)] * 2
        scratch += [plgpu.SMEM((slots, N), jnp.float32)]
        barriers = [plgpu.Barrier(num_barriers=slots, num_arrivals=2), plgpu.Barrier(num_barriers=slots)]
        barriers += [plgpu.Barrier(num_barriers=slots, num_arrivals=workers)]
        barriers += [plgpu.Barrier(num_barriers=slots, num_arrivals=1 if self.free_v == "rendezvous" else workers)]
        barriers += [plgpu.Barrier(num_barriers=workers), plgpu.Barrier(num_arrivals=workers)]
        outs = [like((workers, N, N))] * (self.carries + 1)
        return kernel(body, outs, *scratch, *barriers, num_threads=workers + 1, thread_name="wg")

    def inputs(self) -> list[Array]:
        rng = np.random.default_rng([self.seed, 9])
        steps = STEPS * max(1, self.tiles)
        shapes = ((self.workers, N, N), (steps, N, N), (steps, N, N), (steps, N))
        dtypes = (np.float16, np.float16, np.float16, np.float32)
        arrays = [rng.integers(-2, 3, shape).astype(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        return [*arrays, np.array([self.lower, self.lower + self.trips], np.int32)]

    def _start(self, np_: Any, acc: Any, top: Any) -> Any:
        """What the last product is added to."""
        return acc if self.init == "carry" else _small(np_, acc) * top

    # ------------------------------------------------------------ in NumPy

    def reference(self) -> list[Array]:
        q, k, v, rows, _ = self.inputs()
        accs = [[np.zeros((N, N), np.float32)] * self.carries] * self.workers
        before, stored = [[np.ones((N, N), np.float16)] * self.workers for _ in range(2)]
        tops = [np.zeros(N, np.float32)] * self.workers
        trace = [np.zeros((N, N), np.float32)] * self.workers
        for n in range(self.trips * max(1, self.tiles)):
            ps = []
            for w in range(self.workers):
                late = _small(np, accs[w][0]).astype(np.float16)
                left = {"q": q[w], "before": before[w], "other": stored[w - 1], "late": late}[self.first]
                sums = [_product(left, k[n].T)]
                if self.products != "single":
                    other = _product(q[w], k[n])
                    sums = [sums[0], other] if self.products == "two" else [sums[0] + other]
                ps.append(_mix(np, sums, accs[w][0] if self.uses_late else None, rows[n] if self.row else None))
            before = [p.astype(np.float16) for p in ps]
            if "other" in (self.first, self.last) or self.last == "stored":
                stored = list(before)
            tops = [_small(np, top + p.max(axis=1)) for top, p in zip(tops, ps, strict=True)]
            new = []
            for w in range(self.workers):
                a = before[w - 1] if self.last == "other" else before[w]
                ends = [
                    self._start(np, accs[w][j], np.broadcast_to(tops[w][:, None], (N, N))) + _product(a, v[n].T if j else v[n])
                    for j in range(self.lasts)
                ]
                trace[w] = ends[0]
                if self.extra in ("second", "twice"):
                    ends.append(_small(np, ends[0]) if self.extra == "second" else ends[0])
                new.append(ends)
            accs = new
        out = [np.stack([accs[w][j] for w in range(self.workers)]) for j in range(self.carries)]
        last = trace if self.extra == "output" else [np.broadcast_to(top[:, None], (N, N)) for top in tops]
        return [*out, np.stack(last).astype(np.float32)]


def _product(a: Array, b: Array) -> Array:
    return np.asarray(a.astype(np.float32) @ b.astype(np.float32))


def _small(np_: Any, x: Any) -> Any:
    return np_.clip(x, np.float32(-3), np.float32(3))


def _mix(np_: Any, sums: Any, late: Any, row: Any) -> Any:
    """Small again."""
    x = sums[0] if len(sums) == 1 else sums[0] - sums[1]
    x = x if late is None else x - late
    return _small(np_, x if row is None else x + row)


TURNED_LOOPS = grammar("turned loops", Turned.of)
