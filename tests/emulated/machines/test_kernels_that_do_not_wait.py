"""Kernels with copies by threads, and twins that do not wait for these, or not enough: those are reported, with both lines, whatever the schedule.

What is left out of a twin, or in a wrong place, is behind `broken`. A line with `# touches` is the one that a finding is at, one with `# copies` the
other that it names. `test_copies_unwaited.py` has the same of instructions.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import smalt
from tests.corpus.case import kernel

pytestmark = pytest.mark.skipif(not hasattr(plgpu, "wait_gmem_to_smem"), reason="JAX 0.11.1 has copies in groups")

BEFORE_HOPPER = ("A100", "L4")
SCHEDULES = ("latest", "earliest", "seeded")
BF16 = ml_dtypes.bfloat16
TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
IN_BOUNDS: Any = {"oob_mode": plgpu.OOBFillMode.PROMISE_IN_BOUNDS} if hasattr(plgpu, "OOBFillMode") else {}

copy = plgpu.copy_gmem_to_smem
wait: Any = getattr(plgpu, "wait_gmem_to_smem", None)

IN_FLIGHT = "that a copy by threads (cp.async) writes, and its warp has not waited for it"
NOT_WAITED = "that a copy by threads (cp.async) writes, without having waited for its barrier"
LOADS, STORES = "a load of shared memory " + IN_FLIGHT, "a store to shared memory " + IN_FLIGHT
OVERWRITES = "a copy by threads (cp.async) overwrites shared memory that"
READS = "a store to global memory that a copy by threads (cp.async) reads, and its warp has not waited for it"
UNORDERED = "and nothing orders the two"


@dataclasses.dataclass(frozen=True)
class Twins:
    body: Callable[..., Any]
    words: tuple[str, ...]
    reference: Callable[[Any], Any]
    scratch: tuple[Any, ...]
    dtype: Any
    threads: int
    devices: tuple[str, ...]

    touches: int
    copies: int

    def run(self, device: str, broken: bool) -> Any:
        x = np.random.default_rng(0).integers(-9, 9, (4, 64, 64)).astype(self.dtype)
        threads = {"num_threads": self.threads, "thread_name": "wg"} if self.threads > 1 else {}
        params = plgpu.CompilerParams(unsafe_no_auto_barriers=True)
        want = self.reference(x.astype(np.float32))
        out = jax.ShapeDtypeStruct(want.shape, jnp.float32)
        with smalt.emulated(device, check="error"):
            got = jax.jit(kernel(functools.partial(self.body, broken), out, *self.scratch, params=params, **threads))(x)
        return np.asarray(got), want


TWINS: dict[str, Twins] = {}


def f32(*shape: int) -> Any:
    return plgpu.SMEM(shape, jnp.float32)


def twins(
    *words: str,
    scratch: tuple[Any, ...] = (f32(2, 64, 64),),
    reference: Callable[[Any], Any] = lambda x: x,
    dtype: Any = np.float32,
    threads: int = 1,
    devices: tuple[str, ...] = (*BEFORE_HOPPER, "H100"),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(body: Callable[..., Any]) -> Callable[..., Any]:
        lines, begin = inspect.getsourcelines(body)
        marked = [next(i for i, text in enumerate(lines, begin) if text.rstrip().endswith(mark)) for mark in ("# touches", "# copies")]
        TWINS[body.__name__.replace("_", " ")] = Twins(body, words, reference, scratch, dtype, threads, devices, *marked)
        return body

    return add


#: Those whose copies arrive on a barrier: on a Hopper they are bulk loads.
on_barriers = functools.partial(twins, devices=BEFORE_HOPPER)


def meet() -> None:
    smalt.named_barrier_sync(8, 128)


def first(x: Any) -> Any:
    return x[:1]


def second(x: Any) -> Any:
    return x[1:2]


# ------------------------------------------------------------------------------------------ waits for groups


@twins(LOADS, reference=first)
def no_wait(broken: bool, x: Any, o: Any, s: Any) -> None:
    copy(x.at[0], s.at[0])  # copies
    if not broken:
        wait(0)
    o[0] = s[0]  # touches


@twins(LOADS, reference=first)
def a_wait_before_the_copy(broken: bool, x: Any, o: Any, s: Any) -> None:
    if broken:
        wait(0)
    copy(x.at[0], s.at[0])  # copies
    meet() if broken else wait(0)
    o[0] = s[0]  # touches


@twins(LOADS, reference=second)
def a_wait_that_leaves_the_last(broken: bool, x: Any, o: Any, s: Any) -> None:
    copy(x.at[0], s.at[0])
    copy(x.at[1], s.at[1])  # copies
    wait(1 if broken else 0)
    o[0] = s[1]  # touches


@twins(LOADS, reference=first, scratch=(f32(3, 64, 64),))
def a_wait_that_leaves_one_too_many(broken: bool, x: Any, o: Any, s: Any) -> None:
    copy(x.at[0], s.at[0])  # copies
    copy(x.at[1], s.at[1])
    copy(x.at[2], s.at[2])
    wait(3 if broken else 2)
    o[0] = s[0]  # touches
    wait(0)


@twins(LOADS, reference=first)
def copies_in_another_order(broken: bool, x: Any, o: Any, s: Any) -> None:
    first, last = (1, 0) if broken else (0, 1)
    copy(x.at[first], s.at[first])
    copy(x.at[last], s.at[last])  # copies
    wait(1)
    o[0] = s[0]  # touches
    wait(0)


@twins(LOADS, reference=first)
def a_wait_under_a_condition(broken: bool, x: Any, o: Any, s: Any) -> None:
    copy(x.at[0], s.at[0])  # copies
    pl.when(x[3, 0, 0] < (-99 if broken else 99))(lambda: wait(0))
    o[0] = s[0]  # touches


@twins(LOADS)
def a_ring_whose_last_copy_is_not_waited_for(broken: bool, x: Any, o: Any, s: Any) -> None:
    copy(x.at[0], s.at[0])

    def step(i: Any, _: Any) -> None:
        pl.when(i < 3)(lambda: copy(x.at[i + 1], s.at[(i + 1) % 2]))  # copies
        if broken:
            wait(1)
        else:
            pl.when(i < 3)(lambda: wait(1))
            pl.when(i == 3)(lambda: wait(0))
        o[i] = s[i % 2]  # touches
        meet()

    lax.fori_loop(0, 4, step, None)


@twins(LOADS, scratch=(f32(3, 64, 64),))
def a_ring_that_reads_the_wrong_stage(broken: bool, x: Any, o: Any, s: Any) -> None:
    copy(x.at[0], s.at[0])

    def step(i: Any, _: Any) -> None:
        copy(x.at[lax.min(i + 1, 3)], s.at[lax.rem(i + 1, 3)])  # copies
        wait(1)
        o[i] = s[lax.rem(i + (1 if broken else 0), 3)]  # touches
        meet()

    lax.fori_loop(0, 4, step, None)
    wait(0)


@twins(UNORDERED)
def a_ring_that_fills_what_other_warps_read(broken: bool, x: Any, o: Any, s: Any) -> None:
    for i in range(4):
        copy(x.at[i], s.at[0])  # touches
        wait(0)
        o[i] = s[0].T.T  # copies
        if not broken:
            meet()


@twins(OVERWRITES, IN_FLIGHT, reference=second)
def the_next_copy_to_the_same_place(broken: bool, x: Any, o: Any, s: Any) -> None:
    copy(x.at[0], s.at[0])  # copies
    if not broken:
        wait(0)
    copy(x.at[1], s.at[0])  # touches
    wait(0)
    o[0] = s[0]


@twins(STORES, reference=lambda x: 0 * x[:1] + 7)
def a_store_to_the_destination(broken: bool, x: Any, o: Any, s: Any) -> None:
    copy(x.at[0], s.at[0])  # copies
    if not broken:
        wait(0)
    s[0] = jnp.full((64, 64), 7.0)  # touches
    wait(0)
    o[0] = s[0]


@twins(READS, reference=lambda x: np.stack([0 * x[0] + 7, x[0]]))
def the_source_is_stored_to(broken: bool, x: Any, o: Any, s: Any) -> None:
    o[0] = x[0]
    meet()
    copy(o.at[0], s.at[0])  # copies
    if not broken:
        wait(0)
    o[0] = jnp.full((64, 64), 7.0)  # touches
    wait(0)
    o[1] = s[0]


@twins("shared memory that a copy by threads (cp.async) writes", reference=first)
def it_is_stored_as_it_comes(broken: bool, x: Any, o: Any, s: Any) -> None:
    copy(x.at[0], s.at[0])  # copies
    if not broken:
        wait(0)
    plgpu.commit_smem()
    meet()
    plgpu.copy_smem_to_gmem(s.at[0], o.at[0])  # touches
    plgpu.wait_smem_to_gmem(0)
    wait(0)


@twins(LOADS, reference=lambda x: np.stack([x[0], np.pad(x[0, 32:], ((0, 32), (0, 0)))]))
def zeros_behind_the_array(broken: bool, x: Any, o: Any, s: Any) -> None:
    def step(i: Any, _: Any) -> None:
        copy(x.at[0, pl.ds(32 * i, 64)], s.at[0])  # copies
        pl.when(i == (0 if broken else i))(lambda: wait(0))
        meet()
        o[i] = s[0]  # touches
        meet()

    lax.fori_loop(0, 2, step, None)
    wait(0)


def chunks(bytes: int) -> Any:
    def body(broken: bool, x: Any, o: Any, s: Any) -> None:
        def step(i: Any, _: Any) -> None:
            start = i * (i - 1) * (bytes // 4)  # 0: the compiler knows no more than its multiple
            copy(x.at[0, :, pl.ds(start, 32)], s, **IN_BOUNDS)  # copies
            meet() if broken else wait(0)
            o[i] = s[...]  # touches
            meet()

        lax.fori_loop(0, 2, step, None)
        wait(0)

    body.__name__ = f"{bytes} bytes at a time"
    return body


for _bytes in (4, 8):
    twins(LOADS, reference=lambda x: x[[0, 0], :, :32], scratch=(f32(64, 32),))(chunks(_bytes))


TILE = plgpu.SMEM((64, 64), jnp.bfloat16, transforms=TILED)


@twins(LOADS, reference=lambda x: x[:1] @ x[1], scratch=(TILE, TILE), dtype=BF16)
def operands_of_products(broken: bool, x: Any, o: Any, a: Any, b: Any) -> None:
    copy(x.at[0], a, **IN_BOUNDS)
    copy(x.at[1], b, **IN_BOUNDS)  # copies
    wait(1 if broken else 0)
    left = plgpu.load(a, layout=plgpu.Layout.MMA_LHS(jnp.bfloat16))
    right = plgpu.load(b, layout=plgpu.Layout.MMA_RHS(jnp.bfloat16))  # touches
    zero = plgpu.layout_cast(jnp.zeros((64, 64), jnp.float32), plgpu.Layout.MMA_ACC(jnp.bfloat16))
    o[0] = plgpu.mma(zero, left, right)


@twins(LOADS, reference=lambda x: 2 * x[:1])
def what_is_there_already_is_used_again(broken: bool, x: Any, o: Any, s: Any) -> None:
    """The second copy brings the same bytes."""
    copy(x.at[0], s.at[0])
    wait(0)
    before = s[0]
    meet()
    copy(x.at[0], s.at[0])  # copies
    meet() if broken else wait(0)
    o[0] = before + s[0]  # touches


# ------------------------------------------------------------------------------------------ two warpgroups

TWO = (f32(2, 64, 64), plgpu.Barrier())


@twins(LOADS, reference=first, scratch=TWO, threads=2)
def it_tells_the_other_warpgroup_and_does_not_wait(broken: bool, x: Any, o: Any, s: Any, ready: Any) -> None:
    @pl.when(lax.axis_index("wg") == 0)
    def copies() -> None:
        copy(x.at[0], s.at[0])  # copies
        if not broken:
            wait(0)
        plgpu.barrier_arrive(ready)

    @pl.when(lax.axis_index("wg") == 1)
    def uses() -> None:
        plgpu.barrier_wait(ready)
        o[0] = s[0]  # touches


@twins(LOADS, reference=first, scratch=TWO, threads=2)
def the_warpgroup_waits_that_has_no_copies(broken: bool, x: Any, o: Any, s: Any, ready: Any) -> None:
    @pl.when(lax.axis_index("wg") == 0)
    def copies() -> None:
        copy(x.at[0], s.at[0])  # copies
        wait(1 if broken else 0)
        plgpu.barrier_arrive(ready)

    @pl.when(lax.axis_index("wg") == 1)
    def uses() -> None:
        plgpu.barrier_wait(ready)
        wait(0)
        o[0] = s[0]  # touches


@twins("a load of shared memory that", "wait for", reference=first, scratch=TWO, threads=2)
def it_tells_the_other_warpgroup_and_waits_then(broken: bool, x: Any, o: Any, s: Any, ready: Any) -> None:
    @pl.when(lax.axis_index("wg") == 0)
    def copies() -> None:
        copy(x.at[0], s.at[0])  # copies
        if broken:
            plgpu.barrier_arrive(ready)
        wait(0)
        if not broken:
            plgpu.barrier_arrive(ready)

    @pl.when(lax.axis_index("wg") == 1)
    def uses() -> None:
        plgpu.barrier_wait(ready)
        o[0] = s[0]  # touches


@twins(OVERWRITES, IN_FLIGHT, reference=second, scratch=TWO, threads=2)
def both_warpgroups_copy_to_one_place(broken: bool, x: Any, o: Any, s: Any, ready: Any) -> None:
    @pl.when(lax.axis_index("wg") == 0)
    def copies() -> None:
        copy(x.at[0], s.at[0])  # copies
        if not broken:
            wait(0)
        plgpu.barrier_arrive(ready)

    @pl.when(lax.axis_index("wg") == 1)
    def copies_too() -> None:
        plgpu.barrier_wait(ready)
        copy(x.at[1], s.at[0])  # touches
        wait(0)
        o[0] = s[0]


# ------------------------------------------------------------------------------------------ copies that arrive on barriers

BARS = (f32(2, 64, 64), plgpu.Barrier(num_barriers=2))


@on_barriers("a load of shared memory " + NOT_WAITED, scratch=BARS, reference=first)
def no_wait_for_the_barrier(broken: bool, x: Any, o: Any, s: Any, bars: Any) -> None:
    copy(x.at[0], s.at[0], bars.at[0])  # copies
    meet() if broken else plgpu.barrier_wait(bars.at[0])
    o[0] = s[0]  # touches


@on_barriers("a load of shared memory " + NOT_WAITED, scratch=BARS, reference=second)
def a_wait_for_another_barrier(broken: bool, x: Any, o: Any, s: Any, bars: Any) -> None:
    copy(x.at[0], s.at[0], bars.at[0])
    copy(x.at[1], s.at[1], bars.at[1])  # copies
    plgpu.barrier_wait(bars.at[0 if broken else 1])
    o[0] = s[1]  # touches


@on_barriers("a load of shared memory " + NOT_WAITED, scratch=BARS, reference=second)
def a_wait_for_the_phase_before(broken: bool, x: Any, o: Any, s: Any, bars: Any) -> None:
    copy(x.at[0], s.at[0], bars.at[0])
    plgpu.barrier_wait(bars.at[0])
    meet()
    copy(x.at[1], s.at[0], bars.at[0])  # copies
    meet() if broken else plgpu.barrier_wait(bars.at[0])
    o[0] = s[0]  # touches


@on_barriers("a load of shared memory " + NOT_WAITED, scratch=BARS)
def a_ring_that_reads_the_next_slot(broken: bool, x: Any, o: Any, s: Any, bars: Any) -> None:
    copy(x.at[0], s.at[0], bars.at[0])
    for i in range(4):
        if i < 3:
            copy(x.at[i + 1], s.at[(i + 1) % 2], bars.at[(i + 1) % 2])  # copies
        plgpu.barrier_wait(bars.at[i % 2])
        o[i] = s[(i + 1 if broken else i) % 2]  # touches
        meet()


@on_barriers(OVERWRITES, NOT_WAITED, scratch=BARS, reference=second)
def a_slot_is_filled_before_it_has_been_waited_for(broken: bool, x: Any, o: Any, s: Any, bars: Any) -> None:
    copy(x.at[0], s.at[0], bars.at[0])  # copies
    if not broken:
        plgpu.barrier_wait(bars.at[0])
    meet()
    copy(x.at[1], s.at[0], bars.at[1])  # touches
    plgpu.barrier_wait(bars.at[1])
    o[0] = s[0]


@on_barriers("a store to shared memory " + NOT_WAITED, scratch=BARS, reference=lambda x: 0 * x[:1] + 7)
def a_store_before_the_wait_for_the_barrier(broken: bool, x: Any, o: Any, s: Any, bars: Any) -> None:
    copy(x.at[0], s.at[0], bars.at[0])  # copies
    if not broken:
        plgpu.barrier_wait(bars.at[0])
    s[0] = jnp.full((64, 64), 7.0)  # touches
    plgpu.barrier_wait(bars.at[0]) if broken else meet()
    o[0] = s[0]


@on_barriers("global memory that a copy by threads (cp.async) reads", scratch=BARS, reference=lambda x: np.stack([0 * x[0] + 7, x[0]]))
def the_source_is_stored_to_before_the_wait_for_the_barrier(broken: bool, x: Any, o: Any, s: Any, bars: Any) -> None:
    o[0] = x[0]
    meet()
    copy(o.at[0], s.at[0], bars.at[0])  # copies
    if not broken:
        plgpu.barrier_wait(bars.at[0])
    o[0] = jnp.full((64, 64), 7.0)  # touches
    plgpu.barrier_wait(bars.at[0]) if broken else None
    o[1] = s[0]


@on_barriers("a load of shared memory " + NOT_WAITED, scratch=BARS, threads=2, reference=first)
def the_other_warpgroup_does_not_wait_for_the_barrier(broken: bool, x: Any, o: Any, s: Any, bars: Any) -> None:
    """A barrier of both warpgroups behind the copy is none behind its end."""

    @pl.when(lax.axis_index("wg") == 0)
    def copies() -> None:
        copy(x.at[0], s.at[0], bars.at[0])  # copies
        if not broken:
            plgpu.barrier_wait(bars.at[0])

    smalt.named_barrier_sync(9, 256)
    pl.when(lax.axis_index("wg") == 1)(lambda: o.at[0].set(s[0]))  # touches


# ------------------------------------------------------------------------------------------ what is asked of each


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("device, name", [(device, name) for name, it in TWINS.items() for device in it.devices])
def test_the_broken_twin_is_reported(device: str, name: str, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALT_SCHEDULE", schedule)
    it = TWINS[name]
    with pytest.raises(smalt.Error) as error:
        it.run(device, broken=True)
    text = str(error.value)
    assert all(words in text for words in it.words), text
    at, other = (int(re.findall(rf"{words}{__file__}:(\d+)", text)[0]) for words in ("\n  at ", r"\(at op\d+, "))
    # Which of two that nothing orders comes first is the schedule's.
    assert (at, other) == (it.touches, it.copies) or UNORDERED in text and (other, at) == (it.touches, it.copies), text


@pytest.mark.parametrize("device, name", [(device, name) for name, it in TWINS.items() for device in it.devices])
def test_the_right_twin_is_right(device: str, name: str) -> None:
    got, want = TWINS[name].run(device, broken=False)
    np.testing.assert_array_equal(got, want)
