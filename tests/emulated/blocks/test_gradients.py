"""Derivatives of `pl.pallas_call`, backwards: `jax.grad`, `jax.vjp`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.tpu as pltpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import triton as plt

import smalt
from tests.fuzz.seeds import seeds
from tests.programs.blocks.bodies import BODIES_BACKWARDS

F32 = jnp.float32


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    with smalt.emulated():
        yield


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def rows(n: int = 8, m: int = 128) -> pl.BlockSpec:
    return pl.BlockSpec((n, m), lambda i: (i, 0))


def call(body: Callable[..., None], **how: Any) -> Any:
    given = {"out_shape": jax.ShapeDtypeStruct((32, 128), F32), "grid": (4,), "in_specs": [rows()], "out_specs": rows()}
    return pl.pallas_call(body, **given | how)


def check(f: Any, same: Any, xs: Sequence[Any], wanted: Sequence[int] | None = None, tolerance: float = 2e-5) -> None:
    """`f`'s results and cotangents are those of a function of JAX's; with respect to these operands."""
    wanted = [i for i, x in enumerate(xs) if np.asarray(x).dtype.kind == "f"] if wanted is None else wanted

    def vjp(f: Any) -> Any:
        def of_some(*some: Any) -> Any:
            given = dict(enumerate(xs)) | dict(zip(wanted, some))
            return f(*given.values())

        out, backward = jax.vjp(of_some, *[xs[i] for i in wanted])
        rng = np.random.default_rng(5)
        return out, backward(jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), out))

    got, want = vjp(f), vjp(same)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------ what is right


def mixed(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * jnp.sin(y_ref[...]) * (pl.program_id(0) + 1)


NUMBER = np.repeat(np.arange(1, 5), 8)[:, None].astype(np.float32)


def same_mixed(x: Any, y: Any) -> Any:
    return x * jnp.sin(y) * NUMBER


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
def test_with_respect_to_some_operands(wanted: tuple[int, ...]) -> None:
    check(call(mixed, in_specs=[rows(), rows()]), same_mixed, [normal(32, 128), normal(32, 128, seed=1)], wanted)


@pytest.mark.whole
@seeds(BODIES_BACKWARDS, 10, 1, shared=False)
def test_random_bodies(programs: list[Any]) -> None: ...


def norm(x_ref: Any, g_ref: Any, b_ref: Any, o_ref: Any) -> None:
    x = x_ref[...]
    x = x - x.mean(axis=1, keepdims=True)
    o_ref[...] = x * jax.lax.rsqrt((x * x).mean(axis=1, keepdims=True) + 1e-3) * g_ref[...] + b_ref[...]


def test_weights_that_steps_share() -> None:
    """Their cotangents are added up, one step after the other; those of rows go at once, in a kernel of their own."""
    whole = pl.BlockSpec((128,), lambda i: (0,))
    f = call(norm, in_specs=[rows(), whole, whole])

    def same(x: Any, g: Any, b: Any) -> Any:
        x = x - x.mean(axis=1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(axis=1, keepdims=True) + 1e-3) * g + b

    check(f, same, [normal(32, 128), normal(128, seed=1), normal(128, seed=2)], tolerance=1e-4)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_products(dtype: Any) -> None:
    """Blocks of both operands are shared, along another axis each; sums of narrow types are kept in f32."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jax.lax.dot(x_ref[...], y_ref[...], precision="highest", preferred_element_type=F32).astype(o_ref.dtype)

    f = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((64, 96), dtype),
        grid=(4, 3),
        in_specs=[pl.BlockSpec((16, 32), lambda i, j: (i, 0)), pl.BlockSpec((32, 32), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((16, 32), lambda i, j: (i, j)),
    )

    def same(x: Any, y: Any) -> Any:
        return jax.lax.dot(x, y, precision="highest", preferred_element_type=F32).astype(dtype)

    x, y = jnp.asarray(normal(64, 32) / 4, dtype), jnp.asarray(normal(32, 96, seed=1) / 4, dtype)
    check(f, same, [x, y], (0, 1), tolerance=2e-5 if dtype == F32 else 2e-2)


def test_blocks_from_a_table_are_scattered() -> None:
    """Of a table that names blocks more than once, and some not at all: the cotangents of these are added up, and 0."""

    def body(table: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] ** 2 * table[pl.program_id(0)]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(6,), in_specs=[pl.BlockSpec((8, 128), lambda i, t: (t[i], 0))], out_specs=pl.BlockSpec((8, 128), lambda i, t: (i, 0))
    )
    f = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((48, 128), F32), grid_spec=spec)
    table = np.array([3, 1, 1, 3, 2, 1], np.int32)
    check(f, lambda t, x: (x.reshape(4, 8, 128)[t] ** 2 * t[:, None, None]).reshape(48, 128), [table, jnp.asarray(normal(32, 128))])


def test_blocks_that_overlap() -> None:
    """Windows of three rows, one row apart."""

    def body(x_ref: Any, w_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.sin(x_ref[0:8, :]) * w_ref[0] + x_ref[1:9, :] * w_ref[1] + x_ref[2:10, :] ** 2 * w_ref[2]

    f = call(body, in_specs=[pl.BlockSpec((pl.Element(10), pl.Element(128)), lambda i: (i * 8, 0)), pl.BlockSpec((3,), lambda i: (0,))])
    check(f, lambda x, w: jnp.sin(x[:-2]) * w[0] + x[1:-1] * w[1] + x[2:] ** 2 * w[2], [normal(34, 128), normal(3, seed=1)], tolerance=1e-4)


@pytest.mark.parametrize("n,block", [(29, 8), (5, 8), (32, 12)])
def test_blocks_that_reach_outside(n: int, block: int) -> None:
    """What is outside adds nothing to the weights' cotangents, where it is not finite either (of 0 the logarithm is not)."""

    def body(x_ref: Any, w_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.log(x_ref[...]) * w_ref[...] + 1 / (x_ref[...] + w_ref[...] * 0)

    steps = pl.cdiv(n, block)
    f = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((n, 128), F32),
        grid=(steps,),
        in_specs=[rows(block), pl.BlockSpec((1, 128), lambda i: (0, 0))],
        out_specs=rows(block),
    )
    x, w = np.abs(normal(n, 128)) + 0.5, normal(1, 128, seed=1)
    check(f, lambda x, w: jnp.log(x) * w + 1 / x, [x, w], tolerance=1e-4)
    check(jax.vmap(f, (0, None)), lambda x, w: jnp.log(x) * w + 1 / x, [np.stack([x, x + 1]), w], tolerance=1e-4)


def test_tails_that_a_body_masks() -> None:
    """Means over the rows that there are."""

    def body(x_ref: Any, o_ref: Any) -> None:
        inside = jax.lax.broadcasted_iota(jnp.int32, (8, 128), 0) + 8 * pl.program_id(0) < 21
        x = jnp.where(inside, x_ref[...], 0)
        o_ref[...] = x_ref[...] * x.sum(axis=0, keepdims=True)

    f = call(body, grid=(3,), out_shape=jax.ShapeDtypeStruct((21, 128), F32))

    def same(x: Any) -> Any:
        parts = [x[:8], x[8:16], x[16:]]
        return jnp.concatenate([p * p.sum(axis=0, keepdims=True) for p in parts])

    check(f, same, [normal(21, 128)], tolerance=1e-4)


def test_bounded_slices() -> None:
    """Groups of rows, one of them empty; what the groups have in common is added up."""
    starts, sizes = np.int32([0, 5, 5, 12]), np.int32([5, 0, 7, 4])

    def body(starts: Any, sizes: Any, x_ref: Any, w_ref: Any, o_ref: Any) -> None:
        inside = jax.lax.broadcasted_iota(jnp.int32, (8, 128), 0) < sizes[pl.program_id(0)]
        o_ref[...] = jnp.where(inside, jnp.log(x_ref[...]) * w_ref[...], 0)

    groups = pl.BlockSpec((pl.BoundedSlice(8), 128), lambda i, starts, sizes: (pl.ds(starts[i], sizes[i]), 0))
    weights, out = pl.BlockSpec((1, 128), lambda i, *_: (0, 0)), pl.BlockSpec((8, 128), lambda i, *_: (i, 0))
    spec = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=2, grid=(4,), in_specs=[groups, weights], out_specs=out)
    f = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((32, 128), F32), grid_spec=spec)
    at = np.concatenate([8 * i + np.arange(n) for i, n in enumerate(sizes)])
    xs = [starts, sizes, np.abs(normal(16, 128)) + 0.5, normal(1, 128, seed=1)]
    check(f, lambda starts, sizes, x, w: jnp.zeros((32, 128)).at[at].set(jnp.log(x) * w), xs, tolerance=1e-4)


@pytest.mark.parametrize("start", [0, 3])
def test_positions_that_a_stride_of_0_repeats(start: int) -> None:
    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.sin(x_ref[pl.ds(start, 8, 0), :]) * y_ref[...]

    f = call(body, in_specs=[rows(), rows()])

    def same(x: Any, y: Any) -> Any:
        return jnp.repeat(jnp.sin(x.reshape(4, 8, 128)[:, start]), 8, 0) * y

    check(f, same, [normal(32, 128), normal(32, 128, seed=1)], tolerance=1e-4)


def test_loads_under_masks() -> None:
    """Of references with tangents and without, outside of which nothing is read."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        start = 1 + pl.program_id(0)
        mask = jax.lax.broadcasted_iota(jnp.int32, (8, 128), 0) + start < 8
        x, y = (plt.load(ref.at[pl.ds(start, 8), :], mask=mask, other=jnp.full((8, 128), 2.0)) for ref in (x_ref, y_ref))
        plt.store(o_ref.at[:, :], x_ref[...], mask=jnp.logical_not(mask))
        plt.store(o_ref.at[:, :], jnp.sin(x) * y, mask=mask)

    def same(x: Any, y: Any) -> Any:
        found = []
        for i in range(4):
            a, b = x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]
            found += [jnp.sin(a[1 + i :]) * b[1 + i :], a[7 - i :]]
        return jnp.concatenate(found)

    f, xs = call(body, in_specs=[rows(), rows()]), [normal(32, 128), normal(32, 128, seed=1)]
    for wanted in (0,), (1,), (0, 1):
        check(f, same, xs, wanted, tolerance=1e-4)


def test_a_block_of_device_memory_that_steps_share() -> None:
    whole = plgpu.BlockSpec((8, 128), lambda i: (0, 0), memory_space=plgpu.GMEM)

    def body(w_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = w_ref[...] * x_ref[...]

    check(call(body, in_specs=[whole, rows()]), lambda w, x: jnp.tile(w, (4, 1)) * x, [normal(8, 128), normal(32, 128, seed=1)])


def test_blocks_that_are_not_visited() -> None:
    """Cotangents of what no step loads are 0."""
    f = call(lambda x, o: o.__setitem__(..., jnp.exp(x[...])), in_specs=[pl.BlockSpec((8, 128), lambda i: (i * 2, 0))])
    check(f, lambda x: jnp.exp(x.reshape(4, 2, 8, 128)[:, 0].reshape(32, 128)), [normal(64, 128)])


def test_squeezed_dimensions_and_integers() -> None:
    def body(x_ref: Any, n_ref: Any, o_ref: Any, m_ref: Any) -> None:
        o_ref[...] = x_ref[...] ** n_ref[0]
        m_ref[...] = n_ref[...] * 2

    f = pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct((4, 8, 128), F32), jax.ShapeDtypeStruct((4, 1), jnp.int32)],
        grid=(4,),
        in_specs=[pl.BlockSpec((8, None, 128), lambda i: (0, i, 0)), pl.BlockSpec((None, 1), lambda i: (i, 0))],
        out_specs=[pl.BlockSpec((None, 8, 128), lambda i: (i, 0, 0)), pl.BlockSpec((None, 1), lambda i: (i, 0))],
    )
    n = np.array([[1], [2], [3], [2]], np.int32)
    x, c = normal(8, 4, 128), normal(4, 8, 128, seed=1)
    got = jax.grad(lambda x: (f(x, n)[0] * c).sum())(x)
    np.testing.assert_allclose(got, jax.grad(lambda x: (jnp.swapaxes(x, 0, 1) ** n[:, :, None] * c).sum())(x), rtol=1e-5)


def test_results_that_nobody_uses() -> None:
    def body(x_ref: Any, a_ref: Any, b_ref: Any) -> None:
        a_ref[...] = jnp.sin(x_ref[...])
        b_ref[...] = jnp.cos(x_ref[...])

    f = call(body, out_shape=[jax.ShapeDtypeStruct((32, 128), F32)] * 2, out_specs=[rows()] * 2)
    x = normal(32, 128)
    np.testing.assert_allclose(jax.grad(lambda x: f(x)[1].sum())(x), -np.sin(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: (0 * x).sum() + f(jax.lax.stop_gradient(x))[0].sum())(x), 0 * x)


def test_scratch_and_loops() -> None:
    def body(x_ref: Any, y_ref: Any, o_ref: Any, s_ref: Any) -> None:
        s_ref[...] = y_ref[...]

        def row(i: Any, total: Any) -> Any:
            v = x_ref[i, :] * s_ref[i, :]
            s_ref[i, :] = jnp.sin(v)
            return total + v

        total = jax.lax.fori_loop(0, 8, row, jnp.zeros((128,), F32))
        o_ref[...] = jax.lax.cond(pl.program_id(0) % 2 == 0, lambda: s_ref[...] * total, lambda: s_ref[...] - total)

    f = call(body, in_specs=[rows(), rows()], scratch_shapes=[plgpu.SMEM((8, 128), F32)])

    def same(x: Any, y: Any) -> Any:
        v = (x * y).reshape(4, 8, 128)
        total = v.sum(1, keepdims=True)
        return jnp.where(np.arange(4)[:, None, None] % 2 == 0, jnp.sin(v) * total, jnp.sin(v) - total).reshape(32, 128)

    check(f, same, [normal(32, 128), normal(32, 128, seed=1)], tolerance=1e-4)


# ------------------------------------------------------------------------------------------ programs around it


LAYERS = normal(3, 32, 128, seed=7)


def chain(f: Any) -> Callable[[Any], Any]:
    return lambda x: f(f(x, LAYERS[0]), LAYERS[1])


def scanned(f: Any) -> Callable[[Any], Any]:
    return lambda x: jax.lax.scan(lambda v, w: (f(v, w), None), x, LAYERS)[0]


AROUND: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "jit": lambda f: jax.jit(chain(f)),
    "checkpoint": lambda f: jax.checkpoint(chain(f)),
    "scan": scanned,
    "checkpoint in scan": lambda f: scanned(jax.checkpoint(f)),
    "cond": lambda f: lambda x: jax.lax.cond(x[0, 0] > -100, lambda: f(x, LAYERS[0]), lambda: x),
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x]), LAYERS[:2]).sum(0),
    "vmap of one": lambda f: lambda x: jax.vmap(f, (None, 0))(x, LAYERS).sum(0),
    "custom_jvp": lambda f: lambda x: jax.nn.relu(f(x, LAYERS[0])),
}


@pytest.mark.parametrize("name", AROUND)
def test_programs(name: str) -> None:
    f = call(mixed, in_specs=[rows(), rows()])
    check(AROUND[name](f), AROUND[name](same_mixed), [jnp.asarray(normal(32, 128) / 4)], tolerance=1e-4)


def test_vmap_of_gradients() -> None:
    f = call(mixed, in_specs=[rows(), rows()])

    def gradient(f: Any) -> Any:
        return jax.vmap(jax.grad(lambda x, y: jnp.sin(f(x, y)).sum(), (0, 1)), (0, None))(LAYERS, LAYERS[0])

    for one, other in zip(gradient(f), gradient(same_mixed)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_forwards_over_backwards() -> None:
    """Products of a Hessian with a vector."""
    f = call(mixed, in_specs=[rows(), rows()])
    x, y, t = LAYERS

    def product(f: Any) -> Any:
        return jax.jvp(jax.grad(lambda x, y: (f(x, y) ** 2).sum(), (0, 1)), (x, y), (t, t))[1]

    for one, other in zip(product(f), product(same_mixed)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)


def test_backwards_over_forwards() -> None:
    f = call(mixed, in_specs=[rows(), rows()])
    x, y, t = LAYERS

    def product(f: Any) -> Any:
        return jax.grad(lambda x, y: (jax.jvp(f, (x, y), (t, t))[1] ** 2).sum(), (0, 1))(x, y)

    for one, other in zip(product(f), product(same_mixed)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)


def test_names_of_kernels() -> None:
    f = call(mixed, in_specs=[rows(), pl.BlockSpec((8, 128), lambda i: (0, 0))])
    reports = smalt.inspect(jax.value_and_grad(lambda x, y: f(x, y).sum(), (0, 1)), LAYERS[0], LAYERS[1][:8], assemble=False)
    assert [r.name for r in reports] == ["mixed", "mixed_backward", "mixed_backward"]
    ways = [[b.of for b in r.blocks] for r in reports[1:]]
    assert ways[0][-1] == "the cotangent of args[0]" and ways[1][-1] == "the cotangent of args[1]"
    assert all("of outputs" in names[2] for names in ways)
    assert "in turn" not in reports[1].blocks[0].runs and "in turn" in reports[2].blocks[0].runs


def test_linear_functions() -> None:
    """What `jax.linearize` and `jax.vjp` give may be called, mapped and transposed on its own."""
    f = call(mixed, in_specs=[rows(), rows()])
    x, y, t = LAYERS

    def found(f: Any) -> Any:
        _, forwards = jax.linearize(f, x, y)
        _, backwards = jax.vjp(f, x, y)
        return forwards(t, t), jax.vmap(lambda t: forwards(t, y))(LAYERS), jax.vmap(backwards)(LAYERS), jax.linear_transpose(forwards, t, t)(t)

    for one, other in zip(jax.tree.leaves(found(f)), jax.tree.leaves(found(same_mixed)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_under_shard_map() -> None:
    """Values that vary over the mesh, and weights that do not: the cotangents of these are summed over it."""
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices")
    P = jax.sharding.PartitionSpec
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    varying = jax.sharding.ManualAxisType(varying=frozenset({"d"}))
    out = jax.ShapeDtypeStruct((16, 128), F32, manual_axis_type=varying)
    f = call(lambda x, w, o: o.__setitem__(..., jnp.sin(x[...]) * w[...]), grid=(2,), out_shape=out, in_specs=[rows(), pl.BlockSpec((128,), lambda i: (0,))])
    x, w, c = normal(32, 128), normal(128, seed=1), normal(32, 128, seed=2)

    def loss(x: Any, w: Any, c: Any) -> Any:
        return jax.shard_map(lambda x, w, c: jax.lax.psum((f(x, w) * c).sum(), "d"), mesh=mesh, in_specs=(P("d"), P(), P("d")), out_specs=P())(x, w, c)

    got = jax.jit(jax.grad(loss, (0, 1)))(x, w, c)
    np.testing.assert_allclose(got[0], np.cos(x) * w * c, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[1], (np.sin(x) * c).sum(0), rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------ what is refused


def refused(f: Any, *xs: Any) -> smalt.Unsupported:
    with pytest.raises(smalt.Unsupported) as e:
        jax.grad(lambda *xs: jax.tree.leaves(f(*xs))[0].sum())(*xs)
    assert "jax.grad of a p" in e.value.what and "jax.custom_vjp" in str(e.value.remedy), str(e.value)
    assert e.value.where is not None and e.value.where.startswith(__file__), str(e.value)
    return e.value


def test_steps_that_depend_on_each_other() -> None:
    def sums(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    f = call(sums, grid=(4, 2), in_specs=[pl.BlockSpec((8, 64), lambda i, j: (i, j))], out_specs=pl.BlockSpec((8, 64), lambda i, j: (i, 0)), out_shape=jax.ShapeDtypeStruct((32, 64), F32))
    assert "outputs" in refused(f, normal(32, 128)).what

    def last(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] ** 2

    f = call(last, grid=(4, 2), in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i, 0))], out_specs=pl.BlockSpec((8, 128), lambda i, j: (i, 0)))
    assert "write the same block of outputs" in refused(f, normal(32, 128)).what

    def carried(x_ref: Any, o_ref: Any, s_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            s_ref[...] = jnp.zeros_like(s_ref)

        s_ref[...] += x_ref[...]
        o_ref[...] = s_ref[...]

    assert "scratch s_ref" in refused(call(carried, scratch_shapes=[plgpu.SMEM((8, 128), F32)]), normal(32, 128)).what


def test_other_calls_that_are_refused() -> None:
    x = normal(32, 128)

    def twice(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    def stores(x_ref: Any, o_ref: Any) -> None:
        x_ref[...] = x_ref[...] * 2
        o_ref[...] = x_ref[...]

    def turns(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jax.lax.fori_loop(0, pl.program_id(0), lambda i, v: v * 2, x_ref[...])

    def scope(x_ref: Any, o_ref: Any) -> None:
        def body(s_ref: Any) -> None:
            s_ref[...] = x_ref[...]
            o_ref[...] = s_ref[...] * 2

        pl.run_scoped(body, plgpu.SMEM((8, 128), F32))

    assert "share the buffers" in refused(call(twice, input_output_aliases={0: 0}), x).what
    assert "a store to args[0]" in refused(call(stores), x).what
    assert "backwards" in refused(call(turns), x).what
    assert "backwards" in refused(call(scope), x).what
    whole = pl.BlockSpec(memory_space=plgpu.GMEM)
    assert "write the same block" in refused(call(lambda x, o: o.__setitem__(pl.ds(pl.program_id(0) * 8, 8), x[...]), out_specs=whole), x).what
    refused(plgpu.kernel(twice, out_type=jax.ShapeDtypeStruct((32, 128), F32)), x)
