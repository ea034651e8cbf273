"""Random and named `pl.pallas_call`s on the GPU, against JAX's interpreter; `SMALT_TEST_BLOCKS` says how many (500)."""

from __future__ import annotations

import os
from typing import Any

from tests.fuzz.seeds import named, seeds
from tests.programs.blocks.bounded import BOUNDED
from tests.programs.blocks.long import LONG_ROWS
from tests.programs.blocks.run import PALLAS_CALLS
from tests.programs.blocks.spelled import SPELLED

COUNT = int(os.environ.get("SMALT_TEST_BLOCKS", "500"))

test_named = named(PALLAS_CALLS)


@seeds(PALLAS_CALLS, COUNT, 50)
def test_random(programs: list[Any]) -> None: ...


@seeds(SPELLED, COUNT // 5, 10)
def test_spelled_as_for_a_tpu_or_triton(programs: list[Any]) -> None: ...


@seeds(BOUNDED, COUNT // 2, 50)
def test_bounded_slices(programs: list[Any]) -> None: ...


@seeds(LONG_ROWS, COUNT // 2, 50)
def test_long_rows(programs: list[Any]) -> None: ...
