"""Tests of seeds, and of programs by name, for pytest, on the machine that there is.

Of the versions of JAX that are tested together, each runs a share of the tests that are marked `shared` (`conftest.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import pytest

from tests.fuzz.grammar import Grammar
from tests.fuzz.outcome import Outcome
from tests.fuzz.runner import LIMIT, Task, prepare_environment, results
from tests.machine import ON_GPU

Test = Callable[..., None]
#: For what each version of JAX has other seeds of: its number among them.
VERSION = {(0, 10): 0, (0, 11): 1}.get(jax.__version_info__[:2], 2)


def seeds(
    grammar: Grammar[Any] | Mapping[str, Grammar[Any]], count: int, batch: int, first: int = 0, shared: bool = True, may_refuse: bool = False
) -> Callable[[Callable[[list[Any]], None]], Test]:
    """Makes a test of so many seeds, in batches: what it decorates is given the programs that were right, and may say what else holds of them.

    `grammar`: one, or several by the names that their tests have.
    """

    def decorate(more: Callable[[list[Any]], None]) -> Test:
        def programs(of: Grammar[Any], first: int) -> None:
            more(right(of, range(first, first + batch, of.takes), may_refuse))

        if isinstance(grammar, Grammar):

            def test(first: int) -> None:
                programs(grammar, first)

        else:

            @pytest.mark.parametrize("kind", grammar)
            def test(first: int, kind: str) -> None:
                programs(grammar[kind], first)

        test.__name__, test.__doc__, test.__module__ = more.__name__, more.__doc__, more.__module__
        test = pytest.mark.parametrize("first", range(first, first + count, batch))(test)
        return pytest.mark.shared(test) if shared else test

    return decorate


def named(grammar: Grammar[Any]) -> Test:
    """A test of each program by name."""

    @pytest.mark.parametrize("name", grammar.named)
    def test(name: str) -> None:
        outcome = grammar.outcome_of_named(name, ON_GPU)
        if outcome.kind == "no program":
            pytest.skip(outcome.text)
        judge(grammar, {name: outcome})

    return test


def right(grammar: Grammar[Any], seeds: Iterable[int], may_refuse: bool = False) -> list[Any]:
    """The programs of these seeds that are right; no other one fails but as it is known to."""
    drawn = {seed: grammar.draw(seed) for seed in seeds}
    outcomes: dict[int | str, Outcome] = {seed: grammar.outcome(program, ON_GPU) for seed, program in drawn.items()}
    judge(grammar, outcomes, may_refuse)
    return [drawn[seed] for seed in drawn if outcomes[seed].kind == "right"]


def right_in_processes(grammar: Grammar[Any], seeds: Iterable[int | str], jobs: int, may_refuse: bool = False, limit: float = LIMIT) -> None:
    """As `right`, in processes of their own: a program that hangs costs itself only."""
    prepare_environment(ON_GPU)
    found = results((Task(grammar.name, seed, ON_GPU) for seed in seeds), jobs, limit)
    judge(grammar, {r.task.seed: r.outcome for r in found}, may_refuse)


def judge(grammar: Grammar[Any], outcomes: Mapping[int | str, Outcome], may_refuse: bool = False) -> None:
    """None fails but as it is known to; none is refused, or few."""
    wrong = dict[int | str, str]()
    for key, outcome in outcomes.items():
        known = grammar.known.get(key)
        if outcome.is_failure if known is None else outcome.kind != known:
            wrong[key] = f"{key}: {outcome.kind}, expected {known or 'right'}: {outcome.text}"
    assert not wrong, "\n".join([*wrong.values(), f"`{Task(grammar.name, next(iter(wrong)), ON_GPU).command}` repeats one"])
    refused = [f"{key}: {outcome.text}" for key, outcome in outcomes.items() if outcome.kind == "refused"]
    assert len(refused) <= (most_refused(len(outcomes)) if may_refuse else 0), "\n".join(refused)


def most_refused(of: int) -> int:
    """So many random programs may be refused; more, and the others say little: a generator writes what smalt has."""
    return max(1, of // 50)
