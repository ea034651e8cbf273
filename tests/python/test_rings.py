"""Rings of operands whose loads limit or do not, in the emulator, under every schedule."""

import re

import pytest

from tests.kernels.loops import compiled
from tests.kernels.rings import ARRIVALS, Ring

PROGRAMS = 80
BATCH = 20


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_rings_equal_numpy(first: int) -> None:
    for seed in range(first, first + BATCH):
        Ring.of(seed).check_emulated()


def test_there_are_fewer_arrivals_where_loads_limit() -> None:
    limited, shared = 0, 0
    for seed in range(PROGRAMS):
        program = Ring.of(seed)
        artifact = compiled(program)
        said = {note["what"] for note in artifact.report()["notes"]["passes"] if note["pass"] == "arrivals"}
        assert ("one arrival for a warpgroup" in said) == program.loads_limit, program
        one = "one arrival for all loads of a step" in said
        assert one == (program.loads_limit and program.one_announces), program
        announced = len(re.findall(r"expect_tx", artifact.ptx))
        # One of them is in either arm of a branch.
        either = program.loads == "branch" and program.most_steps > 1
        assert announced == (1 if one else 2 if program.loads == "apart" else ARRIVALS[program.loads] + either), program
        limited, shared = limited + program.loads_limit, shared + one
    assert PROGRAMS / 2 <= limited <= PROGRAMS * 9 / 10, limited
    assert PROGRAMS / 4 <= shared <= limited * 3 / 4, shared
