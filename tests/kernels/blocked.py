"""`pl.pallas_call`s over blocks that follow one another, which `suite_partition` splits over devices and `suite_symbolic` exports for all sizes."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def like(x: Any, *shape: Any, dtype: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape or x.shape, dtype or x.dtype)


def rows(width: int, n: int = 8) -> pl.BlockSpec:
    return pl.BlockSpec((n, width), lambda i: (i, 0))


def copied(x: Any, o: Any) -> None:
    o[...] = x[...]


def carried(x: Any, o: Any, s: Any) -> None:
    """Each step needs what the one before it left in scratch."""

    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        s[...] = jnp.zeros_like(s)

    s[...] += x[...]
    o[...] = s[...]


def numbered_within_a_rule(x: Any, o: Any) -> None:
    """A function with a derivative of its own asks which step it is."""
    f = jax.custom_jvp(lambda v: v * pl.program_id(0))
    f.defjvp(lambda primals, tangents: (f(*primals), f(*tangents)))
    o[...] = f(x[...])


def matmul(x: Any, y: Any) -> Any:
    def body(x: Any, y: Any, o: Any, acc: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(x[...], y[...], precision="highest")

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            o[...] = acc[...]

    (m, k), n = x.shape, y.shape[1]
    return pl.pallas_call(
        body,
        out_shape=like(x, m, n),
        grid=(m // 32, n // 32, k // 32),
        in_specs=[pl.BlockSpec((32, 32), lambda i, j, k: (i, k)), pl.BlockSpec((32, 32), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((32, 32), lambda i, j, k: (i, j)),
        scratch_shapes=[plgpu.SMEM((32, 32), jnp.float32)],
    )(x, y)
