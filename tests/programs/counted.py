"""Random rings through which tiles go from a producer to consumers, by barriers that the kernel counts and that `plgpu` counts, in any mixture."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

import smalt
from tests.corpus.case import kernel
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar

ROWS, COLUMNS = 64, 32

#: Arrivals that each way of arriving makes, for a count of 1.
ARRIVALS = {"one": 1, "warps": 4, "all": 128, "plgpu": 1}


#: The first of the named barriers of the rendezvous of warpgroups: the producer's, then those of consumers.
RENDEZVOUS = 9


@dataclasses.dataclass(frozen=True)
class Ring:
    """What a seed chooses."""

    seed: int
    steps: int
    slots: int
    consumers: int
    copies: int  # 0: threads store
    announced: str  # by "copies", "expect_bytes", or in "parts" that do not arrive
    full_arrives: str
    full_count: int
    full_waits: str  # "phase" or "plgpu"
    empty_arrives: tuple[str, ...]
    empty_counts: tuple[int, ...]
    empty_waits: str
    relaxed: bool
    unrolled: bool
    turned: bool

    @property
    def full_arrivals(self) -> int:
        if not self.copies:
            return ARRIVALS[self.full_arrives] * self.full_count
        return self.copies if self.announced == "copies" else 1

    @property
    def empty_arrivals(self) -> int:
        return sum(ARRIVALS[how] * n for how, n in zip(self.empty_arrives, self.empty_counts))


def draw(seed: int) -> Ring:
    rng = np.random.default_rng(seed)

    def one_of(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    def count(how: str) -> int:
        return 1 if how == "plgpu" else one_of(1, 1, 2, 5)

    consumers = one_of(1, 1, 2)
    copies = one_of(0, 1, 2, 4)
    full, empty = one_of(*ARRIVALS), tuple(one_of(*ARRIVALS) for _ in range(consumers))
    relaxed = not copies and "plgpu" not in (full, *empty) and bool(rng.integers(2))
    waits = ("phase",) if relaxed else ("phase", "phase", "plgpu")
    return Ring(
        seed=seed,
        steps=int(rng.integers(1, 10)),
        slots=int(rng.integers(1, 5)),
        consumers=consumers,
        copies=copies,
        announced=one_of("copies", "expect_bytes", "parts"),
        full_arrives=full,
        full_count=count(full),
        full_waits=one_of(*waits),
        empty_arrives=empty,
        empty_counts=tuple(count(how) for how in empty),
        empty_waits=one_of(*waits),
        relaxed=relaxed,
        unrolled=bool(rng.integers(2)),
        turned=bool(rng.integers(2)),
    )


def arrive(barrier: Any, how: str, count: int, relaxed: bool, rendezvous: int) -> None:
    if how == "plgpu":
        plgpu.barrier_arrive(barrier)
    elif relaxed:
        if how == "one":
            # A relaxed arrival releases what its thread has fenced: what the others did, too, if they have met before the fence.
            smalt.named_barrier_sync(rendezvous, 128)
        smalt.fence("release", "cta")
        smalt.mbarrier_arrive(barrier, count, threads=how, order="relaxed", scope="cta")
    else:
        smalt.mbarrier_arrive(barrier, count, threads=how)


def wait(barrier: Any, how: str, phase: Any, relaxed: bool) -> None:
    if how == "plgpu":
        plgpu.barrier_wait(barrier)
    elif relaxed:
        smalt.mbarrier_wait(barrier, phase, order="relaxed", scope="cta")
        smalt.fence("acquire", "cta")
    else:
        smalt.mbarrier_wait(barrier, phase)


def build(ring: Ring) -> Any:
    def over(steps: int, step: Any, carry: Any) -> Any:
        if not ring.unrolled:
            return jax.lax.fori_loop(0, steps, step, carry)
        for i in range(steps):
            carry = step(i, carry)
        return carry

    def body(x: Any, o: Any, tiles: Any, full: Any, empty: Any) -> None:
        wg = jax.lax.axis_index("wg")

        @pl.when(wg == ring.consumers)
        def produce() -> None:
            def step(i: Any, carry: Any) -> Any:
                slot, turn = i % ring.slots, i // ring.slots
                if ring.empty_waits == "phase":
                    wait(empty.at[slot], "phase", turn + 1, ring.relaxed)
                else:
                    pl.when(i >= ring.slots)(lambda: plgpu.barrier_wait(empty.at[slot]))
                if not ring.copies:
                    tiles[slot] = x[i]
                    arrive(full.at[slot], ring.full_arrives, ring.full_count, ring.relaxed, RENDEZVOUS)
                    return carry
                part = ROWS // ring.copies
                if ring.announced == "expect_bytes":
                    smalt.expect_bytes(full.at[slot], ROWS * COLUMNS * 4)
                for c in range(ring.copies):
                    rows = pl.ds(c * part, part)
                    if ring.announced == "parts":
                        smalt.expect_bytes(full.at[slot], part * COLUMNS * 4, arrive=c + 1 == ring.copies)
                    plgpu.copy_gmem_to_smem(x.at[i, rows], tiles.at[slot, rows], full.at[slot])
                return carry

            over(ring.steps, step, 0)

        for consumer in range(ring.consumers):

            @pl.when(wg == consumer)
            def consume(consumer: int = consumer) -> None:
                def step(i: Any, total: Any) -> Any:
                    slot, turn = i % ring.slots, i // ring.slots
                    wait(full.at[slot], ring.full_waits, turn, ring.relaxed)
                    tile = tiles[slot]
                    total = total * 3 + (tile[::-1] if ring.turned else tile) * (consumer + 1)
                    arrive(empty.at[slot], ring.empty_arrives[consumer], ring.empty_counts[consumer], ring.relaxed, RENDEZVOUS + 1 + consumer)
                    return total

                o[consumer] = over(ring.steps, step, jnp.zeros((ROWS, COLUMNS), jnp.int32))

    scratch = [
        plgpu.SMEM((ring.slots, ROWS, COLUMNS), jnp.int32),
        plgpu.Barrier(num_arrivals=ring.full_arrivals, num_barriers=ring.slots),
        plgpu.Barrier(num_arrivals=ring.empty_arrivals, num_barriers=ring.slots),
    ]
    out = jax.ShapeDtypeStruct((ring.consumers, ROWS, COLUMNS), jnp.int32)
    return kernel(body, out, *scratch, num_threads=ring.consumers + 1, thread_name="wg")


def check(ring: Ring) -> None:
    x = np.random.default_rng(ring.seed).integers(-100, 100, (ring.steps, ROWS, COLUMNS)).astype(np.int32)
    got = keep(jax.jit(build(ring))(x))
    for consumer in range(ring.consumers):
        total = np.zeros((ROWS, COLUMNS), np.int32)
        for tile in x:
            total = total * np.int32(3) + (tile[::-1] if ring.turned else tile) * np.int32(consumer + 1)
        np.testing.assert_array_equal(got[consumer], total, err_msg=str(ring))


COUNTED = Grammar("counted barriers", draw, check)
