"""Scalars narrower than a byte in memory, transposed allocations, and elements taken of arrays that have no room in scratch, for the machine
that there is: the emulator, or a GPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax._src.state.types import TransposeTransform as Transpose
from jax.experimental.mosaic.gpu import utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, memref

from tests.corpus.case import kernel
from tests.machine import enabled

NARROW = [jnp.int4, jnp.uint4, jnp.int2, jnp.uint2, jnp.float4_e2m1fn]
Tile, Swizzle = plgpu.TilingTransform, plgpu.SwizzleTransform


def every(dtype: Any) -> Any:
    return pytest.mark.parametrize("dtype", dtype, ids=lambda t: np.dtype(t).name)


def narrow(n: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Numbers of all values."""
    if jnp.issubdtype(dtype, jnp.integer):
        info = ml_dtypes.iinfo(dtype)
        return (np.arange(n) % (info.max - info.min + 1) + info.min).astype(np.int8).astype(dtype)
    return np.resize(np.array([0, 0.5, -1, 1.5, 2, -3, 4, -6], np.float32), n).astype(dtype)


def same(got: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(got).astype(np.float32), np.asarray(expected).astype(np.float32))


# ------------------------------------------------------------------------------------------ scalars


@every(NARROW)
def test_scalars_are_loaded_and_stored(dtype: Any) -> None:
    """Backwards, one by one, in device memory, and through shared memory."""
    x = narrow(40, dtype)

    def body(x: Any, o: Any, p: Any, buffer: Any) -> None:
        buffer[...] = x[...]

        def step(i: Any, carry: Any) -> Any:
            o[i] = x[39 - i]
            return carry

        lax.fori_loop(0, 40, step, 0)
        for i in (0, 7, 22):
            last = buffer[39 - i]
            buffer[39 - i] = buffer[i]
            buffer[i] = last
        p[...] = buffer[...]

    out = jax.ShapeDtypeStruct((40,), dtype)
    with enabled():
        o, p = jax.jit(kernel(body, (out, out), plgpu.SMEM((40,), dtype)))(x)
    same(o, x[::-1])
    swapped = x.copy()
    for i in (0, 7, 22):
        swapped[[i, 39 - i]] = swapped[[39 - i, i]]
    same(p, swapped)


@every(NARROW)
def test_scalars_of_rows(dtype: Any) -> None:
    """Of arrays of several dimensions: what is beside a scalar in its byte stays."""
    x = narrow(6 * 8, dtype).reshape(6, 8)

    def body(x: Any, i: Any, o: Any) -> None:
        o[...] = x[...]
        o[i[...], 3] = x[0, i[...]]
        o[i[...] + 1, 2] = x[5, 5]

    with enabled():
        got = jax.jit(kernel(body, jax.ShapeDtypeStruct((6, 8), dtype)))(x, np.int32(2))
    expected = x.copy()
    expected[2, 3], expected[3, 2] = x[0, 2], x[5, 5]
    same(got, expected)


@every([jnp.int4, jnp.float4_e2m1fn])
def test_scalars_as_arguments(dtype: Any) -> None:
    """Of rank 0, and one of many that are gathered."""
    x, s = narrow(16, dtype), narrow(16, dtype)[9]
    at = np.random.default_rng(0).integers(0, 16, 128).astype(np.int32)

    def body(x: Any, s: Any, at: Any, o: Any, p: Any) -> None:
        o[...] = s[...]
        p[...] = x[at[...]].astype(jnp.float32)

    outs = (jax.ShapeDtypeStruct((), dtype), jax.ShapeDtypeStruct((128,), jnp.float32))
    with enabled():
        o, p = jax.jit(kernel(body, outs))(x, s, at)
    same(o, s)
    same(p, x[at])


@every([jnp.int4, jnp.uint2])
@pytest.mark.parametrize("size", [8, 32, 128])
def test_slices_that_begin_at_computed_bytes(size: int, dtype: Any) -> None:
    x = narrow(512, dtype)

    def body(x: Any, o: Any) -> None:
        here = pl.ds(lax.axis_index("i") * size, size)
        o[here] = x[here]

    with enabled():
        got = jax.jit(kernel(body, jax.ShapeDtypeStruct((512,), dtype), grid=(512 // size,), grid_names=("i",)))(x)
    same(got, x)


@every([jnp.int4, jnp.uint2, jnp.float4_e2m1fn])
@pytest.mark.parametrize("shape", [(1,), (3,), (257,), (5, 7), (3, 1, 1)], ids=str)
def test_arrays_of_no_whole_bytes(shape: Any, dtype: Any) -> None:
    """Outputs, and buffers that are read again; what a store gives back."""
    x = narrow(int(np.prod(shape)), dtype).reshape(shape)

    def body(x: Any, o: Any, p: Any, buffer: Any) -> None:
        buffer[...] = x[...]
        o[...] = buffer[...]
        p[...] = o[...]

    out = jax.ShapeDtypeStruct(shape, dtype)
    with enabled():
        o, p = jax.jit(kernel(body, (out, out), plgpu.SMEM(shape, dtype)))(x)
    same(o, x)
    same(p, x)


@every([jnp.int4, jnp.uint2])
@pytest.mark.parametrize("first, size", [(0, 5), (1, 4), (3, 8), (7, 1), (1, 39), (5, 30)])
def test_parts_of_rows_of_no_whole_bytes(first: int, size: int, dtype: Any) -> None:
    """What is beside them in their bytes stays."""
    x, y = narrow(40, dtype), narrow(80, dtype)[3 : 3 + size]

    def body(x: Any, y: Any, o: Any) -> None:
        o[...] = x[...]
        o[pl.ds(first, size)] = y[...]

    with enabled():
        got = jax.jit(kernel(body, jax.ShapeDtypeStruct((40,), dtype)))(x, y)
    expected = x.copy()
    expected[first : first + size] = y
    same(got, expected)


def test_strided_loads_of_narrow_numbers() -> None:
    x = narrow(32, jnp.int4)
    call = pl.pallas_call(lambda x, o: o.__setitem__(..., x[::3]), out_shape=jax.ShapeDtypeStruct((11,), jnp.int4))
    with enabled():
        same(jax.jit(call)(x), x[::3])


@every([jnp.int4])
def test_scalars_of_a_pallas_call(dtype: Any) -> None:
    x = narrow(64, dtype)

    def body(x: Any, o: Any) -> None:
        o[...] = x[...]
        o[1] = x[2]
        o[2] = x[1]

    spec = pl.BlockSpec((32,), lambda i: (i,))
    call = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((64,), dtype), grid=(2,), in_specs=[spec], out_specs=spec)
    with enabled():
        got = jax.jit(call)(x)
    expected = x.copy()
    for first in (0, 32):
        expected[[first + 1, first + 2]] = x[[first + 2, first + 1]]
    same(got, expected)


# ------------------------------------------------------------------------------------------ transposed allocations

TRANSPOSED: dict[str, tuple[tuple[int, ...], Any, tuple[Any, ...], bool]] = {
    "rows": ((64, 128), jnp.float32, (Transpose((1, 0)),), False),
    "rows of halves, tiled": ((64, 128), jnp.float16, (Transpose((1, 0)), Tile((8, 64)), Swizzle(128)), False),
    "outer": ((4, 16, 32), jnp.float32, (Transpose((1, 0, 2)),), True),
    "outer, tiled": ((16, 4, 32), jnp.float32, (Transpose((1, 0, 2)), Tile((8, 32)), Swizzle(128)), True),
    "tiles": ((64, 128), jnp.float32, (Tile((8, 32)), Transpose((1, 0, 2, 3)), Swizzle(128)), True),
    "tiles of bytes": ((64, 128), jnp.int8, (Tile((8, 64)), Transpose((1, 0, 2, 3)), Swizzle(64)), True),
    "within tiles": ((64, 32), jnp.float32, (Tile((32, 8)), Transpose((0, 1, 3, 2)), Swizzle(128)), False),
    "no swizzle": ((6, 10, 12), jnp.int32, (Transpose((2, 0, 1)),), False),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_allocations(name: str) -> None:
    """Stored by threads and by copies, loaded by threads and by copies; whole, and in slices."""
    shape, dtype, transforms, by_copies = TRANSPOSED[name]
    x = np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)

    def body(x: Any, o: Any, p: Any, q: Any, buffer: Any, barrier: Any) -> None:
        if by_copies:
            plgpu.copy_gmem_to_smem(x, buffer, barrier)
            plgpu.barrier_wait(barrier)
            p[...] = buffer[...]
        else:
            p[...] = x[...]
        buffer[...] = x[...] + 1
        o[...] = buffer[...]
        q[...] = buffer[-1:]
        if by_copies:
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buffer, o)
            plgpu.wait_smem_to_gmem(0)

    out = jax.ShapeDtypeStruct(shape, dtype)
    last = jax.ShapeDtypeStruct((1, *shape[1:]), dtype)
    with enabled():
        o, p, q = jax.jit(kernel(body, (out, out, last), plgpu.SMEM(shape, dtype, transforms=transforms), plgpu.Barrier()))(x)
    same(o, x + 1)
    same(p, x)
    same(q, x[-1:] + 1)


@pytest.mark.parametrize("name", ["tiles", "rows of halves, tiled", "no swizzle"])
def test_transposed_allocations_in_inline_mgpu(name: str) -> None:
    """A function sees memory as it lies: what it finds in row-major order of that is there."""
    shape, dtype, transforms, _ = TRANSPOSED[name]
    x = np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)
    lies = jax.eval_shape(lambda: x).shape
    for t in transforms:
        if isinstance(t, Tile):
            lies = (*(n // m for n, m in zip(lies, t.tiling)), *t.tiling)
        elif isinstance(t, Transpose):
            lies = tuple(lies[i] for i in t.permutation)

    def body(x: Any, o: Any, buffer: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(transforms),))
        def look(ctx: Any, buffer: Any) -> None:
            assert tuple(ir.MemRefType(buffer.type).shape) == lies
            first = memref.load(buffer, [arith.constant(ir.IndexType.get(), 0)] * len(lies))
            utils.warpgroup_barrier()
            memref.store(first, buffer, [arith.constant(ir.IndexType.get(), n - 1) for n in lies])

        buffer[...] = x[...]
        look(buffer)
        o[...] = buffer[...]

    with enabled():
        got = jax.jit(kernel(body, jax.ShapeDtypeStruct(shape, dtype), plgpu.SMEM(shape, dtype, transforms=transforms)))(x)
    expected = x.copy()
    if not any(isinstance(t, Swizzle) for t in transforms):  # else the last place in memory is another element's
        expected[-1, -1, -1] = x[0, 0, 0]
        same(got, expected)
    else:
        assert np.sum(np.asarray(got) != x) <= 1


@pytest.mark.parametrize("transforms", [(Tile((8, 32)), Transpose((1, 0, 2, 3)), Swizzle(128))], ids=["tiles"])
@pytest.mark.parametrize("by", ["blocks", "pipeline"])
def test_blocks_that_are_transposed(transforms: Any, by: str) -> None:
    x = np.random.default_rng(0).integers(-100, 100, (64, 128)).astype(np.float32)
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)

    def step(*refs: Any) -> None:
        a, b = refs[-2:]
        b[...] = a[...] + 1

    if by == "blocks":
        spec = plgpu.BlockSpec((32, 64), lambda i, j: (i, j), transforms=transforms)
        call = pl.pallas_call(step, out_shape=out, grid=(2, 2), in_specs=[spec], out_specs=spec)
    else:
        rows = plgpu.BlockSpec((32, 128), lambda i: (i, 0), transforms=transforms)
        call = kernel(lambda x, o: plgpu.emit_pipeline(step, grid=(2,), in_specs=[rows], out_specs=[rows])(x, o), out)
    with enabled():
        same(jax.jit(call)(x), x + 1)


def test_products_of_a_transposed_allocation() -> None:
    """B lies by columns: `wgmma` takes it so."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((64, 64), (64, 128)))

    def body(a: Any, b: Any, o: Any, left: Any, right: Any) -> None:
        left[...] = a[...]
        right[...] = b[...]
        plgpu.commit_smem()

        def product(acc: Any) -> Any:
            plgpu.wgmma(acc, left, right)
            return acc[...]

        o[...] = pl.run_scoped(product, plgpu.ACC((64, 128), jnp.float32))

    tiled = (Tile((8, 64)), Swizzle(128))
    with enabled():
        got = jax.jit(
            kernel(
                body,
                jax.ShapeDtypeStruct((64, 128), jnp.float32),
                plgpu.SMEM((64, 64), jnp.float16, transforms=tiled),
                plgpu.SMEM((64, 128), jnp.float16, transforms=(Transpose((1, 0)), *tiled)),
            )
        )(a, b)
    np.testing.assert_allclose(got, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-3, atol=1e-2)


# ------------------------------------------------------------------------------------------ elements of large arrays


@pytest.mark.parametrize("shape, dtype", [((256, 256), np.float32), ((256, 256), np.int16), ((320, 264), np.int32), ((200, 180), np.float64)], ids=str)
def test_diagonals(shape: Any, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(-1000, 1000, shape).astype(dtype)

    def body(x: Any, o: Any) -> None:
        o[...] = jnp.diagonal(x[...])

    with jax.enable_x64(True), enabled():
        got = jax.jit(kernel(body, jax.ShapeDtypeStruct((min(shape),), dtype)))(x)
    np.testing.assert_array_equal(got, np.diagonal(x))


@pytest.mark.parametrize("reserved", [0, 200_000])
def test_elements_are_taken_where_room_is_short(reserved: int) -> None:
    """Positions anywhere, some outside; the rest of shared memory is the kernel's own."""
    x = np.random.default_rng(0).standard_normal((96, 128)).astype(np.float32)
    at = np.random.default_rng(1).integers(-100, 96 * 128 + 100, 256).astype(np.int32)

    def body(x: Any, at: Any, o: Any, *own: Any) -> None:
        for buffer in own:
            buffer[0] = jnp.int8(1)
        o[...] = jnp.take((x[...] * 2).reshape(-1), at[...], mode="fill", fill_value=-1)

    scratch = [plgpu.SMEM((reserved,), jnp.int8)] if reserved else []
    with enabled():
        got = jax.jit(kernel(body, jax.ShapeDtypeStruct((256,), jnp.float32), *scratch))(x, at)
    flat = (x * 2).ravel()
    expected = np.where((at >= -flat.size) & (at < flat.size), flat[np.clip(at, -flat.size, flat.size - 1)], np.float32(-1))
    np.testing.assert_array_equal(got, expected)


# ------------------------------------------------------------------------------------------ locks


@pytest.mark.parametrize("by", ["condition", "body"])
@pytest.mark.parametrize("blocks", [2, 6])
def test_locks_of_a_pallas_call(blocks: int, by: str) -> None:
    """Steps that change one place under a lock in device memory."""
    import smalt

    def body(_: Any, __: Any, lock: Any, count: Any) -> None:
        def attempt(*_: Any) -> Any:
            return smalt.atomic_cas(lock.at[0], 0, 1, order="acquire")

        if by == "condition":
            lax.while_loop(lambda _: attempt() != 0, lambda x: x, 0)
        else:
            lax.while_loop(lambda old: old != 0, attempt, jnp.int32(1))
        old = smalt.load(count.at[0], order="relaxed")
        smalt.store(count.at[0], old * 2 + 1, order="relaxed")
        smalt.atomic_exchange(lock.at[0], 0, order="release")

    spec = pl.BlockSpec(memory_space=plgpu.GMEM)
    one = jax.ShapeDtypeStruct((1,), jnp.int32)
    call = pl.pallas_call(
        body, out_shape=(one, one), grid=(blocks,), in_specs=[spec, spec], out_specs=(spec, spec), input_output_aliases={0: 0, 1: 1}
    )
    with enabled():
        lock, count = jax.jit(call)(np.zeros(1, np.int32), np.zeros(1, np.int32))
    assert (int(lock[0]), int(count[0])) == (0, 2**blocks - 1)


# ------------------------------------------------------------------------------------------ random programs


def steps_of(rng: np.random.Generator, n: int) -> list[tuple[Any, ...]]:
    """What is stored where of what: (kind, to, from, numbers…), memories by their numbers."""
    steps: list[tuple[Any, ...]] = []
    for _ in range(8):
        to, source = int(rng.integers(0, 2)), int(rng.integers(0, 3))
        size = int(rng.integers(1, n + 1))
        a, b = (int(rng.integers(0, n - size + 1)) for _ in range(2))
        i, j, k = (int(x) for x in rng.integers(0, n, 3))
        match rng.integers(0, 5):
            case 0:
                steps.append(("slice", to, source, a, b, size))
            case 1:
                steps.append(("scalar", to, source, i, j))
            case 2:
                steps.append(("computed", to, source, i, j))
            case 3:
                steps.append(("loop", to, source, min(i, j), k % max(n - max(i, j), 1), abs(i - j)))
            case _:
                steps.append(("whole", to, source))
    return steps


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int) -> None:
    """Scalars, slices and whole arrays of narrow types go between device memory, shared memory and an input, as in NumPy."""
    rng = np.random.default_rng(seed)
    dtype, n = NARROW[seed % len(NARROW)], int(rng.integers(3, 90))
    steps = steps_of(rng, n)
    x, zero = rng.permutation(narrow(n, dtype)), np.int32(0)

    def body(x: Any, zero: Any, o: Any, p: Any, buffer: Any) -> None:
        memories = (o, buffer, x)
        o[...] = x[...]
        buffer[...] = x[...][::-1]
        for kind, to, source, *numbers in steps:
            to, source = memories[to], memories[source]
            match kind, numbers:
                case "slice", (a, b, size):
                    to[pl.ds(a, size)] = source[pl.ds(b, size)]
                case "scalar", (i, j):
                    to[i] = source[j]
                case "computed", (i, j):
                    to[i + zero[...]] = source[j + zero[...]]
                case "loop", (a, b, size):

                    def step(k: Any, carry: Any, to: Any = to, source: Any = source, a: int = a, b: int = b) -> Any:
                        to[a + k] = source[b + k]
                        return carry

                    lax.fori_loop(0, size, step, 0)
                case _:
                    to[...] = source[...]
        p[...] = buffer[...]

    out = jax.ShapeDtypeStruct((n,), dtype)
    with enabled():
        got = jax.jit(kernel(body, (out, out), plgpu.SMEM((n,), dtype)))(x, zero)
    state = [x.copy(), x[::-1].copy(), x]
    for kind, to, source, *numbers in steps:
        match kind, numbers:
            case "slice", (a, b, size):
                state[to][a : a + size] = state[source][b : b + size].copy()
            case ("scalar" | "computed"), (i, j):
                state[to][i] = state[source][j]
            case "loop", (a, b, size):
                for k in range(size):
                    state[to][a + k] = state[source][b + k]
            case _:
                state[to][:] = state[source]
    same(got[0], state[0])
    same(got[1], state[1])
