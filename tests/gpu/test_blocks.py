"""Random and named `pl.pallas_call`s on the GPU, against JAX's interpreter; `SMALT_TEST_BLOCKS` says how many (500)."""

from __future__ import annotations

import os

import pytest

import smalt
from tests.blocks import spelled
from tests.blocks.bounded import Bounded
from tests.blocks.long import Long
from tests.blocks.named import CALLS
from tests.blocks.run import check_named, run

COUNT = int(os.environ.get("SMALT_TEST_BLOCKS", "500"))


@pytest.fixture(autouse=True)
def enabled():
    with smalt.enabled(True, pallas_call=True):
        yield


@pytest.mark.parametrize("name", CALLS)
def test_named(name: str) -> None:
    check_named(name)


@pytest.mark.parametrize("first", range(0, COUNT, 50))
def test_random(first: int) -> None:
    for seed in range(first, min(first + 50, COUNT)):
        result = run(seed)
        assert result.kind == "right", f"{seed}: {result.kind}: {result.text}"


@pytest.mark.parametrize("first", range(0, COUNT // 5, 10))
@pytest.mark.parametrize("kind", spelled.KINDS)
def test_spelled_as_for_a_tpu_or_triton(kind: str, first: int) -> None:
    for seed in range(first, min(first + 10, COUNT // 5)):
        spelled.Program(seed, kind).check()


@pytest.mark.parametrize("first", range(0, COUNT // 2, 50))
def test_bounded_slices(first: int) -> None:
    for seed in range(first, min(first + 50, COUNT // 2)):
        Bounded(seed).check()


@pytest.mark.parametrize("first", range(0, COUNT // 2, 50))
def test_long_rows(first: int) -> None:
    for seed in range(first, min(first + 50, COUNT // 2)):
        Long(seed).check()
