"""Digests of results, by which another machine is held to them: kept in a file, or of a GPU beside the emulator."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tests.fuzz.outcome import Outcome
from tests.fuzz.runner import Result, Task

_KEPT = contextvars.ContextVar[dict[str, None] | None]("kept", default=None)


def digest(x: np.ndarray) -> str:  # type: ignore[type-arg]
    import hashlib

    return f"{x.dtype} {list(x.shape)} {hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:24]}"


def keep(result: Any) -> Any:
    """Of a check's results one whose bits are to be the same on every machine: as NumPy's array. What nothing wrote is no part of it."""
    x = np.asarray(result)
    if (kept := _KEPT.get()) is not None:
        kept[digest(x)] = None  # once, however often the check runs its program
    return x


@contextlib.contextmanager
def keeping() -> Iterator[dict[str, None]]:
    """The digests of what is kept in this scope, in order."""
    token = _KEPT.set(kept := {})
    try:
        yield kept
    finally:
        _KEPT.reset(token)


def write(path: str, results: Iterable[Result]) -> None:
    lines = {f"{r.task.grammar}: {r.task.seed}": "\n".join(r.outcome.digests) or r.outcome.kind for r in results}
    names = sorted(lines)
    # To the file of this name: NumPy would add an ending.
    with open(path, "wb") as file:
        np.savez_compressed(file, programs=np.array(names, dtype=str), digests=np.array([lines[name] for name in names], dtype=str))


def read(path: str) -> dict[str, str]:
    with np.load(path) as file:
        return {str(name): str(digest) for name, digest in zip(file["programs"], file["digests"])}


def held(result: Result, known: dict[str, str]) -> Result:
    """The result, a failure where its bits are not the kept ones."""
    expected, digests = known.get(f"{result.task.grammar}: {result.task.seed}"), result.outcome.digests
    if result.outcome.kind != "right" or expected == "\n".join(digests):
        return result
    if expected is None or "[" not in expected:
        return dataclasses.replace(result, outcome=Outcome("no program", f"kept: {expected}"))
    return dataclasses.replace(result, outcome=_compared(digests, tuple(expected.split("\n"))))


def _compared(digests: tuple[str, ...], expected: tuple[str, ...]) -> Outcome:
    if digests == expected:
        return Outcome("right" if digests else "no bits", digests=digests)
    if len(digests) != len(expected):
        return Outcome("other bits", f"{len(digests)} results, kept {len(expected)}: {'; '.join(digests)}; kept {'; '.join(expected)}")
    return Outcome("other bits", "; ".join(f"out{i}: {a}, kept {b}" for i, (a, b) in enumerate(zip(digests, expected)) if a != b))


class Beside:
    """Programs in the emulator, and those that are right there on a GPU, too, which is held to the emulator's bits.

    An iterator of tasks, which has more of them when results were given to `count`.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.fresh = iter(tasks)
        self.emulated: collections.deque[Task] = collections.deque()
        self.expected: dict[tuple[str, int | str], Outcome] = {}

    def __iter__(self) -> Beside:
        return self

    def __next__(self) -> Task:
        return self.emulated.popleft() if self.emulated else next(self.fresh)

    def count(self, results: Iterable[Result]) -> Iterator[Result]:
        """Of each program one: of the emulator, if it was not right there, else of the GPU."""
        for result in results:
            task, outcome = result.task, result.outcome
            if task.on_gpu:
                expected = self.expected.pop((task.grammar, task.seed))
                yield dataclasses.replace(result, outcome=_compared(outcome.digests, expected.digests)) if outcome.kind == "right" else result
            elif outcome.kind == "right":
                self.expected[task.grammar, task.seed] = outcome
                self.emulated.append(dataclasses.replace(task, on_gpu=True))
            else:
                yield result
