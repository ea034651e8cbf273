"""Sines and cosines of arrays in which some angles are large, or no numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

import smalt

@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_angles_do_not_depend_on_their_neighbours(dtype: Any) -> None:
    """Angles are reduced several at a time: a large one, or no number, among them changes no other's bits."""
    rng = np.random.default_rng(5)
    near = np.float32(rng.normal(scale=20, size=(16, 200)))
    near[3, :4] = 0.0, -0.0, 1e-40, -1e-40
    mixed = near.copy()
    for row, x in enumerate([1e9, -3e38, np.inf, np.nan, 110000.0, -1e20, 60000.0]):
        mixed[row, rng.integers(4, 200, 3)] = x

    def body(x: Any, o: Any) -> None:
        o[0], o[1], o[2] = jnp.sin(x[...]), jnp.cos(x[...]), jnp.tan(x[...])

    f = plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((3, *near.shape), dtype))
    with smalt.enabled(True), np.errstate(over="ignore"):
        alone, among = (np.asarray(jax.jit(f)(jnp.asarray(x, dtype))).astype(np.float32) for x in (near, mixed))
    same = mixed == near
    np.testing.assert_array_equal(alone[:, same].view(np.uint32), among[:, same].view(np.uint32))
    with np.errstate(invalid="ignore", over="ignore"):
        exact = np.asarray(jnp.asarray(mixed, dtype)).astype(np.float64)
        want = np.stack([np.sin(exact), np.cos(exact), np.tan(exact)])
    tolerance = {jnp.float32: 1e-6, jnp.bfloat16: 1e-2, jnp.float16: 2e-3}[dtype]
    np.testing.assert_allclose(among, want, rtol=tolerance, atol=tolerance)
    assert np.signbit(among[0, 3, 1]) and not np.signbit(among[0, 3, 0])
