"""Makes a failing program small: greedily, as long as what is left fails alike."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from tests.fuzz.grammar import Grammar, P
from tests.fuzz.outcome import Outcome

#: Programs that are tried, and seconds for one of them: then it hangs.
BUDGET, LIMIT = 500, 60


def shrink(grammar: Grammar[P], program: P, failure: Outcome, on_gpu: bool = False, budget: int = BUDGET) -> tuple[P, Outcome]:
    """The smallest program found that fails alike, and its failure."""
    progress = True
    while progress and budget > 0:
        progress = False
        for smaller in grammar.smaller:
            # On with the next candidate of what is left, not from the first one: those before did not fail.
            tried, left = 0, True
            while left and budget > 0:
                left = False
                for number, candidate in enumerate(smaller(program)):
                    if number < tried or budget <= 0:
                        continue
                    tried = number + 1
                    if candidate == program:
                        continue
                    found = _limited(lambda: grammar.outcome(candidate, on_gpu, like=failure))  # noqa: B023
                    budget -= found.kind != "no program"
                    if found.signature == failure.signature:
                        program, failure = candidate, found
                        tried, left, progress = number, True, True
                        break
    return program, failure


def _limited(check: Callable[[], Outcome]) -> Outcome:
    """What never returns to Python has no limit."""

    def late(*_: Any) -> None:
        raise TimeoutError

    if os.name != "posix":
        return check()
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    try:
        found = check()
    except TimeoutError:
        return Outcome("hangs")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Outcome("hangs") if found.text.startswith("TimeoutError") else found
