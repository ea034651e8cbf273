"""Accumulators that do not fit into registers, in the emulator, under every schedule."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import pytest
from jax import lax

import smalt
from smalt import _native
from tests.corpus.case import kernel, like
from tests.fresh import run_script
from tests.fuzz.seeds import seeds
from tests.programs.loops.loops import compiled
from tests.programs.loops.parked import PARKED, Parked
from tests.programs.views import tiled

pytestmark = pytest.mark.xdist_group("parked")

PROGRAMS = 120
BATCH = 20

PASS = "park_accumulators"
PLACE = "accumulators that do not fit into registers"


def places(seed: int) -> set[str]:
    """Where columns of accumulators are parked."""
    artifact = compiled(Parked.of(seed))
    report: dict[str, Any] = artifact.report()
    parked = any(note["pass"] == PASS for note in report["notes"]["passes"])
    shared = any(row["what"] == PLACE for row in report["shared_memory"])
    local = "smalt_local" in artifact.ptx
    assert parked == (shared or local), f"seed {seed}"
    return {name for name, known in (("shared", shared), ("local", local)) if known}


@seeds(PARKED, PROGRAMS, BATCH)
def test_parked_accumulators_equal_numpy(programs: list[Parked]) -> None: ...


@pytest.mark.shared
def test_all_kinds_are_among_them() -> None:
    """Kernels whose accumulators wait in shared memory, in local memory, in both, and in registers."""
    found = [places(seed) for seed in range(PROGRAMS)]
    for kind in ({"shared"}, {"local"}, {"shared", "local"}):
        assert found.count(kind) >= PROGRAMS / 20, (kind, found.count(kind))
    assert PROGRAMS / 4 <= found.count(set()) <= PROGRAMS * 3 / 4, found.count(set())


@pytest.mark.shared
def test_the_report_says_so() -> None:
    """A note for each accumulator, and the shared memory, which is no more than there is."""
    seed = next(seed for seed in range(PROGRAMS) if places(seed) == {"shared"})
    program = Parked.of(seed)
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(program.function(), *program.structs(), assemble=False)
    notes = [note for note in report.notes if note.by == PASS]
    assert 1 <= len(notes) <= len(program.sums)
    assert all(note.what == "parked" and "wait for their products in memory" in note.why for note in notes)
    (place,) = [row for row in report.shared_memory if row.what == PLACE]
    assert place.offset % 128 == 0 and place.bytes % (4 * 4 * 128) == 0
    assert place.offset + place.bytes <= report.smem_bytes <= 227 * 1024
    assert PASS in [phase.name for phase in report.phases] and "park" in str(report)


@pytest.mark.shared
def test_what_fits_is_left_alone() -> None:
    """No note and no place."""
    seed = next(seed for seed in range(PROGRAMS) if not places(seed))
    program = Parked.of(seed)
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(program.function(), *program.structs(), assemble=False)
    assert all(note.by != PASS for note in report.notes)
    assert all(row.what != PLACE for row in report.shared_memory)


DECIDES = """
import smalt
from tests.programs.loops.parked import Parked
for seed in {seeds}:
    program = Parked.of(seed)
    with smalt.emulated("H100"):
        (report,) = smalt.inspect(program.function(), *program.structs())
    (what,) = {{note.what for note in report.notes if note.by == "park_accumulators"}}
    print(seed, what, report.spill_bytes, "accumulators that do not fit" in str(report))
"""

#: The first needs few registers more than there are: ptxas spills 32 bytes; parked it moves a hundred.
LITTLE, MUCH = 140, 28


@pytest.mark.shared
def test_what_moves_less_is_taken() -> None:
    """A kernel is assembled with its accumulators parked, and spilled, and is what moves fewer words; a variable overrules that."""
    if "path" not in _native.doctor()["assembler"]:
        pytest.skip("no assembler")
    found = {}
    for way in ("auto", "always", "never"):
        done = run_script(DECIDES.format(seeds=[LITTLE, MUCH]), SMALT_LIBRARY=str(_native.library_path()), SMALT_PARK=way)
        assert done.returncode == 0, done.stderr
        found[way] = [line.split() for line in done.stdout.splitlines()]
    what = {way: [row[1] for row in rows] for way, rows in found.items()}
    assert what == {"auto": ["spilled", "parked"], "always": ["parked"] * 2, "never": ["spilled"] * 2}
    spilled = {way: [int(row[2]) for row in rows] for way, rows in found.items()}
    assert spilled["auto"] == [spilled["never"][0], spilled["always"][1]]
    assert 0 < spilled["never"][0] < 256 < spilled["never"][1]
    # Nothing is kept for what is not parked.
    assert [row[3] for row in found["never"]] == ["False", "False"]


@pytest.mark.shared
def test_more_than_a_thread_can_hold_is_refused() -> None:
    """Twenty accumulators are 5,120 words: parked, they would keep the assembler busy for minutes."""

    def body(a: Any, b: Any, o: Any, left: Any, right: Any, barrier: Any) -> None:
        for x, buffer in ((a, left), (b, right)):
            plgpu.copy_gmem_to_smem(x, buffer, barrier)
            plgpu.barrier_wait(barrier)

        def compute(*accs: Any) -> Any:
            def step(i: Any, carry: Any) -> Any:
                for acc in accs:
                    plgpu.wgmma(acc, left, right)
                plgpu.wgmma_wait(0)
                return carry

            lax.fori_loop(0, 3, step, jnp.int32(0))
            return sum(acc[...] for acc in accs)

        o[...] = pl.run_scoped(compute, *[plgpu.ACC((128, 256), jnp.float32)] * 20)

    a, b = jax.ShapeDtypeStruct((128, 64), jnp.float16), jax.ShapeDtypeStruct((64, 256), jnp.float16)
    scratch = [plgpu.SMEM(x.shape, x.dtype, transforms=tiled(x.dtype, 128)) for x in (a, b)]
    with smalt.emulated("H100"), pytest.raises(smalt.Error, match="more values at once") as caught:
        smalt.inspect(kernel(body, like((128, 256), jnp.float32), *scratch, plgpu.Barrier()), a, b, assemble=False)
    error = caught.value
    assert "4096" in str(error.expected) and "acc f32[128,256]" in str(error.got) and "test_parked.py" in str(error.where)
