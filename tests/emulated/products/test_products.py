"""Products of arrays in the emulator, and which way they go."""

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import pytest

import smalt
from tests.suites.suite_products import *  # noqa: F403

pytestmark = pytest.mark.shared

F16, BF16, F32, I8 = jnp.float16, jnp.bfloat16, jnp.float32, jnp.int8


def _dot(x: Any, y: Any) -> Any:
    to = jnp.int32 if jnp.issubdtype(x.dtype, jnp.integer) else jnp.float32
    return jnp.dot(x, y, preferred_element_type=to)


def _plain(x: Any, y: Any, o: Any, slot: Any, barrier: Any) -> None:
    o[...] = _dot(x[...], y[...])


def _turned(x: Any, y: Any, o: Any, slot: Any, barrier: Any) -> None:
    o[...] = _dot(x[...], y[...].T)


def _overwritten(x: Any, y: Any, o: Any, slot: Any, barrier: Any) -> None:
    slot[...] = x[...]
    left = slot[...]
    slot[...] = left + left
    o[...] = _dot(left, y[...])


def _told(x: Any, y: Any, o: Any, slot: Any, barrier: Any) -> None:
    left, right = x[...], y[...]
    plgpu.barrier_arrive(barrier)
    plgpu.barrier_wait(barrier)
    o[...] = _dot(left, right)


def _waited(x: Any, y: Any, o: Any, slot: Any, barrier: Any) -> None:
    plgpu.barrier_arrive(barrier)
    left, right = x[...], y[...]
    plgpu.barrier_wait(barrier)
    o[...] = _dot(left, right)


def _stored(x: Any, y: Any, o: Any, slot: Any, barrier: Any) -> None:
    slot[...] = x[...]
    o[...] = _dot(slot[...], y[...])


def _computed(x: Any, y: Any, o: Any, slot: Any, barrier: Any) -> None:
    o[...] = _dot(jnp.maximum(x[...], 0), y[...])


def _own(x: Any, y: Any, o: Any, slot: Any, barrier: Any) -> None:
    """A product of arrays in a kernel with a wgmma of its own."""

    def scope(acc: Any) -> Any:
        plgpu.wgmma(acc, x, y)
        plgpu.wgmma_wait(0)
        return acc[...]

    o[...] = pl.run_scoped(scope, plgpu.ACC(o.shape, jnp.float32)) + _dot(x[...] + x[...], y[...])


def _columns(x: Any, y: Any, o: Any, slot: Any, barrier: Any) -> None:
    """Another view of the buffer."""
    slot[...] = x[...]
    flat = slot.reshape(slot.shape[0] * slot.shape[1])
    o[...] = _dot(slot[...], y[...]) + flat[3].astype(o.dtype)


#: Body, type, (M, N, K), and of "SS", "RS" (wgmma with its left operand in memory, or registers), "tf32" (rounded), "mma" (mma.sync) what is there.
WAYS: list[tuple[Callable[..., None], Any, tuple[int, int, int], set[str]]] = [
    (_plain, F16, (64, 128, 64), {"SS"}),
    (_plain, BF16, (128, 64, 48), {"SS"}),
    (_turned, F16, (64, 64, 64), {"SS"}),
    (_turned, I8, (64, 64, 64), {"SS"}),
    (_plain, I8, (64, 64, 64), {"SS"}),
    (_plain, F32, (64, 64, 64), {"RS", "tf32"}),
    (_turned, F32, (64, 64, 64), {"RS", "tf32"}),
    (_plain, F16, (48, 64, 64), {"mma"}),
    (_plain, F16, (64, 64, 24), {"mma"}),
    (_plain, F16, (64, 12, 32), {"mma"}),
    (_overwritten, F16, (64, 64, 64), {"RS"}),
    (_told, F16, (64, 64, 64), {"mma"}),
    (_waited, F16, (64, 64, 64), {"SS"}),
    (_stored, F16, (64, 64, 64), {"SS"}),
    (_computed, F16, (64, 64, 64), {"RS"}),
    (_own, F16, (64, 64, 64), {"SS", "mma"}),
    (_columns, F16, (64, 64, 64), {"SS"}),
]


@pytest.mark.parametrize(("body", "dtype", "sizes", "ways"), WAYS)
def test_ways(body: Callable[..., None], dtype: Any, sizes: tuple[int, int, int], ways: set[str]) -> None:
    m, n, k = sizes
    turned = body is _turned
    x = jax.random.randint(jax.random.key(0), (m, k), -4, 5).astype(dtype)
    y = jax.random.randint(jax.random.key(1), (n, k) if turned else (k, n), -4, 5).astype(dtype)
    to = jnp.int32 if dtype == I8 else jnp.float32
    f = pl.pallas_call(
        body,
        in_specs=[pl.BlockSpec(x.shape, lambda: (0, 0)), pl.BlockSpec(y.shape, lambda: (0, 0))],
        out_specs=pl.BlockSpec((m, n), lambda: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((m, n), to),
        scratch_shapes=[plgpu.SMEM((m, k), dtype), plgpu.Barrier()],
    )
    with smalt.enabled(True):
        (report,) = smalt.inspect(f, x, y)
        got = f(x, y)
    lines = report.ptx.splitlines()
    wgmma = [line.split("{", 1)[1].split("}", 1)[1] for line in lines if "wgmma.mma_async" in line]
    found = {"RS" if "{" in rest else "SS" for rest in wgmma}
    found |= {"tf32"} if "cvt.rna.tf32" in report.ptx else set()
    found |= {"mma"} if "mma.sync" in report.ptx else set()
    left = jnp.maximum(x, 0) if body is _computed else x
    expected = left.astype(jnp.float32) @ (y.T if turned else y).astype(jnp.float32)
    expected += 2 * expected if body is _own else x.reshape(-1)[3].astype(jnp.float32) if body is _columns else 0
    assert (got == expected).all() and found == ways
