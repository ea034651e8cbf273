"""Digests of outputs in a file, so that another machine can be held to them."""

from __future__ import annotations

import dataclasses
import json

import numpy as np

from tests.arrays.run import Result


def write(path: str, found: dict[int, Result]) -> None:
    lines = {str(seed): "\n".join(r.digests) if r.kind in ("right", "wrong") else r.kind for seed, r in sorted(found.items())}
    np.savez_compressed(path, seeds=np.array(list(lines), dtype=str), digests=np.array(list(lines.values()), dtype=str))


def read(path: str) -> dict[int, str]:
    with np.load(path) as file:
        return {int(seed): str(digest) for seed, digest in zip(file["seeds"], file["digests"])}


def held(result: Result, known: dict[int, str]) -> Result:
    """The result, wrong where its bits are not the kept ones."""
    expected = known.get(result.seed)
    if expected is None or "[" not in expected:
        return dataclasses.replace(result, kind="unknown", text=f"kept: {expected}")
    if expected == "\n".join(result.digests):
        return result
    pairs = [(i, a, b) for i, (a, b) in enumerate(zip(result.digests, expected.split("\n"))) if a != b]
    return dataclasses.replace(result, kind="wrong", text="; ".join(f"out{i}: {a}, kept {b}" for i, a, b in pairs))


def log(path: str, result: Result) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(dataclasses.asdict(result)) + "\n")
