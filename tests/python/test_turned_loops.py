"""Loops that begin and end with products, in the emulator, under every schedule."""

import functools
import re

import jax
import numpy as np
import pytest

import smalt
from smalt import _native
from tests.kernels.turned_loops import Turned
from tests.programs.run import SCHEDULES

PROGRAMS = 60
BATCH = 10

#: An arrival at an address that is the smaller of two numbers, the other made of elements.
TIED = re.compile(r"or\.b32 (%r\d+), [^;]*;\s+min\.u32 (%r\d+), %r\d+, \1;(?:[^;]*;){0,6}?[^;]*mbarrier\.arrive[^;]*\[\2[+\]]")


@functools.cache
def compiled(seed: int) -> _native.Artifact:
    program = Turned.of(seed)
    with smalt.emulated("H100"):
        [(_, descriptor, debug)] = smalt.descriptor(program.function(), *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.inputs()))
    return _native.compile(descriptor, debug, "sm_90a")


def is_turned(seed: int) -> bool:
    """Whether the loop's products are there twice: in a turned loop, and around it."""
    once = 4 * Turned.of(seed).products_of_a_step
    count = compiled(seed).ptx.count("wgmma.mma_async")
    assert count in (once, 2 * once), f"seed {seed}: {count} instructions for {once}"
    return count == 2 * once


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_turned_loops_equal_numpy(first: int) -> None:
    """The order in which the hardware gets to things changes nothing, and the checker of races finds nothing."""
    for seed in range(first, first + BATCH):
        program = Turned.of(seed)
        given, wanted = program.inputs(), program.reference()
        for schedule, number in SCHEDULES:
            got = [np.full(x.shape, np.nan, x.dtype) for x in wanted]
            compiled(seed).emulate([*given, *got], schedule, number)
            for a, b in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{program}, {schedule} {number}")


def test_both_kinds_are_among_them() -> None:
    """Loops that are turned and loops that stay, arrivals that are tied to arithmetic and arrivals that are not."""
    turned = [is_turned(seed) for seed in range(PROGRAMS)]
    tied = [TIED.search(compiled(seed).ptx) is not None for seed in range(PROGRAMS)]
    assert PROGRAMS / 4 <= sum(turned) <= PROGRAMS * 3 / 4, sum(turned)
    assert PROGRAMS / 5 <= sum(tied) <= PROGRAMS * 4 / 5, sum(tied)
