"""Rings of operands whose loads limit or do not, and tiles that are stored late, in the emulator, under every schedule."""

import re

import pytest

from tests.fuzz.seeds import seeds
from tests.programs.loops.loops import changed_by, compiled
from tests.programs.loops.rings import ARRIVALS, LATE_EPILOGUES, RINGS, Late, Ring

pytestmark = pytest.mark.xdist_group("rings")

PROGRAMS = 60
BATCH = 20


@seeds({"Ring": RINGS, "Late": LATE_EPILOGUES}, PROGRAMS, BATCH)
def test_rings_equal_numpy(programs: list[Ring]) -> None: ...


@pytest.mark.shared
def test_there_are_fewer_arrivals_where_loads_limit() -> None:
    limited, shared = 0, 0
    for seed in range(PROGRAMS):
        program = Ring.of(seed)
        artifact = compiled(program)
        said = {note["what"] for note in artifact.report()["notes"]["passes"] if note["pass"] == "arrivals"}
        assert ("one arrival for a warpgroup" in said) == program.loads_limit, program
        one = "one arrival for all loads of a step" in said
        assert one == (program.loads_limit and program.one_announces), program
        limited, shared = limited + program.loads_limit, shared + one
        if program.adds == "tile":
            continue  # More announce something.
        announced = len(re.findall(r"expect_tx", artifact.ptx))
        # One of them is in either arm of a branch.
        either = program.loads == "branch" and program.most_steps > 1
        assert announced == (1 if one else 2 if program.loads == "apart" else ARRIVALS[program.loads] + either), program
    assert PROGRAMS / 3 <= limited <= PROGRAMS * 9 / 10, limited
    assert PROGRAMS / 6 <= shared <= limited * 3 / 4, shared


@pytest.mark.shared
def test_tiles_are_stored_late_where_nothing_stands_against_it() -> None:
    late = 0
    for seed in range(PROGRAMS):
        program = Late.of(seed)
        changed = "defer_epilogue" in changed_by(program)
        assert changed == program.is_late, program
        late += changed
    assert PROGRAMS / 4 <= late <= PROGRAMS * 3 / 4, late
