"""Kernels under `jax.shard_map` that checks over which axes of the mesh values vary (`check_vma=True`, the default)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.tpu as pltpu
import jax.numpy as jnp
import numpy as np
import pytest

import smalt

P = jax.sharding.PartitionSpec
F32 = jnp.float32
ROWS = pl.BlockSpec((4, 128), lambda i: (i, 0))


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    with smalt.emulated():
        yield


def varying(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.sharding.ManualAxisType(varying=frozenset({"d"})))


def sharded(f: Callable[..., Any], *arrays: Any, specs: Any = P("d"), out: Any = P("d")) -> Any:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=out))(*arrays)


X = np.random.default_rng(0).normal(size=(16, 128)).astype(np.float32)


def blocks(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * (pl.program_id(0) + 1)


def partial_blocks(x_ref: Any, o_ref: Any) -> None:
    """Blocks that reach outside are copied under conditions."""
    o_ref[...] = x_ref[...] * (pl.program_id(0) + 1)


def in_turn(x_ref: Any, o_ref: Any, s_ref: Any) -> None:
    """Scratch that lasts: a loop with references among what it carries."""

    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        s_ref[...] = jnp.zeros_like(s_ref)

    s_ref[...] += x_ref[...]
    o_ref[...] = jax.lax.fori_loop(0, 2, lambda k, v: v + s_ref[k, :], s_ref[...])


def stored_to(x_ref: Any, o_ref: Any) -> None:
    x_ref[...] = x_ref[...] * 2
    o_ref[...] = x_ref[...] + 1


BODIES = {
    "blocks": (blocks, {}),
    "partial blocks": (partial_blocks, {"grid": (3,), "in_specs": [pl.BlockSpec((3, 128), lambda i: (i, 0))], "out_specs": pl.BlockSpec((3, 128), lambda i: (i, 0))}),
    "in turn": (in_turn, {"scratch_shapes": [plgpu.SMEM((4, 128), F32)]}),
    "stored to": (stored_to, {}),
    "aliased": (blocks, {"input_output_aliases": {0: 0}}),
    "in memory": (blocks, {"grid": (1,), "in_specs": [pl.BlockSpec(memory_space=plgpu.GMEM)], "out_specs": pl.BlockSpec(memory_space=plgpu.GMEM)}),
}


@pytest.mark.parametrize("name", BODIES)
def test_pallas_call(name: str) -> None:
    body, more = BODIES[name]
    given = {"grid": (2,), "in_specs": [ROWS], "out_specs": ROWS} | more

    def call(out: Any) -> Callable[[Any], Any]:
        return pl.pallas_call(body, out_shape=out, **given)

    alone = call(jax.ShapeDtypeStruct((8, 128), F32))
    want = np.concatenate([alone(X[:8]), alone(X[8:])])
    np.testing.assert_array_equal(sharded(call(varying(8, 128)), X), want)


def test_prefetched_scalars() -> None:
    def body(table: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * table[pl.program_id(0)]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(2,),
        in_specs=[pl.BlockSpec((4, 128), lambda i, table: (table[i], 0))],
        out_specs=pl.BlockSpec((4, 128), lambda i, table: (i, 0)),
    )
    table = np.array([1, 0, 1, 1], np.int32)
    got = sharded(pl.pallas_call(body, out_shape=varying(8, 128), grid_spec=spec), table, X, specs=(P("d"), P("d")))
    rows = X.reshape(2, 2, 4, 128)
    want = [rows[d, table[2 * d + i]] * table[2 * d + i] for d in range(2) for i in range(2)]
    np.testing.assert_array_equal(got, np.concatenate(want))


def test_kernel() -> None:
    def body(x_ref: Any, o_ref: Any, s_ref: Any) -> None:
        s_ref[...] = x_ref[...] * 2
        o_ref[...] = jax.lax.fori_loop(0, 4, lambda k, v: v + s_ref[k, :], s_ref[...])

    f = plgpu.kernel(body, out_type=varying(8, 128), scratch_types=[plgpu.SMEM((8, 128), F32)])
    x = 2 * X.reshape(2, 8, 128)
    want = x + x[:, :1] + x[:, 1:2] + x[:, 2:3] + x[:, 3:4]
    np.testing.assert_allclose(sharded(f, X), want.reshape(16, 128), rtol=1e-5, atol=1e-5)


def test_what_varies_is_still_checked() -> None:
    """Around the kernel: its result varies, and may not be said not to; summed over the mesh it does not."""
    f = pl.pallas_call(blocks, out_shape=varying(8, 128), grid=(2,), in_specs=[ROWS], out_specs=ROWS)
    with pytest.raises(ValueError, match="out_specs"):
        sharded(f, X, out=P())
    got = sharded(lambda x: jax.lax.psum(f(x), "d"), X, out=P())
    np.testing.assert_allclose(got, (X[:8] + X[8:]) * np.repeat([1, 2], 4)[:, None], rtol=1e-6)


@pytest.mark.parametrize("kernel", [False, True])
def test_derivatives(kernel: bool) -> None:
    """One operand varies, and has a tangent; another one is the same everywhere, and so is its tangent."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any, s_ref: Any) -> None:
        s_ref[...] = x_ref[...] * y_ref[...]

        def row(k: Any, v: Any) -> Any:
            return v * jnp.sin(s_ref[k, :])

        o_ref[...] = s_ref[...] * jax.lax.fori_loop(0, 2, row, jnp.ones((128,), F32))

    def f(out: Any) -> Callable[..., Any]:
        scratch = [plgpu.SMEM((8, 128), F32)]
        if kernel:
            return plgpu.kernel(body, out_type=out, scratch_types=scratch)
        return pl.pallas_call(body, out_shape=out, scratch_shapes=scratch)

    y, t, u = (np.random.default_rng(k).normal(size=X.shape).astype(np.float32) for k in (1, 2, 3))

    def jvp(f: Any, x: Any, y: Any, t: Any, u: Any) -> Any:
        return jax.jvp(lambda x: f(x, y), [x], [t]), jax.jvp(f, [x, y], [t, u])

    got = sharded(lambda *xs: jvp(f(varying(8, 128)), *xs), X, y, t, u)
    parts = [jvp(f(jax.ShapeDtypeStruct((8, 128), F32)), *(a[at] for a in (X, y, t, u))) for at in (slice(8), slice(8, 16))]
    jax.tree.map(lambda g, a, b: np.testing.assert_array_equal(g, np.concatenate([a, b])), got, *parts)
