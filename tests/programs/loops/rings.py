"""Random matmuls whose operands come through rings: who arrives where, and what an arrival must not come before.

One warpgroup fills the slots, one or two others multiply what is in them and give them back; two blocks of a cluster may share an operand.
In most of them loads are what limits, so that the compiler makes fewer arrivals of them than the author wrote (`plan/arrivals.rs`), unless
something stands between the loads of a step: a wait, a store that the phase is to make visible, another barrier, a branch. What
warpgroups hand on behind an arrival (slots, arrays in shared memory, words) is what they would hand on too early.

Each kernel has a NumPy reference. Numbers are small and whole, so sums are exact.
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
from tests.programs.memory.prelude import warp_map
from tests.programs.views import tiled

Array = np.ndarray[Any, Any]

#: With types.
_when: Callable[[Any], Callable[[Callable[[], None]], Any]] = pl.when
_loop: Callable[[Any, Any], Callable[[Callable[[Any], None]], Any]] = pl.loop

K = 64
#: Loads of a step that arrive on one barrier, by how they are written.
ARRIVALS = {"pair": 2, "computed": 2, "three": 3, "halves": 3, "warp": 2, "apart": 1, "asked": 2, "branch": 2, "word": 2, "noted": 2, "relayed": 2}
#: Shared memory of a ring.
ROOM = 128 * 1024


@dataclasses.dataclass(frozen=True)
class Ring(Loops):
    """A kernel.

    Attributes:
        workers: Warpgroups that multiply, 64 rows each.
        columns: Of the right operand: the fewer, the more do loads limit.
        shared: The operand that two blocks of a cluster share ("left", "right"); None: one block.
        steps: Of each tile.
        dynamic: Their number is loaded.
        loads: Those of a step: a "pair"; with an index computed in between ("computed"); "three", with a row that is added; the left one in
            two "halves"; by a "warp"; each with a barrier of its own ("apart"); the second one when its part of the slot is free ("asked");
            the second one from either of two arrays ("branch"); with a store between them, to the trace ("word"), or to shared memory,
            where workers read it ("noted"); with a wait between them for what one worker has stored there for the other ("relayed").
        separate: Each operand's part of a slot has its own barrier to be freed by.
        frees: "each" worker frees a slot; with the next step's product issued ("late"); only if it is asked for ("needed"); one worker for
            both, after they have met ("one").
        hands: What workers do with a tile: "store" it; "copy" it out, from one buffer or one for each half ("halves"); let the producer copy it ("told"); hand it to the other worker, who stores
            it ("swap").
        adds: What is added to it: nothing; a row that is loaded ("bias"); where it is copied out, an array that is copied into the buffer first
            ("tile"), or loaded ("loaded").
        products: Of a step, each of the same operands.
        limits: Warpgroups ask for registers.
        guarded: All of it is under an "if" that memory decides, or in a "loop" that memory lets run once.
    """

    seed: int
    workers: int
    columns: int
    slots: int
    shared: str | None
    steps: int
    tiles: int
    dynamic: bool
    loads: str
    separate: bool
    frees: str
    hands: str
    adds: str | None
    products: int
    limits: bool
    guarded: str | None

    @classmethod
    def of(cls, seed: int) -> Ring:
        pick = picker(seed, 12)
        workers = pick(1, 2, 2)
        columns = pick(32, 64, 64, 64, 128, 256)
        loads = pick("pair", "pair", "pair", "asked", "asked", *ARRIVALS, *["relayed"] * 2)
        if loads == "relayed" and workers == 1:
            loads = "noted"
        shared = pick(None, None, None, "left", "right")
        return cls(
            seed=seed,
            workers=workers,
            columns=columns,
            slots=min(pick(2, 2, 3, 4), ROOM // (2 * K * (64 * workers + columns))),
            shared=shared if loads in ("pair", "computed", "three", "asked") else None,
            steps=pick(1, 2, 3, 5, 8),
            tiles=pick(1, 1, 2, 3),
            dynamic=bool(pick(0, 0, 1)),
            loads=loads,
            separate=loads == "asked" or bool(pick(0, 0, 1)),
            frees=pick("each", "each", "late", "needed", *["one"] * (workers - 1)),
            hands=(hands := pick("store", "copy", "copy" if columns < 128 else "halves", "told", *["swap"] * (workers - 1))),
            adds=pick(None, None, "bias", *["tile", "loaded"] * (hands in ("copy", "halves"))),
            products=pick(1, 1, 1, 2),
            limits=bool(pick(0, 1)),
            guarded=pick(None, None, None, "if", "loop"),
        )

    @property
    def rows(self) -> int:
        return 64 * self.workers

    @property
    def blocks(self) -> int:
        return 1 if self.shared is None else 2

    @property
    def most_steps(self) -> float:
        """What is known of their number before the kernel runs."""
        return np.inf if self.dynamic else self.steps * self.tiles

    @property
    def one_announces(self) -> bool:
        """Whether nothing that orders anything stands between the loads of a step."""
        return self.loads in ("pair", "computed", "three", "halves") or (self.loads == "asked" and self.most_steps <= self.slots)

    @property
    def loads_limit(self) -> bool:
        """Whether a step loads more than 1 element for 58 multiplications (of those that a cluster shares, each block half)."""
        left = self.rows * K // (2 if self.shared == "left" else 1)
        right = self.columns * K // (2 if self.shared == "right" else 1)
        # A row is of words of 32 bits.
        row = 2 * self.columns if self.loads == "three" else 0
        if self.loads == "branch" and self.most_steps > 1:
            right *= 2  # Either, unless it is known which.
        # One step is no loop of its own.
        more = self.rows * self.columns if self.adds == "tile" and self.steps == 1 and not self.dynamic else 0
        return self.products * self.rows * self.columns * K < 58 * (left + right + row + more)

    # ------------------------------------------------------------ as a kernel

    def function(self) -> Any:
        slots, workers, steps, n = self.slots, self.workers, self.steps, self.columns

        def body(*refs: Any) -> None:
            counts = refs[5]
            if self.guarded == "if":
                _when(counts[0] > 0)(lambda: work(*refs))
            elif self.guarded == "loop":
                _loop(0, counts[1])(lambda _: work(*refs))
            else:
                work(*refs)

        def work(a: Any, b: Any, other: Any, row: Any, more: Any, counts: Any, out: Any, trace: Any, *rest: Any) -> None:
            a_buf, b_buf, row_buf, notes, out_buf, full, full_right, free, free_right, go, told, taken, relay, added, end = rest
            wg = lax.axis_index("wg")
            block = 0 if self.shared is None else lax.axis_index("c")
            steps_now = counts[0] if self.dynamic else steps
            total = steps_now * self.tiles
            half = pl.ds(wg * 64, 64)

            def slot_of(step: Any) -> Any:
                return lax.rem(step, jnp.int32(slots))

            def wait_free(step: Any, *barriers: Any) -> None:
                @_when(step >= slots)
                def _() -> None:
                    for barrier in barriers:
                        plgpu.barrier_wait(barrier.at[slot_of(step)])

            def fill(step: Any) -> None:
                at = slot_of(step)
                my = lambda shared, x: x if self.shared in (None, shared) else x.at[block]  # noqa: E731
                left, right = my("left", a).at[step], my("right", b).at[step]
                to_left, to_right, on = a_buf.at[at], b_buf.at[at], full.at[at]
                axes = lambda of: {"collective_axes": "c"} if self.shared == of else {}  # noqa: E731
                wait_free(step, *([free, free_right] if self.separate and self.loads != "asked" else [free]))

                def load_left() -> None:
                    if self.loads == "halves":
                        for part in (pl.ds(0, self.rows // 2), pl.ds(self.rows // 2, self.rows // 2)):
                            plgpu.copy_gmem_to_smem(left.at[part], to_left.at[part], on)
                    else:
                        plgpu.copy_gmem_to_smem(left, to_left, on, **axes("left"))

                def load_right(of: Any = right) -> None:
                    plgpu.copy_gmem_to_smem(of, to_right, full_right.at[at] if self.loads == "apart" else on, **axes("right"))

                def both(*_: Any) -> None:
                    load_left()
                    load_right()

                if self.loads == "warp":
                    warp_map(lambda warp: _when(warp == 0)(both))
                    return
                load_left()
                if self.loads == "asked":
                    wait_free(step, free_right)
                elif self.loads == "three":
                    plgpu.copy_gmem_to_smem(row.at[step], row_buf.at[at], on)
                elif self.loads == "word":
                    trace[step] = step * 3
                elif self.loads == "noted":
                    notes[at] = step + 1
                elif self.loads == "relayed":
                    plgpu.barrier_wait(relay)
                if self.loads == "branch":
                    is_even = lax.rem(step, jnp.int32(2)) == 0
                    _when(is_even)(load_right)
                    _when(jnp.logical_not(is_even))(lambda: load_right(other.at[step]))
                elif self.loads == "computed":
                    load_right(b.at[block, lax.rem(step * 5, total * 5) // 5] if self.shared == "left" else b.at[lax.rem(step * 5, total * 5) // 5])
                else:
                    load_right()

            @_when(wg == workers)
            def _() -> None:
                if self.limits:
                    plgpu.set_max_registers(40, action="decrease")

                @_loop(0, self.tiles)
                def _(tile: Any) -> None:
                    @_loop(0, steps_now)
                    def _(i: Any) -> None:
                        fill(tile * steps_now + i)

                    if self.hands == "told":
                        plgpu.barrier_wait(told)
                        plgpu.copy_smem_to_gmem(out_buf, out.at[block, tile])
                        plgpu.wait_smem_to_gmem(0)
                        plgpu.barrier_arrive(taken)

            def rendezvous() -> None:
                plgpu.barrier_arrive(go)
                plgpu.barrier_wait(go)

            def give_back(step: Any) -> None:
                def arrive() -> None:
                    plgpu.barrier_arrive(free.at[slot_of(step)])
                    if self.separate:
                        plgpu.barrier_arrive(free_right.at[slot_of(step)])

                if self.frees == "one":
                    rendezvous()
                    _when(wg == 0)(arrive)
                elif self.frees == "needed":
                    _when(step + slots < total)(arrive)
                else:
                    arrive()

            def note(step: Any) -> None:
                """Of the first worker for the second, which is known to have read what was there."""

                @_when((wg == 0) & (step < total))
                def _() -> None:
                    notes[lax.rem(step, jnp.int32(2 * slots))] = step + 1
                    plgpu.barrier_arrive(relay)

            def relayed(step: Any) -> Any:
                note(step + 1)
                return lax.cond(wg == 1, lambda: notes[lax.rem(step, jnp.int32(2 * slots))], lambda: jnp.int32(0))

            @_when(wg < workers)
            def _() -> None:
                if self.limits:
                    plgpu.set_max_registers(232, action="increase")
                if self.loads == "relayed":
                    note(jnp.int32(0))

                @_loop(0, self.tiles)
                def _(tile: Any) -> None:
                    def compute(acc: Any) -> Any:
                        def step(i: Any, carry: Any) -> Any:
                            rows, noted = carry
                            now = tile * steps_now + i
                            at = slot_of(now)
                            plgpu.barrier_wait(full.at[at])
                            if self.loads == "apart":
                                plgpu.barrier_wait(full_right.at[at])
                            for _ in range(self.products):
                                plgpu.wgmma(acc, a_buf.at[at, half], b_buf.at[at])
                            if self.loads == "three":
                                rows = rows + load_whole(row_buf.at[at], layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
                            elif self.loads == "noted":
                                noted = noted + notes[at]
                            elif self.loads == "relayed":
                                noted = noted + relayed(now)
                            if self.frees == "late":
                                plgpu.wgmma_wait(1)
                                _when(i > 0)(lambda: give_back(now - 1))
                            else:
                                plgpu.wgmma_wait(0)
                                give_back(now)
                            return rows, noted

                        zeros = plgpu.layout_cast(jnp.zeros((n,), jnp.float32), plgpu.Layout.WGMMA.reduce(0))
                        rows, noted = lax.fori_loop(0, steps_now, step, (zeros, jnp.int32(0)))
                        if self.frees == "late":
                            plgpu.wgmma_wait(0)
                            give_back((tile + 1) * steps_now - 1)
                        x = acc[...]
                        if self.loads == "three":
                            x = x + lax.broadcast_in_dim(rows, (64, n), (1,))
                        elif self.loads in ("noted", "relayed"):
                            x = x + noted.astype(jnp.float32)
                        if self.adds == "bias":
                            bias = load_whole(row.at[0], layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
                            x = x + lax.broadcast_in_dim(bias, (64, n), (1,))
                        return x.astype(jnp.float16)

                    x = pl.run_scoped(compute, plgpu.ACC((64, n), jnp.float32))
                    if self.hands == "store":
                        out.at[block, tile, half][...] = x
                        return
                    if self.hands in ("copy", "halves"):
                        width = n if self.hands == "copy" else n // 2
                        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                        for start in range(0, n, width):
                            part = pl.ds(start, width)
                            y, buffer = x[:, start : start + width], out_buf.at[half, part]
                            if self.adds == "tile":
                                plgpu.copy_gmem_to_smem(more.at[block, tile, half, part], buffer, added.at[wg])
                                plgpu.barrier_wait(added.at[wg])
                                y = y + buffer[...]
                            elif self.adds == "loaded":
                                y = y + load_whole(more.at[block, tile, half, part], layout=plgpu.Layout.WGMMA, optimized=False)
                            buffer[...] = y
                            plgpu.commit_smem()
                            plgpu.copy_smem_to_gmem(buffer, out.at[block, tile, half, part])
                        return
                    if self.hands == "told":
                        _when(tile > 0)(lambda: plgpu.barrier_wait(taken))
                    out_buf[half] = x
                    plgpu.commit_smem()
                    if self.hands == "told":
                        plgpu.barrier_arrive(told)
                    elif self.hands == "swap":
                        rendezvous()
                        theirs = pl.ds((1 - wg) * 64, 64)
                        y = load_whole(out_buf.at[theirs], layout=plgpu.Layout.WGMMA, optimized=False)
                        rendezvous()
                        out.at[block, tile, theirs][...] = y

            plgpu.wait_smem_to_gmem(0)
            # Nobody's shared memory is gone while the other block arrives there.
            plgpu.barrier_arrive(end)
            plgpu.barrier_wait(end)

        matrix = {"transforms": tiled(jnp.float16, 128)}
        right = {"transforms": tiled(jnp.float16, 2 * min(n, 64))}
        scratch = [
            plgpu.SMEM((slots, self.rows, K), jnp.float16, **matrix),
            plgpu.SMEM((slots, K, n), jnp.float16, **right),
            plgpu.SMEM((slots, n), jnp.float32),
            plgpu.SMEM((2 * slots,), jnp.int32),
            plgpu.SMEM((self.rows, n), jnp.float16, **right),
        ]
        frees = 1 if self.frees == "one" else workers
        if self.shared is None:
            free, end = plgpu.Barrier(num_arrivals=frees, num_barriers=slots), plgpu.Barrier(num_arrivals=workers + 1)
            where = {}
        else:
            free = plgpu.ClusterBarrier(collective_axes=("c",), num_arrivals=frees, num_barriers=slots)
            end = plgpu.ClusterBarrier(collective_axes=("c",), num_arrivals=workers + 1)
            where = {"cluster": (2,), "cluster_names": ("c",)}
        arrivals = ARRIVALS[self.loads]
        barriers = [plgpu.Barrier(num_arrivals=arrivals, num_barriers=slots), plgpu.Barrier(num_barriers=slots), free, free]
        barriers += [plgpu.Barrier(num_arrivals=workers), plgpu.Barrier(num_arrivals=workers), plgpu.Barrier(), plgpu.Barrier(), plgpu.Barrier(num_barriers=workers), end]
        outs = [like((self.blocks, self.tiles, self.rows, n), jnp.float16), like((self.steps * self.tiles,), jnp.int32)]
        return kernel(body, outs, *scratch, *barriers, num_threads=workers + 1, thread_name="wg", **where)

    def inputs(self) -> list[Array]:
        rng = np.random.default_rng([self.seed, 13])
        total = self.steps * self.tiles
        small = lambda *shape: rng.integers(-2, 3, shape).astype(np.float16)  # noqa: E731
        # What a cluster does not share has the block in front.
        lead = lambda of: () if self.shared in (None, of) else (2,)  # noqa: E731
        a, b, other = small(*lead("left"), total, self.rows, K), small(*lead("right"), total, K, self.columns), small(total, K, self.columns)
        row = rng.integers(-3, 4, (total, self.columns)).astype(np.float32)
        more = small(self.blocks, self.tiles, self.rows, self.columns)
        return [a, b, other, row, more, np.array([self.steps, 1], np.int32)]

    # ------------------------------------------------------------ in NumPy

    def written(self) -> list[Array]:
        whole, trace = super().written()
        return [whole, np.full_like(trace, self.loads == "word")]

    def reference(self) -> list[Array]:
        a, b, other, row, more, _ = self.inputs()
        a, b = (x[None] if x.ndim == 3 else x for x in (a, b))
        total = self.steps * self.tiles
        if self.loads == "branch":
            b = np.where((np.arange(total) % 2 == 0)[None, :, None, None], b, other[None])
        products = self.products * (a.astype(np.float32) @ b.astype(np.float32))
        if self.loads == "three":
            products = products + row[None, :, None]
        elif self.loads == "noted":
            products = products + np.arange(1, total + 1, dtype=np.float32)[None, :, None, None]
        elif self.loads == "relayed":
            products[:, :, 64:] += np.arange(1, total + 1, dtype=np.float32)[None, :, None, None]
        tiles = products.reshape(self.blocks, self.tiles, self.steps, self.rows, self.columns).sum(2)
        if self.adds == "bias":
            tiles = tiles + row[0]
        elif self.adds is not None:
            tiles = tiles + more
        return [tiles.astype(np.float16), np.arange(total, dtype=np.int32) * 3]


@dataclasses.dataclass(frozen=True)
class Late(Ring):
    """One of those whose tiles are large and end with copies: most may be stored beside the next tile's steps (`defer_epilogue.rs`)."""

    @classmethod
    def of(cls, seed: int) -> Late:
        pick = picker(seed, 14)
        columns, hands = pick(128, 128, 256), pick("copy", "halves", "halves")
        loads = pick("pair", "pair", "pair", "computed", "halves", "apart", "word", "three")
        some = Ring.of(seed)
        return dataclasses.replace(
            cls(**dataclasses.asdict(some)),
            workers=2,
            columns=columns,
            slots=min(pick(2, 3, 4), 96 * 1024 // (2 * K * (128 + columns))),
            shared=some.shared if loads in ("pair", "computed", "three") else None,
            steps=pick(1, 3, 5, 5, 8),
            tiles=pick(1, 2, 2, 3),
            dynamic=bool(pick(*[0] * 7, 1)),
            loads=loads,
            separate=bool(pick(0, 1)),
            frees=pick("each", "each", "each", "late", "one"),
            hands=hands,
            adds=pick(None, "bias", "tile", "tile", "loaded"),
        )

    @property
    def is_late(self) -> bool:
        """There are several tiles, of steps whose number is known; in a step are waits, products, a wait for them and arrivals; and what is
        kept of a tile fits into registers beside the next one, with what is added."""
        plain = self.frees == "each" and self.loads != "three" and not self.dynamic
        registers = 232 if self.limits else 65536 // (128 * (self.workers + 1))
        needed = self.columns // 2 + self.columns // 4
        added = self.columns // self.copies // 4 if self.adds in ("tile", "loaded") else 0
        fits = needed + 32 <= registers and needed + added + 16 <= registers
        return plain and fits and self.tiles > 1 and self.steps >= self.copies

    @property
    def copies(self) -> int:
        """Out of shared memory, of a tile."""
        return 2 if self.hands == "halves" else 1


RINGS = grammar("rings", Ring.of)
LATE_EPILOGUES = grammar("late epilogues", Late.of)
