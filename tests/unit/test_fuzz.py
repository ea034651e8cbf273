"""What is the same for all generators of random programs: outcomes, shrinking, processes, digests, the command line."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import itertools
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pytest

import smalt
from tests import ROOT
from tests.fuzz import bits
from tests.fuzz.__main__ import Hunt, Summary, is_kept, misuse, show
from tests.fuzz.grammar import Grammar, of_error
from tests.fuzz.outcome import RIGHT, Outcome
from tests.fuzz.runner import ENVIRONMENT, Result, Task, results
from tests.fuzz.seeds import judge, right
from tests.fuzz.shrink import shrink

pytestmark = pytest.mark.shared

Numbers = tuple[int, ...]


def less(numbers: Numbers) -> Iterator[Numbers]:
    for i in range(len(numbers)):
        yield numbers[:i] + numbers[i + 1 :]


def halved(numbers: Numbers) -> Iterator[Numbers]:
    for i, n in enumerate(numbers):
        yield (*numbers[:i], n // 2, *numbers[i + 1 :])


def is_small(numbers: Numbers) -> Outcome | None:
    if len(numbers) > 50:
        return Outcome("no program")
    assert sum(numbers) < 10, f"{sum(numbers)} of {len(numbers)}"
    if 3 in numbers:
        raise smalt.Unsupported("smalt: three")
    return None


TOY = Grammar("toy", lambda seed: tuple(range(seed)) if seed else None, is_small, smaller=(less, halved))


def test_outcomes() -> None:
    kinds = [TOY.outcome_of(seed).kind for seed in (0, 1, 4, 9, 60)]
    assert kinds == ["no program", "right", "refused", "wrong", "no program"]
    assert TOY.outcome_of(3) == RIGHT and not TOY.outcome_of(4).is_failure


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (smalt.ExecutionError("smalt: a race: nothing orders the two"), "race"),
        (smalt.ExecutionError("smalt: deadlock"), "deadlock"),
        (smalt.InvalidKernel("smalt: shared memory\n  expected: less"), "error"),
        (ValueError("nothing orders the two"), "error"),
    ],
)
def test_errors_are_failures_by_what_they_say(error: Exception, kind: str) -> None:
    assert of_error(error).kind == kind and of_error(error).is_failure


def test_what_is_too_large_is_refused_where_nobody_counts() -> None:
    error = smalt.InvalidKernel("smalt: shared memory\n  expected: at most 232448 bytes")
    assert of_error(error, counts_memory=False).kind == "refused"
    assert of_error(smalt.InvalidKernel("smalt: an index"), counts_memory=False).kind == "error"


def test_signatures_have_no_numbers() -> None:
    one, other = (Outcome("error", f"Internal: %v{n} is [{n}, 3] (at {n})") for n in (7, 12))
    assert one.signature == other.signature != Outcome("error", "Internal: a view").signature
    assert Outcome("wrong", "a").signature == Outcome("wrong", "b").signature


def test_programs_shrink_to_what_fails() -> None:
    """To one that none of its smaller ones fails like."""
    small, failure = shrink(TOY, tuple(range(20)), TOY.outcome_of(20))
    assert failure.kind == "wrong" and sum(small) >= 10
    assert all(TOY.outcome(s).kind != "wrong" for smaller in TOY.smaller for s in smaller(small))
    refused, failure = shrink(TOY, (1, 3, 2), TOY.outcome((1, 3, 2)))
    assert refused == (3,) and failure.kind == "refused"


def test_a_smaller_program_is_checked_for_the_same_failure() -> None:
    seen = []

    def again(numbers: Numbers, like: Outcome, on_gpu: bool) -> Outcome | None:
        seen.append((like.where, on_gpu))
        return Outcome("wrong", where="here") if sum(numbers) >= 10 else None

    shrink(dataclasses.replace(TOY, again=again), (9, 9), Outcome("wrong", where="here"), on_gpu=True)
    assert set(seen) == {("here", True)}


def test_what_has_failed_is_not_run_again_to_be_shrunk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.fuzz.registry import GRAMMARS

    seen = []

    def check(numbers: Numbers) -> Outcome | None:
        seen.append(numbers)
        return is_small(numbers)

    monkeypatch.setitem(GRAMMARS, "toy", dataclasses.replace(TOY, check=check))
    show(Task("toy", 20), TOY.outcome_of(20))
    assert seen and tuple(range(20)) not in seen
    assert capsys.readouterr().out.startswith("wrong: ")


def test_tests_of_seeds_fail_as_they_must() -> None:
    assert right(TOY, [1, 2, 3]) == [(0,), (0, 1), (0, 1, 2)]
    with pytest.raises(AssertionError, match=r"9: wrong, expected right: 36 of 9(?s:.*)--generator 'toy'"):
        right(TOY, [1, 9])
    with pytest.raises(AssertionError, match="4: .*three"):
        right(TOY, [1, 4])
    assert right(TOY, [1, 4], may_refuse=True) == [(0,)]
    known = dataclasses.replace(TOY, known={9: "wrong"})
    assert right(known, [9]) == []
    with pytest.raises(AssertionError, match="9: right, expected wrong"):
        judge(known, {9: RIGHT})


@dataclasses.dataclass(frozen=True)
class Dies(Task):
    def prepare(self) -> None: ...

    def outcome(self) -> Outcome:
        if self.seed == 1:
            os._exit(3)
        if self.seed == 2:
            time.sleep(60)
        return Outcome("right", str(os.getpid()))


def test_programs_run_in_processes_that_may_die_or_hang() -> None:
    found = {r.task.seed: r.outcome for r in results([Dies("", seed) for seed in (0, 2, 1, 3)], jobs=1, limit=2)}
    assert [found[seed].kind for seed in range(4)] == ["right", "error", "hangs", "right"]
    assert "ended with 3" in found[1].text and len({found[0].text, found[3].text, str(os.getpid())}) == 3


def test_a_program_is_repeated_by_its_seed_in_a_process() -> None:
    from tests.fuzz.registry import GRAMMARS

    (result,) = results([Task("conversions", 1)], jobs=1)
    assert result.outcome == RIGHT, result.outcome.text
    assert GRAMMARS["conversions"].outcome_of(1) == RIGHT


def test_results_are_held_to_kept_digests(tmp_path: pathlib.Path) -> None:
    def result(seed: int, x: np.ndarray) -> Result:
        return Result(Task("toy", seed), Outcome("right", digests=(bits.digest(x),)), 0.0)

    x = np.arange(6, dtype=jnp.bfloat16).reshape(2, 3)
    bits.write(path := str(tmp_path / "kept.npz"), [result(0, x), Result(Task("toy", 1), Outcome("refused"), 0.0)])
    known = bits.read(path)
    assert bits.held(result(0, x), known).outcome.kind == "right"
    assert bits.held(result(0, x + x), known).outcome.kind == "other bits"
    assert bits.held(result(1, x), known).outcome.kind == bits.held(result(2, x), known).outcome.kind == "no program"


def test_results_that_are_kept_are_an_outcomes() -> None:
    """Once each, and not of what other checks keep."""

    def check(numbers: Numbers) -> None:
        for _ in range(2):
            assert bits.keep(list(numbers)).tolist() == list(numbers)

    grammar = dataclasses.replace(TOY, check=check)
    bits.keep(0)
    assert grammar.outcome_of(3).digests == (bits.digest(np.arange(3)),)
    assert TOY.outcome_of(3).digests == ()


@dataclasses.dataclass(frozen=True)
class OnBoth(Task):
    """Seeds 0 and 1 are right on both, 2 gives other bits on a GPU, 3 is refused by the emulator, 4 wrong on a GPU, 5 keeps nothing."""

    def prepare(self) -> None: ...

    def outcome(self) -> Outcome:
        seed = int(self.seed)
        if seed == 3:
            assert not self.on_gpu
            return Outcome("refused", "smalt: not supported yet: wgmma on sm_80\n  remedy: …")
        if seed == 4 and self.on_gpu:
            return Outcome("wrong", f"in {os.environ.get('JAX_PLATFORMS')}")
        digests = ("int32 [1] a", f"int32 [1] {os.getpid() if self.on_gpu else 'b'}") if seed == 2 else ("int32 [1] a",)
        return Outcome("right", os.environ["PJRT_NPROC" if not self.on_gpu else "XLA_PYTHON_CLIENT_PREALLOCATE"], digests=() if seed == 5 else digests)


@pytest.mark.parametrize("jobs", (1, 3))
def test_a_gpu_is_held_to_the_emulators_bits(jobs: int) -> None:
    """Each in an environment of its own; one result of each program, the emulator's where a GPU need not run it."""
    beside = bits.Beside([OnBoth("toy", seed) for seed in range(6)])
    found = {r.task.seed: r for r in beside.count(results(beside, jobs))}
    assert {seed: r.outcome.kind for seed, r in found.items()} == {0: "right", 1: "right", 2: "other bits", 3: "refused", 4: "wrong", 5: "no bits"}
    assert [found[seed].task.on_gpu for seed in range(6)] == [True, True, True, False, True, True]
    assert found[2].outcome.text.startswith("out1: int32 [1] ") and found[2].outcome.text.endswith(", kept int32 [1] b")


def test_what_a_machine_lacks_is_no_idleness() -> None:
    summary = Summary(["toy", "other"])
    for seed in range(20):
        lacks = "smalt: not supported yet: wgmma on sm_80\n  expected: …" if seed else "smalt: shared memory\n  expected: …"
        summary.add(Task("toy", seed), Outcome("refused", lacks))
        summary.add(Task("other", seed), Outcome("refused", "smalt: three"))
    assert "20: 20 refused   lacks 1 shared memory, 19 wgmma\n" in str(summary) and summary.idle() == ["other"]


def test_a_hunt_leaves_generators_whose_programs_are_all_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fuzz.registry import GRAMMARS

    for name in ("toy", "other"):
        monkeypatch.setitem(GRAMMARS, name, dataclasses.replace(TOY, name=name))
    hunt = Hunt(["toy", "other"], 1.0, 0, on_gpu=False)
    outcomes = {"toy": Outcome("refused"), "other": RIGHT}
    tasks = hunt.tasks()
    taken = [result.task.grammar for result in hunt.count(Result(task, outcomes[task.grammar], 1.0) for task in itertools.islice(tasks, 100))]
    assert taken.count("toy") == Hunt.REFUSED


def test_what_became_of_programs_is_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary(["toy"])
    for seed in range(10):
        summary.add(Task("toy", seed), Outcome("wrong", "off by one") if seed == 7 else Outcome("refused", "smalt: three"))
    assert "off by one\n`python -m tests.fuzz --generator 'toy' --seed 7`" in capsys.readouterr().out
    assert "10: 9 refused, 1 wrong   refused, for one: 0: smalt: three" in str(summary) and summary.idle() == ["toy"]


def test_what_repeats_a_failure() -> None:
    assert Task("toy", 7, on_gpu=True).command == "python -m tests.fuzz --generator 'toy' --seed 7 --gpu"
    assert Task("toy", "a name").command == "python -m tests.fuzz --generator 'toy' --named 'a name'"


def test_no_generator_has_the_name_of_one_that_draws_others() -> None:
    """What repeats a failure finds a generator by its name."""
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and "draw" in (changed := {word.arg for word in node.keywords}):
                assert isinstance(node.func, ast.Name) or "name" in changed, f"{path}:{node.lineno}"


def test_every_generator_has_a_name_of_its_own() -> None:
    from tests.fuzz.registry import EVERY, GRAMMARS

    assert len(GRAMMARS) == len(EVERY) >= 41


# ------------------------------------------------------------------------------------------ the command line


def fuzz(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As a user has it, not in the environment that tests have."""
    own = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT} | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    return subprocess.run(command, env=own | environment, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_one_program_runs_on_several_devices_and_on_no_gpu() -> None:
    """In the command line's own process, for which the environment is prepared as for others."""
    done = fuzz("--generator", "several devices", "--seed", "1", JAX_PLATFORMS="cuda")
    assert done.returncode == 0 and "1: 1 right" in done.stdout, done.stdout + done.stderr


def test_jax_is_imported_when_the_environment_is_prepared() -> None:
    """Not with the command line, of which nothing else would say so where JAX reads a variable that no program needs."""
    subprocess.run([sys.executable, "-c", "import sys, tests.fuzz.__main__; assert not {'jax', 'numpy'} & {*sys.modules}"], cwd=ROOT, check=True, timeout=60)


def test_fresh_seeds_need_no_processes() -> None:
    done = fuzz("--generator", "conversions", "--minutes", "0.01", "--jobs", "0")
    assert done.returncode == 0 and " right" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--minutes", "-1"], "argument --minutes: expected a number above 0, got '-1'"),
        (["--minutes", "0"], "argument --minutes: expected a number above 0, got '0'"),
        (["--minutes", "nan"], "argument --minutes: expected a number above 0, got 'nan'"),
        (["--limit", "0"], "argument --limit: expected a number above 0, got '0'"),
        (["--jobs", "-2"], "argument --jobs: expected a whole number of 0 or more, got '-2'"),
        (["--seed", "-1"], "argument --seed: expected a whole number of 0 or more, got '-1'"),
        (["--count", "-1"], "argument --count: expected a whole number of 1 or more, got '-1'"),
        (["--write", "nowhere/kept.npz"], "argument --write: expected a file in a folder that exists, got 'nowhere/kept.npz'"),
        (["--write", "tests"], "argument --write: expected a file in a folder that exists, got 'tests'"),
        (["--compare", "nowhere.npz"], "argument --compare: expected a file that --write has made, got 'nowhere.npz'"),
        (["--named", "nope"], "--named: expected some of 1"),
        (["--generator", "conversions", "--seed", "0", "--shrink"], "--shrink: expected generators that make programs smaller (array programs, "),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_misuses_of_the_command_line(arguments: list[str], says: str) -> None:
    done = fuzz(*arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"python -m tests.fuzz: error: {says}")


def test_what_is_kept_is_what_was_written(tmp_path: pathlib.Path) -> None:
    """Under the name that was given, and no other archive is taken for it."""
    kept, other = tmp_path / "kept", tmp_path / "other.npz"
    bits.write(str(kept), [Result(Task("toy", 1), RIGHT, 0.0)])
    np.savez(other, x=np.zeros(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "other.npz"]
    assert bits.read(str(kept)) == {"toy: 1": "right"}
    assert is_kept(str(kept)) and not is_kept(str(other))


@pytest.mark.parametrize(
    ("names", "changed", "says"),
    [
        (["nope"], {}, "--generator: there is no nope"),
        (["conversions"], {"named": []}, "--named: expected a generator that has programs by name, got conversions"),
        (["array programs"], {"named": ["nope"]}, "--named: expected some of 8 programs"),
        (["array programs"], {"named": [], "shrink": True}, "--show, --shrink: expected seeds, got --named"),
        (["array programs"], {"bits": True, "jobs": 0}, "--bits: expected processes"),
        (["array programs"], {"show": True}, "--show: expected --seed or --count"),
        (["array programs", "litmus"], {"seed": 0, "shrink": True}, "got litmus"),
        (["array programs"], {"seed": 0, "shrink": True, "show": True}, None),
        (["conversions", "array programs"], {"named": []}, None),
    ],
)
def test_what_generators_do_not_have(names: list[str], changed: dict[str, object], says: str | None) -> None:
    none: dict[str, object] = dict.fromkeys(("named", "show", "shrink", "seed", "count", "bits", "gpu", "write", "compare", "jobs"))
    given = argparse.Namespace(**none | {"generator": names} | changed)
    found = misuse(names, given)
    assert found == says or says is not None and found is not None and says in found
