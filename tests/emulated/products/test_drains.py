"""Producers that run into their next tile, and such that must not, in the emulator, under every schedule."""

import jax
import jax.numpy as jnp
import pytest

import smalt
from benchmarks.written_out import FORMS, matmul
from tests.fuzz.seeds import seeds
from tests.programs.loops.drains import DRAINS, Drained
from tests.programs.loops.loops import changed_by

pytestmark = pytest.mark.xdist_group("drains")

PROGRAMS = 60
BATCH = 20


@seeds(DRAINS, PROGRAMS, BATCH)
def test_drains_equal_numpy(programs: list[Drained]) -> None: ...


@pytest.mark.parametrize(
    "seed",
    [
        # Blocks share slots, and each releases its own.
        3, 14, 22,
        # A word that is handed on behind the ring's barriers would be stored again before it is loaded,
        164, 171,
        # in device memory, too,
        450, 457,
        # and who waits for a barrier be late.
        269,
    ],
)  # fmt: skip
@pytest.mark.shared
def test_what_runs_ahead_is_in_nobodys_way(seed: int) -> None:
    """The emulator reports each of these, if the producer runs ahead."""
    program = Drained.of(seed)
    assert not program.runs_ahead and (program.shared == "met" or program.hands in ("on", "device", "told"))
    assert "defer_drains" not in changed_by(program)
    program.check_emulated()


@pytest.mark.shared
def test_producers_run_ahead_where_nothing_stands_against_it() -> None:
    ahead = 0
    for seed in range(2 * PROGRAMS):
        program = Drained.of(seed)
        changed = "defer_drains" in changed_by(program)
        assert changed == program.runs_ahead, program
        ahead += changed
    assert PROGRAMS / 2 <= ahead <= 3 * PROGRAMS / 2, ahead


@pytest.mark.shared
def test_producers_that_drain_are_told_why() -> None:
    for program in map(Drained.of, range(PROGRAMS)):
        if program.tiles > 1 or program.dynamic:
            with smalt.emulated("H100"):
                (report,) = smalt.inspect(program.function(), *program.structs(), assemble=False)
            said = any(note.by == "defer_drains" for note in report.notes)
            assert said != program.runs_ahead, program


@pytest.mark.shared
def test_tiles_are_stored_late_beside_steps_that_are_written_out() -> None:
    late = 0
    for seed in range(2 * PROGRAMS):
        program = Drained.of(seed)
        changed = "defer_epilogue" in changed_by(program)
        assert changed == program.stores_late, program
        late += changed and program.worker != "loop"
    assert late >= PROGRAMS / 12, late


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("k", [256, 1024])
@pytest.mark.shared
def test_the_benchmarks_run_ahead_and_store_late_without_spills(k: int, form: str, separate: bool) -> None:
    a, b = jax.ShapeDtypeStruct((8192, k), jnp.bfloat16), jax.ShapeDtypeStruct((k, 8192), jnp.bfloat16)
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(lambda a, b: matmul(a, b, 132, form, separate), a, b)
    assert not report.warnings and not report.spill_bytes
    assert not [note for note in report.notes if note.by.startswith("defer_")]


@pytest.mark.shared
def test_what_stores_late_does_not_spill() -> None:
    late = [program for program in map(Drained.of, range(PROGRAMS)) if program.stores_late]
    for program in late[:10]:
        with smalt.emulated("H100"):
            (report,) = smalt.inspect(program.function(), *program.structs())
        assert not report.warnings and not report.spill_bytes, program
