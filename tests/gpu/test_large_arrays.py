"""Indices that an int32 does not hold, on a GPU: arrays of 3 to 8 GiB."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt

from tests.corpus.case import kernel, like, x64

#: Bits that an index of some element needs more than.
BITS = 31


def at_the_ends(n: int, index: str) -> Any:
    """Where 31 and 32 bits end, and where the array does."""
    places = [end + d for end in (64, 1 << BITS, 2 << BITS, n) for d in range(-40, 40, 3) if 0 <= end + d < n]
    return np.array(places, index)[-64:]


def with_array(n: int, dtype: Any, body: Any, *given: Any) -> Any:
    """What a kernel gives that stores to an array of zeros."""

    def fn(*given: Any) -> Any:
        return kernel(body, like((64,), dtype))(*given, jax.new_ref(jnp.zeros(n, dtype)))

    return np.asarray(jax.jit(fn)(*given))


@pytest.mark.parametrize(("index", "n"), [("uint32", 3 << BITS - 1), ("int64", 5 << BITS - 1), ("uint64", 5 << BITS - 1)])
def test_loads_and_stores_at_indices(index: str, n: int) -> None:
    def body(at: Any, back: Any, v: Any, p: Any, o: Any) -> None:
        p[at[...]] = v[...]
        o[...] = p[back[...]]

    with x64(True), smalt.enabled(True):
        at, v = at_the_ends(n, index), np.arange(64, dtype=np.int8)
        np.testing.assert_array_equal(with_array(n, np.int8, body, at, at[::-1], v), v[::-1])


@pytest.mark.parametrize("index", ["int64", "uint64"])
def test_atomics_at_indices(index: str) -> None:
    def body(at: Any, v: Any, p: Any, o: Any) -> None:
        plgpu.atomic_add(p.at[at[...]], v[...])
        o[...] = p[at[...]]

    with x64(True), smalt.enabled(True):
        n = (1 << BITS) + 4096
        at, v = np.repeat(at_the_ends(n, index)[-32:], 2), np.arange(64, dtype=np.int32)
        np.testing.assert_array_equal(with_array(n, np.int32, body, at, v), np.repeat(v.reshape(32, 2).sum(1), 2))
