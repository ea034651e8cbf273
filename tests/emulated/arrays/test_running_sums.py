"""Sums over lanes that loops carry, in the emulator: exact in whatever order they are formed, and most of it behind the loop where it may be."""

import dataclasses
import re

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import smalt
from tests.corpus.case import kernel, like, load
from tests.fuzz.seeds import seeds
from tests.programs.loops.loops import compiled
from tests.programs.loops.running_sums import RUNNING_SUMS, STEPS, Sums, Update, shuffles_in_loops

pytestmark = pytest.mark.shared

PROGRAMS = 120
BATCH = 20


def ptx_of(program: Sums) -> str:
    return compiled(program).ptx


@seeds(RUNNING_SUMS, PROGRAMS, BATCH)
def test_sums_equal_numpy(programs: list[Sums]) -> None:
    left = sum(shuffles_in_loops(ptx_of(dataclasses.replace(p, fused=False))) > shuffles_in_loops(ptx_of(p)) for p in programs)
    assert left >= BATCH // 6, "hardly any sum leaves its loop"


ONE = Sums(0, 64, 1, True, STEPS, False, False, (Update("max"), Update("sum", factor="maximum")))
#: Of the maximum: two rows a thread, two lane bits.
MAXIMUM = 4


@pytest.mark.parametrize(
    ("updates", "leaves"),
    [
        ([Update("sum", factor="maximum")], True),
        ([Update("sum")], True),
        ([Update("sum", factor=0.5, start="one")], True),
        ([Update("sum", factor="loaded", start="loaded")], False),
        ([Update("count")], True),
        ([Update("sum", factor="maximum"), Update("seen", of=1)], False),
    ],
)
def test_which_sums_leave_their_loop(updates: list[Update], leaves: bool) -> None:
    """Not what is scaled by numbers that nothing says are equal in a row's lanes (each lane loads its own), nor what the loop reads."""
    program = dataclasses.replace(ONE, updates=(Update("max"), *updates))
    inside = shuffles_in_loops(ptx_of(program))
    assert inside == MAXIMUM + (2 if leaves else 4)
    whole = shuffles_in_loops(ptx_of(dataclasses.replace(program, fused=False)))
    # Integers may always be added in another order.
    assert whole == MAXIMUM + (2 if updates[0].kind == "count" else 4)


@pytest.mark.parametrize("between", range(1, 9))
def test_sums_of_loops_in_loops(between: int) -> None:
    """An outer sum leaves a body in which loops with sums of their own follow, so many instructions apart."""
    layout = plgpu.Layout.WGMMA.reduce(1)

    def body(n, x, *outs):
        def sums(i):
            return load(x.at[i], layout=plgpu.Layout.WGMMA, optimized=False).sum(axis=1, dtype=jnp.int32)

        def step(i, carry):
            s, t, u, v = carry
            s = s + sums(i)
            t = lax.fori_loop(0, n[0], lambda j, c: c + sums(j), t)
            q = i
            for k in range(between):
                q = (q ^ n[3 + k]) if k % 2 else jnp.maximum(q, n[3 + k])
            u, v = lax.fori_loop(0, n[1], lambda j, c: ((c[0] ^ q) + c[1], c[1] + sums(j)), (u, v))
            return s, t, u, v

        zero = plgpu.layout_cast(jnp.zeros((64,), jnp.int32), layout)
        for out, carry in zip(outs, lax.fori_loop(0, n[2], step, (zero, zero, sums(0), sums(1))), strict=True):
            out[...] = carry

    n = np.array([3, 2, 4, 1, 2, 1, 0, 1, 3, 2, 1], np.int32)
    x = np.random.default_rng(1).integers(-2, 3, (4, 64, 64)).astype(np.int32)
    with smalt.emulated("H100"):
        got = jax.jit(kernel(body, [like((64,), jnp.int32)] * 4))(n, x)
    rows = x.sum(axis=2, dtype=np.int32)
    s, t, u, v = np.zeros(64, np.int32), np.zeros(64, np.int32), rows[0], rows[1]
    for i in range(n[2]):
        s = s + rows[i]
        for j in range(n[0]):
            t = t + rows[j]
        q = i
        for k in range(between):
            q = (q ^ n[3 + k]) if k % 2 else max(q, n[3 + k])
        for j in range(n[1]):
            u, v = (u ^ np.int32(q)) + v, v + rows[j]
    for a, b in zip(got, (s, t, u, v), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_order_of_floats_is_the_users() -> None:
    """Without approx_math each iteration's sum is formed first."""
    exact = ptx_of(dataclasses.replace(ONE, fused=False))
    fast = ptx_of(ONE)
    count = lambda text: len(re.findall(r"shfl\.sync\.bfly", text))  # noqa: E731
    assert count(exact) == count(fast) == 2 * MAXIMUM
    assert shuffles_in_loops(exact) == 2 * MAXIMUM and shuffles_in_loops(fast) == MAXIMUM + 2


def test_shipped_attention_ends_its_sums_behind_the_loop() -> None:
    from benchmarks import shipped

    for case in shipped.kernels():
        if case.family in ("attention forward", "emitter") and "S4096" in case.name:
            with smalt.emulated("H200"):
                (report,) = smalt.inspect(case.fn, *jax.eval_shape(case.args))
            loops = 2 if "causal" in case.name else 1
            assert shuffles_in_loops(report.ptx) == (MAXIMUM + 2) * loops, case.name
