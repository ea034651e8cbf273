"""The tests of arrays of indices and of order, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

import os

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import smalt
from tests.corpus.case import x64
from tests.fuzz.seeds import seeds
from tests.machine import ON_GPU, enabled
from tests.programs.indexing import EIGHTH, INDEXING, REFERENCES_AT_INDICES, RefTrial, Trial, any_dtype, bits, numbers

#: SMALT_INDEXING_N: how many random trials instead.
TRIALS = int(os.environ.get("SMALT_INDEXING_N", 300 if ON_GPU else 50))
REFS = 2 * TRIALS
PART = 10


@seeds(INDEXING, TRIALS, PART)
def test_indexing_and_order_equal_jax(programs: list[Trial]) -> None: ...


@seeds(REFERENCES_AT_INDICES, REFS, 3 * PART)
def test_references_at_arrays_of_indices(programs: list[RefTrial]) -> None: ...


def _run(function, *args):  # type: ignore[no-untyped-def]
    """The function in a kernel of one warpgroup."""
    shapes = jax.tree.leaves(jax.eval_shape(function, *args))

    def body(*refs):  # type: ignore[no-untyped-def]
        results = jax.tree.leaves(function(*(ref[...] for ref in refs[: len(args)])))
        for ref, x in zip(refs[len(args) :], results):
            ref[...] = x

    with enabled():
        out = plgpu.kernel(body, out_type=[jax.ShapeDtypeStruct(s.shape, s.dtype) for s in shapes])(*args)
        return [np.asarray(x) for x in out]


def _equals_jax(function, *args) -> None:  # type: ignore[no-untyped-def]
    with jax.default_device(jax.devices("cpu")[0]):
        wanted = jax.tree.leaves(jax.jit(function)(*args))
    for got, want in zip(_run(function, *args), wanted, strict=True):
        np.testing.assert_array_equal(bits(got), bits(np.asarray(want)))


def test_updates_at_one_place_come_one_after_the_other() -> None:
    """Sums of floats that depend on their order are those of the order of the updates."""
    rng = np.random.default_rng(0)
    x, update = rng.standard_normal(7).astype(np.float32), rng.standard_normal(300).astype(np.float32)
    at = rng.integers(0, 7, 300).astype(np.int32)
    for kind, ufunc in (("add", np.add), ("multiply", np.multiply)):
        (got,) = _run(lambda x, i, u: getattr(x.at[i], kind)(u), x, at, update)  # noqa: B023
        want = x.copy()
        ufunc.at(want, at, update)
        assert got.tobytes() == want.tobytes()


def test_the_last_update_stays() -> None:
    at = np.random.default_rng(1).integers(0, 5, 200).astype(np.int32)
    (got,) = _run(lambda i: jnp.zeros(5, jnp.int32).at[i].set(jnp.arange(200)), at)
    assert got.tolist() == [int(np.flatnonzero(at == k)[-1]) for k in range(5)]


@pytest.mark.parametrize("n", [1, 2, 31, 33, 127, 129, 1000, 4096])
@pytest.mark.shared
def test_sorts_of_every_length(n: int) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    x[::5] = 0.0
    x[1::7] = -0.0
    x[2::11] = np.nan
    _equals_jax(lambda x: (jnp.sort(x), jnp.argsort(x), lax.top_k(-x, min(n, 9))[1]), np.nan_to_num(x))
    _equals_jax(lambda x: (jnp.sort(x), jnp.argsort(x)), x)


def test_loops_over_batches_stop_one_by_one() -> None:
    x = np.arange(33, dtype=np.int32)
    _equals_jax(lambda x: jax.vmap(lambda a: lax.while_loop(lambda c: c < 20, lambda c: c + a + 1, a))(x), x)
    _equals_jax(lambda x: jax.vmap(lambda a: lax.fori_loop(0, a % 5, lambda i, c: c + i, a))(x), x)


def test_what_is_made_of_these() -> None:
    rng = np.random.default_rng(3)
    x, i = rng.integers(-9, 9, (12, 12)).astype(np.float32), rng.integers(0, 12, 50).astype(np.int32)
    _equals_jax(lambda x: (jnp.diagonal(x), x[jnp.tril_indices(12)], jnp.median(x), jnp.unique(x, size=19)), x)
    _equals_jax(lambda x: lax.associative_scan(lambda a, b: a * 2 + b * 2, jnp.sign(x), axis=1), x)
    _equals_jax(lambda x: (lax.approx_max_k(x, 4), jnp.percentile(x, 30.0, method="nearest"), jnp.lexsort((x[0], x[1]))), x)
    _equals_jax(lambda x, i: (jax.nn.one_hot(i, 12), jnp.repeat(x[0], i[:12] % 3, total_repeat_length=20)), x, i)
    _equals_jax(lambda x: jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3, 3), (2, 1), "SAME").sum())(x), x)


def test_complex_numbers_and_keys_at_indices() -> None:
    """Of their parts: what is outside has a real NaN, or the parts of what was asked for."""
    rng = np.random.default_rng(4)
    x = (rng.integers(-9, 9, 17) + 1j * rng.integers(-9, 9, 17)).astype(np.complex64)
    i = np.int32([1, 20, -2, 5, 5])
    parts = lambda *xs: [part for x in xs for part in (x.real, x.imag)]  # noqa: E731
    _equals_jax(lambda x, i: parts(x[i], x.at[i].get(mode="fill"), x.at[i].get(mode="fill", fill_value=3 + 2j)), x, i)
    _equals_jax(lambda x, i: parts(x.at[i].set(2j), x.at[i].add(2j + x[i]), x.at[i].subtract(1)), x, i)
    _equals_jax(lambda x, i: parts(x.at[i].apply(lambda v: v * 2j), jnp.convolve(x, x[:3], precision="highest")), x, i)
    keys = rng.integers(0, 1 << 32, (7, 2), dtype=np.uint32)
    _equals_jax(lambda keys, i: jax.random.key_data(jax.random.wrap_key_data(keys)[i % 7]), keys, i)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "float64"])
def test_an_index_outside_reads_nothing_outside(dtype: str) -> None:
    """Arrays that take all shared memory that the kernel has: there is nothing behind them."""
    info = np.iinfo(np.int32)
    n = 512 // np.dtype(dtype).itemsize
    at = np.int32([0, n - 1, n, n + 1, 2 * n, -1, -n, -n - 1, info.max, info.min])
    x = np.random.default_rng(5).integers(0, 2, n).astype(dtype)
    with x64(dtype == "float64"):
        for mode in ("fill", "clip"):
            _equals_jax(lambda x, at, mode=mode: (jnp.take(x, at, mode=mode), x.reshape(4, -1).at[at % 4, at].get(mode=mode)), x, at)


def test_nothing_at_all() -> None:
    x = np.ones((4, 3), np.float32)
    (got,) = _run(lambda x: x.at[jnp.zeros((2, 0), jnp.int32)].add(1.0) + 1, x)
    np.testing.assert_array_equal(got, x + 1)
    (got,) = _run(lambda x: jnp.sum(x[jnp.zeros((0,), jnp.int32)]) + jnp.zeros(3), x)
    np.testing.assert_array_equal(got, np.zeros(3))


def test_more_than_shared_memory_names_the_op() -> None:
    with enabled(), pytest.raises(smalt.Error, match="(?s)at most 232448 bytes.*sort.*remedy"):
        x = jnp.zeros(32768, jnp.float32)

        def body(x, o, p):  # type: ignore[no-untyped-def]
            o[...], p[...] = lax.sort((x[...], x[...] + 1), num_keys=2)

        plgpu.kernel(body, out_type=[jax.ShapeDtypeStruct(x.shape, x.dtype)] * 2)(x)


@pytest.mark.parametrize(("shape", "k"), [((4096,), 8), ((3, 2048), 32), ((2, 1280), 5), ((2, 1024), 1), ((1, 1000), 8)])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16])
def test_top_k_of_long_rows(shape, k, dtype) -> None:  # type: ignore[no-untyped-def]
    """Equal numbers come as they were, from whatever thread."""
    rng = np.random.default_rng(k)
    x = (rng.integers(-30, 30, shape) if dtype == np.int32 else rng.standard_normal(shape)).astype(dtype)
    if dtype != np.int32:
        x.flat[::97], x.flat[5::89], x.flat[7::83], x.flat[1::50] = np.nan, -0.0, 0.0, 2.5
    _equals_jax(lambda x: jax.lax.top_k(x, k), x)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.shared
def test_running_reductions_of_arrays_in_registers(seed: int) -> None:
    """Powers of two divide evenly among slots, lanes and warps."""
    rng = np.random.default_rng(seed)
    while True:
        shape = tuple(int(n) for n in rng.choice((1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096), int(rng.integers(1, 4))))
        if 64 <= np.prod(shape) <= 16384:
            break
    axis, reverse = int(rng.integers(len(shape))), bool(rng.integers(2))
    dtype = (np.int32, np.float32, np.int8, np.float16, np.uint32)[seed % 5]
    running = (lax.cumsum, lax.cummax, lax.cummin, lax.cumlogsumexp)[int(rng.integers(4 if dtype == np.float32 else 3))]
    x = rng.integers(0, 3, shape).astype(dtype)
    if running is lax.cumsum and np.dtype(dtype).itemsize < 4:
        x = (rng.random(shape) < 0.01).astype(dtype)  # sums that the type has
    got = _run(lambda x: running(x, axis=axis, reverse=reverse), x)[0]
    with jax.default_device(jax.devices("cpu")[0]):
        expected = np.asarray(running(x, axis=axis, reverse=reverse))
    if running is lax.cumlogsumexp:
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    else:
        assert got.tobytes() == expected.tobytes()


def test_running_sums_of_a_row_pass_nothing_but_totals_through_scratch() -> None:
    def body(x_ref, o_ref):  # type: ignore[no-untyped-def]
        o_ref[...] = lax.cumsum(x_ref[...], axis=1)

    x = np.ones((1, 4096), np.int32)
    with enabled():
        (report,) = smalt.inspect(plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype)), x)
    assert sum(row.bytes for row in report.shared_memory) <= 1024


#: SMALT_SORTS_N: how many random sorts instead.
SORTS = int(os.environ.get("SMALT_SORTS_N", 300 if ON_GPU else 100))


def _shape_of_runs(rng: np.random.Generator) -> tuple[int, ...]:
    """Runs that fit into registers of threads, of lanes, of warps, and such as do not; many and few of them."""
    sizes = (1, 2, 3, 4, 7, 8, 16, 31, 32, 33, 64, 100, 128, 256, 500, 1000, 1024, 2048, 4096)
    while True:
        shape = tuple(int(n) for n in rng.choice(sizes, int(rng.integers(1, 4))))
        if 8 <= np.prod(shape) <= 9000:
            return shape


@pytest.mark.parametrize("first", range(0, SORTS, 5))
@pytest.mark.shared
def test_sorts_of_runs_in_registers_and_in_scratch(first: int) -> None:
    for seed in range(first, min(first + 5, SORTS)):
        rng = np.random.default_rng([seed, 5])
        shape = _shape_of_runs(rng)
        axis = int(rng.integers(len(shape)))
        dtype = any_dtype(rng, wide=False)
        if rng.integers(0, 2):
            x = numbers(rng, shape, dtype, special=True)
        else:
            x = (rng.standard_normal(shape) * 50).astype(np.int32 if np.dtype(dtype).kind in "iu" else np.float32).astype(dtype)
        kind = int(rng.integers(0, 5))
        if kind == 4 or dtype == np.bool_ or dtype in EIGHTH:
            y = numbers(rng, shape, np.int16)
            _equals_jax(lambda x, y: lax.sort((x, y), dimension=axis, num_keys=2), x, y)  # noqa: B023
        elif kind == 0:
            _equals_jax(lambda x: jnp.sort(x, axis=axis), x)  # noqa: B023
        elif kind == 1:
            _equals_jax(lambda x: jnp.argsort(x, axis=axis), x)  # noqa: B023
        else:
            k = int(rng.integers(1, 1 + min(shape[-1], 40 if kind == 2 else 8)))
            _equals_jax(lambda x: lax.top_k(x, k), x)  # noqa: B023


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("shape", "axis"), [((4, 256), 1), ((1000,), 0), ((33, 8), 0), ((3, 4096), 1)])
def test_zeros_and_nans_keep_their_bits_and_their_order(dtype, shape, axis) -> None:  # type: ignore[no-untyped-def]
    """Zeros are equal, and so are NaNs, whatever their bits are: they come as they were."""
    rng = np.random.default_rng(9)
    words = np.uint32 if dtype == np.float32 else np.uint16
    x = rng.integers(-3, 4, shape).astype(dtype)
    infinity = np.array(np.inf, dtype).view(words)
    signs = rng.integers(0, 2, shape).astype(words) << words(8 * words().itemsize - 1)
    nans = (infinity + rng.integers(1, 200, shape).astype(words)) | signs
    for share, special in ((0.1, np.zeros(shape, words)), (0.1, np.array(-0.0, dtype).view(words)), (0.1, nans)):
        x = np.where(rng.random(shape) < share, special, x.view(words)).view(dtype)
    with np.errstate(invalid="ignore"):
        order = np.argsort(np.where(np.isnan(x), np.inf, x + dtype(0)), axis=axis, kind="stable")
    (got,) = _run(lambda x: jnp.sort(x, axis=axis), x)
    want = np.take_along_axis(x.view(words), order, axis)
    np.testing.assert_array_equal(got.view(words), want)


@pytest.mark.parametrize(
    ("function", "shape", "most"),
    [
        (lambda x: jnp.sort(x, axis=1), (4, 1024), 4 * 4096),
        (lambda x: lax.top_k(x, 8)[0], (1, 4096), 1024),
    ],
)
def test_sorts_in_registers_take_no_scratch_of_their_own(function, shape, most) -> None:  # type: ignore[no-untyped-def]
    """A change of layout, and what warps exchange."""
    x = np.ones(shape, np.float32)
    to = jax.eval_shape(function, x)

    def body(x_ref, o_ref):  # type: ignore[no-untyped-def]
        o_ref[...] = function(x_ref[...])

    with enabled():
        (report,) = smalt.inspect(plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(to.shape, to.dtype)), x)
    assert sum(row.bytes for row in report.shared_memory) <= most


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
def test_arrays_of_indices_count_from_the_end(dtype) -> None:  # type: ignore[no-untyped-def]
    """Loads, stores and sums; of a dimension that is longer than the indices' type counts, too."""
    at, last = np.array([0, -1, 2, -3, 4, -5, 6, -7], dtype), np.array([-1, -128, 100, 7, -100, -2, 0, 127], dtype)
    x = np.arange(200 * 200, dtype=np.float32).reshape(200, 200)

    def body(x, at, last, loaded, stored, summed):  # type: ignore[no-untyped-def]
        loaded[...] = x[last[...], last[...]]
        stored[...] = jnp.zeros(8)
        stored[at[...]] = jnp.arange(1.0, 9)
        summed[...] = jnp.ones(8)
        summed[at[...]] += jnp.arange(1.0, 9)

    with enabled():
        got = pl.pallas_call(body, out_shape=[jax.ShapeDtypeStruct((8,), jnp.float32)] * 3)(x, at, last)
    stored = np.zeros(8, np.float32)
    stored[at] = np.arange(1, 9)
    for result, want in zip(got, (x[last, last], stored, stored + 1), strict=True):
        np.testing.assert_array_equal(result, want)


def test_indices_that_only_count_up_cost_nothing() -> None:
    """What follows from counting (a loop's turns, the grid's steps, tables that a maximum bounds) is taken as it is; what is loaded is not."""

    def program(where):  # type: ignore[no-untyped-def]
        def body(x, table, out):  # type: ignore[no-untyped-def]
            def turn(i, _):  # type: ignore[no-untyped-def]
                out[pl.ds(i * 8, 8)] = x[where(pl.program_id(0), i, table)]

            lax.fori_loop(0, 4, turn, None)

        call = pl.pallas_call(
            body, grid=(2,), out_shape=jax.ShapeDtypeStruct((64,), jnp.float32), in_specs=[pl.BlockSpec((64,), lambda i: (0,))] * 2,
            out_specs=pl.BlockSpec((32,), lambda i: (i,)),
        )  # fmt: skip
        x, table = np.arange(64, dtype=np.float32), np.arange(64, dtype=np.int32)
        with enabled():
            np.testing.assert_array_equal(call(x, table), x)
            return str(smalt.inspect(call, x, table))

    assert " select " not in program(lambda p, i, table: p * 32 + i * 8 + jnp.arange(8))
    assert " select " not in program(lambda p, i, table: jnp.maximum(table[pl.ds(p * 32 + i * 8, 8)], 0))
    assert " select " in program(lambda p, i, table: table[pl.ds(p * 32 + i * 8, 8)])
