"""Running reductions of arrays whose elements are all equal: a sum of such an array is none."""

import itertools
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import smalt

RUNNING = {"sum": (lax.cumsum, np.cumsum), "max": (lax.cummax, np.maximum.accumulate), "min": (lax.cummin, np.minimum.accumulate)}


def reference(name: str, x: Any, axis: int, reverse: bool) -> Any:
    flipped = np.flip(x, axis) if reverse else x
    out = RUNNING[name][1](flipped, axis=axis).astype(x.dtype)
    return np.flip(out, axis) if reverse else out


@pytest.mark.parametrize("name", sorted(RUNNING))
@pytest.mark.parametrize("dtype", [jnp.uint32, jnp.float32, jnp.int8])
def test_they_are_what_numpy_says(name: str, dtype: Any) -> None:
    n = jnp.asarray([3], dtype)
    for shape, axis, reverse in itertools.product([(128,), (512,), (64, 256)], [0, -1], [False, True]):
        axis = axis % len(shape)

        def body(n_ref: Any, o_ref: Any) -> None:
            running = RUNNING[name][0](jnp.broadcast_to(n_ref[0], shape), axis=axis, reverse=reverse)
            o_ref[0] = running
            # In another layout: beside what lies along the axis, and in another order.
            o_ref[1] = jnp.flip(running, axis) + lax.broadcasted_iota(dtype, shape, axis)

        with smalt.enabled(pallas_call=True):
            (got, turned) = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((2, *shape), dtype))(n)
        want = reference(name, np.full(shape, 3, dtype), axis, reverse)
        along = np.arange(shape[axis]).astype(dtype).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        np.testing.assert_array_equal(np.asarray(got), want)
        np.testing.assert_array_equal(np.asarray(turned), (np.flip(want, axis) + along).astype(dtype))
