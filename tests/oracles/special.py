"""Input data: small numbers, random ones, and the special values of every type."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.oracles.semantics import BF16, BOOL, F16, F32, F64, is_float

_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 255.5, -128.5, 65504.0, 65520.0, 2.0**31, -(2.0**31))


def specials(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Zeros, ones, halves, extremes, subnormals, NaN; of integers also the neighbours of what division and shifts dislike."""
    if dtype == BOOL:
        return np.array([False, True])
    with np.errstate(over="ignore"):
        if is_float(dtype):
            # The smallest and largest subnormal, the smallest normal and the largest number.
            mantissa = {F64: 52, F32: 23, F16: 10, BF16: 7}[dtype]
            unsigned = np.dtype(f"u{dtype.itemsize}").type
            infinity = int(np.array(np.inf, np.float32).astype(dtype).view(unsigned))
            codes = np.array([1, (1 << mantissa) - 1, 1 << mantissa, infinity - 1], unsigned).view(dtype)
            return np.concatenate([np.array(_FLOATS).astype(np.float32).astype(dtype), codes, -codes])
    info, width = np.iinfo(dtype), 8 * dtype.itemsize
    numbers = [0, 1, 2, 3, 7, width - 1, width, width + 1, int(info.max), int(info.max) - 1, int(info.min), int(info.min) + 1]
    numbers += [-1, -2, -3, -7, -width] if info.min < 0 else []
    return np.array(numbers, dtype)


def data(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if dtype == BOOL:
        return rng.integers(0, 2, shape).astype(dtype)
    with np.errstate(all="ignore"):
        return _mixed(rng, shape, dtype)


def _mixed(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    special = rng.choice(specials(dtype), shape)
    small = rng.integers(-9 if is_float(dtype) or np.iinfo(dtype).min else 0, 10, shape).astype(dtype)
    raw = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype).reshape(shape)
    if is_float(dtype):
        ordinary = rng.standard_normal(shape).astype(dtype)
        # Any bits but those of NaN, whose payloads are not compared.
        raw = np.where(np.isnan(raw.astype(np.float64)), ordinary, raw)
        return np.choose(rng.integers(0, 5, shape), [special, small, ordinary, ordinary, raw]).astype(dtype)
    return np.choose(rng.integers(0, 4, shape), [special, small, small, raw]).astype(dtype)
