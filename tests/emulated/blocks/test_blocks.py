"""`pl.pallas_call` with any blocks, against JAX's interpreter bit for bit; and what is decided for them."""

from __future__ import annotations

import os
import warnings
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

import smalt
from smalt import _blocks
from smalt._blocks import blocks, pallas_call
from tests.fuzz.seeds import named, right, seeds
from tests.programs.blocks.bounded import BOUNDED
from tests.programs.blocks.long import LONG_ROWS
from tests.programs.blocks.run import DEPENDENT, PALLAS_CALLS
from tests.programs.blocks.spelled import SPELLED

pytestmark = pytest.mark.shared

COUNT = int(os.environ.get("SMALT_TEST_BLOCKS", "50"))


@pytest.fixture(autouse=True)
def enabled():
    with warnings.catch_warnings(), smalt.enabled(True):
        warnings.simplefilter("ignore")
        yield


test_named = named(PALLAS_CALLS)


@seeds(PALLAS_CALLS, COUNT, 10)
def test_random(programs: list[Any]) -> None: ...


@seeds(SPELLED, COUNT // 10, 5)
def test_spelled_as_for_a_tpu_or_triton(programs: list[Any]) -> None:
    """Values, and derivatives forwards and backwards."""


@pytest.mark.parametrize("kind, seed", [*(("blocks", 5000 + n) for n in range(12)), *(("dependent", n) for n in (7028, 7035, 7048, 7090, 7195))])
def test_blocks_for_which_there_is_no_room(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that may be addressed where it is, is: of blocks that reach outside what is inside. Branches that no step takes are compiled, too."""
    monkeypatch.setattr(_blocks, "BESIDE", 227 << 10)
    right({"blocks": PALLAS_CALLS, "dependent": DEPENDENT}[kind], [seed])


@seeds(BOUNDED, COUNT // 2, 5)
def test_bounded_slices(programs: list[Any]) -> None: ...


@seeds(LONG_ROWS, COUNT // 2, 5)
def test_long_rows(programs: list[Any]) -> None: ...


def test_long_rows_within_longer_ones_are_copied_by_the_copy_engine() -> None:
    """In rows of 200, of which the array is made, too; 257 · 8 has none."""
    for columns, way in (1600, "tma"), (520, "tma"), (2056, "view"):
        x = jax.ShapeDtypeStruct((8, 2 * columns), jnp.bfloat16)
        spec = pl.BlockSpec((4, columns), lambda i, j: (i, j))
        call = decided(lambda x, o: o.__setitem__(..., x[...] + jnp.sum(x[...])), [x], out_shape=x, grid=(2, 2), in_specs=[spec], out_specs=spec)
        assert ways(call) == [way, way], columns
        assert all(b.dims[1].size == columns for b in call.blocks)


@pytest.mark.parametrize("dims", [(7, 300, 32), (7, 843, 32)])
def test_parts_behind_the_end_of_an_array(dims: tuple[int, ...]) -> None:
    """Blocks that are moved row by row, some of which lie outside altogether."""
    x = np.random.default_rng(0).integers(0, 100, dims).astype(np.float32)
    spec = pl.BlockSpec((3, dims[1] + 10, 16), lambda i, j: (i, 0, j))
    call = pl.pallas_call(add, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(3, 2), in_specs=[spec], out_specs=spec)
    np.testing.assert_array_equal(jax.jit(call)(x), x + 1)


def test_a_parallel_axis_of_a_traced_size() -> None:
    """Its steps run one after the other."""
    x = np.arange(128 * 8, dtype=np.float32).reshape(128, 8)
    spec = pl.BlockSpec((16, 8), lambda i: (i, 0))
    params = plgpu.CompilerParams(dimension_semantics=["parallel"])
    make = lambda n: pl.pallas_call(  # noqa: E731
        add, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(n,), in_specs=[spec], out_specs=spec, compiler_params=params
    )
    np.testing.assert_array_equal(jax.jit(lambda n: make(n)(x))(8), x + 1)


def decided(body: Any, arrays: Any, **call: Any) -> pallas_call.Call:
    """What is decided for a call."""
    traced = jax.make_jaxpr(lambda *a: pl.pallas_call(body, **call)(*a))(*arrays)
    (eqn,) = (e for e in traced.jaxpr.eqns if e.primitive.name == "pallas_call")
    return pallas_call.Call(eqn.params)


def ways(call: pallas_call.Call) -> list[str]:
    return [b.way.value for b in call.blocks]


def add(x: Any, o: Any) -> None:
    o[...] = x[...] + 1


def rows(*block: int | None) -> pl.BlockSpec:
    return pl.BlockSpec(block, lambda i: (i, 0))


@pytest.mark.parametrize(
    ("shape", "block", "steps", "way"),
    [
        ((64, 128), (8, 128), 1, "tma"),
        ((64, 128), (None, 128), 1, "tma"),
        ((64, 7), (8, 7), 1, "view"),
        ((64, 6), (8, 4), 1, "view"),
        ((30, 6), (8, 6), 1, "copy"),  # reaches outside
        ((64, 6), (8, 8), 1, "copy"),
        ((60, 128), (8, 128), 1, "tma"),  # the engine leaves out what is outside
        ((64, 4), (2, 4), 2, "view"),  # slots of 32 bytes
        ((64, 4), (16, 4), 2, "tma"),
        ((64, 1024, 256), (1, 1024, 256), 1, "tma"),  # in parts: more than shared memory
    ],
)
def test_way(shape: tuple[int, ...], block: tuple[Any, ...], steps: int, way: str) -> None:
    x = np.zeros(shape, np.float32)
    spec = pl.BlockSpec(block, lambda i: (i,) + (0,) * (len(shape) - 1))
    params = plgpu.CompilerParams(max_concurrent_steps=steps, dimension_semantics=["sequential"])
    call = decided(add, [x], out_shape=x, grid=(4,), in_specs=[spec], out_specs=spec, compiler_params=params)
    assert ways(call) == [way, way]


def test_axes() -> None:
    x = np.zeros((8, 64), np.float32)
    two = {"grid": (8, 2), "in_specs": [pl.BlockSpec((1, 32), lambda i, j: (i, j))], "out_shape": x}
    maps = {
        (True, True): lambda i, j: (i, j),
        (False, True): lambda i, j: (0, j),
        (True, False): lambda i, j: (7 - i, 0),
        (False, False): lambda i, j: (jax.lax.rem(i + j, jnp.int32(8)), 0),
    }
    for want, index_map in maps.items():
        out = pl.BlockSpec((1, 32), index_map)
        assert decided(add, [x], out_specs=out, **two).parallel == want
    # (2 i + j) is another number for each of both.
    out = pl.BlockSpec((1, 32), lambda i, j: (2 * i + j, 0))
    assert decided(add, [x], out_specs=out, grid=(4, 2), in_specs=two["in_specs"], out_shape=x).parallel == (True, True)


def test_an_output_that_is_overwritten_is_not_read() -> None:
    x = np.zeros((8, 7), np.float32)

    def part(x: Any, o: Any) -> None:
        o[0] = x[1]

    for body, reload in ((add, False), (part, True)):
        call = decided(
            body, [x], out_shape=x, grid=(4,), in_specs=[rows(2, 7)], out_specs=rows(2, 7), input_output_aliases={0: 0}
        )
        assert call.blocks[1].reload == reload


def test_device_memory_that_all_steps_write_is_written_in_order() -> None:
    """A block of it, or all of it, that each step takes whole; of parts the author says which, and they go at once."""
    x = np.random.default_rng(2).integers(-4, 4, (24, 128)).astype(np.float32)
    whole = plgpu.BlockSpec((8, 128), lambda i: (0, 0), memory_space=plgpu.GMEM)

    def sums(x: Any, o: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            o[...] = jnp.zeros_like(o)

        o[...] += x[...]

    def into(x: Any, z: Any, o: Any) -> None:
        o[...] = z[...] + x[...]

    def last(x: Any, o: Any) -> None:
        o[...] = x[...]

    def own(x: Any, o: Any) -> None:
        o[pl.ds(pl.program_id(0) * 8, 8)] = x[...] + 1

    def call(body: Any, *arrays: Any, rows: int = 8, **how: Any) -> Any:
        specs = [pl.BlockSpec((8, 128), lambda i: (i, 0)), *[whole] * (len(arrays) - 1)]
        out = whole if rows == 8 else plgpu.BlockSpec(memory_space=plgpu.GMEM)
        given = {"out_shape": jax.ShapeDtypeStruct((rows, 128), jnp.float32), "grid": (3,), "in_specs": specs, "out_specs": out, **how}
        return decided(body, arrays, **given).parallel, pl.pallas_call(body, **given)(*arrays)

    for body, arrays, how, want in [
        (sums, (x,), {}, x.reshape(3, 8, 128).sum(0)),
        (into, (x, np.ones((8, 128), np.float32)), {"input_output_aliases": {1: 0}}, x.reshape(3, 8, 128).sum(0) + 1),
        (last, (x,), {}, x[16:]),
    ]:
        parallel, got = call(body, *arrays, **how)
        assert parallel == (False,), body.__name__
        np.testing.assert_array_equal(got, want)
    parallel, got = call(own, x, rows=24)
    assert parallel == (True,)
    np.testing.assert_array_equal(got, x + 1)


def test_forms() -> None:
    def index_map(i: Any, j: Any) -> tuple[Any, ...]:
        return 3 * i - j + 5, i // 2, jnp.minimum(j, 3), 7

    closed = jax.make_jaxpr(index_map)(jnp.int32(0), jnp.int32(0))
    axes = [blocks.Form(factors=((a, 1),)) for a in range(2)]
    forms = blocks.forms_of(closed, axes, (4, 6))
    assert forms[0] == blocks.Form(5, ((0, 3), (1, -1)))
    assert forms[0].bounds((4, 6)) == (0, 14)
    assert forms[1].axes == {0} and not forms[1].is_affine
    assert forms[2].axes == {1} and forms[3] == blocks.Form(7)
    at = blocks.points(closed, forms, (4, 6))
    assert at is not None
    want = [[3 * i - j + 5, i // 2, min(j, 3), 7] for i in range(4) for j in range(6)]
    np.testing.assert_array_equal(at, want)


# ------------------------------------------------------------------------------------------ finer parts


def of_rows(body: Any, *arrays: Any, rows: int = 16, shared: int = 0) -> Any:
    """A call over blocks of so many rows; the last `shared` arrays are the same for all blocks. A function of `interpret`."""
    x = arrays[0]
    specs = [pl.BlockSpec((rows, *a.shape[1:]), lambda i, n=a.ndim: (i,) + (0,) * (n - 1)) for a in arrays[: len(arrays) - shared]]
    specs += [pl.BlockSpec(a.shape, lambda i, n=a.ndim: (0,) * n) for a in arrays[len(arrays) - shared :]]
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    grid = (-(-x.shape[0] // rows),)
    return lambda interpret: pl.pallas_call(body, out_shape=out, grid=grid, in_specs=specs, out_specs=specs[0], interpret=interpret)


def softmax(x: Any, o: Any) -> None:
    e = jnp.exp(x[...] - x[...].max(axis=1, keepdims=True))
    o[...] = e / e.sum(axis=1, keepdims=True)


def scaled(x: Any, w: Any, b: Any, o: Any) -> None:
    o[...] = jax.nn.relu(x[...] * w[...][None, :] + b[0]) * pl.program_id(0).astype(jnp.float32)


def masked(x: Any, o: Any) -> None:
    keep = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) < 700
    o[...] = jnp.where(keep, x[...], jnp.zeros_like(x)) + jnp.full((16, 1), 2.0)


def running(x: Any, o: Any) -> None:
    o[...] = jnp.cumsum(x[...].reshape(16, 8, 128), axis=1).reshape(16, 1024)


def twice(x: Any, o: Any) -> None:
    o[...] = x[...]
    o[...] = o[...] + x[...][:, :1]


def conditional(x: Any, o: Any) -> None:
    @pl.when(pl.program_id(0) == 1)
    def _() -> None:
        o[...] = x[...] + 1

    @pl.when(pl.program_id(0) != 1)
    def _() -> None:
        o[...] = x[...]


def ordered(x: Any, o: Any) -> None:
    v = x[...]
    key, place = jax.lax.sort((jnp.abs(v), jax.lax.broadcasted_iota(jnp.int32, v.shape, 1)), dimension=1, num_keys=1)
    best, where = jax.lax.top_k(v, 8)
    o[...] = key + place.astype(jnp.float32) + (best + where.astype(jnp.float32)).sum(axis=1, keepdims=True)


APART = {"softmax": (softmax, 0), "scaled": (scaled, 2), "masked": (masked, 0), "running": (running, 0), "conditional": (conditional, 0), "ordered": (ordered, 0)}


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("n", [64, 50])
def test_rows_that_are_apart_are_taken_in_parts(name: str, n: int) -> None:
    body, shared = APART[name]
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 1024)).astype(np.float32)
    arrays = [x, rng.normal(size=1024).astype(np.float32), np.float32([3])][: 1 + shared]
    make = of_rows(body, *arrays, shared=shared)
    traced = jax.make_jaxpr(make(False))(*arrays)
    (eqn,) = (e for e in traced.jaxpr.eqns if e.primitive.name == "pallas_call")
    assert pallas_call.Call(eqn.params).parts == 4
    np.testing.assert_allclose(jax.jit(make(False))(*arrays), jax.jit(make(True))(*arrays), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("turned", [False, True])
def test_products_are_split_into_rows_of_tensor_cores(turned: bool) -> None:
    def body(x: Any, w: Any, o: Any) -> None:
        o[...] = jax.nn.relu((w[...] @ x[...].T).T if turned else x[...] @ w[...]) + 1

    rng = np.random.default_rng(2)
    x, w = (rng.integers(-3, 3, shape).astype(np.float16) for shape in ((256, 64), (256, 64) if turned else (64, 256)))
    specs = [pl.BlockSpec((128, 64), lambda i: (i, 0)), pl.BlockSpec(w.shape, lambda i: (0, 0))]
    out = pl.BlockSpec((128, 256), lambda i: (i, 0))

    def make(interpret: bool) -> Any:
        shape = jax.ShapeDtypeStruct((256, 256), jnp.float16)
        return pl.pallas_call(body, out_shape=shape, grid=(2,), in_specs=specs, out_specs=out, interpret=interpret)

    traced = jax.make_jaxpr(make(False))(x, w)
    (eqn,) = (e for e in traced.jaxpr.eqns if e.primitive.name == "pallas_call")
    assert pallas_call.Call(eqn.params).parts == 2
    np.testing.assert_array_equal(jax.jit(make(False))(x, w), jax.jit(make(True))(x, w))


def across(x: Any, o: Any) -> None:
    o[...] = x[...] - x[...].mean(axis=0, keepdims=True)


def reversed_rows(x: Any, o: Any) -> None:
    o[...] = x[...][::-1]


def one_row(x: Any, o: Any) -> None:
    o[...] = x[...] + x[3]


def first_rows(x: Any, o: Any) -> None:
    o[...] = x[...]
    o[0:2] = x[2:4]


def numbered(x: Any, o: Any) -> None:
    o[...] = x[...] + jax.lax.broadcasted_iota(jnp.int32, x.shape, 0).astype(jnp.float32)


def turned(x: Any, o: Any) -> None:
    o[...] = x[...] + x[...].T.reshape(16, 1024)


def swapped(x: Any, o: Any) -> None:
    o[...] = x[...]
    old = o[...]
    o[...] = old.sum() + x[...]


def looped(x: Any, o: Any) -> None:
    o[...] = jax.lax.fori_loop(0, 3, lambda i, v: v + jnp.roll(v, 1, 0), x[...])


@pytest.mark.parametrize("body", [across, reversed_rows, one_row, first_rows, turned, swapped, looped])
def test_rows_that_are_mixed_are_not_split(body: Any) -> None:
    x = np.random.default_rng(1).integers(-4, 4, (48, 1024)).astype(np.float32)
    make = of_rows(body, x)
    traced = jax.make_jaxpr(make(False))(x)
    (eqn,) = (e for e in traced.jaxpr.eqns if e.primitive.name == "pallas_call")
    call = pallas_call.Call(eqn.params)
    assert all(b.dims[0].parts == 1 for b in call.blocks)
    # Columns may be apart all the same.
    assert call.parts == (4 if body in (across, one_row, first_rows) else 1)
    np.testing.assert_allclose(jax.jit(make(False))(x), jax.jit(make(True))(x), rtol=2e-6, atol=1e-6)


def expensive(x: Any, o: Any) -> None:
    y = x[...]
    for _ in range(8):
        y = jnp.tanh(y) + jnp.exp(-y * y) * jnp.sin(y)
    o[...] = y


def cheap(x: Any, o: Any) -> None:
    o[...] = x[...] * 2 + 1


@pytest.mark.parametrize("body,n,parts", [(expensive, 2048, 8), (cheap, 2048, 1), (cheap, 16384, 4), (expensive, 1000, 1), (expensive, 768, 3)])
def test_long_blocks_are_taken_in_parts_by_their_work(body: Any, n: int, parts: int) -> None:
    x = np.random.default_rng(n).normal(size=3 * n).astype(np.float32)

    def make(interpret: bool) -> Any:
        spec = pl.BlockSpec((n,), lambda i: (i,))
        shape = jax.ShapeDtypeStruct(x.shape, jnp.float32)
        return pl.pallas_call(body, out_shape=shape, grid=(3,), in_specs=[spec], out_specs=spec, interpret=interpret)

    (eqn,) = (e for e in jax.make_jaxpr(make(False))(x).jaxpr.eqns if e.primitive.name == "pallas_call")
    assert pallas_call.Call(eqn.params).parts == parts
    np.testing.assert_allclose(jax.jit(make(False))(x), jax.jit(make(True))(x), rtol=2e-5, atol=1e-5)


def test_what_all_parts_would_load_again_is_little() -> None:
    def product(x: Any, w: Any, o: Any) -> None:
        o[...] = x[...] + w[...].sum()

    x, w = np.zeros((64, 1024), np.float32), np.zeros((64, 1024), np.float32)
    traced = jax.make_jaxpr(of_rows(product, x, w, shared=1)(False))(x, w)
    (eqn,) = (e for e in traced.jaxpr.eqns if e.primitive.name == "pallas_call")
    assert pallas_call.Call(eqn.params).parts == 1


def test_what_leaves_no_room_for_the_body_is_a_view() -> None:
    """An output that fits into shared memory once: not beside what the compiler takes for a change of its layout."""

    def body(x: Any, y: Any, z: Any) -> None:
        at = (slice(None, None, 2), slice(1, None), slice(None, None, 3))
        y[...] = x[at]
        z[...] = jnp.zeros_like(z)
        z[at] = y[...]

    x = np.random.default_rng(0).normal(size=(8, 8, 32, 128)).astype(np.float32)
    out = [jax.ShapeDtypeStruct((4, 7, 11, 128), jnp.float32), jax.ShapeDtypeStruct(x.shape, jnp.float32)]
    f = pl.pallas_call(body, out_shape=out)
    (report,) = smalt.inspect(f, x, assemble=False)
    assert all(b.way == "a view of the array" for b in report.blocks)
    y, z = f(x)
    np.testing.assert_array_equal(y, x[::2, 1:, ::3])
    np.testing.assert_array_equal(np.asarray(z)[::2, 1:, ::3], x[::2, 1:, ::3])
    assert np.count_nonzero(z) == np.count_nonzero(y)


def test_what_has_no_room_whatever_the_ways_is_an_error() -> None:
    def body(x: Any, o: Any) -> None:
        pl.run_scoped(lambda s: o.__setitem__(..., x[...] + s[0, 0]), plgpu.SMEM((300, 256), jnp.float32))

    x = np.zeros((16, 128), np.float32)
    with pytest.raises(smalt.InvalidKernel, match="(?s)shared memory.*232448.*307200"):
        pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32))(x)


def test_errors_in_parts_name_the_line() -> None:
    def body(x: Any, o: Any) -> None:
        v = x[...] * 2
        o[...] = jax.lax.reduce_precision(v, 12, 3)  # HERE

    x = np.zeros((64, 1024), np.float32)
    with pytest.raises(smalt.Error) as caught:
        of_rows(body, x)(False)(x)
    here = next(i for i, line in enumerate(open(__file__), 1) if line.rstrip().endswith("# HERE"))
    assert f"test_blocks.py:{here}" in str(caught.value)


def test_inspect_reports_blocks() -> None:
    x = np.zeros((64, 1024), np.float32)
    (report,) = smalt.inspect(of_rows(softmax, x)(False), x, assemble=False)
    assert [(b.block, b.way) for b in report.blocks] == [((4, 1024), "copy engine, 1 slot")] * 2
    assert "outputs" in report.blocks[1].of and "rows in 4 parts" in str(report)
