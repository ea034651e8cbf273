"""Random programs over memory, and programs by name, in the emulator, bit for bit as the interpreter has them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import subprocess
import sys

import pytest

from tests.fuzz.outcome import Outcome
from tests.fuzz.seeds import named, seeds
from tests.fuzz.shrink import shrink
from tests.programs.memory import generate as generator
from tests.programs.memory.emit import source
from tests.programs.memory.generate import KINDS, PROGRAMS, find_fault
from tests.programs.memory.interpret import Invalid, interpret
from tests.programs.memory.missing import compiles, omissions
from tests.programs.memory.regressions import BULK_LOADS, BULK_STORES, REGRESSIONS
from tests.programs.memory.run import MEMORY, MEMORY_OF_RINGS, MEMORY_OF_WARPS, compare
from tests.programs.memory.tree import Buffer, Commit, CopyOut, Program, Stmt, Wait, WaitOut, parts, replaced, statements

pytestmark = pytest.mark.shared

BATCH = 10
generate = functools.cache(generator.generate)

test_regression = named(MEMORY)


@seeds(MEMORY, PROGRAMS, BATCH)
def test_random_programs(programs: list[Program]) -> None:
    """Right under every schedule, none refused."""


@seeds(MEMORY_OF_WARPS, 40, BATCH)
def test_programs_of_warps_with_arrays(programs: list[Program]) -> None:
    """Under every schedule: loads and stores of arrays, scopes, copies and their waits in warp regions."""


@seeds(MEMORY_OF_RINGS, 80, BATCH, may_refuse=True)
def test_rings(programs: list[Program]) -> None:
    """Slots that bulk loads fill, and waits that come late."""


def test_programs_by_name_are_valid() -> None:
    assert not {name for name, program in REGRESSIONS.items() if find_fault(program) is not None}


def test_a_barrier_that_is_left_out_is_missed() -> None:
    """`verify_order` says so of nearly every one; the emulator where a run comes by with indices that meet."""
    left_out = [o for seed in range(0, 20) if compiles(generate(seed)) for o in omissions(generate(seed))]
    ordered = [o for o in left_out if o.ordered]
    reached = [o for o in left_out if o.reached]
    found = [o for o in reached if o.ran is not None]
    assert len(left_out) > 30
    assert len(ordered) >= 0.99 * len(left_out), f"{len(ordered)} of {len(left_out)}"
    assert len(found) >= 0.8 * len(reached), f"{len(found)} of {len(reached)}"


# ------------------------------------------------------------------------------------------ the generator


def test_programs_are_about_memory() -> None:
    """Every kind of statement occurs often, most statements are taken, few programs repeat what others do."""
    found: collections.Counter[type] = collections.Counter()
    taken = every = 0
    texts = set()
    for seed in range(PROGRAMS // 3):
        program = generate(seed)
        assert find_fault(program) is None
        found.update({type(p) for p in parts(program) if dataclasses.is_dataclass(p)})
        taken += len(interpret(program).covered)
        every += sum(1 for _ in statements(program.body))
        texts.add(source(program))
    kinds = set(Stmt.__subclasses__())
    rare = {kind.__name__: found[kind] for kind in kinds if found[kind] < 5}
    assert not rare, rare
    assert taken > 0.8 * every
    assert len(texts) == len(range(PROGRAMS // 3))


def test_a_seed_is_a_program() -> None:
    """The same in another process, whatever its hashes."""
    seeds = range(len(KINDS))
    script = f"from tests.programs.memory.emit import source; from tests.programs.memory.generate import generate\nprint(''.join(source(generate(s)) for s in {seeds}), end='')"
    other = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300)
    assert other.stdout == "".join(source(generate(s)) for s in seeds)


OWED = (Wait, WaitOut, Commit)


@pytest.mark.parametrize("program", [*BULK_STORES, *BULK_LOADS], ids=lambda program: program.name)
def test_the_interpreter_asks_for_what_authors_owe(program: Program) -> None:
    """A named program without any one of its waits or commits is invalid; without the last wait it may not be."""
    owed = [path for path, s in statements(program.body) if isinstance(s, OWED)]
    asked = [path for path in owed if find_fault(replaced(program, path, ())) is not None]
    assert len(asked) >= max(1, len(owed) - 1), set(owed) - set(asked)


def test_wrong_numbers_show() -> None:
    """A result with one wrong bit is not right; what nobody wrote may be anything."""
    program = REGRESSIONS["union members"]
    expected = interpret(program)
    outs = [v.copy() for v in expected.values]
    assert compare(program, outs) is None
    unknown = next(i for i, known in enumerate(expected.known) if not known.all())
    outs[unknown][~expected.known[unknown]] ^= 1
    assert compare(program, outs) is None
    outs[0].flat[17] ^= 1
    assert "o: 1 of 128 are wrong, the first at (17,)" in str(compare(program, outs))


def test_failures_shrink() -> None:
    """To the few statements that a failure needs, all of them valid."""

    def fails_with_a_bulk_store(program: Program) -> Outcome | None:
        taken = interpret(program).covered
        there = any(isinstance(s, CopyOut) and path in taken for path, s in statements(program.body))
        return Outcome("wrong") if there else None

    def valid(program: Program, like: Outcome, on_gpu: bool) -> Outcome | None:
        return Outcome("no program") if find_fault(program) is not None else fails_with_a_bulk_store(program)

    grammar = dataclasses.replace(MEMORY, check=fails_with_a_bulk_store, again=valid)
    program = next(p for p in map(generate, range(1, 100)) if fails_with_a_bulk_store(p) and sum(1 for _ in statements(p.body)) > 20)
    small, failure = shrink(grammar, program, Outcome("wrong"))
    assert failure.kind == "wrong"
    assert find_fault(small) is None
    # What it stores, with a commit or a wait in between, the bulk store, the wait behind it.
    assert sum(1 for _ in statements(small.body)) == 4, source(small)
    assert len([d for d in small.decls if isinstance(d, Buffer)]) <= 3


def test_races_are_invalid() -> None:
    """Two warpgroups and no barrier."""
    program = REGRESSIONS["poll a barrier for the other warpgroup"]
    waits = [path for path, s in statements(program.body) if isinstance(s, Wait)]
    with pytest.raises(Invalid, match="race|nobody wrote"):
        for seed in range(5):
            interpret(replaced(program, waits[0], ()), seed=seed)
