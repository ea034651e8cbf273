"""Types of elements and of arrays, and the modes in which JAX traces with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core as jax_core


def key_data(keys: Any) -> Any:
    return np.asarray(jax.random.key_data(keys))


def physical_aval(shape: Sequence[int], dtype: Any, weak: bool) -> Any:
    return jax_core.ShapedArray(tuple(shape), dtype, weak_type=weak)


@contextlib.contextmanager
def tracing_mode(wide: bool) -> Iterator[None]:
    """For tracing what is ours: no promotion that the user chose; 64-bit types if asked for."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.numpy_dtype_promotion("standard"))
        stack.enter_context(jax.numpy_rank_promotion("allow"))
        if wide and jax.dtypes.canonicalize_dtype(np.int64) != np.int64:
            enable = getattr(jax, "enable_x64", None)
            stack.enter_context(enable(True) if enable is not None else jax.experimental.enable_x64())
        yield


def is_float(x: Any) -> bool:
    return bool(jax.dtypes.issubdtype(jax_core.typeof(x).dtype, np.inexact))


def is_float_memory(aval: Any) -> bool:
    """Whether a reference is to floats."""
    dtype = getattr(aval.inner_aval, "dtype", None)
    return dtype is not None and bool(jax.dtypes.issubdtype(dtype, np.inexact))


_NARROW = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}


def bits_of(dtype: Any) -> int:
    """Of one element; of a key, those of its data."""
    if is_key(dtype):
        return 32 * int(np.prod(dtype._impl.key_shape))
    dtype = np.dtype(dtype)
    return _NARROW.get(dtype.name, 8 * int(dtype.itemsize))


def is_key(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def is_integer(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, np.integer))


def is_narrow(dtype: Any) -> bool:
    """Whether elements are of less than a byte."""
    return getattr(dtype, "name", "") in _NARROW


def array_aval(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax_core.ShapedArray(shape, dtype)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """How many elements are between neighbours along each dimension."""
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
