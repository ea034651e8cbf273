"""Random matmuls whose producer fills all slots for one tile after the other, and waits for all of them at a tile's end (`defer_drains.rs`).

Loops over slots and steps are loops or written out; slots and barriers are those of an array, or each its own; operands are released together or
each for itself; waits, copies and releases come in several orders; two blocks of a cluster may share an operand. In some kernels the producer may not
run ahead: a slot is read until another one is released, also by the other block, something else is waited for, or signalled, or handed on behind the
ring's barriers. Each kernel has a NumPy reference. Numbers are small and whole, so sums are exact.
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
from tests.programs.loops.loops import Loops, grammar, picker
from tests.programs.views import tiled

Array = np.ndarray[Any, Any]

#: With types.
_when: Callable[[Any], Callable[[Callable[[], None]], Any]] = pl.when
_loop: Callable[[Any, Any], Callable[[Callable[[Any], None]], Any]] = pl.loop

K = 64
#: Shared memory of a ring.
ROOM = 160 * 1024


@dataclasses.dataclass(frozen=True)
class Drained(Loops):
    """A kernel.

    Attributes:
        workers: Warpgroups that multiply, 64 rows each.
        columns: Of the right operand.
        steps: Of a tile; not fewer than slots.
        dynamic: The number of tiles is loaded.
        own: "buffers", "barriers" or "both" are each an allocation of its own, not a slot of an array.
        fill: "loop"; "written" out, slot by slot; "operands", the left ones first.
        middle: A "loop" over steps; one over "rounds" of all slots, or "batched", waits first; "written" out.
        drain: "loop"; "turned", from the slot on that is used next; "written" out; "backwards".
        worker: As `middle`, not "batched".
        frees: Operands are released by "one" barrier; each by its own ("two"); slots by the barrier of the slot opposite ("crossed").
        delay: A slot is released when the next product is issued, within a round (or tile) that is written out.
        halves: The left operand comes in two copies.
        keeps: What the producer must not run ahead of: slot 0, of which workers need something "again" after they have released it and before
            they release the last one; a barrier of its own ("done"); a word that it stores ("tells"); releases that are made only if they are
            needed ("asked"); nothing, though it "loads" where its operands are.
        stores: Results are stored to device memory by "lanes"; "copied" out; in two "parts".
        shared: Two blocks of a cluster share the right operand, whose slots are "released" by both; or each block's own barriers release
            them, and the blocks have "met" before the last ones do.
        hands: In a tile's first step, a word is stored that is loaded in its last one, before that one's slot is released: it goes "on" to the other
            worker, with nothing but the ring's barriers between them, in shared memory or in the "device"'s; each has its "own"; the other one is
            "told" by a barrier; it is stored "once", before all tiles.
    """

    seed: int
    workers: int
    columns: int
    slots: int
    steps: int
    tiles: int
    dynamic: bool
    own: str
    fill: str
    middle: str
    drain: str
    worker: str
    frees: str
    delay: bool
    halves: bool
    keeps: str | None
    stores: str
    shared: str | None
    hands: str | None

    @classmethod
    def of(cls, seed: int) -> Drained:
        pick = picker(seed, 15)
        workers = pick(2, 2, 2, 2, 2, 1)
        columns = pick(128, 128, 128, 256)
        slots = min(pick(2, 2, 3, 4), ROOM // (2 * K * (64 * workers + columns)))
        own = pick("", "", "", "buffers", "barriers", "both")
        steps = pick(slots, slots, 2 * slots, 2 * slots, 3 * slots, slots + 1, 2 * slots - 1)
        keeps = pick(*[None] * 6, "loads", "loads", "again", "done", "tells", "asked")
        crossed = pick(*[False] * 5, True)
        whole = steps % slots == 0
        if keeps == "again" and not whole:
            keeps = None
        rounds = ("rounds", "rounds") if whole else ()
        if own or crossed or keeps == "again":
            fill, drain = pick("written", "operands"), pick("written", "backwards")
            middle = pick("batched") if keeps == "again" else pick(*rounds, *["batched"] * whole, "written")
            worker = pick(*rounds, "written")
        else:
            fill, drain = pick("loop", "loop", "written", "operands"), pick("loop", "turned", "written", "backwards")
            middle = pick("loop", *rounds, *["batched"] * whole, "written")
            worker = pick("loop", *rounds, "written")
        tiles, dynamic = pick(1, 2, 2, 3), bool(pick(0, 0, 1))
        frees, delay = "crossed" if crossed else pick("one", "one", "two"), worker != "loop" and keeps != "again" and bool(pick(0, 1))
        halves, stores = bool(pick(0, 0, 1)), pick("lanes", "copied", "parts")

        pick = picker(seed, 16)
        shared, hands = pick(*[None] * 6, "released", "met"), pick(*[None] * 8, "on", "device", "own", "told", "once")
        if shared == "met":
            steps, worker = slots, pick("rounds", "written")
        if steps == slots or workers == 1 or keeps is not None:
            hands = None
        return cls(
            seed=seed,
            workers=workers,
            columns=columns,
            slots=slots,
            steps=steps,
            tiles=tiles,
            dynamic=dynamic,
            own=own,
            fill=fill,
            middle=middle,
            drain=drain,
            worker=worker,
            frees=frees,
            delay=delay,
            halves=halves,
            keeps=keeps,
            stores=stores,
            shared=shared,
            hands=hands,
        )  # fmt: skip

    @property
    def rows(self) -> int:
        return 64 * self.workers

    @property
    def runs_ahead(self) -> bool:
        """Whether the producer may fill slots for a tile while others of the last one are still read, and there is anything to win."""
        limited = self.rows * self.columns < 58 * (self.rows + self.columns)
        several = self.tiles > 1 or self.dynamic
        # What is read once is released by that barrier, too, if all of a tile's steps are written out.
        written = self.worker == "written" and self.steps < 2 * self.slots or self.worker == "rounds" and self.steps == self.slots
        released = self.keeps == "done" and written and (self.own != "" or self.frees == "crossed")
        proved = self.keeps in (None, "loads") or released
        return several and not limited and proved and self.shared != "met" and self.hands in (None, "own", "once")

    @property
    def stores_late(self) -> bool:
        """Whether tiles are stored beside the next one's products: they fit into registers twice."""
        fits = self.columns == 128 and self.workers == 2
        # One part for each wait behind a product.
        room = self.stores == "copied" or self.steps - self.delay > 1
        return self.stores != "lanes" and (self.tiles > 1 or self.dynamic) and fits and room and self.keeps not in ("done", "asked") and self.hands is None

    # ------------------------------------------------------------ as a kernel

    def function(self) -> Any:
        slots, steps, workers, n = self.slots, self.steps, self.workers, self.columns

        def body(a: Any, b: Any, where: Any, counts: Any, out: Any, trace: Any, *rest: Any) -> None:
            a_buf, b_buf, out_buf, hand, full, free, free_b, done, told, met, end = rest
            wg = lax.axis_index("wg")
            if self.shared is not None:
                a, out = (x.at[lax.axis_index("c")] for x in (a, out))
            tiles = counts[0] if self.dynamic else self.tiles
            at = lambda ref, s: ref[s] if isinstance(ref, (list, tuple)) else ref.at[s]  # noqa: E731

            def when(holds: Any, do: Callable[[], None]) -> None:
                if not isinstance(holds, bool):
                    _when(holds)(do)
                elif holds:
                    do()

            def wait_free(s: Any) -> None:
                plgpu.barrier_wait(at(free, s))
                if self.frees == "two":
                    plgpu.barrier_wait(at(free_b, s))

            def released(s: Any) -> Any:
                return slots - 1 - s if self.frees == "crossed" else s

            def over(how: str, begin: int, one: Callable[[Any, Any], None], some: Callable[[Any], None] | None = None) -> None:
                """`one(step, slot)` for steps from `begin` on; before those of a round, `some(slot)` for all of its slots."""
                if how == "loop":

                    @_loop(begin, steps)
                    def _(k: Any) -> None:
                        one(k, lax.rem(k, jnp.int32(slots)))

                elif how in ("rounds", "batched"):

                    @_loop(begin // slots, steps // slots)
                    def _(r: Any) -> None:
                        for s in range(slots) if some is not None else ():
                            some(s)
                        for s in range(slots):
                            one(r * slots + s, s)

                else:
                    for k in range(begin, steps):
                        one(k, k % slots)

            @_when(wg == workers)
            def _() -> None:
                @_loop(0, tiles)
                def _(tile: Any) -> None:
                    here = where[tile] if self.keeps == "loads" else tile
                    if self.keeps == "tells":
                        trace[tile] = tile + 1

                    def left(k: Any, s: Any) -> None:
                        src, dst = a.at[here * steps + k], at(a_buf, s)
                        for part in [pl.ds(i * self.rows // 2, self.rows // 2) for i in range(2)] if self.halves else [pl.ds(0, self.rows)]:
                            plgpu.copy_gmem_to_smem(src.at[part], dst.at[part], at(full, s))

                    def right(k: Any, s: Any) -> None:
                        for_both = {} if self.shared is None else {"collective_axes": "c"}
                        plgpu.copy_gmem_to_smem(b.at[here * steps + k], at(b_buf, s), at(full, s), **for_both)

                    def both(k: Any, s: Any) -> None:
                        left(k, s)
                        right(k, s)

                    def refill(k: Any, s: Any) -> None:
                        wait_free(released(s))
                        both(k, s)

                    if self.fill == "loop":
                        _loop(0, slots)(lambda s: both(s, s))
                    else:
                        for copy in (both,) if self.fill == "written" else (left, right):
                            for s in range(slots):
                                copy(s, s)
                    if self.middle == "batched":
                        over("batched", slots, both, wait_free)
                    else:
                        over(self.middle, slots, refill)
                    if self.drain == "loop":
                        _loop(0, slots)(wait_free)
                    elif self.drain == "turned":
                        _loop(0, slots)(lambda s: wait_free(lax.rem(s + steps, jnp.int32(slots))))
                    else:
                        for s in range(slots) if self.drain == "written" else reversed(range(slots)):
                            wait_free(s)
                    if self.keeps == "done":
                        plgpu.barrier_wait(done)

            @_when(wg < workers)
            def _() -> None:
                half = pl.ds(wg * 64, 64)
                if self.hands == "once":

                    @_when(wg == 0)
                    def _() -> None:
                        hand[...] = jnp.full((128,), 1, jnp.int32)
                        plgpu.barrier_arrive(told)

                    plgpu.barrier_wait(told)

                @_loop(0, tiles)
                def _(tile: Any) -> None:
                    def compute(acc: Any) -> Any:
                        def multiply(s: Any) -> None:
                            plgpu.wgmma(acc, at(a_buf, s).at[half], at(b_buf, s))

                        def write() -> None:
                            if self.hands == "own":
                                hand[half] = jnp.full((64,), tile + 1, jnp.int32)
                                return

                            @_when(wg == 0)
                            def _() -> None:
                                if self.hands == "told":
                                    plgpu.barrier_arrive(told)
                                elif self.hands == "device":
                                    trace[self.tiles] = tile + 1
                                else:
                                    hand[...] = jnp.full((128,), tile + 1, jnp.int32)

                        def release(s: Any) -> None:
                            def arrive() -> None:
                                plgpu.barrier_arrive(at(free, released(s)))
                                if self.frees == "two":
                                    plgpu.barrier_arrive(at(free_b, s))

                            if self.keeps == "asked":
                                # Which is so for all of them.
                                _when(counts[0] > tile)(arrive)
                            else:
                                arrive()

                        def release_last(k: Any, s: Any) -> None:
                            def rendezvous() -> None:
                                plgpu.barrier_arrive(met)
                                plgpu.barrier_wait(met)

                            def load() -> None:
                                @_when(wg == 1)
                                def _() -> None:
                                    if self.hands == "told":
                                        plgpu.barrier_wait(told)
                                    word = trace[self.tiles] if self.hands == "device" else tile + 1 if self.hands == "told" else hand[64 + 5]
                                    trace[tile] = word + tile if self.hands == "once" else word

                            if self.shared == "met":
                                when(s == slots - 1, rendezvous)
                            if self.hands is not None:
                                when(k == steps - 1, load)
                            release(s)

                        def step(k: Any, s: Any) -> None:
                            plgpu.barrier_wait(at(full, s))
                            if self.hands not in (None, "once"):
                                when(k == 0, write)
                            multiply(s)
                            if not self.delay:
                                plgpu.wgmma_wait(0)
                                if self.keeps == "again" and s == slots - 1:
                                    multiply(0)
                                    plgpu.wgmma_wait(0)
                                release_last(k, s)
                                return
                            # A producer that waits for a whole round gets one.
                            rounds = self.worker == "rounds" or self.middle == "batched"
                            first, last = (s == 0, s == slots - 1) if rounds else (k == 0, k == steps - 1)
                            if not first:
                                plgpu.wgmma_wait(1)
                                release((s - 1) % slots)
                            if last:
                                plgpu.wgmma_wait(0)
                                release_last(k, s)

                        over(self.worker, 0, step)
                        return acc[...].astype(jnp.float16)

                    x = pl.run_scoped(compute, plgpu.ACC((64, n), jnp.float32))
                    if self.stores == "lanes":
                        out.at[tile, half][...] = x
                    else:
                        width = n if self.stores == "copied" else n // 2
                        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                        for start in range(0, n, width):
                            part = pl.ds(start, width)
                            out_buf.at[half, part][...] = x[:, start : start + width]
                            plgpu.commit_smem()
                            plgpu.copy_smem_to_gmem(out_buf.at[half, part], out.at[tile, half, part])
                    if self.keeps == "done":
                        plgpu.barrier_arrive(done)

            plgpu.wait_smem_to_gmem(0)
            if self.shared is not None:
                # Nobody's shared memory is gone while the other block arrives there.
                plgpu.barrier_arrive(end)
                plgpu.barrier_wait(end)

        def array(make: Callable[..., Any], own: bool) -> Any:
            return [make(None) for _ in range(slots)] if own else make(slots)

        def buffer(shape: tuple[int, int]) -> Any:
            of = lambda n: plgpu.SMEM(shape if n is None else (n, *shape), jnp.float16, transforms=tiled(jnp.float16, 128))  # noqa: E731
            return array(of, self.own in ("buffers", "both"))

        def barrier(arrivals: int, **of_cluster: Any) -> Any:
            kind = plgpu.ClusterBarrier if of_cluster else plgpu.Barrier
            of = lambda n: kind(num_arrivals=arrivals, **of_cluster, **({} if n is None else {"num_barriers": n}))  # noqa: E731
            return array(of, self.own in ("barriers", "both"))

        cluster = {} if self.shared is None else {"collective_axes": ("c",)}
        by_both = cluster if self.shared == "released" else {}
        rendezvous_of: Callable[[int], Any] = lambda n: plgpu.ClusterBarrier(num_arrivals=n, **cluster) if cluster else plgpu.Barrier(num_arrivals=n)  # noqa: E731
        scratch = [
            buffer((self.rows, K)),
            buffer((K, n)),
            plgpu.SMEM((self.rows, n), jnp.float16, transforms=tiled(jnp.float16, 128)),
            plgpu.SMEM((128,), jnp.int32),
            barrier(3 if self.halves else 2),
            barrier(workers, **({} if self.frees == "two" else by_both)),
            barrier(workers, **by_both),
            plgpu.Barrier(num_arrivals=workers),
            plgpu.Barrier(),
            rendezvous_of(workers),
            rendezvous_of(workers + 1),
        ]
        lead = () if self.shared is None else (2,)
        outs = [like((*lead, self.tiles, self.rows, n), jnp.float16), like((self.tiles + 1,), jnp.int32)]
        where = {"cluster": (2,), "cluster_names": ("c",)} if cluster else {}
        return kernel(body, outs, *scratch, num_threads=workers + 1, thread_name="wg", **where)

    def inputs(self) -> list[Array]:
        rng = np.random.default_rng([self.seed, 15])
        total = self.steps * self.tiles
        blocks = 1 if self.shared is None else 2
        a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((blocks, total, self.rows, K), (total, K, self.columns)))
        return [a if blocks == 2 else a[0], b, rng.permutation(self.tiles).astype(np.int32), np.array([self.tiles], np.int32)]

    # ------------------------------------------------------------ in NumPy

    def written(self) -> list[Array]:
        whole, _ = super().written()
        tells = np.arange(self.tiles + 1) < self.tiles
        return [whole, tells & (self.keeps == "tells" or self.hands is not None) | ~tells & (self.hands == "device")]

    def reference(self) -> list[Array]:
        a, b, where, _ = self.inputs()
        lead = a.shape[:-3]
        products = (a.astype(np.float32) @ b.astype(np.float32)).reshape(*lead, self.tiles, self.steps, self.rows, self.columns)
        if self.keeps == "loads":
            products = products[..., where, :, :, :]
        times = np.ones(self.steps, np.float32)
        if self.keeps == "again":
            times[:: self.slots] = 2
        tiles = np.einsum("...tsmn,s->...tmn", products, times)
        return [tiles.astype(np.float16), np.append(np.arange(1, self.tiles + 1, dtype=np.int32), np.int32(self.tiles))]


DRAINS = grammar("rings that drain", Drained.of)
