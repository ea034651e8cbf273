"""Arrays of more than 2 and 4 GiB: every access is at its place, whichever way the index is known.

The arrays are anonymous memory of which nothing is reserved: only what kernels and tests touch is there.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from jax._src.state import primitives as state_primitives
from smalt import _native

from tests.corpus.case import REFS_AS_ARGUMENTS, kernel, like, x64

Array = np.ndarray[Any, Any]

GiB = 1 << 30
#: Linux's MAP_NORESERVE, which Python's module names from 3.13 on.
NO_RESERVE = 0x4000
#: Elements of each type in a row of 1 MiB.
ROW = {"int8": 1 << 20, "bfloat16": 1 << 19, "float32": 1 << 18, "int64": 1 << 17}
#: Rows behind 0, 2 and 4 GiB.
ROWS = (3, 2050, 4099)


def zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """Memory that is not there until it is touched."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.uint8).view(dtype).reshape(shape)


def run(
    body: Callable[..., Any],
    *inputs: Array,
    out: Array | None = None,
    into: Array | None = None,
    scratch: tuple[Any, ...] = (),
    types: Any = (),
) -> str:
    """Runs a kernel of inputs, a result, and an array that it changes where it lies; gives its PTX. `types`: of what has another form in memory.

    Results are filled with what nobody may read, so a large array is none.
    """
    if into is not None and not REFS_AS_ARGUMENTS:
        pytest.skip("mutable references are arguments of kernels since JAX 0.11")
    given = [*inputs, *([] if into is None else [into])]
    args = types or [like(a.shape, a.dtype) for a in given]

    def f(*args: Any) -> Any:
        outs = () if out is None else like(out.shape, out.dtype)
        call = kernel(body, outs, *scratch)
        if into is None:
            return call(*args)
        ref = jax.new_ref(args[-1])
        return call(*args[:-1], ref), ref[...]

    with smalt.emulated("H100"):
        ((_, descriptor, debug),) = smalt.descriptor(f, *args)
    artifact = _native.compile(descriptor, debug, "sm_90a")
    results = [a for a in (out, into) if a is not None]
    # Who wrote what is noted for every line of an array: not here.
    artifact.emulate([*given, *results], check="off")
    return artifact.ptx


def some(n: int, dtype: Any) -> Array:
    return (np.arange(n) % 100 + 1).astype(dtype)


@pytest.fixture(params=ROW)
def dtype(request: pytest.FixtureRequest) -> Any:
    with x64(request.param == "int64"):
        yield jnp.dtype(request.param)


LOADS: dict[str, Callable[[Any, Any, int], Any]] = {
    "static": lambda x, k, row: x[row, pl.ds(256, 256)],
    "static, two rows": lambda x, k, row: x[pl.ds(row - 1, 2), pl.ds(256, 256)][1],
    "dynamic": lambda x, k, row: x[k[0], pl.ds(256, 256)],
    "dynamic, from a fixed one": lambda x, k, row: x.at[pl.ds(row - 1, 2)][k[1], pl.ds(256, 256)],
    "dynamic columns": lambda x, k, row: x[row, pl.ds(k[2] * 256, 256)],
    "any columns": lambda x, k, row: x[row, pl.ds(k[3], 256)],
}


def test_loads(dtype: Any) -> None:
    x, o = zeros((4104, ROW[dtype.name]), dtype), np.zeros((len(ROWS), len(LOADS), 256), dtype)
    for n, row in enumerate(ROWS):
        x[row, 256:512] = some(256, dtype) + n

    def body(x: Any, k: Any, o: Any) -> None:
        for n, row in enumerate(ROWS):
            for i, load in enumerate(LOADS.values()):
                o[n, i] = load(x, k.at[n], row)

    run(body, x, np.array([[row, 1, 1, 256] for row in ROWS], np.int32), out=o)
    for n, row in enumerate(ROWS):
        for i, how in enumerate(LOADS):
            np.testing.assert_array_equal(o[n, i], x[row, 256:512], err_msg=f"{how}, row {row}")


def test_stores(dtype: Any) -> None:
    o, v = zeros((4104, ROW[dtype.name]), dtype), some(256, dtype)

    def body(v: Any, k: Any, o: Any) -> None:
        for n, row in enumerate(ROWS):
            o[row, pl.ds(256, 256)] = v[...] + n
            o[k[n, 0], pl.ds(512, 256)] = v[...] + n
            o[row, pl.ds(k[n, 1], 256)] = v[...] + n

    run(body, v, np.array([[row, 768] for row in ROWS], np.int32), into=o)
    for n, row in enumerate(ROWS):
        np.testing.assert_array_equal(o[row, 256:1024], np.concatenate([v + n] * 3))


def test_stores_of_scalars(dtype: Any) -> None:
    """Beside stores of arrays, which are in other columns of the same rows."""
    o, v = zeros((4104, ROW[dtype.name]), dtype), some(256, dtype)

    def body(v: Any, k: Any, o: Any) -> None:
        for n, row in enumerate(ROWS):
            o[row, 11] = v[3]
            o[k[n, 0], 13] = v[k[n, 1]]
            o[row, pl.ds(256, 256)] = v[...]

    run(body, v, np.array([[row, 5] for row in ROWS], np.int32), into=o)
    for row in ROWS:
        np.testing.assert_array_equal(o[row, 10:14], np.array([0, v[3], 0, v[5]], dtype))
        np.testing.assert_array_equal(o[row, 256:512], v)


@pytest.mark.parametrize("column", [0, 12, 127, 255])
def test_an_element_of_a_row_and_a_block_of_it(dtype: Any, column: int) -> None:
    """Each over the other, by one warp or by two."""
    o, v = zeros((4104, ROW[dtype.name]), dtype), some(256, dtype)

    def body(v: Any, k: Any, o: Any) -> None:
        o[k[0], 256 + column] = v[3]
        o[k[0], pl.ds(256, 256)] = v[...]
        o[k[1], pl.ds(256, 256)] = v[...]
        o[k[1], 256 + column] = v[3]

    run(body, v, np.array([2050, 4099], np.int32), into=o)
    np.testing.assert_array_equal(o[2050, 256:512], v)
    np.testing.assert_array_equal(o[4099, 256:512], np.where(np.arange(256) == column, v[3], v))


def test_loads_of_scalars(dtype: Any) -> None:
    x, o = zeros((4104, ROW[dtype.name]), dtype), np.zeros((len(ROWS), 3), dtype)
    for n, row in enumerate(ROWS):
        x[row, 7], x[row, 9] = 5 + n, 50 + n

    def body(x: Any, k: Any, o: Any) -> None:
        for n, row in enumerate(ROWS):
            o[n, 0] = x[row, 7]
            o[n, 1] = x[k[n, 0], 9]
            o[n, 2] = x[k[n, 0], k[n, 1]]

    run(body, x, np.array([[row, 9] for row in ROWS], np.int32), out=o)
    np.testing.assert_array_equal(o, np.array([[5 + n, 50 + n, 50 + n] for n in range(len(ROWS))], dtype))


@pytest.mark.parametrize("name", ["int32", "float32", "bfloat16", "float16"])
def test_atomics(name: str) -> None:
    dtype = jnp.dtype(name)
    o, v = zeros((4104, (1 << 20) // dtype.itemsize), dtype), some(256, dtype)

    def body(v: Any, k: Any, o: Any) -> None:
        for n, row in enumerate(ROWS):
            plgpu.atomic_add(o.at[row, pl.ds(256, 256)], v[...])
            plgpu.atomic_add(o.at[k[n], pl.ds(512, 256)], v[...])
            other = plgpu.atomic_add if name == "float32" else plgpu.atomic_max
            other(o.at[row, pl.ds(768, 256)], v[...])

    run(body, v, np.array(ROWS, np.int32), into=o)
    for row in ROWS:
        np.testing.assert_array_equal(o[row, 256:1024], np.concatenate([v] * 3))


def test_gathers_and_scatters(dtype: Any) -> None:
    x, o = zeros((4104, ROW[dtype.name]), dtype), np.zeros(128, dtype)
    p, at = zeros(x.shape, dtype), np.resize(np.array(ROWS, np.int32), 128)
    columns = np.arange(128, dtype=np.int32) * 3
    x[at, columns] = some(128, dtype)

    def body(x: Any, at: Any, columns: Any, p: Any, o: Any) -> None:
        v = x[at[...], columns[...]]
        o[...] = v
        p[at[...], columns[...]] = v

    run(body, x, at, columns, out=o, into=p)
    np.testing.assert_array_equal(o, some(128, dtype))
    np.testing.assert_array_equal(p[at, columns], o)


#: Elements of arrays of one dimension, and where indices of this type name some of them: at the ends of what 31, 32 and 33 bits count.
LONG = {"uint32": (1 << 32) + 64, "int64": (1 << 33) + 64, "uint64": (1 << 33) + 64}


def far_apart(index: str) -> Array:
    ends = [end + d for end in (64, 1 << 31, 1 << 32, 1 << 33, LONG[index]) for d in range(-40, 40, 3)]
    return np.array([at for at in ends if 0 <= at < LONG[index] and at <= np.iinfo(index).max], index)[-64:]


@pytest.mark.parametrize("index", LONG)
def test_indices_that_an_int32_does_not_hold(index: str) -> None:
    """Of loads, of stores, and of both at once."""
    with x64(True):
        at = far_apart(index)
        n = len(at)
        x, p, o = zeros((LONG[index],), np.int8), zeros((LONG[index],), np.int8), np.zeros((2, n), np.int8)
        x[at], p[at] = some(n, np.int8), some(n, np.int8)[::-1]

        def body(x: Any, at: Any, p: Any, o: Any) -> None:
            i = at[...]
            v = x[i]
            o[0] = v
            o[1] = state_primitives.ref_swap(p, i, v + 1)

        run(body, x, at, out=o, into=p)
        np.testing.assert_array_equal(o, [some(n, np.int8), some(n, np.int8)[::-1]])
        np.testing.assert_array_equal(p[at], some(n, np.int8) + 1)


@pytest.mark.parametrize("index", ["int64", "uint64"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float16"])
def test_atomics_at_indices_that_an_int32_does_not_hold(dtype: str, index: str) -> None:
    with x64(True):
        at = np.repeat(far_apart(index)[-32:], 2)
        n = len(at)
        p, v = zeros((LONG[index],), np.dtype(dtype)), some(n, np.dtype(dtype))

        def body(at: Any, v: Any, p: Any) -> None:
            plgpu.atomic_add(p.at[at[...]], v[...])
            if dtype.startswith("int"):
                state_primitives.ref_addupdate(p, at[...], v[...])

        run(body, at, v, into=p)
        np.testing.assert_array_equal(p[at[::2]], v.reshape(-1, 2).sum(1) * (2 if dtype.startswith("int") else 1))


@pytest.mark.parametrize("types", [("int8", "uint8", "int16"), ("uint8", "int8", "uint16"), ("int32", "int64", "uint32"), ("uint64", "int16", "int32")])
def test_small_indices_of_a_large_array(types: tuple[str, ...]) -> None:
    """What they count together is above 2^32 elements."""
    with x64(True):
        shape = (100, 120, 3 << 17)
        rng = np.random.default_rng(0)
        at = [rng.integers(0, min(n, np.iinfo(t).max + 1), 64).astype(t) for n, t in zip(shape, types, strict=True)]
        assert max(np.ravel_multi_index([i.astype(np.int64) for i in at], shape)) > 1 << 32
        x, p, o = zeros(shape, np.int8), zeros(shape, np.int8), np.zeros((3, 64), np.int8)
        x[tuple(at)] = some(64, np.int8)
        x[at[0], 7, at[2]] = x[at[0], at[1], 11] = some(64, np.int8)

        def body(x: Any, i: Any, j: Any, k: Any, p: Any, o: Any) -> None:
            i, j, k = i[...], j[...], k[...]
            o[0] = x[i, j, k]
            o[1] = x[i, 7, k]
            o[2] = x[i, j, 11]
            p[i, j, k] = x[i, j, k]
            p[i, j, 5] = x[i, j, 11]

        run(body, x, *at, out=o, into=p)
        i, j, k = at
        np.testing.assert_array_equal(o, [x[i, j, k], x[i, 7, k], x[i, j, 11]])
        np.testing.assert_array_equal(p[i, j, k], x[i, j, k])
        np.testing.assert_array_equal(p[i, j, 5], x[i, j, 11])


@pytest.mark.parametrize("at", [-1, -(1 << 31), -3 * GiB])
def test_indices_from_the_end_of_a_long_dimension(at: int) -> None:
    with x64(True):
        x, o, given = zeros((3 * GiB,), np.int8), np.ones(32, np.int8), np.full(32, at)
        x[at] = 7

        def load(x: Any, at: Any, o: Any) -> None:
            o[...] = x[at[...]]

        def store(at: Any, p: Any) -> None:
            p[at[...]] = jnp.full(32, 9, jnp.int8)

        run(load, x, given, out=o)
        assert (o == 7).all()
        run(store, given, into=x)
        assert x[at] == 9


OUTSIDE = [-1, -(1 << 31), 5 - (1 << 32), 3 * GiB, (1 << 32) + 5, (1 << 62) + 5, -(1 << 63)]


@pytest.mark.parametrize(("at", "index"), [(at, t) for at in OUTSIDE for t in ("int64", "uint64") if t == "uint64" or not -3 * GiB <= at < 0])
def test_indices_outside_of_a_long_dimension(at: int, index: str) -> None:
    """Name nothing within it. As u64 negative ones are larger than all."""
    with x64(True):
        x, o, given = zeros((3 * GiB,), np.int8), np.ones(32, np.int8), np.full(32, at).astype(index)
        # Where fewer bits, or the nearest that is inside, would be.
        inside = [0, (1 << 31) - 1, len(x) - 1, at % (1 << 31), at % (1 << 32)]
        x[[i for i in inside if i < len(x)]] = 7

        def load(x: Any, at: Any, o: Any) -> None:
            o[...] = x[at[...]]

        def store(at: Any, p: Any) -> None:
            p[at[...]] = jnp.ones(32, jnp.int8)

        run(load, x, given, out=o)
        assert not o.any(), "loads outside of arrays are zeros where nobody looks"
        with pytest.raises(smalt.Error, match="out of bounds"):
            run(store, given, into=x)


def test_strided_slices_of_a_long_dimension() -> None:
    """They are indices."""
    start, stride = (1 << 31) - 90, 3
    x, p, o = zeros((3 * GiB,), np.int8), zeros((3 * GiB,), np.int8), np.zeros(64, np.int8)
    part = slice(start, start + 64 * stride, stride)
    x[part] = some(64, np.int8)

    def body(x: Any, p: Any, o: Any) -> None:
        v = x[pl.ds(start, 64, stride)]
        o[...] = v
        p[pl.ds(start, 64, stride)] = v

    run(body, x, out=o, into=p)
    np.testing.assert_array_equal(o, x[part])
    np.testing.assert_array_equal(p[part], x[part])


@pytest.mark.parametrize("second", [(1 << 31) - 300, 700])
def test_a_slice_of_a_slice_of_a_long_dimension(second: int) -> None:
    """Each begins at an int32, and both together do not."""
    first, n = (1 << 31) - 512, 5 * GiB
    x, p, o = zeros((n,), np.int8), zeros((n,), np.int8), np.zeros((3, 256), np.int8)
    start = first + second
    x[start : start + 256] = some(256, np.int8)

    def body(x: Any, k: Any, p: Any, o: Any) -> None:
        part = pl.ds(k[1], 256)
        o[0] = x.at[pl.ds(first, 2 * GiB)][part]
        o[1] = x.at[pl.ds(k[0], 2 * GiB)][part]
        o[2] = x.at[pl.ds(k[0], 2 * GiB)][k[1] + jnp.arange(256)]
        p.at[pl.ds(k[0], 2 * GiB)][part] = x.at[pl.ds(first, 2 * GiB)][part]

    run(body, x, np.array([first, second], np.int32), out=o, into=p)
    np.testing.assert_array_equal(o, [x[start : start + 256]] * 3)
    np.testing.assert_array_equal(p[start : start + 256], x[start : start + 256])


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_rows_far_apart(dtype: Any, transposed: bool) -> None:
    """Lanes are 64 MiB apart: 8 GiB in all."""
    width = (64 << 20) // dtype.itemsize
    x = zeros((128, width), dtype)
    x[:, 24:32] = some(128 * 8, dtype).reshape(128, 8)
    o = np.zeros((8, 128) if transposed else (128, 8), dtype)
    p = zeros((128, width), dtype)

    def body(x: Any, p: Any, o: Any) -> None:
        v = x[:, pl.ds(24, 8)]
        p[:, pl.ds(40, 8)] = v
        o[...] = v.T if transposed else v

    run(body, x, out=o, into=p)
    np.testing.assert_array_equal(o.T if transposed else o, x[:, 24:32])
    np.testing.assert_array_equal(p[:, 40:48], x[:, 24:32])


@pytest.mark.parametrize("index", ["int64", "uint32", "uint64"])
@pytest.mark.parametrize("start", [5, (1 << 31) + 8, 3 * GiB - 256])
def test_one_dimension_of_more_than_an_int32_counts(start: int, index: str) -> None:
    with x64(True):
        n = 3 * GiB
        x, o, p = zeros((n,), np.int8), np.zeros(256, np.int8), zeros((n,), np.int8)
        x[start : start + 256] = some(256, np.int8)

        def body(x: Any, k: Any, p: Any, o: Any) -> None:
            v = x[pl.ds(k[0], 256)]
            o[...] = v
            p[pl.ds(k[0], 256)] = v
            p[k[1]] = x[k[0]]

        at = start - 1
        run(body, x, np.array([start, at], index), out=o, into=p)
        np.testing.assert_array_equal(o, x[start : start + 256])
        np.testing.assert_array_equal(p[at : start + 256], [x[start], *o])


@pytest.mark.parametrize("start", [64, (1 << 31) + 64, (1 << 32) + 64])
def test_elements_of_4_bits(start: int) -> None:
    """Bits are counted up to 2^34; elements up to 2^32."""
    rows, width = 2052, 1 << 21
    row, column = divmod(start, width)
    x, o, p = zeros((rows * width // 2,), np.uint8), np.zeros(256, np.int8), zeros((rows * width // 2,), np.uint8)
    x[start // 2 : start // 2 + 128] = np.arange(128) * 37 % 256

    def body(x: Any, k: Any, p: Any, o: Any) -> None:
        v = x[k[0], pl.ds(column, 256)]
        o[...] = v.astype(jnp.int8)
        p[k[0], pl.ds(column, 256)] = v
        p[row, pl.ds(column + 256, 256)] = x[row, pl.ds(column, 256)]

    whole = like((rows, width), jnp.int4)
    run(body, x, np.array([row], np.int32), out=o, into=p, types=(whole, like((1,), jnp.int32), whole))
    packed = x[start // 2 : start // 2 + 128]
    halves = np.stack([packed & 15, packed >> 4], 1).reshape(-1).astype(np.int8)
    np.testing.assert_array_equal(o, halves - 16 * (halves >= 8))
    np.testing.assert_array_equal(p[start // 2 : start // 2 + 256], np.concatenate([packed, packed]))


@pytest.mark.parametrize("swizzle", [None, 128], ids=["bulk", "tensor map"])
def test_copies(swizzle: int | None, dtype: Any) -> None:
    width = ROW[dtype.name]
    columns = (swizzle or 1024) // dtype.itemsize
    x, o = zeros((4104, width), dtype), zeros((4104, width), dtype)
    places = [(row + i, slice(n * columns, (n + 1) * columns)) for row in ROWS for i, n in enumerate((1, 3))]
    for n, place in enumerate(places):
        x[place] = some(columns, dtype) + n
    transforms = () if swizzle is None else (plgpu.SwizzleTransform(swizzle),)

    def body(x: Any, k: Any, o: Any, buf: Any, bar: Any) -> None:
        for n, (row, part) in enumerate(places):
            # Every other one is known when the kernel is compiled.
            row = k[n] if n % 2 else row
            at = (row if swizzle is None else pl.ds(row, 1), pl.ds(part.start, columns))
            slot = buf.at[n] if swizzle is None else buf.at[pl.ds(8 * n, 1)]
            plgpu.copy_gmem_to_smem(x.at[at], slot, bar)
            plgpu.barrier_wait(bar)
            plgpu.copy_smem_to_gmem(slot, o.at[at])
        plgpu.wait_smem_to_gmem(0)

    buf = plgpu.SMEM((len(places) * (1 if swizzle is None else 8), columns), dtype, transforms=transforms)
    run(body, x, np.array([row for row, _ in places], np.int32), into=o, scratch=(buf, plgpu.Barrier()))
    for place in places:
        np.testing.assert_array_equal(o[place], x[place])


def test_small_arrays_have_offsets_of_32_bits() -> None:
    """What is known to be small costs nothing more."""

    def body(x: Any, k: Any, o: Any) -> None:
        o[...] = x[k[0], pl.ds(256, 256)]

    x = zeros((2000, 1 << 20), np.int8)
    ptx = run(body, x, np.array([3], np.int32), out=np.zeros(256, np.int8))
    assert "mul.lo.s64" not in ptx and "mad.lo.s64" not in ptx
    assert ptx.count("mad.wide.s32") == 1


def test_blocks_along_one_dimension() -> None:
    """Blocks begin at an int32: a longer dimension is refused, and its rows are taken."""

    def body(x: Any, o: Any) -> None:
        o[...] = x[...]

    def copy(n: int, *rows: int) -> Any:
        shape, size = (*rows, n), (*(None for _ in rows), 1024)
        spec = pl.BlockSpec(size, lambda *at: at)
        x = like(shape, jnp.int8)
        call = pl.pallas_call(body, grid=(*rows, n // 1024), in_specs=[spec], out_specs=spec, out_shape=x, compiler_params=plgpu.CompilerParams())
        with smalt.emulated("H100"):
            return smalt.descriptor(call, x)

    with pytest.raises(smalt.Unsupported, match="a dimension that 32 bits do not count(?s:.*)remedy: reshape the array to rows"):
        copy(3 * GiB)
    assert copy(GiB, 3)
