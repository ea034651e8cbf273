"""Loads of slices that memory instructions have no form of: some part of a reference is loaded, and an array operation makes the rest.

A stride of 0 repeats one position: that is loaded once, and broadcast. Elements of less than a byte are neighbours within one: what lies
between strided ones is loaded, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from smalt import _versions
from smalt._errors import Unsupported


@dataclasses.dataclass(frozen=True)
class Load:
    """A load of a view with these transforms, of this shape, and what is made of its result: a primitive with parameters."""

    transforms: tuple[Any, ...]
    shape: tuple[int, ...]
    primitive: str
    params: dict[str, Any]


def strided_load(transforms: Sequence[Any], dtype: Any, shape: tuple[int, ...]) -> Load | None:
    """The load in place of one of a view of this shape; None: it is one that memory instructions have."""
    if _has_repeats(transforms):
        return _repeated(transforms, shape)
    slices = [i for t in transforms if _is_index(t) for i in t.indices if _is_slice(i)]
    if not _versions.is_narrow(dtype) or all(i.stride == 1 for i in slices) or not _is_index(transforms[-1]):
        return None
    last = transforms[-1]
    strides = [i.stride if _is_slice(i) else 1 for i in last.indices]
    if any(i.stride != 1 for t in transforms[:-1] if _is_index(t) for i in t.indices if _is_slice(i)):
        return None
    hulls = [_slice(i, i.start, (i.size - 1) * i.stride + 1) if s != 1 and i.size else i for i, s in zip(last.indices, strides)]
    hull = dataclasses.replace(last, indices=tuple(hulls))
    loaded = tuple(hull.get_indexer_shape())
    by_dim = _result_dims(last)
    steps = [1] * len(loaded)
    for d, stride in enumerate(strides):
        if stride != 1 and last.indices[d].size:
            steps[by_dim[d]] = stride
    params = {"start_indices": (0,) * len(loaded), "limit_indices": loaded, "strides": tuple(steps)}
    return Load((*transforms[:-1], hull), loaded, "slice", params)


def repeating_load(transforms: Sequence[Any]) -> Load | None:
    """The same of a view with strides of 0, whose shape its last index says; None: it has none."""
    if not _has_repeats(transforms):
        return None
    return _repeated(transforms, tuple(transforms[-1].get_indexer_shape()) if _is_index(transforms[-1]) else ())


def _has_repeats(transforms: Sequence[Any]) -> bool:
    return any(_is_slice(i) and i.stride == 0 for t in transforms if _is_index(t) for i in t.indices)


def _repeated(transforms: Sequence[Any], shape: tuple[int, ...]) -> Load:
    """Dimensions of stride 0 have one position, also where they are indexed further."""
    out: list[Any] = []
    repeated: list[bool] = []  # of the dimensions of the view so far, once one is
    for t in transforms:
        if not _is_index(t):
            if any(repeated):
                raise Unsupported(
                    f"not supported yet: {type(t).__name__} of a slice of stride 0\n  remedy: index it last, or broadcast what is loaded"
                )
            out.append(t)
            continue
        before = repeated or [False] * len(t.indices)
        indices: list[Any] = []
        now = [False] * len(t.get_indexer_shape())
        places = _result_dims(t)
        for d, (i, is_repeated) in enumerate(zip(t.indices, before)):
            if _is_slice(i) and (is_repeated or i.stride == 0) and i.size:
                indices.append(_slice(i, 0 if is_repeated else i.start, 1))
                now[places[d]] = True
            elif _is_slice(i) and i.stride == 0:
                indices.append(_slice(i, 0, 0))
            elif is_repeated and not _is_slice(i):
                if getattr(getattr(getattr(i, "atom", i), "aval", i), "shape", ()):
                    raise Unsupported(
                        "not supported yet: an array of indices into a slice of stride 0\n  remedy: broadcast what is loaded, and index that"
                    )
                indices.append(0)
            else:
                indices.append(i)
        extents = tuple(1 if r else n for n, r in zip(t.shape, before))
        out.append(dataclasses.replace(t, indices=tuple(indices), shape=extents))
        repeated = now
    loaded = tuple(1 if r else n for n, r in zip(shape, repeated))
    return Load(tuple(out), loaded, "broadcast_in_dim", {"shape": shape, "broadcast_dimensions": tuple(range(len(shape)))})


def _result_dims(t: Any) -> dict[int, int]:
    """Of each dimension that is sliced the one of the result. Arrays of indices stand where the first of neighbours does, else in front."""
    arrays = [d for d, i in enumerate(t.indices) if not _is_slice(i)]
    rank = len(t.int_indexer_shape)
    together = bool(arrays) and arrays[-1] - arrays[0] == len(arrays) - 1
    out, at = {}, 0 if together or not arrays else rank
    for d, i in enumerate(t.indices):
        if together and d == arrays[0]:
            at += rank
        if _is_slice(i):
            out[d] = at
            at += 1
    return out


def _is_index(t: Any) -> bool:
    return type(t).__name__ == "NDIndexer"


def _is_slice(i: Any) -> bool:
    return type(i).__name__ == "Slice"


def _slice(like: Any, start: Any, size: int) -> Any:
    return dataclasses.replace(like, start=start, size=size, stride=1)
