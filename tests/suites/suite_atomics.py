"""The tests of atomics of 16-bit floats, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.corpus.case import REFS_AS_ARGUMENTS, kernel, like
from tests.machine import ON_GPU, enabled

DTYPES = [jnp.float16, jnp.bfloat16]
UPDATES: dict[str, tuple[Callable[..., None], Any]] = {
    "add": (plgpu.atomic_add, np.add),
    "max": (plgpu.atomic_max, np.maximum),
    "min": (plgpu.atomic_min, np.minimum),
}
every = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
each = pytest.mark.parametrize("op", UPDATES)


def small(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    """Integers of which a few dozen have an exact sum, in every order."""
    return np.random.default_rng(seed).integers(-7, 8, shape).astype(dtype)


#: Where the updated part begins and how long it is, of 4096 elements: vectors of 16, 8 and 4 bytes, single elements, a part of a warpgroup.
PARTS = {"all": (0, 4096), "behind 8 bytes": (4, 2048), "behind 4 bytes": (2, 256), "odd": (1, 384), "few": (3, 5), "one": (7, 1)}


@every
@each
@pytest.mark.parametrize("shared", [False, True], ids=["gmem", "smem"])
@pytest.mark.parametrize("part", PARTS)
def test_parts_of_arrays(part: str, shared: bool, op: str, dtype: Any) -> None:
    start, size = PARTS[part]
    update, reference = UPDATES[op]
    x, y = small((4096,), dtype), small((size,), dtype, 1)

    def body(x: Any, y: Any, o: Any, *scratch: Any) -> None:
        place = scratch[0] if shared else o
        place[...] = x[...]
        update(place.at[pl.ds(start, size)], y[...])
        if shared:
            o[...] = place[...]

    with enabled():
        got = kernel(body, like((4096,), dtype), *([plgpu.SMEM((4096,), dtype)] if shared else []))(x, y)
    x[start : start + size] = reference(x[start : start + size], y)
    np.testing.assert_array_equal(np.asarray(got), x)


@every
@each
@pytest.mark.parametrize("layout", ["WGMMA", "WGMMA_TRANSPOSED", "WG_STRIDED"])
def test_layouts(layout: str, op: str, dtype: Any) -> None:
    """Registers hold two neighbours of a row, of a column, or eight of a row."""
    update, reference = UPDATES[op]
    chosen = plgpu.Layout.WG_STRIDED((64, 32), vec_size=8) if layout == "WG_STRIDED" else plgpu.Layout[layout]
    x, y = small((64, 32), dtype), small((64, 32), dtype, 1)

    def body(x: Any, y: Any, o: Any) -> None:
        o[...] = x[...]
        update(o, plgpu.layout_cast(y[...], chosen))

    with enabled():
        got = kernel(body, like((64, 32), dtype))(x, y)
    np.testing.assert_array_equal(np.asarray(got), reference(x, y))


@every
@each
def test_swizzled_shared_memory(op: str, dtype: Any) -> None:
    update, reference = UPDATES[op]
    x, y = small((64, 64), dtype), small((64, 64), dtype, 1)
    transforms = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))

    def body(x: Any, y: Any, o: Any, buf: Any) -> None:
        buf[...] = plgpu.layout_cast(x[...], plgpu.Layout.WGMMA)
        update(buf, plgpu.layout_cast(y[...], plgpu.Layout.WGMMA))
        o[...] = plgpu.layout_cast(buf[...], plgpu.Layout.WGMMA)

    with enabled():
        got = kernel(body, like((64, 64), dtype), plgpu.SMEM((64, 64), dtype, transforms=transforms))(x, y)
    np.testing.assert_array_equal(np.asarray(got), reference(x, y))


@every
@each
@pytest.mark.parametrize("shared", [False, True], ids=["gmem", "smem"])
def test_elements_at_indices(shared: bool, op: str, dtype: Any) -> None:
    """Places come several times; neighbours are others' business."""
    update, reference = UPDATES[op]
    x, y = small((16,), dtype), small((128,), dtype, 1)
    at = np.random.default_rng(2).integers(0, 16, 128).astype(np.int32)

    def body(x: Any, y: Any, at: Any, o: Any, *scratch: Any) -> None:
        place = scratch[0] if shared else o
        place[...] = x[...]
        update(place.at[at[...]], y[...])
        if shared:
            o[...] = place[...]

    with enabled():
        got = kernel(body, like((16,), dtype), *([plgpu.SMEM((16,), dtype)] if shared else []))(x, y, at)
    reference.at(x, at, y)
    np.testing.assert_array_equal(np.asarray(got), x)


@every
@each
@pytest.mark.parametrize("size", [1024, 96, 1])
@pytest.mark.skipif(not REFS_AS_ARGUMENTS, reason="mutable references are arguments of kernels since 0.11")
def test_blocks_on_one_place(size: int, op: str, dtype: Any) -> None:
    """Eight blocks; a scalar, where there is one element."""
    update, reference = UPDATES[op]
    x, y = small((size,), dtype), small((8, size), dtype, 1)

    def fn(x: Any, y: Any) -> Any:
        ref = jax.new_ref(x)

        def body(y: Any, ref: Any) -> None:
            i = lax.axis_index("i")
            if size == 1:
                update(ref.at[0], y[i, 0])
            else:
                update(ref, y[i])

        plgpu.kernel(body, out_type=(), grid=(8,), grid_names=("i",))(y, ref)
        return ref[...]

    with enabled():
        got = jax.jit(fn)(x, y)
    np.testing.assert_array_equal(np.asarray(got), reference.reduce(np.concatenate([x[None], y]), 0))


@every
@each
def test_any_bits(op: str, dtype: Any) -> None:
    """NaNs, subnormal numbers and signed zeros: as the arithmetic of PTX has them; on a GPU the emulator's bits. One update of each place,
    in all the ways that there are."""
    update, reference = UPDATES[op]
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 1 << 16, 4096, np.uint16).view(dtype) for _ in range(2))

    def body(x: Any, y: Any, o: Any, buf: Any) -> None:
        o[...] = x[...]
        # Vectors, pairs, single elements.
        for start, size in ((0, 1024), (1026, 512), (1539, 300)):
            update(o.at[pl.ds(start, size)], y[pl.ds(start, size)])
        buf[...] = x[pl.ds(2048, 2048)]
        update(buf, y[pl.ds(2048, 2048)])
        o[pl.ds(2048, 2048)] = buf[...]

    fn = jax.jit(kernel(body, like((4096,), dtype), plgpu.SMEM((2048,), dtype)))
    with enabled():
        got = np.asarray(fn(x, y))
        if ON_GPU:
            cpu = jax.devices("cpu")[0]
            emulated = fn(jax.device_put(x, cpu), jax.device_put(y, cpu))
            np.testing.assert_array_equal(got.view(np.uint16), np.asarray(emulated).view(np.uint16))
    with np.errstate(all="ignore"):
        both = reference(x, y) if op == "add" else np.where(np.isnan(x), y, np.where(np.isnan(y), x, reference(x, y)))
    untouched = np.ones(4096, bool)
    for start, size in ((0, 1024), (1026, 512), (1539, 300), (2048, 2048)):
        untouched[start : start + size] = False
    np.testing.assert_array_equal(got.astype(np.float32), np.where(untouched, x, both).astype(np.float32))
