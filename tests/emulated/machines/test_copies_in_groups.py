"""Copies without a barrier as kernels for GPUs before Hopper have them: pipelines that only load, rings by hand, under conditions, in a RefUnion."""

from __future__ import annotations

import functools
import inspect
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

pytestmark = pytest.mark.skipif(not hasattr(plgpu, "wait_gmem_to_smem"), reason="JAX 0.11.1 has copies in groups")

TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
DEVICES = ("A100", "L4")
BF16 = ml_dtypes.bfloat16
IN_BOUNDS: Any = {"oob_mode": plgpu.OOBFillMode.PROMISE_IN_BOUNDS} if hasattr(plgpu, "OOBFillMode") else {}


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


def wide(x: Any) -> Any:
    return np.asarray(x, np.float64)


@pytest.mark.parametrize("stages", (1, 2, 3))
@pytest.mark.parametrize("whole", (True, False))
@pytest.mark.parametrize("device", DEVICES)
def test_a_pipeline_that_only_loads(device: str, whole: bool, stages: int) -> None:
    """Its products are carried; of `not whole` blocks the rows begin at any element."""
    m, n, k, first = 64, 128, 256, 0 if whole else 7
    a, b = normal(m + first, k), normal(k, n, seed=1)

    def body(a: Any, b: Any, o: Any) -> None:
        def step(_: Any, left: Any, right: Any, acc: Any) -> Any:
            return plgpu.mma(acc, left[...], right[...])

        rows = pl.Element(m) if first else m
        specs = [
            plgpu.BlockSpec((rows, 64), lambda i: (first, i), transforms=TILED, **fills),
            plgpu.BlockSpec((64, n), lambda i: (i, 0), transforms=TILED, **fills),
        ]
        pipeline = plgpu.emit_pipeline(
            step, grid=(k // 64,), in_specs=specs, max_concurrent_steps=stages, init_carry=jnp.zeros((m, n), jnp.float32)
        )
        o[...] = pipeline(a, b)

    fills: Any = {"oob_fill_mode": plgpu.OOBFillMode.PROMISE_IN_BOUNDS} if "oob_fill_mode" in inspect.signature(plgpu.BlockSpec).parameters else {}
    with smalt.emulated(device, check="error"):
        got = jax.jit(kernel(body, jax.ShapeDtypeStruct((m, n), jnp.float32)))(a, b)
    np.testing.assert_allclose(wide(got), wide(a)[first : first + m] @ wide(b), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("semantics", plgpu.LoweringSemantics)
@pytest.mark.parametrize("slots, blocks", ((1, 3), (2, 1), (2, 4), (3, 7)))
@pytest.mark.parametrize("device", DEVICES)
def test_a_ring_by_hand(device: str, slots: int, blocks: int, semantics: Any) -> None:
    """Two warpgroups. The first brings a factor by way of memory that is the ring's later; what follows is copied under conditions, and a wait
    leaves what was begun last in flight where something was."""
    a, b = normal(64, 64), normal(blocks, 64, 128, seed=1)
    layout = plgpu.Layout

    def body(a: Any, b: Any, o: Any, union: Any, out: Any, ready: Any) -> None:
        (stage,), (ring,) = union
        copy = functools.partial(plgpu.copy_gmem_to_smem, **IN_BOUNDS)
        wg = lax.axis_index("wg")

        def meet() -> None:
            smalt.named_barrier_sync(8, 128)

        @pl.when(wg == 0)
        def multiplies() -> None:
            copy(a, stage)
            plgpu.wait_gmem_to_smem(0)
            left = plgpu.load(stage, layout=layout.MMA_LHS(jnp.bfloat16))
            meet()
            for i in range(min(slots, blocks)):
                copy(b.at[i], ring.at[i])

            def step(i: Any, acc: Any) -> Any:
                pl.when(i + slots <= blocks)(lambda: plgpu.wait_gmem_to_smem(slots - 1))
                pl.when(i + slots > blocks)(lambda: plgpu.wait_gmem_to_smem(0))
                acc = plgpu.mma(acc, left, plgpu.load(ring.at[lax.rem(i, slots)], layout=layout.MMA_RHS(jnp.bfloat16)))
                meet()
                pl.when(i + slots < blocks)(lambda: copy(b.at[i + slots], ring.at[lax.rem(i, slots)]))
                return acc

            zero = plgpu.layout_cast(jnp.zeros((64, 128), jnp.float32), layout.MMA_ACC(jnp.bfloat16))
            out[...] = lax.fori_loop(0, blocks, step, zero)
            meet()
            plgpu.barrier_arrive(ready)

        @pl.when(wg == 1)
        def stores() -> None:
            plgpu.barrier_wait(ready)
            o[...] = out[...] * 2

    of = functools.partial(plgpu.SMEM, transforms=TILED)
    union = plgpu.RefUnion((of((64, 64), jnp.bfloat16),), (of((slots, 64, 128), jnp.bfloat16),))
    params = plgpu.CompilerParams(unsafe_no_auto_barriers=True, lowering_semantics=semantics)
    scratch = (union, plgpu.SMEM((64, 128), jnp.float32), plgpu.Barrier())
    with smalt.emulated(device, check="error"):
        call = kernel(body, jax.ShapeDtypeStruct((64, 128), jnp.float32), *scratch, params=params, num_threads=2, thread_name="wg")
        got = jax.jit(call)(a, b)
    np.testing.assert_allclose(wide(got), 2 * np.einsum("mk,bkn->mn", wide(a), wide(b)), rtol=1e-4, atol=2e-3)
