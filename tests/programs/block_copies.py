"""Random copies of blocks between device and shared memory: tiled and swizzled buffers, blocks that reach outside, predicates, rings, warps; with a
barrier or without. On machines that have no copy engine the threads do them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

from tests.corpus.case import kernel
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar
from tests.oracles.functions.judge import x64

DTYPES = ("int8", "float16", "int32", "float32", "float64")
#: What a barrier's kernels of this version of JAX may leave out.
HAS_GROUPS = hasattr(plgpu, "wait_gmem_to_smem")


@dataclasses.dataclass(frozen=True)
class Copies:
    """What a seed chooses."""

    seed: int
    dtype: str
    array: tuple[int, ...]
    block: tuple[int, ...]
    start: tuple[int, ...]  # of the first block
    step: int  # along the first dimension, from block to block
    steps: int
    slots: int
    swizzle: int  # bytes; 0: none, and no tiles
    dynamic: bool  # starts are known at run time only
    waits: str  # for loads: "barrier", or "group" of copies without one
    by_warp: bool
    skips: int  # of how many steps one is not loaded; 0: all are
    stores: str  # "copy", "add" (a reduction), or "threads"
    threads: int

    @property
    def starts(self) -> list[tuple[int, ...]]:
        return [(self.start[0] + i * self.step, *self.start[1:]) for i in range(self.steps)]

    def is_loaded(self, i: int) -> bool:
        return self.skips == 0 or i % self.skips != 0


def draw(seed: int) -> Copies:
    rng = np.random.default_rng(seed)

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    dtype = one(*DTYPES)
    size = np.dtype(dtype).itemsize
    unit = 16 // size  # elements of the smallest row that the copy engine takes
    swizzle = one(0, 0, 32, 64, 128)
    if swizzle:
        columns = swizzle // size
        block: tuple[int, ...] = (8 * int(rng.integers(1, 9)), columns * int(rng.integers(1, 4)))
    else:
        rank = int(rng.integers(1, 4))
        block = (*(int(n) for n in rng.integers(1, 7, rank - 1)), unit * int(rng.integers(1, 9)))
    if len(block) == 1:
        block = (unit * int(rng.integers(1, 40)),)
    loads = "group" if HAS_GROUPS and rng.random() < 0.35 else "barrier"
    outside = loads == "barrier" and rng.random() < 0.5
    steps = int(rng.integers(1, 6))
    grid = 8 if swizzle else 1
    step = (block[0] + grid - 1) // grid * grid if len(block) > 1 else block[0]
    start = [0] * len(block)
    if len(block) > 1 and not swizzle:
        start[0] = int(rng.integers(0, 4))
        start[-1] = unit * int(rng.integers(0, 3))
    array = [start[0] + step * steps, *(s + b for s, b in zip(start[1:], block[1:]))]
    array[-1] += unit * int(rng.integers(0, 3))
    if outside and len(block) > 1:
        array[0] = max(1, array[0] - int(rng.integers(0, step)) // grid * grid)
        if not swizzle:
            array[-1] = max(unit, array[-1] - unit * int(rng.integers(0, block[-1] // unit + 1)))
    by_warp = not swizzle and loads == "barrier" and rng.random() < 0.2
    stores = one("copy", "copy", "threads", "add" if dtype in ("int32", "float32") else "copy")
    if array[-1] * size % 16 or any(a < s for a, s in zip(array, start)):
        stores = "threads"
    # What is known to be outside is an error before anything is compiled.
    overhangs = any(s + b > a for s, b, a in zip(start[1:], block[1:], array[1:]))
    # The copy engine begins at multiples of 128 bytes.
    slots = int(rng.integers(1, 4)) if size * int(np.prod(block)) % 128 == 0 else 1
    return Copies(
        seed,
        dtype,
        tuple(array),
        block,
        tuple(start),
        step,
        steps,
        slots,
        swizzle,
        bool(overhangs or rng.random() < 0.5),
        loads,
        by_warp,
        int(rng.integers(2, 4)) if loads == "barrier" and rng.random() < 0.2 else 0,
        stores,
        1 if by_warp else int(rng.integers(1, 3)),
    )


def build(copies: Copies) -> Any:
    dtype = jnp.dtype(copies.dtype)
    transforms: tuple[Any, ...] = ()
    if copies.swizzle:
        transforms = (plgpu.TilingTransform((8, copies.swizzle // dtype.itemsize)), plgpu.SwizzleTransform(copies.swizzle))
    slots = copies.slots

    def body(x: Any, starts: Any, o: Any, tiles: Any, out: Any, *rest: Any) -> None:
        full = rest[0]
        mine = jax.lax.axis_index("wg") == copies.threads - 1

        def where(i: Any) -> tuple[Any, ...]:
            if not copies.dynamic:
                return tuple(pl.ds(s if d else copies.start[0] + i * copies.step, n) for d, (s, n) in enumerate(zip(copies.start, copies.block)))
            grid = [1] * len(copies.block)
            # What the copy engine must know of starts.
            grid[-1] = 16 // dtype.itemsize
            if copies.swizzle:
                grid = [8, copies.swizzle // dtype.itemsize]
            at = [pl.multiple_of(starts[i, d], g) if g > 1 else starts[i, d] for d, g in enumerate(grid)]
            return tuple(pl.ds(s, n) for s, n in zip(at, copies.block))

        def load(i: Any) -> None:
            slot = i % slots
            if copies.waits == "group":
                plgpu.copy_gmem_to_smem(x.at[where(i)], tiles.at[slot], None, oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS)
                return
            if copies.by_warp:

                @pl.core_map(plgpu.WarpMesh(axis_name="warp"))
                def by_warp() -> None:
                    @pl.when(jax.lax.axis_index("warp") == 2)
                    def copy() -> None:
                        plgpu.copy_gmem_to_smem(x.at[where(i)], tiles.at[slot], full.at[slot])

                return
            plgpu.copy_gmem_to_smem(x.at[where(i)], tiles.at[slot], full.at[slot])

        @pl.when(mine)
        def run() -> None:
            if copies.stores != "threads":
                o[...] = jnp.zeros(copies.array, dtype)
            for i in range(min(slots, copies.steps)):
                if copies.is_loaded(i):
                    load(jnp.int32(i))

            def step(i: Any, _: Any) -> None:
                slot = i % slots

                def use() -> None:
                    if copies.waits == "barrier":
                        plgpu.barrier_wait(full.at[slot])
                    else:
                        plgpu.wait_gmem_to_smem(0)
                    tile = tiles[slot]
                    made = (tile * 2 + 1).astype(dtype)
                    if copies.stores == "threads":
                        o[i] = made
                    else:
                        out[...] = made
                        plgpu.commit_smem()
                        how = {"reduction_op": "add"} if copies.stores == "add" else {}
                        plgpu.copy_smem_to_gmem(out, o.at[where(i)], **how)
                        plgpu.wait_smem_to_gmem(0)

                if copies.skips:
                    pl.when(i % copies.skips != 0)(use)
                else:
                    use()
                after = i + slots
                goes_on = after < copies.steps
                if copies.skips:
                    goes_on = jnp.logical_and(goes_on, after % copies.skips != 0)
                pl.when(goes_on)(lambda: load(after))

            jax.lax.fori_loop(0, copies.steps, step, None)

    whole = (copies.steps, *copies.block) if copies.stores == "threads" else copies.array
    scratch = [
        plgpu.SMEM((slots, *copies.block), dtype, transforms=transforms),
        plgpu.SMEM(copies.block, dtype, transforms=transforms),
        plgpu.Barrier(num_barriers=slots),
    ]
    return kernel(body, jax.ShapeDtypeStruct(whole, dtype), *scratch, num_threads=copies.threads, thread_name="wg")


def reference(copies: Copies, x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What is stored, and where something is known of it."""
    dtype = np.dtype(copies.dtype)
    by_threads = copies.stores == "threads"
    shape = (copies.steps, *copies.block) if by_threads else copies.array
    found, is_there = np.zeros(shape, dtype), np.full(shape, not by_threads)
    for i, start in enumerate(copies.starts):
        if not copies.is_loaded(i):
            continue
        tile = np.zeros(copies.block, dtype)
        inside = tuple(slice(0, max(0, min(n, a - s))) for s, n, a in zip(start, copies.block, copies.array))
        there = tuple(slice(s, s + part.stop) for s, part in zip(start, inside))
        tile[inside] = x[there]
        made = (tile * dtype.type(2) + dtype.type(1)).astype(dtype)
        if by_threads:
            found[i], is_there[i] = made, True
        else:
            found[there] = made[inside]
    return found, is_there


def check(copies: Copies) -> None:
    rng = np.random.default_rng(copies.seed)
    x = rng.integers(-50, 50, copies.array).astype(copies.dtype)
    starts = np.array(copies.starts, np.int32)
    want, is_there = reference(copies, x)
    with x64(copies.dtype == "float64"):
        got = np.asarray(jax.jit(build(copies))(x, starts))
    keep(np.where(is_there, got, 0))
    np.testing.assert_array_equal(np.where(is_there, got, 0), np.where(is_there, want, 0), err_msg=str(copies))


BLOCK_COPIES = Grammar("block copies", draw, check)
