"""Tiles that are stored late, in the emulator, under every schedule."""

import numpy as np
import pytest

from smalt import _native
from tests.kernels.tile_loops import Tiles, lowered
from tests.programs.run import SCHEDULES

PROGRAMS = 80
BATCH = 10


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_tiles_equal_numpy(first: int) -> None:
    """The order in which the hardware gets to things changes nothing, and the checker of races finds nothing."""
    for seed in range(first, first + BATCH):
        program = Tiles.of(seed)
        artifact = _native.compile(*lowered(program), "sm_90a")
        wanted = program.reference()
        for schedule, number in SCHEDULES:
            got = [np.zeros(x.shape, x.dtype) for x in wanted]
            artifact.emulate([*program.inputs(), *got], schedule, number)
            for a, b in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{schedule} {number}: {program}")


def test_tiles_are_stored_late_where_there_are_several() -> None:
    for seed in range(PROGRAMS):
        program = Tiles.of(seed)
        stages = dict(_native.show(*lowered(program), "sm_90a"))
        is_late = stages["defer_stores"] != stages["defer_epilogue"]
        assert is_late == (program.loaded or program.tiles > 1), program
