"""Tiles that are stored late, in the emulator, under every schedule."""

import pytest

from smalt import _native
from tests.fuzz.seeds import seeds
from tests.programs.loops.tile_loops import TILE_LOOPS, Tiles

pytestmark = pytest.mark.xdist_group("tile_loops")

PROGRAMS = 80
BATCH = 10


@seeds(TILE_LOOPS, PROGRAMS, BATCH)
def test_tiles_equal_numpy(programs: list[Tiles]) -> None: ...


@pytest.mark.shared
def test_tiles_are_stored_late_where_there_are_several() -> None:
    for seed in range(PROGRAMS):
        program = Tiles.of(seed)
        stages = dict(_native.show(*program.lowered(), "sm_90a"))
        is_late = stages["defer_stores"] != stages["defer_epilogue"]
        assert is_late == (program.loaded or program.tiles > 1), program
