"""Products whose left operand is converted for them, in the emulator, under every schedule."""

import functools

import jax
import numpy as np
import pytest

import smalt
from smalt import _native
from tests.kernels.staged import Staged
from tests.programs.run import SCHEDULES

PROGRAMS = 60
BATCH = 10


@functools.cache
def compiled(seed: int) -> _native.Artifact:
    program = Staged.of(seed)
    with smalt.emulated("H100"):
        [(_, descriptor, debug)] = smalt.descriptor(program.function(), *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.inputs()))
    return _native.compile(descriptor, debug, "sm_90a")


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_products_of_converted_operands_equal_numpy(first: int) -> None:
    for seed in range(first, first + BATCH):
        program = Staged.of(seed)
        given, wanted = program.inputs(), program.reference()
        for schedule, number in SCHEDULES:
            got = [np.full(x.shape, np.nan, x.dtype) for x in wanted]
            compiled(seed).emulate([*given, *got], schedule, number)
            for a, b in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{program}, {schedule} {number}")


def test_products_begin_with_a_half_where_nothing_stands_against_it() -> None:
    halves = 0
    for seed in range(PROGRAMS):
        program = Staged.of(seed)
        if any(note["pass"] == "park_accumulators" for note in compiled(seed).report()["notes"]["passes"]):
            continue  # In more pieces.
        fences = compiled(seed).ptx.count("wgmma.fence")
        whole = program.products
        assert fences == (2 if program.halves else whole), f"{program}: {fences} fences"
        halves += program.halves
    assert PROGRAMS / 5 <= halves <= PROGRAMS * 4 / 5, halves
