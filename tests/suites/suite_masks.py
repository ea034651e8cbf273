"""The tests of masked loads and stores, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import triton as plt

from smalt import _versions
from tests.corpus.case import like
from tests.fuzz.seeds import right
from tests.machine import ON_GPU, enabled
from tests.programs.blocks import masks

#: How many random kernels in each of the eight groups.
COUNT = int(os.environ.get("SMALT_MASKS_N", 12 if ON_GPU else 3))


@pytest.mark.parametrize("group", range(8))
def test_masked_blocks_equal_numpy(group: int) -> None:
    for grammar in (masks.MASKED_BLOCKS, masks.MASKED_INDICES):
        right(grammar, range(group * COUNT, (group + 1) * COUNT))


@pytest.mark.parametrize("n", [1, 100, 128, 129, 1000])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8])
def test_tails(n: int, dtype: Any) -> None:
    x = np.arange(n).astype(jnp.dtype(dtype)) % 50
    with enabled():
        got = np.asarray(masks.ragged(jnp.asarray(x), 256))
    np.testing.assert_array_equal(got, x * 2)


def run(body: Any, shape: tuple[int, ...], *arrays: Any, dtype: Any = jnp.float32, **kw: Any) -> np.ndarray:
    with enabled():
        return np.asarray(plgpu.kernel(body, out_type=like(shape, dtype), **kw)(*arrays))


def test_a_mask_of_one_element() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)

    def body(x: Any, o: Any) -> None:
        for i in range(4):
            o[i] = plt.load(x.at[i, 2], mask=x[i, 0] < 6, other=-1)

    np.testing.assert_array_equal(run(body, (4,), x), [2, 5, -1, -1])


@pytest.mark.parametrize("start", [0, 7])
def test_a_swap_gives_its_value_where_it_stores_nothing(start: int) -> None:
    """As in JAX's interpreter and in Triton; past the end of the array, too, where nothing is stored."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 16, 32)).astype(np.float32)
    mask = rng.random((16, 32)) < 0.5
    mask[16 - start :] = False

    def body(x_ref: Any, mask_ref: Any, start_ref: Any, _: Any, y_ref: Any, old_ref: Any) -> None:
        view = y_ref.at[pl.ds(start_ref[0], 16), :]
        old_ref[...] = _versions.masked_swap(view, x_ref[...], mask_ref[...])  # of `pallas_primitives`

    with enabled():
        call = pl.pallas_call(body, out_shape=[like((16, 32)), like((16, 32))], input_output_aliases={3: 0})
        stored, old = call(x, mask, np.array([start], np.int32), y)
    want, before = y.copy(), x.copy()
    part = mask[: 16 - start]
    want[start:][part], before[: 16 - start][part] = x[: 16 - start][part], y[start:][part]
    np.testing.assert_array_equal(stored, want)
    np.testing.assert_array_equal(old, before)


def windows(n: int, first: int, how: str) -> tuple[np.ndarray, np.ndarray]:
    """What `n` steps load and store of 96 elements, 64 from `first` on and 64 further for each step, and what they should."""
    x = np.arange(1, 97, dtype=np.float32)

    def body(x: Any, o: Any, back: Any, *scratch: Any) -> None:
        start = pl.program_id(0) * 64 + first
        at = jnp.arange(64) + start
        mask = (at >= 0) & (at < 96)
        if scratch:
            scratch[0][...] = x[...]
            x = scratch[0]
        if how.startswith("rows"):  # one of them, by an array of indices
            row = jnp.zeros((1,), jnp.int32)
            o[...] = plt.load(x.at[row, pl.ds(start, 64)], mask=mask[None], other=-5.0)[0]
            plt.store(back.at[row, pl.ds(start, 64)], at.astype(jnp.float32)[None], mask=mask[None])
            return
        o[...] = plt.load(x.at[pl.ds(start, 64)], mask=mask, other=-5.0)
        plt.store(back.at[pl.ds(start, 64)], at.astype(jnp.float32), mask=mask)

    tiling = [plgpu.TilingTransform((16,))] if how == "tiles" else []
    whole = (1, 96) if how.startswith("rows") else (96,)
    call = pl.pallas_call(
        body,
        grid=(n,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY) if "device memory" in how else pl.BlockSpec(whole, lambda i: (0,) * len(whole))],
        out_specs=[pl.BlockSpec((64,), lambda i: (i,)), pl.BlockSpec(memory_space=pl.ANY)],
        out_shape=[like((64 * n,)), like(whole)],
        scratch_shapes=[plgpu.SMEM((96,), jnp.float32, transforms=tiling)] if how in ("scratch", "tiles") else [],
        compiler_params=plgpu.CompilerParams(),
    )
    with enabled():
        o, back = (np.asarray(y).reshape(-1) for y in call(x.reshape(whole)))
    at = np.arange(64 * n) + first
    inside = (at >= 0) & (at < 96)
    want = np.where(inside, x[np.clip(at, 0, 95)], -5).astype(np.float32)
    return np.concatenate([o, back[at[inside]]]), np.concatenate([want, at[inside].astype(np.float32)])


@pytest.mark.parametrize("how", ["block", "device memory", "scratch", "tiles", "rows of a block", "rows in device memory"])
def test_slices_that_begin_outside(how: str) -> None:
    """Of one step the start is known when the kernel is compiled, of two it is not."""
    for first in (-64, -3, 0, 48, 95, 96, 1000):
        for n in (1, 2):
            got, want = windows(n, first, how)
            np.testing.assert_array_equal(got, want, err_msg=f"{first}, {n} steps")


def test_a_store_of_one_element() -> None:
    def body(o: Any) -> None:
        o[...] = jnp.zeros(4)
        for i in range(4):
            plt.store(o.at[jnp.int32(i)], jnp.float32(i), mask=o[0] + i > 1.5)

    np.testing.assert_array_equal(run(body, (4,)), [0, 0, 2, 3])


def test_masks_of_one_value_and_of_rows() -> None:
    x = np.arange(64, dtype=np.float32).reshape(2, 32)

    def body(x: Any, o: Any) -> None:
        for i in range(2):
            o[i] = plt.load(x.at[i], mask=x[i, 0] < 32, other=7)
        o[...] = plt.load(o, mask=(jnp.arange(32) % 2 == 0)[None], other=jnp.float32(5))

    want = np.stack([x[0], np.full(32, 7, np.float32)])
    want[:, 1::2] = 5
    np.testing.assert_array_equal(run(body, (2, 32), x), want)


def test_no_mask_is_a_plain_load() -> None:
    x = np.arange(128, dtype=np.float32)

    def body(x: Any, o: Any) -> None:
        plt.store(o, plt.load(x, eviction_policy="evict_last", other=3), eviction_policy="evict_first")

    np.testing.assert_array_equal(run(body, (128,), x), x)


def test_strides_under_masks() -> None:
    x = np.arange(300, dtype=np.float32)

    def body(x: Any, o: Any) -> None:
        o[...] = jnp.zeros(64)
        part = plt.load(x.at[pl.ds(5, 32, 3)], mask=jnp.arange(32) < 20, other=-1)
        plt.store(o.at[pl.ds(1, 32, 2)], part, mask=jnp.arange(32) != 7)

    want = np.zeros(64, np.float32)
    part = np.where(np.arange(32) < 20, x[5 : 5 + 96 : 3], -1)
    want[1::2] = np.where(np.arange(32) != 7, part, 0)
    np.testing.assert_array_equal(run(body, (64,), x), want)


def test_warps_of_two_warpgroups() -> None:
    """Each warpgroup has its part, both in one buffer."""
    x = np.arange(2 * 64 * 32, dtype=np.float32).reshape(2, 64, 32)

    def body(x: Any, o: Any, s: Any) -> None:
        wg = jax.lax.axis_index("wg")
        mask = (jnp.arange(64)[:, None] + jnp.arange(32)[None]) % 2 == wg
        s[wg] = jnp.zeros((64, 32))
        plt.store(s.at[wg], plt.load(x.at[wg], mask=mask), mask=mask)
        o[wg] = s[wg]

    got = run(body, (2, 64, 32), x, num_threads=2, thread_name="wg", scratch_types=[plgpu.SMEM((2, 64, 32), jnp.float32)])
    even = (np.arange(64)[:, None] + np.arange(32)[None]) % 2
    np.testing.assert_array_equal(got, np.stack([np.where(even == k, x[k], 0) for k in range(2)]))


def test_gradients_of_what_masks_choose() -> None:
    x = np.arange(128, dtype=np.float32)

    def body(x: Any, o: Any) -> None:
        mask = jnp.arange(128) < 100
        o[...] = jax.grad(lambda v: jnp.sum(jnp.where(mask, v * v, 0)))(plt.load(x, mask=mask, other=0))

    np.testing.assert_array_equal(run(body, (128,), x), np.where(np.arange(128) < 100, 2 * x, 0))
