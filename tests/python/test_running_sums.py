"""Sums over lanes that loops carry, in the emulator: exact in whatever order they are formed, and most of it behind the loop where it may be."""

import dataclasses
import re

import numpy as np
import pytest

import smalt
from smalt import _native
from tests.kernels.running_sums import STEPS, Sums, Update, lowered, shuffles_in_loops

PROGRAMS = 120
BATCH = 20


def ptx_of(program: Sums) -> str:
    return _native.compile(*lowered(program), "sm_90a").ptx


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_sums_equal_numpy(first: int) -> None:
    left = 0
    for seed in range(first, first + BATCH):
        program = Sums.of(seed)
        artifact = _native.compile(*lowered(program), "sm_90a")
        wanted = program.reference()
        got = [np.zeros(x.shape, x.dtype) for x in wanted]
        artifact.emulate([*program.inputs(), *got])
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=str(program))
        exact = dataclasses.replace(program, fused=False)
        left += shuffles_in_loops(ptx_of(exact)) > shuffles_in_loops(artifact.ptx)
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


def test_the_order_of_floats_is_the_users() -> None:
    """Without approx_math each iteration's sum is formed first."""
    exact = ptx_of(dataclasses.replace(ONE, fused=False))
    fast = ptx_of(ONE)
    count = lambda text: len(re.findall(r"shfl\.sync\.bfly", text))  # noqa: E731
    assert count(exact) == count(fast) == 2 * MAXIMUM
    assert shuffles_in_loops(exact) == 2 * MAXIMUM and shuffles_in_loops(fast) == MAXIMUM + 2


def test_shipped_attention_ends_its_sums_behind_the_loop() -> None:
    import jax

    from benchmarks import shipped

    for kernel in shipped.kernels():
        if kernel.family in ("attention forward", "emitter") and "S4096" in kernel.name:
            with smalt.emulated("H200"):
                (report,) = smalt.inspect(kernel.fn, *jax.eval_shape(kernel.args))
            loops = 2 if "causal" in kernel.name else 1
            assert shuffles_in_loops(report.ptx) == (MAXIMUM + 2) * loops, kernel.name
