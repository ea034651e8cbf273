"""Slices of what a program computes, from slices of what it computes them of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from smalt._programs import dimensions
from smalt._programs.dimensions import Shape

#: Of each dimension the first index, and how many.
Box = tuple[tuple[int, int], ...]


def along(shape: Shape, dimension: int, start: int, size: int) -> Box:
    """A slice along one dimension."""
    return tuple((start, size) if d == dimension else (0, n) for d, n in enumerate(shape))


def sizes(box: Box) -> tuple[int, ...]:
    return tuple(size for _, size in box)


def is_whole(box: Box, shape: Shape) -> bool:
    return sizes(box) == tuple(shape)


def operand_boxes(name: str, params: Mapping[str, Any], operands: Sequence[Shape], result: Shape, box: Box) -> list[Box] | None:
    """Of each operand of an operation the slice that a slice of its result needs; None: it is not known."""
    if name in dimensions.ELEMENTWISE:
        return [tuple((0, 1) if n == 1 else at for n, at in zip(shape, box[len(box) - len(shape) :])) for shape in operands]
    if len(operands) != 1:
        return None
    (own,) = operands
    if name == "broadcast_in_dim":
        return [tuple((0, 1) if n == 1 else box[d] for n, d in zip(own, params["broadcast_dimensions"]))]
    if name == "transpose":
        by_dimension = dict(zip(params["permutation"], box))
        return [tuple(by_dimension[d] for d in range(len(own)))]
    if name == "squeeze" or name == "reshape" and params.get("dimensions") is None:
        found = _reshaped(own, result, box)
        return None if found is None else [found]
    return None


def _reshaped(own: Shape, result: Shape, box: Box) -> Box | None:
    """The slice of an array that is a slice of its elements in another shape: one of each group of dimensions that are others' product."""
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(own) or j < len(result):
        first_i, first_j = i, j
        left = right = 1
        while True:
            if left == right and i > first_i and j > first_j:
                break
            if left <= right and i < len(own):
                left, i = left * own[i], i + 1
            elif j < len(result):
                right, j = right * result[j], j + 1
            elif i < len(own):
                left, i = left * own[i], i + 1
            else:
                break
        run = _run(result[first_j:j], box[first_j:j])
        part = None if run is None or left != right else _box_of_run(own[first_i:i], *run)
        if part is None:
            return None
        found += part
    return tuple(found)


def _run(shape: Shape, box: Box) -> tuple[int, int] | None:
    """A slice as a run of the elements in order."""
    start, size = 0, 1
    for d, (n, (at, count)) in enumerate(zip(shape, box)):
        inner = math.prod(shape[d + 1 :])
        if count > 1 and not is_whole(box[d + 1 :], shape[d + 1 :]):
            return None
        start, size = start + at * inner, size * count
    return start, size


def _box_of_run(shape: Shape, start: int, size: int) -> Box | None:
    """A run of elements as a slice."""
    found: list[tuple[int, int]] = []
    for d in range(len(shape)):
        inner = math.prod(shape[d + 1 :])
        if start % inner == 0 and size % inner == 0:
            rest = tuple((0, n) for n in shape[d + 1 :])
            return (*found, (start // inner, size // inner), *rest)
        if start // inner != (start + size - 1) // inner:
            return None
        found.append((start // inner, 1))
        start %= inner
    return tuple(found) if size == 1 else None
