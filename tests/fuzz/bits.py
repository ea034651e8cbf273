"""Digests of results in a file, so that another machine can be held to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from tests.fuzz.outcome import Outcome
from tests.fuzz.runner import Result


def digest(x: np.ndarray) -> str:  # type: ignore[type-arg]
    import hashlib

    return f"{x.dtype} {list(x.shape)} {hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:24]}"


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
    """The result, wrong where its bits are not the kept ones."""
    expected, digests = known.get(f"{result.task.grammar}: {result.task.seed}"), result.outcome.digests
    if result.outcome.kind != "right" or expected == "\n".join(digests):
        return result
    if expected is None or "[" not in expected:
        return dataclasses.replace(result, outcome=Outcome("no program", f"kept: {expected}"))
    pairs = [(i, a, b) for i, (a, b) in enumerate(zip(digests, expected.split("\n"))) if a != b]
    return dataclasses.replace(result, outcome=Outcome("wrong", "; ".join(f"out{i}: {a}, kept {b}" for i, a, b in pairs)))
