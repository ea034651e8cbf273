"""Products whose left operand is converted for them, in the emulator, under every schedule."""

import pytest

from tests.fuzz.seeds import seeds
from tests.programs.loops.loops import compiled
from tests.programs.loops.staged import STAGED, Staged

pytestmark = pytest.mark.xdist_group("staged")

PROGRAMS = 60
BATCH = 10


@seeds(STAGED, PROGRAMS, BATCH)
def test_products_of_converted_operands_equal_numpy(programs: list[Staged]) -> None: ...


@pytest.mark.shared
def test_products_begin_with_a_half_where_nothing_stands_against_it() -> None:
    halves = 0
    for seed in range(PROGRAMS):
        program = Staged.of(seed)
        if any(note["pass"] == "park_accumulators" for note in compiled(program).report()["notes"]["passes"]):
            continue  # In more pieces.
        fences = compiled(program).ptx.count("wgmma.fence")
        whole = program.products
        assert fences == (2 if program.halves else whole), f"{program}: {fences} fences"
        halves += program.halves
    assert PROGRAMS / 5 <= halves <= PROGRAMS * 4 / 5, halves
