"""Random programs over arrays, and those by name, in the emulator; and that the comparison is worth something."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests import ROOT
from tests.fuzz.seeds import VERSION, named, right, seeds
from tests.programs.arrays.generate import generate
from tests.programs.arrays.program import Program
from tests.programs.arrays.run import ARRAYS, ARRAYS_OF_WARPGROUPS, ARRAYS_OF_WARPS, arrays, compare, reference


#: Each JAX version has others.
COUNT = 40
FIRST = 10_000 * (1 + VERSION)

test_regression = named(ARRAYS)


@seeds(ARRAYS, COUNT, 20, first=FIRST, shared=False, may_refuse=True)
def test_random_programs(programs: list[Program]) -> None: ...


def test_programs_that_hand_on_results() -> None:
    """By 2 and 3 warpgroups, through shared memory and barriers."""
    made = right(ARRAYS_OF_WARPGROUPS, range(FIRST + 1000, FIRST + 1016), may_refuse=True)
    assert len(made) >= 4 and {p.form.warpgroups for p in made} == {2, 3}


def test_programs_of_warps() -> None:
    """By each warp of warp regions, of one warpgroup and of several."""
    made = right(ARRAYS_OF_WARPS, range(FIRST + 2000, FIRST + 2040), may_refuse=True)
    assert len(made) >= 12 and any(p.form.warpgroups > 1 for p in made)


def test_programs_are_what_their_seed_says() -> None:
    """In any process."""
    code = "from tests.programs.arrays.generate import generate\nfor s in range(8): print(repr(generate(s)))"
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == [repr(generate(seed)) for seed in range(8)]


@pytest.mark.parametrize("seed", [0, 1, 3, 4])
def test_a_wrong_element_shows(seed: int) -> None:
    """In every output, wherever it is."""
    p = generate(seed)
    wanted = reference(p, arrays(p))
    rng = np.random.default_rng(seed)
    assert compare(p, wanted, wanted) == ""
    for i, x in enumerate(wanted):
        for _ in range(5):
            wrong = x.copy().reshape(-1)
            at = int(rng.integers(0, x.size))
            value = wrong[at]
            if x.dtype == np.bool_:
                wrong[at] = not value
            else:
                wrong[at] = value + value.dtype.type(1) if np.isfinite(np.float64(value)) else 0
            got = [*wanted[:i], wrong.reshape(x.shape), *wanted[i + 1 :]]
            assert f"{p.outputs[i].name} " in compare(p, got, wanted)
