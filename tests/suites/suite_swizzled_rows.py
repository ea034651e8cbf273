"""Copies that begin at any row of a swizzled buffer, for the machine that there is: a swizzle is a pattern of addresses, not of rows."""

from __future__ import annotations

from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

from tests.corpus.case import like
from tests.machine import ON_GPU, enabled

ROWS = 64
#: Tiles of the buffer's rows.
TILES = {"one row": 1, "eight rows": 8, "none": None}


def legal(swizzle: int, start: int, height: int, tile: int | None) -> bool:
    """A copy begins at 128 bytes; of tiles of eight rows static starts are whole ones."""
    return start * swizzle % 128 == 0 and (tile != 8 or start % 8 == height % 8 == 0)


def cases(swizzle: int, tile: int | None) -> list[list[tuple[int, int]]]:
    """Those of each kernel, which has a tensor map for each sort of copy."""
    starts = range(0, ROWS, 1 if ON_GPU else 3)
    heights = [1, 2, 3, 8, 16, 21, 40]
    parts = [[(s, h) for s in starts if s + h <= ROWS and legal(swizzle, s, h, tile)] for h in heights]
    return [part for part in parts if part]


@pytest.mark.parametrize("tiles", list(TILES))
@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.bfloat16, jnp.float32])
def test_parts_of_swizzled_buffers(dtype: Any, swizzle: int, tiles: str) -> None:
    """Rows go into a buffer and out of it, the part by a copy, the rest by loads and stores: both know where elements are."""
    columns, tile = swizzle // jnp.dtype(dtype).itemsize, TILES[tiles]
    transforms: tuple[Any, ...] = (plgpu.SwizzleTransform(swizzle),)
    if tile is not None:
        transforms = (plgpu.TilingTransform((tile, columns)), *transforms)
    x = np.arange(ROWS * columns).reshape(ROWS, columns).astype(jnp.dtype(dtype))
    for chosen in cases(swizzle, tile):
        check_parts(x, chosen, transforms)


def check_parts(x: np.ndarray, chosen: list[tuple[int, int]], transforms: tuple[Any, ...]) -> None:
    columns, dtype = x.shape[1], x.dtype

    def body(x: Any, stored: Any, loaded: Any, buffer: Any, barrier: Any) -> None:
        """Part by part: of the buffer to memory, and of memory to the buffer."""
        for k, (start, height) in enumerate(chosen):
            buffer[...] = x[...]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buffer.at[pl.ds(start, height)], stored.at[k, pl.ds(0, height)])
            plgpu.wait_smem_to_gmem(0)
            buffer[...] = jnp.zeros((ROWS, columns), dtype)
            plgpu.commit_smem()
            plgpu.copy_gmem_to_smem(x.at[pl.ds(start, height)], buffer.at[pl.ds(start, height)], barrier)
            plgpu.barrier_wait(barrier)
            loaded[k] = buffer[...]

    shape = (len(chosen), ROWS, columns)
    scratch = [plgpu.SMEM((ROWS, columns), dtype, transforms=transforms), plgpu.Barrier()]
    with enabled():
        kernel = plgpu.kernel(body, out_type=(like(shape, dtype),) * 2, scratch_types=scratch)
        stored, loaded = (np.asarray(a) for a in kernel(x))
    for k, (start, height) in enumerate(chosen):
        where = f"rows {start} to {start + height}"
        np.testing.assert_array_equal(stored[k, :height], x[start : start + height], err_msg=where)
        want = np.zeros_like(x)
        want[start : start + height] = x[start : start + height]
        np.testing.assert_array_equal(loaded[k], want, err_msg=where)


@pytest.mark.parametrize("tile", [1, 8])
@pytest.mark.parametrize("start", [3, 40, 47])
def test_a_start_that_only_the_run_knows(start: int, tile: int) -> None:
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    transforms = (plgpu.TilingTransform((tile, 64)), plgpu.SwizzleTransform(128))

    def body(x: Any, start: Any, o: Any, buffer: Any) -> None:
        buffer[...] = x[...].astype(jnp.bfloat16)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buffer.at[pl.ds(start[...], 16)], o)
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((64, 64), jnp.bfloat16, transforms=transforms)]
    with enabled():
        got = plgpu.kernel(body, out_type=like((16, 64), jnp.bfloat16), scratch_types=scratch)(x, jnp.int32(start))
    np.testing.assert_array_equal(np.asarray(got), x[start : start + 16].astype(jnp.bfloat16))
