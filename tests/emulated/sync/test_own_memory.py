"""With `unsafe_no_auto_barriers` the compiler orders what it passes through memory of its own: in loops, in every warpgroup, on every machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import smalt
from tests.corpus.case import kernel

ROUNDS = 3
UNORDERED = plgpu.CompilerParams(unsafe_no_auto_barriers=True)
N = 64


def dot(a: Any, b: Any, out: Any = jnp.float32) -> Any:
    return jnp.dot(a, b, preferred_element_type=out)


#: What a round makes of what the one before it made, f32[64, 64].
STEPS: dict[str, Callable[[Any], Any]] = {
    "a product of f32": lambda x: dot(x, x.T) / 64,
    "a product of bf16": lambda x: dot(x.astype(jnp.bfloat16), x.astype(jnp.bfloat16)) / 8,
    "a product of f16 with a computed operand": lambda x: dot(x.astype(jnp.float16), (x * 2).astype(jnp.float16).T) / 99,
    "a product of bytes": lambda x: dot((x * 9).astype(jnp.int8), (x.T * 5).astype(jnp.int8), jnp.int32).astype(jnp.float32) / 999,
    "two products": lambda x: dot(dot(x.astype(jnp.bfloat16), x.astype(jnp.bfloat16)).astype(jnp.bfloat16), x.T.astype(jnp.bfloat16)) / 64,
    "sums over warps": lambda x: x - x.sum(axis=0, keepdims=True) / N,
    "a sum of all": lambda x: x + x.sum() / N,
    "where the largest is": lambda x: x + jnp.argmax(x, axis=0)[None].astype(jnp.float32) / N,
    "running sums": lambda x: jnp.cumsum(x, axis=0) / 8 + jnp.cumsum(x, axis=1) / 8,
    "sorted columns": lambda x: jnp.sort(x, axis=0) + x / 2,
    "elements that are looked up": lambda x: x + jnp.take_along_axis(x, (lax.broadcasted_iota(jnp.int32, (N, N), 0) * 7 + 3) % N, axis=0) / 2,
    "transposed": lambda x: x + x.T / 2,
    "turned": lambda x: x + jnp.roll(x, 5, axis=0) / 2,
    "another shape": lambda x: x + x.reshape(32, 128).T.reshape(N, N) / 2,
    "an element that is set": lambda x: x.at[3].set(x[5]) + x[:, 1:2],
    "other layouts": lambda x: plgpu.layout_cast(plgpu.layout_cast(x, plgpu.Layout.WGMMA) + 1, plgpu.Layout.WG_STRIDED((N, N), 2)),
}  # fmt: skip


def reference(step: Callable[[Any], Any], x: Any) -> Any:
    for _ in range(ROUNDS):
        x = step(x) if step is not STEPS["other layouts"] else x + 1
    return x


@pytest.mark.parametrize("threads", ("one", "both", "second"))
@pytest.mark.parametrize("what", STEPS)
@pytest.mark.parametrize("device", ("A100", "H100"))
def test_what_passes_between_threads(device: str, what: str, threads: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, N, N)).astype(np.float32)
    step = STEPS[what]

    def body(x: Any, o: Any) -> None:
        def go(i: Any) -> None:
            o[i] = lax.fori_loop(0, ROUNDS, lambda _, x: step(x), x[i])

        if threads == "one":
            go(0)
            go(1)
        elif threads == "both":
            go(lax.axis_index("wg"))
        else:
            pl.when(lax.axis_index("wg") == 1)(lambda: [go(0), go(1)] and None)

    several = {} if threads == "one" else {"num_threads": 2, "thread_name": "wg"}
    with smalt.emulated(device):
        call = kernel(body, jax.ShapeDtypeStruct(x.shape, x.dtype), params=UNORDERED, **several)
        got = np.asarray(jax.jit(call)(x))
    want = np.stack([np.asarray(reference(step, jnp.asarray(a))) for a in x])
    np.testing.assert_allclose(got, want, rtol=3e-2, atol=3e-2)


#: Operands that are loaded, of K = 256: several slices pass through one buffer, or two in turn.
DTYPES = (np.float32, ml_dtypes.bfloat16, np.float16, np.int8)


@pytest.mark.parametrize("where", ("device", "shared"))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", ("A100", "H100"))
def test_products_of_what_is_loaded(device: str, dtype: Any, where: str) -> None:
    k, n, out = 256, 64, np.int32 if dtype is np.int8 else np.float32
    rng = np.random.default_rng(0)
    a, b = ((rng.standard_normal(shape) * 3).astype(dtype) for shape in ((64, k), (k, n)))

    def body(a: Any, b: Any, o: Any, *scratch: Any) -> None:
        if where == "shared":
            *tiles, barrier = scratch
            for source, tile in zip((a, b), tiles):
                plgpu.copy_gmem_to_smem(source, tile, barrier)
            plgpu.barrier_wait(barrier)
            a, b = tiles

        def go(_: Any, acc: Any) -> Any:
            return acc + jnp.dot(a[...], b[...], preferred_element_type=out)

        o[...] = lax.fori_loop(0, ROUNDS, go, jnp.zeros((64, n), out))

    scratch = (plgpu.SMEM(a.shape, dtype), plgpu.SMEM(b.shape, dtype), plgpu.Barrier(num_arrivals=2)) if where == "shared" else ()
    with smalt.emulated(device):
        got = np.asarray(jax.jit(kernel(body, jax.ShapeDtypeStruct((64, n), out), *scratch, params=UNORDERED))(a, b))
    np.testing.assert_allclose(got, ROUNDS * (a.astype(np.float64) @ b.astype(np.float64)), rtol=1e-2, atol=0.5)


@pytest.mark.skipif(not hasattr(plgpu, "mma"), reason="JAX 0.11 has plgpu.mma")
@pytest.mark.parametrize("semantics", plgpu.LoweringSemantics)
@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("device", ("A100", "H100"))
def test_fragments_of_tiles(device: str, threads: int, semantics: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((64, 64), (64, 128)))
    layout = plgpu.Layout

    def body(a: Any, b: Any, o: Any, left: Any, right: Any) -> None:
        def go() -> None:
            left[...] = a[...]
            right[...] = b[...]
            smalt.named_barrier_sync(8, 128)

            def product(_: Any, acc: Any) -> Any:
                x, y = (plgpu.load(r, layout=of(jnp.bfloat16)) for r, of in ((left, layout.MMA_LHS), (right, layout.MMA_RHS)))
                acc = plgpu.mma(plgpu.layout_cast(acc, layout.MMA_ACC(jnp.bfloat16)), x, y)
                smalt.named_barrier_sync(8, 128)
                return acc

            o[...] = lax.fori_loop(0, ROUNDS, product, plgpu.layout_cast(jnp.zeros(o.shape, o.dtype), layout.MMA_ACC(jnp.bfloat16)))

        go() if threads == 1 else pl.when(lax.axis_index("wg") == 1)(go)

    tiles = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    scratch = [plgpu.SMEM(x.shape, jnp.bfloat16, transforms=tiles) for x in (a, b)]
    params = plgpu.CompilerParams(unsafe_no_auto_barriers=True, lowering_semantics=semantics)
    several = {"num_threads": 2, "thread_name": "wg"} if threads == 2 else {}
    with smalt.emulated(device):
        call = kernel(body, jax.ShapeDtypeStruct((64, 128), jnp.float32), *scratch, params=params, **several)
        got = np.asarray(jax.jit(call)(a, b))
    np.testing.assert_allclose(got, ROUNDS * (a.astype(np.float64) @ b.astype(np.float64)), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("params", (UNORDERED, plgpu.CompilerParams()))
@pytest.mark.parametrize("where", ("an arm", "rounds of its own"))
def test_memory_is_short(where: str, params: Any) -> None:
    """Scopes take over the memory of others, for which all warpgroups have to have left it. One warpgroup alone does not wait for the others."""
    rows, rng = 360, np.random.default_rng(0)
    x = rng.standard_normal((N, N)).astype(np.float32)

    def body(x: Any, o: Any) -> None:
        wg = lax.axis_index("wg")

        def first(buffer: Any) -> None:
            @pl.when(wg == 0)
            def only() -> None:
                buffer[pl.ds(0, N)] = x[...]
                smalt.named_barrier_sync(8, 128)
                o[0] = STEPS["elements that are looked up"](buffer[pl.ds(0, N)])

        for _ in range(2):
            pl.run_scoped(first, plgpu.SMEM((rows, N), jnp.float32), collective_axes="wg")

        def rounds(n: Any) -> None:
            o[1 + wg] = lax.fori_loop(0, n, lambda _, x: STEPS["a product of f32"](x), x[...])

        if where == "an arm":
            pl.when(wg == 1)(lambda: rounds(ROUNDS))
        else:
            rounds(ROUNDS - 1 + wg)

    with smalt.emulated("H100"):
        call = kernel(body, jax.ShapeDtypeStruct((3, N, N), x.dtype), params=params, num_threads=2, thread_name="wg")
        got = np.asarray(jax.jit(call)(x))
    np.testing.assert_allclose(got[2], reference(STEPS["a product of f32"], jnp.asarray(x)), rtol=3e-2, atol=3e-2)
