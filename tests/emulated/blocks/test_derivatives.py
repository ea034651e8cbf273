"""Derivatives of kernels, forwards."""

from __future__ import annotations

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
from tests.programs.blocks.bodies import BODIES_FORWARDS

ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
TURNED = pl.BlockSpec((8, 128), lambda i: (1 - i, 0))


def mixed(x_ref: Any, y_ref: Any, z_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * jnp.sin(y_ref[...]) + z_ref[...] * y_ref[...]


def call(specs: Any) -> Any:
    out = jax.ShapeDtypeStruct((16, 128), jnp.float32)
    return pl.pallas_call(mixed, out_shape=out, grid=(2,), in_specs=specs, out_specs=ROWS)


def operands() -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(16, 128)).astype(np.float32) for _ in range(6)]


def derivative(f: Any, xs: Any, ts: Any, wanted: tuple[int, ...]) -> Any:
    """With respect to these operands alone: the others' tangents are zeros that JAX knows."""

    def of_some(*some: Any) -> Any:
        given = list(xs)
        for at, x in zip(wanted, some):
            given[at] = x
        return f(*given)

    return jax.jvp(of_some, [xs[i] for i in wanted], [ts[i] for i in wanted])


SOME = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]


@pytest.mark.parametrize("wanted", SOME)
@pytest.mark.parametrize("jitted", [False, True])
def test_with_respect_to_some_operands(wanted: tuple[int, ...], jitted: bool) -> None:
    """As with zeros that are passed."""
    *xs, a, b, c = operands()
    ts = [a, b, c]
    f = call([ROWS] * 3)
    zeros = [t if i in wanted else np.zeros_like(t) for i, t in enumerate(ts)]
    with smalt.emulated():
        took = lambda: derivative(f, xs, ts, wanted)  # noqa: E731
        got = jax.jit(took)() if jitted else took()
        expected = jax.jvp(f, xs, zeros)
    for one, other in zip(got, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)  # with zeros, sums are contracted otherwise
    np.testing.assert_allclose(got[0], xs[0] * np.sin(xs[1]) + xs[2] * xs[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wanted", SOME)
def test_blocks_that_differ(wanted: tuple[int, ...]) -> None:
    """One of three operands is taken in another order: each tangent has the blocks of its operand."""
    *xs, a, b, c = operands()
    f = call([ROWS, TURNED, ROWS])

    def same(x: Any, y: Any, z: Any) -> Any:
        y = y.reshape(2, 8, 128)[::-1].reshape(16, 128)
        return x * jnp.sin(y) + z * y

    with smalt.emulated():
        got = derivative(f, xs, [a, b, c], wanted)
    for one, other in zip(got, derivative(same, xs, [a, b, c], wanted)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_blocks_of_different_shapes_say_which_is_which() -> None:
    def body(x_ref: Any, s_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * s_ref[0:1, :]

    out = jax.ShapeDtypeStruct((16, 128), jnp.float32)
    small = pl.BlockSpec((1, 128), lambda i: (0, 0))
    f = pl.pallas_call(body, out_shape=out, grid=(2,), in_specs=[ROWS, small], out_specs=ROWS)
    x, t, *_ = operands()
    s, u = x[:1] + 1, t[:1]
    with smalt.emulated():
        np.testing.assert_allclose(derivative(f, [x, s], [t, u], (0,))[1], t * s, rtol=1e-6)
        np.testing.assert_allclose(derivative(f, [x, s], [t, u], (1,))[1], x * u, rtol=1e-6)


# ------------------------------------------------------------------------------------------ what stands in bodies

F32 = jnp.float32


def check(f: Any, same: Any, xs: Any, wanted: tuple[int, ...] | None = None) -> None:
    """`f`'s results and tangents are those of a function of JAX's; with respect to these operands."""
    rng = np.random.default_rng(1)
    ts = [rng.normal(size=np.shape(x)).astype(np.asarray(x).dtype) for x in xs]
    wanted = tuple(range(len(xs))) if wanted is None else wanted
    with smalt.emulated():
        got = derivative(f, xs, ts, wanted)
    want = derivative(same, xs, ts, wanted)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert one.dtype == other.dtype
        if one.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def rows(n: int, m: int = 128) -> Any:
    return pl.BlockSpec((n, m), lambda i: (i, 0))


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_program_id() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        i = pl.program_id(0)
        o_ref[...] = x_ref[...] ** 2 * (i + 1).astype(F32) + pl.num_programs(0)

    f = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((32, 128), F32), grid=(4,), in_specs=[rows(8)], out_specs=rows(8))
    check(f, lambda x: x**2 * (jnp.arange(32) // 8 + 1)[:, None] + 4, [normal(32, 128)])


def test_scratch_lasts_over_a_sequential_axis() -> None:
    """A product of matrices that adds up in scratch: its tangent has an accumulator of its own."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jax.lax.dot(x_ref[...], y_ref[...], precision="highest")

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            o_ref[...] = jnp.tanh(acc_ref[...])

    f = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((32, 64), F32),
        grid=(2, 2, 3),
        in_specs=[pl.BlockSpec((16, 16), lambda i, j, k: (i, k)), pl.BlockSpec((16, 32), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((16, 32), lambda i, j, k: (i, j)),
        scratch_shapes=[plgpu.SMEM((16, 32), F32)],
    )
    xs = [normal(32, 48) / 8, normal(48, 64, seed=1)]
    for wanted in [(0,), (1,), (0, 1)]:
        check(f, lambda x, y: jnp.tanh(jax.lax.dot(x, y, precision="highest")), xs, wanted)


def test_integers_have_no_tangents() -> None:
    """Operands, results and scratch of integers, between those of floats."""

    def body(x_ref: Any, n_ref: Any, o_ref: Any, m_ref: Any, s_ref: Any, t_ref: Any) -> None:
        s_ref[...] = n_ref[...] * 2
        t_ref[...] = x_ref[...] * s_ref[...].astype(F32)
        m_ref[...] = s_ref[...] + (x_ref[...] > 0)
        o_ref[...] = jnp.exp(t_ref[...])

    out = [jax.ShapeDtypeStruct((16, 128), F32), jax.ShapeDtypeStruct((16, 128), jnp.int32)]
    f = pl.pallas_call(
        body, out_shape=out, grid=(2,), in_specs=[rows(8), rows(8)], out_specs=[rows(8), rows(8)],
        scratch_shapes=[plgpu.SMEM((8, 128), jnp.int32), plgpu.SMEM((8, 128), F32)],
    )  # fmt: skip
    n = np.random.default_rng(2).integers(-1, 2, (16, 128)).astype(np.int32)
    check(f, lambda x, n: (jnp.exp(x * 2 * n), 2 * n + (x > 0)), [normal(16, 128), n], (0,))


def test_control_flow_over_references() -> None:
    def body(x_ref: Any, y_ref: Any, o_ref: Any, s_ref: Any) -> None:
        s_ref[...] = y_ref[...]

        def row(i: Any, total: Any) -> Any:
            v = x_ref[i, :] * s_ref[i, :]
            s_ref[i, :] = v + s_ref[i, :]
            return total + v

        total = jax.lax.fori_loop(0, 8, row, jnp.zeros((128,), F32))

        def step(carry: Any) -> Any:
            k, v = carry
            return k + 1, v * s_ref[k, :]

        _, v = jax.lax.while_loop(lambda c: c[0] < pl.program_id(0) + 2, step, (0, total))
        o_ref[...] = jax.lax.cond(pl.program_id(0) % 2 == 0, lambda: s_ref[...] * v, lambda: s_ref[...] - v)

    f = pl.pallas_call(
        body, out_shape=jax.ShapeDtypeStruct((32, 128), F32), grid=(4,), in_specs=[rows(8), rows(8)], out_specs=rows(8),
        scratch_shapes=[plgpu.SMEM((8, 128), F32)],
    )  # fmt: skip

    def same(x: Any, y: Any) -> Any:
        out = []
        for i in range(4):
            a, b = x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]
            s = a * b + b
            v = (a * b).sum(0)
            for k in range(i + 2):
                v = v * s[k]
            out.append(s * v if i % 2 == 0 else s - v)
        return jnp.concatenate(out)

    for wanted in [(0,), (1,), (0, 1)]:
        check(f, same, [normal(32, 128), normal(32, 128, seed=1)], wanted)


def test_scopes_within() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        def scope(s_ref: Any, n_ref: Any) -> Any:
            n_ref[...] = jnp.full_like(n_ref, 3)
            s_ref[...] = x_ref[...] * n_ref[...].astype(F32)
            return jnp.sin(s_ref[...]), n_ref[0, 0]

        y, n = pl.run_scoped(scope, plgpu.SMEM((8, 128), F32), plgpu.SMEM((8, 128), jnp.int32))
        o_ref[...] = y * n

    f = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((16, 128), F32), grid=(2,), in_specs=[rows(8)], out_specs=rows(8))
    check(f, lambda x: jnp.sin(3 * x) * 3, [normal(16, 128)])


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
def test_buffers_that_are_shared(wanted: tuple[int, ...]) -> None:
    """An input and a result in one buffer, of which only half is stored: so are their tangents, those that are 0 included."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[:4, :] = x_ref[:4, :] * y_ref[:4, :]

    f = pl.pallas_call(
        body, out_shape=jax.ShapeDtypeStruct((16, 128), F32), grid=(2,), in_specs=[rows(8), rows(8)], out_specs=rows(8),
        input_output_aliases={0: 0},
    )  # fmt: skip
    first = (np.arange(16) % 8 < 4)[:, None]
    check(f, lambda x, y: jnp.where(first, x * y, x), [normal(16, 128), normal(16, 128, seed=1)], wanted)


def test_inputs_that_are_stored_to() -> None:
    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        x_ref[...] = x_ref[...] * y_ref[...]
        o_ref[...] = x_ref[...] * 2

    f = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((16, 128), F32), grid=(2,), in_specs=[rows(8)] * 2, out_specs=rows(8))
    for wanted in [(0,), (1,), (0, 1)]:
        check(f, lambda x, y: 2 * x * y, [normal(16, 128), normal(16, 128, seed=1)], wanted)


def prefetched(body: Any) -> Any:
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, table: (table[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, table: (i, 0)),
    )
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((32, 128), F32), grid_spec=spec)


def test_prefetched_scalars() -> None:
    def body(table: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] ** 2 * table[pl.program_id(0)]

    table = np.array([2, 0, 3, 3], np.int32)

    def same(table: Any, x: Any) -> Any:
        return (x.reshape(4, 8, 128)[table] ** 2 * table[:, None, None]).reshape(32, 128)

    check(prefetched(body), same, [table, normal(32, 128)], (1,))


def test_prefetched_floats_have_no_tangents() -> None:
    def body(scale: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * scale[0]

    spec = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(2,), in_specs=[pl.BlockSpec((8, 128), lambda i, s: (i, 0))], out_specs=pl.BlockSpec((8, 128), lambda i, s: (i, 0)))
    f = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((16, 128), F32), grid_spec=spec)
    s, x = np.float32([3]), normal(16, 128)
    check(f, lambda s, x: x * s[0], [s, x], (1,))
    with smalt.emulated(), pytest.raises(smalt.Unsupported, match="with respect to scale, which is prefetched") as e:
        derivative(f, [s, x], [s, x], (0,))
    assert e.value.where is not None and e.value.where.startswith(f"{__file__}:")


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
def test_loads_under_masks(wanted: tuple[int, ...]) -> None:
    """Of references with tangents, without, and of integers, which have none."""

    def body(x_ref: Any, y_ref: Any, n_ref: Any, o_ref: Any) -> None:
        start = 1 + pl.program_id(0)
        mask = jax.lax.broadcasted_iota(jnp.int32, (8, 128), 0) + start < 8
        x, y = (plt.load(ref.at[pl.ds(start, 8), :], mask=mask, other=jnp.full((8, 128), 2.0)) for ref in (x_ref, y_ref))
        n = plt.load(n_ref.at[pl.ds(start, 8), :], mask=mask, other=jnp.full((8, 128), 3))
        o_ref[...] = x_ref[...]
        plt.store(o_ref.at[:, :], jnp.sin(x) * y * n, mask=mask)

    f = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((16, 128), F32), grid=(2,), in_specs=[rows(8)] * 3, out_specs=rows(8))

    def same(x: Any, y: Any, n: Any) -> Any:
        found = []
        for i in range(2):
            a, b, c = (z[8 * i : 8 * i + 8][1 + i :] for z in (x, y, n))
            found += [jnp.sin(a) * b * c, x[8 * i + 7 - i : 8 * i + 8]]
        return jnp.concatenate(found)

    check(f, same, [normal(16, 128), normal(16, 128, seed=1), np.full((16, 128), 2, np.int32)], wanted)


def test_traced_grids() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] ** 2

    def f(n: Any, x: Any) -> Any:
        out = jax.ShapeDtypeStruct((32, 128), F32)
        return pl.pallas_call(body, out_shape=out, grid=(n,), in_specs=[rows(8)], out_specs=rows(8))(x)

    x, t = normal(32, 128), normal(32, 128, seed=1)
    with smalt.emulated():
        got = jax.jit(lambda n, x, t: jax.jvp(lambda x: f(n, x), [x], [t]))(4, x, t)
    np.testing.assert_allclose(got[1], 2 * x * t, rtol=1e-6)


def test_under_vmap_and_over_it() -> None:
    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * y_ref[...] * (pl.program_id(0) + 1)

    f = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((16, 128), F32), grid=(2,), in_specs=[rows(8)] * 2, out_specs=rows(8))
    xs, (t,) = [normal(3, 16, 128), normal(16, 128, seed=1)], [normal(3, 16, 128, seed=2)]
    number = (np.arange(16) // 8 + 1)[:, None]
    with smalt.emulated():
        over = jax.jvp(lambda x: jax.vmap(f, (0, None))(x, xs[1]), [xs[0]], [t])
        under = jax.vmap(lambda x, t: jax.jvp(lambda x: f(x, xs[1]), [x], [t]))(xs[0], t)
    for got in (over, under):
        np.testing.assert_allclose(got[1], t * xs[1] * number, rtol=1e-6)


def test_named_grids_under_vmap_and_over_it() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        number = jax.lax.axis_index("i") * jax.lax.axis_size("i") + jax.lax.axis_index("j") * jax.lax.psum(1, "j")
        o_ref[...] = x_ref[...] ** 2 * number.astype(F32)

    spec = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    f = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((24, 256), F32), grid=(("i", 3), ("j", 2)), in_specs=[spec], out_specs=spec)
    x, t = normal(2, 24, 256), normal(2, 24, 256, seed=1)
    number = np.kron(np.arange(3)[:, None] * 3 + np.arange(2) * 2, np.ones((8, 128)))
    with smalt.emulated():
        over = jax.jvp(jax.vmap(f), [x], [t])
        under = jax.vmap(lambda x, t: jax.jvp(f, [x], [t]))(x, t)
    for got in (over, under):
        np.testing.assert_allclose(got[0], x**2 * number, rtol=1e-6)
        np.testing.assert_allclose(got[1], 2 * x * t * number, rtol=1e-6)


def test_second_derivatives() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.sin(x_ref[...]) * (pl.program_id(0) + 1)

    f = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((16, 128), F32), grid=(2,), in_specs=[rows(8)], out_specs=rows(8))
    x = normal(16, 128)
    one = np.ones_like(x)
    with smalt.emulated():
        got = jax.jvp(lambda x: jax.jvp(f, [x], [one])[1], [x], [one])[1]
    np.testing.assert_allclose(got, -np.sin(x) * (np.arange(16) // 8 + 1)[:, None], rtol=1e-5, atol=1e-6)


def test_lines_and_names_of_derivatives() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] ** 2

    f = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((16, 128), F32), grid=(3,), in_specs=[rows(8)], out_specs=rows(8))
    x = normal(16, 128)
    with smalt.emulated(), pytest.raises(smalt.InvalidKernel, match="outside of its array") as e:
        jax.jvp(f, [x], [x])
    assert e.value.where is not None and e.value.where.startswith(f"{__file__}:")


@pytest.mark.whole
@seeds(BODIES_FORWARDS, 12, 1, shared=False)
def test_random_bodies(programs: list[Any]) -> None: ...


# ------------------------------------------------------------------------------------------ plgpu.kernel


def test_kernel() -> None:
    def body(x_ref: Any, y_ref: Any, n_ref: Any, o_ref: Any, m_ref: Any, s_ref: Any) -> None:
        i = jax.lax.axis_index("i")
        at = pl.ds(i * 8, 8)
        s_ref[...] = x_ref[at] * (i + 1)

        def row(k: Any, carry: Any) -> Any:
            s_ref[k, :] = s_ref[k, :] * s_ref[(k + 1) % 8, :]
            return carry

        jax.lax.fori_loop(0, 8, row, None)
        m_ref[at] = n_ref[at] + 1
        o_ref[at] = s_ref[...] * y_ref[at] * n_ref[at]

    f = plgpu.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct((16, 128), F32), jax.ShapeDtypeStruct((16, 128), jnp.int32)],
        grid=(2,),
        grid_names=("i",),
        scratch_types=[plgpu.SMEM((8, 128), F32)],
    )

    def same(x: Any, y: Any, n: Any) -> Any:
        out = []
        for i in range(2):
            s = jnp.asarray(x)[8 * i : 8 * i + 8] * (i + 1)
            for k in range(8):
                s = s.at[k].set(s[k] * s[(k + 1) % 8])
            out.append(s)
        return [jnp.concatenate(out) * y * n, n + 1]

    n = np.random.default_rng(2).integers(1, 3, (16, 128)).astype(np.int32)
    for wanted in [(0,), (1,), (0, 1)]:
        check(f, same, [normal(16, 128), normal(16, 128, seed=1), n], wanted)


def test_what_has_no_derivative_says_so() -> None:
    def body(x_ref: Any, o_ref: Any, barrier: Any, s_ref: Any) -> None:
        plgpu.copy_gmem_to_smem(x_ref, s_ref, barrier)  # HERE
        plgpu.barrier_wait(barrier)
        o_ref[...] = s_ref[...] * 2

    f = plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((16, 128), F32), scratch_types=[plgpu.Barrier(), plgpu.SMEM((16, 128), F32)])
    x = normal(16, 128)
    here = next(i for i, line in enumerate(open(__file__), 1) if line.rstrip().endswith("# HERE"))
    with smalt.emulated(), pytest.raises(smalt.Unsupported, match="derivative of copy_gmem_to_smem") as e:
        jax.jvp(f, [x], [x])
    assert e.value.where == f"{__file__}:{here}" and "custom_jvp" in e.value.remedy
