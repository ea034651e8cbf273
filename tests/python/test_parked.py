"""Accumulators that do not fit into registers, in the emulator, under every schedule."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

import smalt
from smalt import _native
from tests.kernels.parked import Parked
from tests.programs.run import SCHEDULES

PROGRAMS = 120
BATCH = 20

PASS = "park_accumulators"
PLACE = "accumulators that do not fit into registers"


def structs(program: Parked) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.inputs()]


@functools.cache
def compiled(seed: int) -> _native.Artifact:
    program = Parked.of(seed)
    with smalt.emulated("H100"):
        [(_, descriptor, debug)] = smalt.descriptor(program.function(), *structs(program))
    return _native.compile(descriptor, debug, "sm_90a")


def places(seed: int) -> set[str]:
    """Where columns of accumulators are parked."""
    report: dict[str, Any] = compiled(seed).report()
    parked = any(note["pass"] == PASS for note in report["notes"]["passes"])
    shared = any(row["what"] == PLACE for row in report["shared_memory"])
    local = "smalt_local" in compiled(seed).ptx
    assert parked == (shared or local), f"seed {seed}"
    return {name for name, known in (("shared", shared), ("local", local)) if known}


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_parked_accumulators_equal_numpy(first: int) -> None:
    """The order in which the hardware gets to things changes nothing, and the checker of races finds nothing."""
    for seed in range(first, first + BATCH):
        program = Parked.of(seed)
        given, wanted = program.inputs(), program.reference()
        for schedule, number in SCHEDULES:
            got = [np.full(x.shape, 77, x.dtype) for x in wanted]
            compiled(seed).emulate([*given, *got], schedule, number)
            for a, b, written in zip(got, wanted, program.written(), strict=True):
                np.testing.assert_array_equal(a[written], b[written], err_msg=f"{program}, {schedule} {number}")


def test_all_kinds_are_among_them() -> None:
    """Kernels whose accumulators wait in shared memory, in local memory, in both, and in registers."""
    found = [places(seed) for seed in range(PROGRAMS)]
    for kind in ({"shared"}, {"local"}, {"shared", "local"}):
        assert found.count(kind) >= PROGRAMS / 20, (kind, found.count(kind))
    assert PROGRAMS / 4 <= found.count(set()) <= PROGRAMS * 3 / 4, found.count(set())


def test_the_report_says_so() -> None:
    """A note for each accumulator, and the shared memory, which is no more than there is."""
    seed = next(seed for seed in range(PROGRAMS) if places(seed) == {"shared"})
    program = Parked.of(seed)
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(program.function(), *structs(program), assemble=False)
    notes = [note for note in report.notes if note.by == PASS]
    assert 1 <= len(notes) <= len(program.sums)
    assert all(note.what == "parked" and "wait for their products in memory" in note.why for note in notes)
    (place,) = [row for row in report.shared_memory if row.what == PLACE]
    assert place.offset % 128 == 0 and place.bytes % (4 * 4 * 128) == 0
    assert place.offset + place.bytes <= report.smem_bytes <= 227 * 1024
    assert PASS in [phase.name for phase in report.phases] and "park" in str(report)


def test_what_fits_is_left_alone() -> None:
    """No note and no place."""
    seed = next(seed for seed in range(PROGRAMS) if not places(seed))
    program = Parked.of(seed)
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(program.function(), *structs(program), assemble=False)
    assert all(note.by != PASS for note in report.notes)
    assert all(row.what != PLACE for row in report.shared_memory)
