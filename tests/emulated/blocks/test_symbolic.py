"""Symbolic shapes in `jax.export`, in the emulator."""

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
import smalt

from tests.suites.suite_symbolic import *  # noqa: F403


def test_exports_for_a_tpu_are_left_alone() -> None:
    """Stock's own: grids of symbolic sizes, which only its TPU compiler takes."""

    def copy(x: Any, o: Any) -> None:
        o[...] = x[...]

    def call(x: Any) -> Any:
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(copy, out_shape=x, grid=(x.shape[0] // 8,), in_specs=[spec], out_specs=spec)(x)

    (n,) = jax.export.symbolic_shape("n", constraints=("mod(n, 8) == 0",))
    x = jax.ShapeDtypeStruct((n, 128), jnp.float32)
    smalt.enable()
    try:
        assert "tpu" in str(pl.lower_as_mlir(jax.jit(call), x, dynamic_shapes=True))
    finally:
        smalt.disable()
