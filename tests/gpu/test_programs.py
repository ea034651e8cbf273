"""Random programs over memory, and programs by name, on the GPU: bit for bit as the interpreter has them.

In processes of their own and with a time limit: a program that hangs costs itself only.
"""

from __future__ import annotations

import pytest

from tests.fuzz.grammar import Grammar
from tests.fuzz.seeds import right_in_processes
from tests.programs.memory.generate import PROGRAMS_ON_GPU
from tests.programs.memory.regressions import REGRESSIONS
from tests.programs.memory.run import MEMORY, MEMORY_OF_WARPS

BATCH = 50


def run(grammar: Grammar, which: range | list[str]) -> None:
    right_in_processes(grammar, which, jobs=1)


@pytest.mark.parametrize("first", range(0, PROGRAMS_ON_GPU, BATCH))
def test_random_programs(first: int) -> None:
    run(MEMORY, range(first, first + BATCH))


@pytest.mark.parametrize("first", range(0, 200, BATCH))
def test_programs_of_warps_with_arrays(first: int) -> None:
    run(MEMORY_OF_WARPS, range(first, first + BATCH))


@pytest.mark.parametrize("first", range(0, len(REGRESSIONS), BATCH))
def test_regressions(first: int) -> None:
    run(MEMORY, list(REGRESSIONS)[first : first + BATCH])
