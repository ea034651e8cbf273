"""Random kernels whose loops carry sums, tiles or products in flight, are turned, or are fed through rings, on the GPU: equal to NumPy, and to the emulator where it is exact."""

from __future__ import annotations

import pytest

from tests.fuzz.grammar import Grammar
from tests.fuzz.seeds import right
from tests.programs.loops.drains import DRAINS
from tests.programs.loops.loops import Loops
from tests.programs.loops.parked import PARKED
from tests.programs.loops.rings import LATE_EPILOGUES, RINGS
from tests.programs.loops.running_products import RUNNING_PRODUCTS
from tests.programs.loops.running_sums import RUNNING_SUMS
from tests.programs.loops.staged import STAGED
from tests.programs.loops.tile_loops import TILE_LOOPS
from tests.programs.loops.turned_loops import TURNED_LOOPS

PROGRAMS = (
    (RUNNING_SUMS, 120), (TILE_LOOPS, 80), (RUNNING_PRODUCTS, 60), (TURNED_LOOPS, 120), (PARKED, 120), (STAGED, 60), (RINGS, 80), (LATE_EPILOGUES, 60), (DRAINS, 80),
)  # fmt: skip
BATCH = 20


@pytest.mark.parametrize(("grammar", "first"), [pytest.param(grammar, first, id=f"{grammar.name}-{first}") for grammar, n in PROGRAMS for first in range(0, n, BATCH)])
def test_random_loops(grammar: Grammar[Loops], first: int) -> None:
    right(grammar, range(first, first + BATCH))
