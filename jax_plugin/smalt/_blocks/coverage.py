"""Which parts of a reference are stored for sure, at each point of the grid.

A part is a product: a set of indices along each dimension. Two parts that differ along one dimension are one, so that rows, slots or tiles
that are stored one by one end as the whole. What is covered by several parts only that are no product together counts as not covered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

Mask = Any  # np.ndarray of bool, of the grid's rank

#: Parts of one reference that are looked at, and numbers of one set of indices (points times positions).
MAX_PARTS, MAX_SPAN = 32, 1 << 18


@dataclasses.dataclass(frozen=True)
class Unknown:
    """Positions from a start that has a number for a name: equal names are equal values."""

    start: int
    size: int
    stride: int


Span = Any  # Unknown, or an np.ndarray of bool: for each point, for each position


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    where: Mask  # the points where it is stored
    spans: tuple[Span, ...]


def span(start: Any, size: int, stride: int, extent: int) -> Span | None:
    """`size` positions from a start that is known at each point: none where they are not all there. None: too many to look at."""
    start = np.asarray(start, np.int64)[..., None]
    if start.size * extent > MAX_SPAN:
        return None
    offset = np.arange(extent) - start
    within = (start >= 0) & (start + (size - 1) * stride < extent)
    return within & (offset == 0 if stride == 0 else (offset >= 0) & (offset < size * stride) & (offset % stride == 0))


def covered(parts: Sequence[Part], spans: Sequence[Span] | None) -> Mask:
    """The points where one of the parts has all of these positions (None: all there are)."""
    found: Any = np.bool_(False)
    for part in parts:
        here = part.where
        for k, outer in enumerate(part.spans):
            here = here & _contains(outer, None if spans is None else spans[k])
            if here.size > MAX_SPAN:
                here = np.bool_(here.all())
        found = found | here
    return found


def add(parts: Sequence[Part], new: Part) -> tuple[Part, ...]:
    for k, part in enumerate(parts):
        if (union := _union(part, new)) is not None:
            return add((*parts[:k], *parts[k + 1 :]), union)
    return (*parts[: MAX_PARTS - 1], new)


def _contains(outer: Span, inner: Span | None) -> Any:
    if isinstance(outer, Unknown):
        return np.bool_(inner == outer) if isinstance(inner, Unknown) else np.bool_(False)
    if inner is None or isinstance(inner, Unknown):
        return outer.all(-1)
    if np.broadcast(outer, inner).size > MAX_SPAN:
        return np.bool_(outer.all())
    # What is nowhere is not known.
    return (outer | ~inner).all(-1) & inner.any(-1) | outer.all(-1)


def _union(a: Part, b: Part) -> Part | None:
    """Both as one part, if they are one."""
    other = [k for k, (x, y) in enumerate(zip(a.spans, b.spans)) if not _equal(x, y)]
    if not other:
        return Part(a.where | b.where, a.spans)
    k = other[0]
    x, y = a.spans[k], b.spans[k]
    if len(other) > 1 or isinstance(x, Unknown) or isinstance(y, Unknown) or not _equal(a.where, b.where):
        return None
    if np.broadcast(x, y).size > MAX_SPAN:
        return None
    return Part(a.where, (*a.spans[:k], x | y, *a.spans[k + 1 :]))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        return bool(isinstance(a, Unknown) and isinstance(b, Unknown) and a == b)
    return np.broadcast(a, b).size <= MAX_SPAN and bool((a == b).all())
