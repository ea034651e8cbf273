"""Slices of what is computed, by slices of what it is computed of: against NumPy."""

import math
import random

import numpy as np
import pytest
from smalt._programs import slicing


def _factors(n: int) -> list[int]:
    return {1: [], 2: [2], 3: [3], 4: [2, 2]}[n]


def _regrouped(draw: random.Random, dims: list[int]) -> list[int]:
    """The same number of elements in another shape."""
    primes = [f for n in dims for f in _factors(n)]
    out, i = [], 0
    while i < len(primes):
        k = draw.randint(1, 2)
        out.append(math.prod(primes[i : i + k]))
        i += k
    for _ in range(draw.randint(0, 2)):
        out.insert(draw.randint(0, len(out)), 1)
    return out or [1]


def _box(draw: random.Random, shape: list[int]) -> slicing.Box:
    starts = [draw.randrange(n) for n in shape]
    return tuple((at, draw.randint(1, n - at)) for at, n in zip(starts, shape))


def _cut(x: np.ndarray, box: slicing.Box) -> np.ndarray:
    return x[tuple(slice(at, at + size) for at, size in box)]


def test_a_slice_of_a_reshaped_array_is_a_slice_of_the_array() -> None:
    draw = random.Random(0)
    found = 0
    for _ in range(3000):
        own = [draw.choice([1, 2, 3, 4]) for _ in range(draw.randint(1, 4))]
        shape = _regrouped(draw, own)
        box = _box(draw, shape)
        boxes = slicing.operand_boxes("reshape", {"new_sizes": shape, "dimensions": None}, [own], shape, box)
        if boxes is None:
            continue
        found += 1
        x = np.arange(math.prod(own)).reshape(own)
        want = _cut(x.reshape(shape), box)
        assert len(boxes[0]) == len(own)
        np.testing.assert_array_equal(_cut(x, boxes[0]).reshape(want.shape), want)
    assert found > 1000


@pytest.mark.parametrize("seed", range(20))
def test_a_slice_of_a_broadcast_array(seed: int) -> None:
    draw = random.Random(seed)
    shape = [draw.randint(1, 4) for _ in range(3)]
    where = sorted(draw.sample(range(3), 2))
    own = [draw.choice([1, shape[d]]) for d in where]
    box = _box(draw, shape)
    (found,) = slicing.operand_boxes("broadcast_in_dim", {"broadcast_dimensions": tuple(where)}, [own], shape, box) or [()]
    x = np.arange(math.prod(own)).reshape(own)
    full = [own[where.index(d)] if d in where else 1 for d in range(3)]
    want = _cut(np.broadcast_to(x.reshape(full), shape), box)
    part = _cut(x, found)
    grown = [part.shape[where.index(d)] if d in where else 1 for d in range(3)]
    np.testing.assert_array_equal(np.broadcast_to(part.reshape(grown), want.shape), want)
