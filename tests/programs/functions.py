"""Calls of public functions of `jax.numpy` and its submodules in kernels (`tests/oracles/functions`), one for each seed, against the same calls outside."""

from __future__ import annotations

from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar
from tests.fuzz.outcome import Outcome
from tests.oracles.functions.case import Case
from tests.oracles.functions.judge import judge
from tests.oracles.functions.table import CASES

#: Of the lists: next to each other are calls of one function.
STEP = 1_000_003


#: Of 64 bits, whose reference is XLA's own, which has `lgamma(1)` as 9e-16 where its optimisations are disabled, as they are for random programs.
ROUNDED = ("lax.lgamma", "special.gammaln", "special.loggamma")


def draw(seed: int) -> Case | None:
    case = list(CASES.values())[seed * STEP % len(CASES)]
    return None if case.x64 and case.function in ROUNDED else case


def check(case: Case) -> Outcome | None:
    found = judge(case, keep)
    kinds = {"right": "right", "wrong": "wrong", "refused": "refused", "invalid": "no program", "error": "error"}
    return Outcome(kinds[found.status], found.says)


FUNCTIONS = Grammar("functions", draw, check, show=lambda case: case.name)
