"""Random programs over arrays on the GPU, against JAX; `SMALT_TEST_ARRAYS` says how many (300).

In processes of their own and with a time limit each: one that hangs costs itself only.
"""

from __future__ import annotations

import os

import pytest

from tests.fuzz.grammar import Grammar
from tests.fuzz.seeds import named, right_in_processes
from tests.programs.arrays.run import ARRAYS, ARRAYS_OF_WARPS

COUNT = int(os.environ.get("SMALT_TEST_ARRAYS", "300"))
JOBS = min(12, os.cpu_count() or 1)

test_regression = named(ARRAYS)


@pytest.mark.parametrize("grammar", [pytest.param(ARRAYS, id="None"), pytest.param(ARRAYS_OF_WARPS, id="by_warps")])
def test_random_programs(grammar: Grammar) -> None:
    right_in_processes(grammar, range(COUNT), JOBS, may_refuse=True, limit=60)
