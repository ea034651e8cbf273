"""Tiles that are stored late, in the emulator, under every schedule."""

import pytest

from smalt import _native
from tests.kernels.tile_loops import Tiles

pytestmark = pytest.mark.xdist_group("tile_loops")

PROGRAMS = 80
BATCH = 10


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
@pytest.mark.shared
def test_tiles_equal_numpy(first: int) -> None:
    for seed in range(first, first + BATCH):
        Tiles.of(seed).check_emulated()


@pytest.mark.shared
def test_tiles_are_stored_late_where_there_are_several() -> None:
    for seed in range(PROGRAMS):
        program = Tiles.of(seed)
        stages = dict(_native.show(*program.lowered(), "sm_90a"))
        is_late = stages["defer_stores"] != stages["defer_epilogue"]
        assert is_late == (program.loaded or program.tiles > 1), program
