"""Operands and results in one buffer."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

import smalt


def step(x: Any, y: Any) -> Any:
    """(x + y in y's buffer, 3 x)"""

    def body(x_ref: Any, y_ref: Any, sum_ref: Any, tripled_ref: Any) -> None:
        tripled_ref[...] = x_ref[...] * 3
        sum_ref[...] = x_ref[...] + y_ref[...]

    spec = pl.BlockSpec((128,), lambda i: (i,))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(
        body, out_shape=[shape, shape], input_output_aliases={1: 0}, compiler_params=plgpu.CompilerParams(),
        grid=(x.shape[0] // 128,), in_specs=[spec, spec], out_specs=[spec, spec],
    )(x, y)


def test_aliased_results_of_a_pallas_call() -> None:
    n = np.arange(512, dtype=np.float32)
    with smalt.emulated("H100"):
        x, y = jnp.asarray(n), jnp.asarray(n * 10)
        total, tripled = jax.jit(step)(x, y)
        np.testing.assert_array_equal(total, n * 11)
        np.testing.assert_array_equal(tripled, n * 3)
        np.testing.assert_array_equal(y, n * 10)  # not donated: unchanged
        donated = jax.jit(lambda x, y: step(x, y)[0], donate_argnums=1)
        np.testing.assert_array_equal(donated(x, y + 1), n * 11 + 1)
        batched = jax.jit(jax.vmap(step))(jnp.stack([x, y]), jnp.stack([y, y]))[0]
        np.testing.assert_array_equal(batched, np.stack([n * 11, n * 20]))
