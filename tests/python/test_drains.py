"""Producers that run into their next tile, and such that must not, in the emulator, under every schedule."""

import pytest

from smalt import _native
from tests.kernels.drains import Drained

PROGRAMS = 60
BATCH = 20


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_drains_equal_numpy(first: int) -> None:
    for seed in range(first, first + BATCH):
        Drained.of(seed).check_emulated()


def changes(program: Drained, by: str) -> bool:
    stages = dict(_native.show(*program.lowered(), "sm_90a"))
    return stages[by] != stages[list(stages)[list(stages).index(by) - 1]]


def test_producers_run_ahead_where_nothing_stands_against_it() -> None:
    ahead = 0
    for seed in range(2 * PROGRAMS):
        program = Drained.of(seed)
        changed = changes(program, "defer_drains")
        assert changed == program.runs_ahead, program
        ahead += changed
    assert PROGRAMS / 2 <= ahead <= 3 * PROGRAMS / 2, ahead


def test_tiles_are_stored_late_beside_steps_that_are_written_out() -> None:
    late = 0
    for seed in range(2 * PROGRAMS):
        program = Drained.of(seed)
        changed = changes(program, "defer_epilogue")
        assert changed == program.stores_late, program
        late += changed and program.worker == "rounds"
    assert late >= PROGRAMS / 12, late
