"""Kernels in Pallas, and what their authors may forget.

Each kernel is a function of `flaw`: None for the right one, else the name of the mistake.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

import smalt
from tests.corpus.case import f16, f32, kernel, like
from tests.suites.asynchrony.subject import Subject, broken, subject

SMEM, Barrier, ClusterBarrier, ACC = plgpu.SMEM, plgpu.Barrier, plgpu.ClusterBarrier, plgpu.ACC

RACE = "a load of shared memory that another warp wrote, and nothing orders the two"
# The same race where the load comes first.
RACE_OF_STORE = "a store to shared memory that another warp read (itself, or by what it issued), and nothing orders the two"
STORE_TO_OPERAND = "a store to shared memory that a wgmma of warpgroup 0 reads, which is not known to be complete"
IN_FLIGHT = "shared memory that a bulk load in flight writes"
STILL_READ = "a bulk load overwrites shared memory that is still read"
MISSING_WAIT = "a `barrier_wait` is missing: what a bulk load (at "
UNORDERED = "the async proxy reads shared memory that the generic proxy writes, and nothing orders the two"
UNFENCED = "the async proxy reads shared memory that the generic proxy wrote"

#: The author answers for every barrier and fence.
MANUAL = smalt.CompilerParams(fp_contract=False, unsafe_no_auto_barriers=True)


def tiled(dtype: Any) -> tuple[Any, ...]:
    return (plgpu.TilingTransform((8, 128 // jnp.dtype(dtype).itemsize)), plgpu.SwizzleTransform(128))


def flawed(fn: Any, of: Subject, flaw: str, *, shows: tuple[str, ...] | None, line: str = "") -> None:
    broken(f"{of.name}: {flaw}", of, functools.partial(fn, flaw=flaw), shows=shows, line=line)


# ------------------------------------------------------------------------------------------ copies into shared memory


def copy_in(x, flaw=None):
    def body(x, o, buf, bar):
        if flaw == "waits before the copy":
            plgpu.barrier_wait(bar)
        plgpu.copy_gmem_to_smem(x, buf, bar)
        if flaw in (None, "loads once more"):
            plgpu.barrier_wait(bar)
        elif flaw == "reads, then waits":
            o[...] = buf[...] + 1
            plgpu.barrier_wait(bar)
            return
        o[...] = buf[...] + 1
        if flaw == "loads once more":
            plgpu.copy_gmem_to_smem(x, buf, bar)

    return kernel(body, like((64, 64)), SMEM((64, 64), jnp.float32), Barrier())(x)


COPY_IN = subject(f32(64, 64), reference=lambda x: x + 1)(copy_in)
flawed(copy_in, COPY_IN, "no barrier_wait", shows=(MISSING_WAIT, "wait for the load first"), line="o[...] = buf[...] + 1")
flawed(copy_in, COPY_IN, "reads, then waits", shows=(MISSING_WAIT,), line="o[...] = buf[...] + 1")
flawed(
    copy_in,
    COPY_IN,
    "loads once more",
    shows=("ends while a bulk load into its shared memory is in flight",),
    line="plgpu.copy_gmem_to_smem(x, buf, bar)",
)
flawed(copy_in, COPY_IN, "waits before the copy", shows=("deadlock", "1 of 1 arrivals to come"), line="plgpu.barrier_wait(bar)")


def copy_ring(x, flaw=None, polls=False):
    """Two slots, filled ahead."""
    steps, slots = 6, 2

    def body(x, o, buf, bars):
        def fetch(i, slot):
            plgpu.copy_gmem_to_smem(x.at[i], buf.at[slot], bars.at[slot])

        for slot in range(slots):
            fetch(slot, slot)

        @pl.loop(0, steps)
        def _(i):
            slot = lax.rem(i, slots)
            if flaw == "asks once, and does not listen":
                plgpu.barrier_test(bars.at[slot])
            elif polls:
                lax.while_loop(lambda done: ~done, lambda _: plgpu.barrier_test(bars.at[slot]), False)
            else:
                plgpu.barrier_wait(bars.at[0 if flaw == "always waits for slot 0" else slot])
            if flaw == "refills before it reads":

                @pl.when(i + slots < steps)
                def _():
                    fetch(i + slots, slot)

            o[i] = buf[slot] * 2
            if flaw != "refills before it reads":

                @pl.when(i + slots < steps)
                def _():
                    fetch(i + slots, slot)

    return kernel(body, like((steps, 128)), SMEM((slots, 128), jnp.float32), Barrier(num_barriers=slots))(x)


COPY_RING = subject(f32(6, 128), reference=lambda x: x * 2)(copy_ring)
flawed(copy_ring, COPY_RING, "always waits for slot 0", shows=(IN_FLIGHT,), line="o[i] = buf[slot] * 2")
flawed(copy_ring, COPY_RING, "refills before it reads", shows=(STILL_READ,), line="plgpu.copy_gmem_to_smem(x.at[i], buf.at[slot], bars.at[slot])")


def polled_ring(x, flaw=None):
    """Asks whether the slot is there, and counts, instead of waiting."""
    return copy_ring(x, flaw, polls=True)


if hasattr(plgpu, "wait_gmem_to_smem"):  # Before JAX 0.11, `barrier_test` is for warp regions.
    POLLED_RING = subject(f32(6, 128), reference=lambda x: x * 2)(polled_ring)
    flawed(polled_ring, POLLED_RING, "asks once, and does not listen", shows=(IN_FLIGHT,), line="o[i] = buf[slot] * 2")


def specialised_ring(x, flaw=None):
    """A warpgroup that copies, one that computes."""
    steps, slots = 8, 2

    def body(x, o, buf, loaded, free):
        wg = lax.axis_index("wg")

        @pl.when(wg == 0)
        def _():
            @pl.loop(0, steps)
            def _(i):
                slot = lax.rem(i, slots)
                if flaw != "the producer does not wait for a free slot":

                    @pl.when(i >= slots)
                    def _():
                        plgpu.barrier_wait(free.at[slot])

                plgpu.copy_gmem_to_smem(x.at[i], buf.at[slot], loaded.at[slot])

        @pl.when(wg == 1)
        def _():
            @pl.loop(0, steps)
            def _(i):
                slot = lax.rem(i, slots)
                plgpu.barrier_wait(loaded.at[slot])
                if flaw == "the consumer releases before it reads":
                    plgpu.barrier_arrive(free.at[slot])
                o[i] = buf[slot] - 3
                if flaw in (None, "the producer does not wait for a free slot"):
                    plgpu.barrier_arrive(free.at[slot])
                if flaw == "the consumer releases one slot only":
                    plgpu.barrier_arrive(free.at[0])

    scratch = (SMEM((slots, 128), jnp.float32), Barrier(num_barriers=slots), Barrier(num_barriers=slots))
    return kernel(body, like((steps, 128)), *scratch, num_threads=2, thread_name="wg")(x)


SPECIALISED_RING = subject(f32(8, 128), reference=lambda x: x - 3)(specialised_ring)
flawed(
    specialised_ring,
    SPECIALISED_RING,
    "the producer does not wait for a free slot",
    shows=("mbarrier at shared offset", "no more arrivals in this phase"),
    line="plgpu.copy_gmem_to_smem(x.at[i], buf.at[slot], loaded.at[slot])",
)
flawed(
    specialised_ring,
    SPECIALISED_RING,
    "the consumer releases before it reads",
    shows=(STILL_READ,),
    line="plgpu.copy_gmem_to_smem(x.at[i], buf.at[slot], loaded.at[slot])",
)
flawed(
    specialised_ring,
    SPECIALISED_RING,
    "the consumer does not release",
    shows=("deadlock", "phase 0 (parity 0), 1 of 1 arrivals to come"),
    line="plgpu.barrier_wait(free.at[slot])",
)
flawed(
    specialised_ring,
    SPECIALISED_RING,
    "the consumer releases one slot only",
    shows=("a phase of the mbarrier at shared offset 1040", "if that warp is late, it waits for ever"),
    line="plgpu.barrier_arrive(free.at[0])",
)


# ------------------------------------------------------------------------------------------ between warpgroups


def exchange(x, flaw=None):
    arrivals = {"too few arrivals": 1, "too many arrivals": 3}.get(flaw, 2)

    def body(x, o, buf, bar):
        wg = lax.axis_index("wg")
        buf[wg] = x[wg]
        if flaw == "one warpgroup does not arrive":

            @pl.when(wg == 0)
            def _():
                plgpu.barrier_arrive(bar)
        else:
            plgpu.barrier_arrive(bar)
        if flaw != "no barrier_wait":
            plgpu.barrier_wait(bar)
        o[wg] = buf[1 - wg]

    scratch = (SMEM((2, 128), jnp.float32), Barrier(num_arrivals=arrivals))
    return kernel(body, like((2, 128)), *scratch, num_threads=2, thread_name="wg")(x)


EXCHANGE = subject(f32(2, 128), reference=lambda x: x[::-1])(exchange)
flawed(exchange, EXCHANGE, "no barrier_wait", shows=(RACE_OF_STORE, "a barrier between the load by warp"), line="buf[wg] = x[wg]")
flawed(exchange, EXCHANGE, "too few arrivals", shows=(RACE_OF_STORE, "a barrier between the load by warp"), line="buf[wg] = x[wg]")
flawed(exchange, EXCHANGE, "too many arrivals", shows=("deadlock", "1 of 3 arrivals to come"), line="plgpu.barrier_wait(bar)")
flawed(exchange, EXCHANGE, "one warpgroup does not arrive", shows=("deadlock", "1 of 2 arrivals to come"), line="plgpu.barrier_wait(bar)")


def produce_and_consume(x, flaw=None):
    """A ring that one warpgroup writes itself."""

    def body(x, o, queue, produced, consumed):
        wg = lax.axis_index("wg")

        @pl.when(wg == 0)
        def _():
            @pl.loop(0, 8)
            def _(i):
                slot = lax.rem(i, 2)
                if flaw != "the producer does not wait":

                    @pl.when(i >= 2)
                    def _():
                        plgpu.barrier_wait(consumed.at[slot])

                queue[slot] = x[i] * 2
                plgpu.barrier_arrive(produced.at[slot])

        @pl.when(wg == 1)
        def _():
            @pl.loop(0, 8)
            def _(i):
                slot = lax.rem(i, 2)
                if flaw != "the consumer does not wait":
                    plgpu.barrier_wait(produced.at[slot])
                o[i] = queue[slot] + 1
                plgpu.barrier_arrive(consumed.at[slot])

    scratch = (SMEM((2, 128), jnp.float32), Barrier(num_barriers=2), Barrier(num_barriers=2))
    return kernel(body, like((8, 128)), *scratch, num_threads=2, thread_name="wg")(x)


PRODUCE = subject(f32(8, 128), reference=lambda x: x * 2 + 1)(produce_and_consume)
flawed(produce_and_consume, PRODUCE, "the producer does not wait", shows=("deadlock", "phase 4 (parity 0)"), line="plgpu.barrier_wait(produced.at[slot])")
flawed(produce_and_consume, PRODUCE, "the consumer does not wait", shows=(RACE_OF_STORE,), line="queue[slot] = x[i] * 2")


def warps_produce(x, flaw=None):
    """Warps by themselves write a row each and say so; a warpgroup reads the rows, and frees them one by one."""

    def body(x, o, rows, produced, consumed):
        wg = lax.axis_index("wg")

        @pl.when(wg == 0)
        def _():
            @pl.core_map(plgpu.WarpMesh(axis_name="warp"))
            def _():
                w = lax.axis_index("warp")

                @pl.loop(0, 3)
                def _(i):
                    @pl.when(i > 0)
                    def _():
                        plgpu.barrier_wait(consumed.at[w])

                    rows[w] = x[i, w] * 2
                    if flaw == "a warp does not arrive":

                        @pl.when(w != 2)
                        def _():
                            plgpu.barrier_arrive(produced.at[w])
                    else:
                        plgpu.barrier_arrive(produced.at[w])

        @pl.when(wg == 1)
        def _():
            @pl.loop(0, 3)
            def _(i):
                for w in range(4):
                    if flaw != "the consumer does not wait":
                        plgpu.barrier_wait(produced.at[w])
                    o[i, w] = rows[w] + 1
                    plgpu.barrier_arrive(consumed.at[w])

    scratch = (SMEM((4, 128), jnp.float32), Barrier(num_barriers=4), Barrier(num_barriers=4))
    return kernel(body, like((3, 4, 128)), *scratch, num_threads=2, thread_name="wg")(x)


WARPS = subject(f32(3, 4, 128), reference=lambda x: x * 2 + 1)(warps_produce)
flawed(warps_produce, WARPS, "a warp does not arrive", shows=("deadlock", "number 2 of 4 barriers"))
flawed(warps_produce, WARPS, "the consumer does not wait", shows=(RACE_OF_STORE,), line="rows[w] = x[i, w] * 2")


# ------------------------------------------------------------------------------------------ copies out


def copy_out(x, flaw=None):
    """Every barrier and fence is the author's; one buffer for all steps."""

    def body(x, o, buf):
        @pl.loop(0, 4)
        def _(i):
            buf[...] = x[i] * 2
            if flaw != "no commit_smem":
                plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buf, o.at[i])
            if flaw == "waits for one copy too few":
                plgpu.wait_smem_to_gmem(1, wait_read_only=True)
            elif flaw != "no wait":
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)

        if flaw == "no wait":
            plgpu.wait_smem_to_gmem(0)

    return kernel(body, like((4, 128)), SMEM((128,), jnp.float32), params=MANUAL)(x)


COPY_OUT = subject(f32(4, 128), reference=lambda x: x * 2)(copy_out)
flawed(copy_out, COPY_OUT, "no commit_smem", shows=("the async proxy reads shared memory that the generic proxy",), line="plgpu.copy_smem_to_gmem")
flawed(copy_out, COPY_OUT, "no wait", shows=(UNORDERED, "wait_smem_to_gmem"), line="plgpu.copy_smem_to_gmem(buf, o.at[i])")
flawed(copy_out, COPY_OUT, "waits for one copy too few", shows=(UNORDERED,), line="plgpu.copy_smem_to_gmem(buf, o.at[i])")


def copy_out_once(x, flaw=None):
    def body(x, o, buf):
        if flaw == "commits before it writes":
            plgpu.commit_smem()
        buf[...] = x[...] * 2
        if flaw != "commits before it writes":
            plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buf, o)
        plgpu.wait_smem_to_gmem(0)

    return kernel(body, like((64, 64)), SMEM((64, 64), jnp.float32), params=MANUAL)(x)


COPY_OUT_ONCE = subject(f32(64, 64), reference=lambda x: x * 2)(copy_out_once)
flawed(
    copy_out_once,
    COPY_OUT_ONCE,
    "commits before it writes",
    shows=("the async proxy reads shared memory that the generic proxy",),
    line="plgpu.copy_smem_to_gmem(buf, o)",
)


def copies_out_unwaited(x):
    """Nobody waits for what is stored last: by the warpgroup, in a group that nobody ends, in an arm that the run chooses, by a warp."""

    def body(x, o, buf):
        for i in range(4):
            buf[i] = x[i] * 2
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buf.at[0], o.at[0])

        @pl.when(x[0, 0] == x[0, 0])
        def _():
            plgpu.copy_smem_to_gmem(buf.at[1], o.at[1])

        @pl.core_map(plgpu.WarpMesh(axis_name="warp"))
        def _():
            @pl.when(lax.axis_index("warp") == 3)
            def _():
                plgpu.copy_smem_to_gmem(buf.at[2], o.at[2])

        plgpu.copy_smem_to_gmem(buf.at[3], o.at[3], commit_group=False)

    return kernel(body, like((4, 128)), SMEM((4, 128), jnp.float32), params=MANUAL)(x)


COPIES_OUT_UNWAITED = subject(f32(4, 128), reference=lambda x: x * 2)(copies_out_unwaited)


def copy_in_over_writes(x, flaw=None):
    """Ordinary stores, then a bulk load to the same place."""

    def body(x, o, buf, bar):
        twice = x[0] * 2
        buf[...] = twice
        o[0] = twice
        if flaw != "no commit_smem before the copy":
            plgpu.commit_smem()
        plgpu.copy_gmem_to_smem(x.at[1], buf, bar)
        plgpu.barrier_wait(bar)
        o[1] = buf[...]

    return kernel(body, like((2, 128)), SMEM((128,), jnp.float32), Barrier(), params=MANUAL)(x)


COPY_OVER = subject(f32(2, 128), reference=lambda x: np.stack([x[0] * 2, x[1]]))(copy_in_over_writes)
flawed(
    copy_in_over_writes,
    COPY_OVER,
    "no commit_smem before the copy",
    shows=("a bulk load overwrites shared memory that the generic proxy wrote",),
    line="plgpu.copy_gmem_to_smem(x.at[1], buf, bar)",
)


# ------------------------------------------------------------------------------------------ tensor cores


def mul(a, b):
    return np.asarray(a, np.float32) @ np.asarray(b, np.float32)


def wgmma_of_stores(a, b, flaw=None):
    """A is written to shared memory by the warpgroup itself."""

    def body(a, b, o, a_buf, b_buf, bar):
        plgpu.copy_gmem_to_smem(b, b_buf, bar)
        a_buf[...] = a[...] * jnp.float16(2)
        if flaw != "no commit_smem":
            plgpu.commit_smem()
        if flaw != "no barrier_wait":
            plgpu.barrier_wait(bar)

        def compute(acc):
            plgpu.wgmma(acc, a_buf, b_buf)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))
        if flaw == "no barrier_wait":
            plgpu.barrier_wait(bar)

    buf = SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16))
    return kernel(body, like((64, 64)), buf, buf, Barrier(), params=MANUAL)(a, b)


WGMMA_OF_STORES = subject(f16(64, 64), f16(64, 64), reference=lambda a, b: mul(a, b) * 2, tolerance=1e-3)(wgmma_of_stores)
flawed(
    wgmma_of_stores,
    WGMMA_OF_STORES,
    "no commit_smem",
    shows=("the async proxy reads shared memory that the generic proxy",),
    line="plgpu.wgmma(acc, a_buf, b_buf)",
)
flawed(
    wgmma_of_stores,
    WGMMA_OF_STORES,
    "no barrier_wait",
    shows=("the async proxy reads " + IN_FLIGHT,),
    line="plgpu.wgmma(acc, a_buf, b_buf)",
)


def wgmma_of_words(a, b, flaw=None):
    """Both operands are written by the warpgroup; the flaw: one word of a row once more, behind the fence."""

    def body(a, b, o, a_buf, b_buf):
        a_buf[...] = a[...]
        b_buf[...] = b[...]
        plgpu.commit_smem()
        if flaw is not None:
            operand, column = flaw.split()
            (a_buf if operand == "a" else b_buf)[17, pl.ds(int(column), 2)] = jnp.ones(2, jnp.float16)

        def compute(acc):
            plgpu.wgmma(acc, a_buf, b_buf)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))

    buf = SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16))
    return kernel(body, like((64, 64)), buf, buf, params=MANUAL)(a, b)


WGMMA_OF_WORDS = subject(f16(64, 64), f16(64, 64), reference=mul, tolerance=1e-3)(wgmma_of_words)
# Each word of 16 bytes, which is what tensor cores read at a time. Of A each warp reads its own rows, B is read by all.
for _column in (24, 26, 28, 30):
    flawed(wgmma_of_words, WGMMA_OF_WORDS, f"a {_column}", shows=(UNORDERED,), line="plgpu.wgmma(acc, a_buf, b_buf)")
    flawed(wgmma_of_words, WGMMA_OF_WORDS, f"b {_column}", shows=(STORE_TO_OPERAND,), line="(a_buf if operand")


def one_warp_refills(a, b, flaw=None):
    """A pipeline without barriers of the warpgroup: the warp that copies has waited for the wgmma, and so have the others, which have their
    part of it."""
    delay = 0 if flaw == "a step too early" else 1

    def body(a, b, o):
        def compute(acc):
            def step(_, a_buf, b_buf):
                plgpu.wgmma(acc, a_buf, b_buf)
                plgpu.wgmma_wait(1)

            columns = plgpu.BlockSpec((64, 64), lambda k: (0, k), transforms=tiled(jnp.float16), delay_release=delay)
            rows = plgpu.BlockSpec((64, 64), lambda k: (k, 0), transforms=tiled(jnp.float16), delay_release=delay)
            plgpu.emit_pipeline(step, grid=(6,), max_concurrent_steps=2, in_specs=[columns, rows])(a, b)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))

    return kernel(body, like((64, 64)), params=MANUAL)(a, b)


ONE_WARP_REFILLS = subject(f16(64, 384), f16(384, 64), reference=mul, tolerance=1e-3)(one_warp_refills)
flawed(one_warp_refills, ONE_WARP_REFILLS, "a step too early", shows=("a wait for a wgmma",), line="copy_gmem_to_smem(")


def wgmma_refill(a, b, flaw=None):
    """One buffer for every step of the product."""
    steps = 3

    def body(a, b, o, a_buf, b_buf, bars):
        def fetch(i):
            ks = pl.ds(i * 64, 64)
            plgpu.copy_gmem_to_smem(a.at[:, ks], a_buf, bars.at[0])
            plgpu.copy_gmem_to_smem(b.at[ks], b_buf, bars.at[1])

        fetch(0)

        def compute(acc):
            @pl.loop(0, steps)
            def _(i):
                plgpu.barrier_wait(bars.at[0])
                plgpu.barrier_wait(bars.at[1])
                plgpu.wgmma(acc, a_buf, b_buf)
                if flaw == "refills before wgmma_wait":

                    @pl.when(i + 1 < steps)
                    def _():
                        fetch(i + 1)

                plgpu.wgmma_wait(0)
                if flaw != "refills before wgmma_wait":

                    @pl.when(i + 1 < steps)
                    def _():
                        fetch(i + 1)

            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))

    buf = SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16))
    return kernel(body, like((64, 64)), buf, buf, Barrier(num_barriers=2))(a, b)


WGMMA_REFILL = subject(f16(64, 192), f16(192, 64), reference=mul, tolerance=2e-3)(wgmma_refill)
flawed(
    wgmma_refill,
    WGMMA_REFILL,
    "refills before wgmma_wait",
    shows=("a bulk load overwrites shared memory that is still read", "remedy: wait for it (`wgmma_wait(0)`) before the next copy is issued"),
    line="plgpu.copy_gmem_to_smem(a.at[:, ks], a_buf, bars.at[0])",
)


def matmul(a, b, flaw=None):
    """A producer and two consumers, a ring, a swizzled store."""
    m, n, k = 128, b.shape[1], 384
    tile_k, slots = 64, 2
    steps = k // tile_k

    def body(a, b, o, a_buf, b_buf, o_buf, loaded, free):
        wg = lax.axis_index("wg")

        @pl.when(wg == 2)
        def _():
            plgpu.set_max_registers(40, action="decrease")

            @pl.loop(0, steps)
            def _(i):
                slot = lax.rem(i, slots)

                @pl.when(i >= slots)
                def _():
                    plgpu.barrier_wait(free.at[slot])

                ks = pl.ds(i * tile_k, tile_k)
                plgpu.copy_gmem_to_smem(a.at[:, ks], a_buf.at[slot], loaded.at[slot])
                plgpu.copy_gmem_to_smem(b.at[ks], b_buf.at[slot], loaded.at[slot])

        @pl.when(wg < 2)
        def _():
            plgpu.set_max_registers(232, action="increase")
            half = pl.ds(wg * 64, 64)

            def compute(acc):
                @pl.loop(0, steps)
                def _(i):
                    slot = lax.rem(i, slots)
                    if flaw != "the consumers do not wait":
                        plgpu.barrier_wait(loaded.at[slot])
                    plgpu.wgmma(acc, a_buf.at[slot, half], b_buf.at[slot])
                    if flaw == "releases before wgmma_wait":
                        plgpu.barrier_arrive(free.at[slot])
                    plgpu.wgmma_wait(0)
                    if flaw != "releases before wgmma_wait":
                        plgpu.barrier_arrive(free.at[slot])

                return acc[...]

            acc = pl.run_scoped(compute, ACC((64, n), jnp.float32))
            o_buf[half] = acc.astype(jnp.float16)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(o_buf.at[half], o.at[half])
            plgpu.wait_smem_to_gmem(0)

    scratch = (
        SMEM((slots, m, tile_k), jnp.float16, transforms=tiled(jnp.float16)),
        SMEM((slots, tile_k, n), jnp.float16, transforms=tiled(jnp.float16)),
        SMEM((m, n), jnp.float16, transforms=tiled(jnp.float16)),
        Barrier(num_arrivals=1 if flaw == "loads count as one" else 2, num_barriers=slots),
        Barrier(num_arrivals=1 if flaw == "one consumer frees the slot" else 2, num_barriers=slots),
    )
    return kernel(body, like((m, n), jnp.float16), *scratch, num_threads=3, thread_name="wg")(a, b)


def wide_matmul(a, b, flaw=None):
    """The same where tensor cores limit: each warp frees a slot, and each load has its arrival (`plan/arrivals.rs`)."""
    return matmul(a, b, flaw)


def _matmul(n: int) -> Any:
    return subject(f16(128, 384), f16(384, n), reference=lambda a, b: mul(a, b).astype(np.float16), tolerance=5e-3)


MATMUL, WIDE_MATMUL = _matmul(64)(matmul), _matmul(128)(wide_matmul)
for _fn, _of in ((matmul, MATMUL), (wide_matmul, WIDE_MATMUL)):
    flawed(_fn, _of, "releases before wgmma_wait", shows=(STILL_READ,), line="plgpu.copy_gmem_to_smem(")
    flawed(_fn, _of, "the consumers do not wait", shows=(MISSING_WAIT, "wait for the load first"), line="plgpu.wgmma(acc, a_buf")
    flawed(_fn, _of, "one consumer frees the slot", shows=("deadlock",), line="plgpu.barrier_wait(loaded.at[slot])")
    flawed(_fn, _of, "loads count as one", shows=("no more arrivals in this phase",), line="plgpu.copy_gmem_to_smem(b.at[ks]")


# ------------------------------------------------------------------------------------------ clusters


def cluster_exchange(x, flaw=None):
    """Each CTA reads its peer's shared memory."""

    def body(x, o, buf, bar):
        i = lax.axis_index("c")
        buf[...] = x[i]
        if flaw != "no barrier before the read":
            plgpu.barrier_arrive(bar)
            plgpu.barrier_wait(bar)
        o[i] = plgpu.cluster_ref(buf, {"c": 1 - i})[...]
        if flaw != "no barrier at the end":
            plgpu.barrier_arrive(bar)
            plgpu.barrier_wait(bar)

    scratch = (SMEM((128,), jnp.float32), ClusterBarrier(collective_axes=("c",)))
    return kernel(body, like((2, 128)), *scratch, cluster=(2,), cluster_names=("c",))(x)


CLUSTER_EXCHANGE = subject(f32(2, 128), reference=lambda x: x[::-1])(cluster_exchange)
flawed(cluster_exchange, CLUSTER_EXCHANGE, "no barrier before the read", shows=(RACE_OF_STORE, "of the cluster's CTA 1"), line="buf[...] = x[i]")
flawed(cluster_exchange, CLUSTER_EXCHANGE, "no barrier at the end", shows=("shared memory of a CTA that has ended",), line="cluster_ref")


def cluster_gmem_exchange(x):
    """Each CTA reads what its peer stored to device memory, in rounds: its L1 cache holds what was there before."""

    def body(x, o, board, bar):
        i = lax.axis_index("c")
        for number in range(3):
            board[i] = x[i] * (number + 1)
            plgpu.barrier_arrive(bar)
            plgpu.barrier_wait(bar)
            o[i, number] = board[1 - i]
            plgpu.barrier_arrive(bar)
            plgpu.barrier_wait(bar)

    outs = (like((2, 3, 128)), like((2, 128)))
    return kernel(body, outs, ClusterBarrier(collective_axes=("c",)), cluster=(2,), cluster_names=("c",))(x)


subject(f32(2, 128), reference=lambda x: (x[::-1, None] * np.float32([1, 2, 3])[:, None], x * np.float32(3)))(cluster_gmem_exchange)


def multicast_ring(x, flaw=None):
    """Both CTAs get every slice; a slot is refilled when both have read it."""
    steps, slots = 4, 2

    def body(x, o, buf, bars, consumed):
        c = lax.axis_index("c")

        def fetch(i, slot):
            plgpu.copy_gmem_to_smem(x.at[i], buf.at[slot], bars.at[slot], collective_axes="c")

        for slot in range(slots):
            fetch(slot, slot)

        for i in range(steps):
            slot = i % slots
            plgpu.barrier_wait(bars.at[slot])
            o[c, i] = buf[slot] + 1
            if i + slots < steps:
                if flaw != "does not ask the peer":
                    plgpu.barrier_arrive(consumed)
                    plgpu.barrier_wait(consumed)
                fetch(i + slots, slot)

    scratch = (
        SMEM((slots, 64, 64), jnp.float32),
        Barrier(num_barriers=slots),
        ClusterBarrier(collective_axes=("c",)),
    )
    return kernel(body, like((2, steps, 64, 64)), *scratch, cluster=(2,), cluster_names=("c",))(x)


MULTICAST_RING = subject(f32(4, 64, 64), reference=lambda x: np.stack([x + 1, x + 1]))(multicast_ring)
flawed(
    multicast_ring,
    MULTICAST_RING,
    "does not ask the peer",
    shows=("a bulk load overwrites shared memory that a bulk load wrote, without having waited for it", "plgpu.ClusterBarrier"),
    line="plgpu.copy_gmem_to_smem(x.at[i], buf.at[slot], bars.at[slot], collective_axes=\"c\")",
)


# ------------------------------------------------------------------------------------------ semaphores


def semaphore_chain(flaw=None):
    """Block i adds to what block i + 1 left."""
    blocks = 4

    def body(o):
        sem = pl.get_global(plgpu.SemaphoreType.REGULAR)
        i = lax.axis_index("i")
        turn = blocks - 1 - i
        if flaw != "no semaphore_wait":

            @pl.when(turn > 0)
            def _():
                pl.semaphore_wait(sem, turn, decrement=False)

        @pl.when(turn == 0)
        def _():
            o[i] = jnp.int32(1)

        @pl.when(turn > 0)
        def _():
            o[i] = o[i + 1] * 3 + 1

        if flaw == "one block does not signal":

            @pl.when(turn != 1)
            def _():
                pl.semaphore_signal(sem, 1)
        else:
            pl.semaphore_signal(sem, 1)

    return kernel(body, like((blocks,), jnp.int32), grid=(blocks,), grid_names=("i",))()


SEMAPHORE_CHAIN = subject(reference=lambda: np.array([40, 13, 4, 1], np.int32))(semaphore_chain)
flawed(
    semaphore_chain,
    SEMAPHORE_CHAIN,
    "no semaphore_wait",
    shows=("a store to global memory that warp 0 of CTA (0, 0, 0) read, and nothing orders the two", "a signal after that load"),
    line="o[i] = o[i + 1]",
)
flawed(semaphore_chain, SEMAPHORE_CHAIN, "one block does not signal", shows=("deadlock", "to be at least"), line="pl.semaphore_wait")


# ------------------------------------------------------------------------------------------ lanes that touch the same memory

READ = "memory that another warp read (itself, or by what it issued), and nothing orders the two"
OVERWRITES = "memory that another warp wrote, and nothing orders the two"


def shifted(x, flaw=None):
    """What one warp stores, another loads: the compiler's barriers, or none."""

    def body(x, o, buf, narrow):
        device = o.at[1]
        device[...] = x[...]
        o[0, 0:64] = device[64:128]
        buf[...] = x[...]
        buf[32:96] = x[0:64]
        narrow[...] = x[...].astype(jnp.int8)
        o[0, 64:128] = (buf[32:96] + narrow[64:128].astype(jnp.float32)) * 2

    def on_the_device(x, o, buf, narrow):
        o[1] = x[...]
        o[0, 0:64] = o[1, 64:128]

    def twice(x, o, buf, narrow):
        buf[...] = x[...]
        buf[32:96] = x[0:64]

    def twice_on_the_device(x, o, buf, narrow):
        o[1] = x[...]
        o[1, 32:96] = x[0:64]

    def in_bytes(x, o, buf, narrow):
        narrow[...] = x[...].astype(jnp.int8)
        o[0, 0:64] = narrow[64:128].astype(jnp.float32)

    def before_a_copy(x, o, buf, narrow):
        buf[...] = x[...]
        plgpu.commit_smem()
        o[1] = -x[...]
        plgpu.copy_smem_to_gmem(buf, o.at[1])
        plgpu.wait_smem_to_gmem(0)

    bodies = {body.__name__: body for body in (on_the_device, twice, twice_on_the_device, in_bytes, before_a_copy)}
    scratch = (SMEM((128,), jnp.float32), SMEM((128,), jnp.int8))
    params = {} if flaw is None else {"params": MANUAL}
    return kernel(bodies[flaw] if flaw else body, like((2, 128)), *scratch, **params)(x)


SHIFTED = subject(
    f32(128), reference=lambda x: np.stack([np.concatenate([x[64:], 2 * (x[:64] + x.astype(np.int8)[64:].astype(np.float32))]), x])
)(shifted)
flawed(shifted, SHIFTED, "on_the_device", shows=("a store to global", READ, "a barrier between the load by warp"), line="o[1] = x[...]")
flawed(shifted, SHIFTED, "twice", shows=("a store to shared", OVERWRITES), line="buf[...] = x[...]")
flawed(shifted, SHIFTED, "twice_on_the_device", shows=("a store to global", OVERWRITES), line="o[1] = x[...]")
flawed(shifted, SHIFTED, "in_bytes", shows=("a store to shared", READ), line="narrow[...] = x[...].astype(jnp.int8)")
flawed(shifted, SHIFTED, "before_a_copy", shows=("a bulk store to global", OVERWRITES), line="plgpu.copy_smem_to_gmem(buf, o.at[1])")


# ------------------------------------------------------------------------------------------ who writes one place


def written_in_turn(x, flaw=None):
    """Two warpgroups store to one buffer, and to one row of the output, one after the other."""

    def body(x, o, buf, narrow, done):
        first = lax.axis_index("wg") == 0

        @pl.when(first)
        def _():
            buf[...] = x[...]
            narrow[...] = x[...].astype(jnp.int8)
            o[0] = x[...]
            plgpu.barrier_arrive(done)

        @pl.when(~first)
        def _():
            if flaw is None:
                plgpu.barrier_wait(done)
            if flaw != "one row":
                if flaw != "bytes":
                    buf[...] = x[...] + 1
                narrow[...] = (x[...] + 2).astype(jnp.int8)
            o[0] = x[...] * 2
            if flaw is not None:
                plgpu.barrier_wait(done)
            o[1] = buf[...] + narrow[...].astype(jnp.float32)

    params = {} if flaw is None else {"params": MANUAL}
    scratch = (SMEM((128,), jnp.float32), SMEM((128,), jnp.int8), Barrier())
    return kernel(body, like((2, 128)), *scratch, num_threads=2, thread_name="wg", **params)(x)


WRITTEN_IN_TURN = subject(
    f32(128), reference=lambda x: np.stack([x * 2, x + 1 + (x + np.float32(2)).astype(np.int8).astype(np.float32)])
)(written_in_turn)
flawed(written_in_turn, WRITTEN_IN_TURN, "one buffer", shows=("a store to shared", OVERWRITES, "the store by warp"), line="buf[...] = x[...]")
flawed(written_in_turn, WRITTEN_IN_TURN, "bytes", shows=("a store to shared", OVERWRITES), line="narrow[...] = x[...].astype")
flawed(written_in_turn, WRITTEN_IN_TURN, "one row", shows=("a store to global", OVERWRITES), line="o[0] = x[...]")


@subject(f32(128), reference=lambda x: np.stack([x, x + 1]))
def written_alike(x):
    """Warpgroups and blocks that store the same values to one place race with nobody."""

    def body(x, o, buf):
        buf[...] = x[...] + 1
        o[0] = x[...]
        o[1] = x[...] + 1

    return kernel(body, like((2, 128)), SMEM((128,), jnp.float32), grid=(3,), grid_names=("block",), num_threads=2, thread_name="wg")(x)


def copied_in_turn(x, flaw=None):
    """Two warpgroups' bulk stores to one row."""

    def body(x, o, buf, done):
        wg = lax.axis_index("wg")
        buf[wg] = x[...] + wg.astype(jnp.float32)
        plgpu.commit_smem()

        @pl.when(wg == 0)
        def _():
            plgpu.copy_smem_to_gmem(buf.at[0], o)
            plgpu.wait_smem_to_gmem(0)
            plgpu.barrier_arrive(done)

        @pl.when(wg == 1)
        def _():
            if flaw is None:
                plgpu.barrier_wait(done)
            plgpu.copy_smem_to_gmem(buf.at[1], o)
            plgpu.wait_smem_to_gmem(0)

    return kernel(body, like((128,)), SMEM((2, 128), jnp.float32), Barrier(), num_threads=2, thread_name="wg")(x)


COPIED_IN_TURN = subject(f32(128), reference=lambda x: x + 1)(copied_in_turn)
flawed(copied_in_turn, COPIED_IN_TURN, "no order", shows=("a bulk store to global", OVERWRITES), line="plgpu.copy_smem_to_gmem(buf.at[")


def rows_of_blocks(x, flaw=None):
    """Each block has its row."""

    def body(x, o, buf):
        block = lax.axis_index("block")
        row = 0 if flaw in ("one row", "one row, copied") else block
        if flaw == "one row, copied":
            buf[...] = x[block]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buf, o.at[row])
            plgpu.wait_smem_to_gmem(0)
        else:
            o[row] = x[block]
        if flaw == "a neighbour's row":
            o[row] = o[lax.max(block - 1, 0)] + 1

    return kernel(body, like((3, 128)), SMEM((128,), jnp.float32), grid=(3,), grid_names=("block",))(x)


ROWS_OF_BLOCKS = subject(f32(3, 128), reference=lambda x: x)(rows_of_blocks)
ANOTHER_BLOCK = "global memory that CTA (0, 0, 0) wrote"
flawed(rows_of_blocks, ROWS_OF_BLOCKS, "one row", shows=("a store of another value to " + ANOTHER_BLOCK,), line="o[row] = x[block]")
flawed(rows_of_blocks, ROWS_OF_BLOCKS, "one row, copied", shows=("a bulk store of another value to " + ANOTHER_BLOCK,), line="plgpu.copy_smem_to_gmem(buf, o.at[row])")
flawed(rows_of_blocks, ROWS_OF_BLOCKS, "a neighbour's row", shows=("a load of " + ANOTHER_BLOCK,), line="o[row] = o[lax.max(block - 1, 0)] + 1")


def rows_of_a_cluster(x, flaw=None):
    """Each block of a cluster has its row."""

    def body(x, o):
        block = lax.axis_index("block")
        o[0 if flaw else block] = x[block]

    return kernel(body, like((2, 128)), cluster=(2,), cluster_names=("block",))(x)


ROWS_OF_A_CLUSTER = subject(f32(2, 128), reference=lambda x: x)(rows_of_a_cluster)
flawed(rows_of_a_cluster, ROWS_OF_A_CLUSTER, "one row", shows=("a store to global", OVERWRITES, "of the cluster's CTA 0"), line="x[block]")


def pairs_of_lanes(x, flaw=None):
    """Lanes that store to one place: the same value, or not."""

    def body(x, o):
        half = jnp.arange(128, dtype=jnp.int32) // 2
        o[half] = x[...] if flaw else x[half]
        o[half + 64] = x[half + 64]

    return kernel(body, like((128,)))(x)


PAIRS_OF_LANES = subject(f32(128), reference=lambda x: x)(pairs_of_lanes)
flawed(pairs_of_lanes, PAIRS_OF_LANES, "other values", shows=("two lanes of one store have different values for one place in global memory",), line="o[half] =")
