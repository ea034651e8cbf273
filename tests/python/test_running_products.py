"""Products that may run together, in the emulator, under every schedule."""

import jax
import numpy as np
import pytest

import smalt
from smalt import _native
from tests.kernels.running_products import Running
from tests.programs.run import SCHEDULES

PROGRAMS = 60
BATCH = 10


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_products_in_flight_equal_numpy(first: int) -> None:
    """The order in which the hardware gets to things changes nothing, and the checker of races finds nothing."""
    for seed in range(first, first + BATCH):
        program = Running.of(seed)
        given = program.inputs()
        with smalt.emulated("H100"):
            [(_, descriptor, debug)] = smalt.descriptor(program.function(), *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in given))
        artifact = _native.compile(descriptor, debug, "sm_90a")
        wanted = program.reference()
        for schedule, number in SCHEDULES:
            got = [np.full(x.shape, np.nan, x.dtype) for x in wanted]
            artifact.emulate([*given, *got], schedule, number)
            for a, b in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}, {schedule} {number}: {program.statements}")
