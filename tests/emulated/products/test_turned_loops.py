"""Loops that begin and end with products, in the emulator, under every schedule."""

import re

import pytest

from tests.fuzz.seeds import seeds
from tests.programs.loops.loops import compiled
from tests.programs.loops.turned_loops import TURNED_LOOPS, Turned

pytestmark = pytest.mark.xdist_group("turned")

PROGRAMS = 60
BATCH = 10

#: An arrival at an address that is the smaller of two numbers, the other made of elements.
TIED = re.compile(r"or\.b32 (%r\d+), [^;]*;\s+min\.u32 (%r\d+), %r\d+, \1;(?:[^;]*;){0,6}?[^;]*mbarrier\.arrive[^;]*\[\2[+\]]")


def is_turned(seed: int) -> bool:
    """Whether the loop's products are there twice: in a turned loop, and around it."""
    once = 4 * Turned.of(seed).products_of_a_step
    count = compiled(Turned.of(seed)).ptx.count("wgmma.mma_async")
    assert count in (once, 2 * once), f"seed {seed}: {count} instructions for {once}"
    return count == 2 * once


@seeds(TURNED_LOOPS, PROGRAMS, BATCH)
def test_turned_loops_equal_numpy(programs: list[Turned]) -> None: ...


@pytest.mark.shared
def test_both_kinds_are_among_them() -> None:
    """Loops that are turned and loops that stay, arrivals that are tied to arithmetic and arrivals that are not."""
    turned = [is_turned(seed) for seed in range(PROGRAMS)]
    tied = [TIED.search(compiled(Turned.of(seed)).ptx) is not None for seed in range(PROGRAMS)]
    assert PROGRAMS / 4 <= sum(turned) <= PROGRAMS * 3 / 4, sum(turned)
    assert PROGRAMS / 5 <= sum(tied) <= PROGRAMS * 4 / 5, sum(tied)
