"""Random kernels that load and store under masks, against NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton as plt

from tests.corpus.case import like
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16, jnp.int8, jnp.uint16, jnp.int32, jnp.bool_)
#: Transforms of buffers in shared memory, by bytes of an element.
TILES = {
    1: (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(32)),
    2: (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(64)),
    4: (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128)),
}


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    low, high = {jnp.bool_: (0, 2), jnp.uint16: (0, 100)}.get(dtype, (-100, 100))
    return np.asarray(rng.integers(low, high, shape)).astype(jnp.dtype(dtype))


def masks(how: str, rows: Any, cols: Any, limits: tuple[int, int], offset: int) -> Any:
    """A mask over rows and columns, which are numbers in the array: NumPy's or JAX's."""
    inside = (rows[:, None] >= 0) & (rows[:, None] < limits[0]) & (cols[None, :] >= 0) & (cols[None, :] < limits[1])
    if how == "inside":
        return inside
    if how == "rows":  # the same along a row, as far as the row is inside
        return inside & ((rows[:, None] + offset) % 3 != 0)
    if how == "columns":
        return inside & ((cols[None, :] + offset) % 5 < 3)
    return inside & ((rows[:, None] * 7 + cols[None, :] * 3 + offset) % 4 < 2)


def run(seed: int) -> None:
    """One kernel: a block of an array, which may reach outside on all sides, loaded under a mask, stored under another one."""
    rng = np.random.default_rng(seed)
    dtype = DTYPES[rng.integers(len(DTYPES))]
    shape = (int(rng.integers(3, 150)), int(rng.integers(3, 150)))
    block = (int(rng.choice([16, 32, 64])), int(rng.choice([32, 64, 96])))
    origin = tuple(int(rng.integers(-b // 2, max(n - b // 2, 1))) for n, b in zip(shape, block))
    how_in, how_out = (str(rng.choice(["inside", "rows", "columns", "each"])) for _ in range(2))
    offset = int(rng.integers(8))
    has_other = bool(rng.integers(2))
    through = str(rng.choice(["nothing", "shared", "tiled"]))
    x, old = numbers(rng, shape, dtype), numbers(rng, shape, dtype)
    other = numbers(rng, (), dtype)
    starts = jnp.asarray(origin, jnp.int32)
    tiles = TILES[jnp.dtype(dtype).itemsize] if through == "tiled" and dtype != jnp.bool_ else ()

    def body(x_ref: Any, old_ref: Any, starts_ref: Any, o_ref: Any, *scratch: Any) -> None:
        for i in range(shape[0]):
            o_ref[i, :] = old_ref[i, :]
        i, j = starts_ref[0], starts_ref[1]
        rows, cols = i + jnp.arange(block[0]), j + jnp.arange(block[1])
        at = (pl.ds(i, block[0]), pl.ds(j, block[1]))
        load_mask = masks(how_in, rows, cols, shape, offset)
        value = plt.load(x_ref.at[at], mask=load_mask, other=other if has_other else None)
        if not has_other:  # what stands there then is not said
            value = jnp.where(load_mask, value, jnp.zeros_like(value))
        store_mask = masks(how_out, rows, cols, shape, offset + 1)
        if scratch:
            (buffer,) = scratch
            buffer[...] = jnp.zeros(block, dtype)
            plt.store(buffer, value, mask=store_mask)
            value = plt.load(buffer, mask=store_mask, other=other)
        plt.store(o_ref.at[at], value, mask=store_mask)

    scratch = [plgpu.SMEM(block, dtype, transforms=tiles)] if through != "nothing" else []
    got = keep(plgpu.kernel(body, out_type=like(shape, dtype), scratch_types=scratch)(x, old, starts))

    rows, cols = origin[0] + np.arange(block[0]), origin[1] + np.arange(block[1])
    near = (np.clip(rows, 0, shape[0] - 1)[:, None], np.clip(cols, 0, shape[1] - 1)[None, :])
    load_mask, store_mask = (masks(how, rows, cols, shape, offset + k) for k, how in enumerate((how_in, how_out)))
    value = np.where(load_mask, x[near], other if has_other else np.zeros_like(other))
    want = old.copy()
    r, c = np.nonzero(store_mask)
    want[rows[r], cols[c]] = value[r, c]
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8), err_msg=f"seed {seed}")


def run_indexed(seed: int) -> None:
    """Arrays of indices, some of them outside, under masks: loads, and stores to places of their own."""
    rng = np.random.default_rng(seed)
    dtype = DTYPES[rng.integers(len(DTYPES))]
    n, k = int(rng.integers(5, 300)), int(rng.choice([32, 128, 200]))
    x, old = numbers(rng, (n,), dtype), numbers(rng, (n,), dtype)
    indices = rng.permutation(np.arange(-k, n + k))[:k].astype(np.int32)
    chosen = (rng.random(k) < 0.7) & (indices >= 0) & (indices < n)

    def body(x_ref: Any, old_ref: Any, at_ref: Any, mask_ref: Any, o_ref: Any, loaded_ref: Any) -> None:
        o_ref[...] = old_ref[...]
        at, mask = at_ref[...], mask_ref[...]
        value = plt.load(x_ref.at[at], mask=mask, other=jnp.ones((), dtype))
        loaded_ref[...] = value
        plt.store(o_ref.at[at], value, mask=mask)

    kernel = plgpu.kernel(body, out_type=(like((n,), dtype), like((k,), dtype)))
    got = [keep(a) for a in kernel(x, old, indices, chosen)]
    value = np.where(chosen, x[np.clip(indices, 0, n - 1)], np.ones((), jnp.dtype(dtype)))
    want = old.copy()
    want[indices[chosen]] = value[chosen]
    for a, b in zip(got, (want, value)):
        np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8), err_msg=f"seed {seed}")


def ragged(x: jax.Array, block: int) -> jax.Array:
    """Blocks of an array of whatever length, the last one in part."""

    def body(x_ref: Any, o_ref: Any) -> None:
        start = jax.lax.axis_index("i") * block
        at, mask = pl.ds(start, block), start + jnp.arange(block) < x.shape[0]
        plt.store(o_ref.at[at], plt.load(x_ref.at[at], mask=mask) * 2, mask=mask)

    grid = (pl.cdiv(x.shape[0], block),)
    return plgpu.kernel(body, out_type=like(x.shape, x.dtype), grid=grid, grid_names=("i",))(x)  # type: ignore[no-any-return]


#: The seed is the program.
MASKED_BLOCKS = Grammar("masked blocks", int, run)
MASKED_INDICES = Grammar("masked indices", int, run_indexed)
