"""`smalt.partition`: kernels that XLA splits over devices, on eight emulated devices, or on the GPUs that there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.tpu as pltpu
import jax.experimental.pallas.triton as plt
import jax.numpy as jnp
import numpy as np
import pytest

import smalt
from tests.corpus.case import kernel
from tests.suites.blocked import carried, copied, like, matmul, normal, numbered_within_a_rule, random_call, rows

P = jax.sharding.PartitionSpec
COLLECTIVES = r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with smalt.enabled():
        yield


def mesh() -> Any:
    """(a, b): of eight devices (4, 2)."""
    count = len(jax.devices())
    b = 2 if count % 4 == 0 else 1
    return jax.make_mesh((count // b, b), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def needs_devices() -> None:
    if len(jax.devices()) == 1:
        pytest.skip("needs several devices")


def put(x: Any, *spec: Any) -> Any:
    return jax.device_put(x, jax.sharding.NamedSharding(mesh(), P(*spec)))


def collectives(f: Callable[..., Any], *args: Any) -> set[str]:
    return set(re.findall(COLLECTIVES, jax.jit(f).lower(*args).compile().as_text()))


def runs_apart(f: Callable[..., Any], *args: Any, spec: Any) -> Any:
    """The results, of which each device computed its own, with nothing of the others."""
    assert collectives(f, *args) == set()
    out = jax.jit(f)(*args)
    for x in jax.tree.leaves(out):
        assert is_split(x, *spec), x.sharding
    return out


def is_split(x: Any, *spec: Any) -> bool:
    return bool(x.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh(), P(*spec)), x.ndim))


def scaled(x: Any, w: Any) -> Any:
    def body(x: Any, w: Any, o: Any) -> None:
        o[...] = jnp.sin(x[...]) * w[...]

    whole = pl.BlockSpec((1, x.shape[1]), lambda i: (0, 0))
    spec = rows(x.shape[1])
    return pl.pallas_call(body, out_shape=like(x), grid=(x.shape[0] // 8,), in_specs=[spec, whole], out_specs=spec)(x, w)


def scaled_reference(x: Any, w: Any) -> Any:
    return jnp.sin(x) * w


X, W = normal(128, 128), normal(1, 128, seed=1)


@pytest.mark.parametrize("spec", [("a",), (("b", "a"),), (("a", "b"), None), ("b", None)])
def test_each_device_its_rows(spec: Any) -> None:
    f = smalt.partition(scaled)
    assert f.rule(X, W) == "i _, _ _ -> i _"
    np.testing.assert_allclose(runs_apart(f, put(X, *spec), W, spec=spec), scaled_reference(X, W), rtol=1e-5, atol=1e-5)


def test_without_jit_and_without_devices() -> None:
    f = smalt.partition(scaled)
    out = f(put(X, "a"), W)
    assert is_split(out, "a")
    np.testing.assert_allclose(out, scaled_reference(X, W), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(f(X, W), scaled_reference(X, W), rtol=1e-5, atol=1e-5)


def test_a_matmul_along_both_dimensions() -> None:
    a, b = normal(256, 64), normal(64, 128, seed=1)
    f = smalt.partition(matmul)
    assert f.rule(a, b) == "i _, _ j -> i j"
    got = runs_apart(f, put(a, "a"), put(b, None, "b"), spec=("a", "b"))
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


def test_what_is_whole_is_gathered_with_a_warning() -> None:
    needs_devices()
    a, b = normal(256, 64), normal(64, 128, seed=1)
    f = smalt.partition(matmul)
    with pytest.warns(UserWarning, match=r"gathers dimension 1 of operand 0(?s:.*)sharded over a(?s:.*)depend on each other(?s:.*)remedy(?s:.*)i _, _ j"):
        got = jax.jit(f)(put(a, None, "a"), put(b, "a", None))
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


def test_parts_that_devices_do_not_divide() -> None:
    """Twelve blocks over eight devices: over four of them, or one."""
    x = normal(12 * 8, 128)
    f = smalt.partition(scaled)
    if len(jax.devices()) == 8:
        with pytest.warns(UserWarning, match=r"gathers what is sharded over b(?s:.*)divides 12 parts of i(?s:.*)got: 8"):
            got = jax.jit(f)(put(x, ("a", "b")), W)
        np.testing.assert_allclose(got, scaled_reference(x, W), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(runs_apart(f, put(x, "b"), W, spec=("b",)), scaled_reference(x, W), rtol=1e-5, atol=1e-5)


def test_several_results_squeezed_blocks_and_constants() -> None:
    """Batches and heads of an attention; a bias that the function closes over, which moves with the heads."""
    bias = normal(4, 1, 32, seed=3)

    def attention(q: Any, k: Any, v: Any) -> Any:
        def body(q: Any, k: Any, v: Any, bias: Any, o: Any, most: Any) -> None:
            s = jnp.dot(q[...], k[...].T, precision="highest") + bias[...]
            m = s.max(1, keepdims=True)
            p = jnp.exp(s - m)
            most[...] = m
            o[...] = jnp.dot(p, v[...], precision="highest") / p.sum(1, keepdims=True)

        whole = pl.BlockSpec((None, None, 32, 32), lambda b, h: (b, h, 0, 0))
        one = pl.BlockSpec((None, None, 32, 1), lambda b, h: (b, h, 0, 0))
        return pl.pallas_call(
            body,
            out_shape=[like(q), like(q, *q.shape[:3], 1)],
            grid=q.shape[:2],
            in_specs=[whole, whole, whole, pl.BlockSpec((None, 1, 32), lambda b, h: (h, 0, 0))],
            out_specs=[whole, one],
        )(q, k, v, jnp.asarray(bias))

    def reference(q: Any, k: Any, v: Any) -> Any:
        s = np.einsum("bhqd,bhkd->bhqk", q, k) + bias[None]
        return np.asarray(jax.nn.softmax(s, -1)) @ v, s.max(-1, keepdims=True)

    q, k, v = (normal(8, 4, 32, 32, seed=i) for i in range(3))
    f = smalt.partition(attention)
    assert f.rule(q, k, v) == "i j _ _, i j _ _, i j _ _ -> i j _ _, i j _ _"
    got = runs_apart(f, *(put(x, "a", "b") for x in (q, k, v)), spec=("a", "b"))
    for g, e in zip(got, reference(q, k, v)):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-4)


def test_operands_that_share_buffers_and_tables_that_are_looked_up() -> None:
    """A prefetched table chooses blocks of one operand, which is whole; its own rows are split."""

    def gather(table: Any, x: Any, o: Any) -> Any:
        def body(table: Any, x: Any, o: Any, out: Any) -> None:
            out[...] = x[...] + o[...]

        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(8, 4),
            in_specs=[pl.BlockSpec((8, 32), lambda i, j, t: (t[i], j)), pl.BlockSpec((8, 32), lambda i, j, t: (i, j))],
            out_specs=pl.BlockSpec((8, 32), lambda i, j, t: (i, j)),
        )
        return pl.pallas_call(body, out_shape=like(o), grid_spec=spec, input_output_aliases={2: 0})(table, x, o)

    table, x, o = np.arange(8, dtype=np.int32)[::-1].copy(), normal(64, 128), normal(64, 128, seed=1)
    f = smalt.partition(gather)
    assert f.rule(table, x, o) == "_, _ j, _ j -> _ j"
    got = runs_apart(f, table, put(x, None, "b"), put(o, None, "b"), spec=(None, "b"))
    np.testing.assert_allclose(got, x.reshape(8, 8, 128)[table].reshape(64, 128) + o, rtol=1e-6)


def kernel_of_rows(x: Any, w: Any) -> Any:
    def body(x: Any, w: Any, o: Any) -> None:
        at = pl.ds(jax.lax.axis_index("rows") * 8, 8)
        o[at] = x[at] * w[...]

    return kernel(body, like(x), grid=(x.shape[0] // 8,), grid_names=("rows",))(x, w)


def test_functions_of_which_the_user_gives_the_rule() -> None:
    """Kernels (`plgpu.kernel`), and what JAX computes around them."""
    f = smalt.partition(lambda d: {"y": kernel_of_rows(jnp.sin(d["x"]), d["w"]) + 1, "x": d["x"]}, "_ _, rows _ -> rows _, rows _")
    got = runs_apart(f, {"x": put(X, "a"), "w": W}, spec=("a",))
    np.testing.assert_allclose(got["y"], np.sin(X) * W + 1, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got["x"], X)


def test_a_rule_for_some_of_what_blocks_allow() -> None:
    a, b = normal(256, 64), normal(64, 128, seed=1)
    f = smalt.partition(matmul, "m _, _ _ -> m _")
    assert f.rule(a, b) == "m _, _ _ -> m _"
    np.testing.assert_allclose(runs_apart(f, put(a, "a"), b, spec=("a",)), a @ b, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------ bodies that ask where they are


def call(body: Any = copied, grid: Any = (16,), spec: Any = None, out: Any = None, **params: Any) -> Any:
    spec = spec or rows(128)
    return pl.pallas_call(body, out_shape=like(X), grid=grid, in_specs=[spec], out_specs=out or spec, **params)


def in_branches(x: Any, o: Any) -> None:
    i = pl.program_id(0)

    @pl.when(i == 5)
    def _() -> None:
        o[...] = -x[...]

    @pl.when(i != 5)
    def _() -> None:
        o[...] = jax.lax.switch(i % 3, [lambda: x[...] * i, lambda: x[...] + pl.program_id(0), lambda: x[...] - i])


def in_loops(x: Any, o: Any) -> None:
    def turn(k: Any, v: Any) -> Any:
        return v * 0.5 + pl.program_id(0) * k

    steps = jax.lax.while_loop(lambda n: n < pl.program_id(0) % 4, lambda n: n + pl.num_programs(0) // 16, 0)
    sums, each = jax.lax.scan(lambda v, k: (turn(k, v), v[:1] * 0 + pl.program_id(0)), x[...], jnp.arange(3.0))
    o[...] = jax.lax.fori_loop(0, 2, turn, sums) + steps + each[:, 0].sum(0)


def in_scopes(x: Any, o: Any) -> None:
    def scope(s: Any) -> Any:
        s[...] = x[...] + pl.program_id(0)
        return s[...].sum()

    @jax.jit
    def inner(v: Any) -> Any:
        return v * pl.program_id(0)

    o[...] = inner(x[...]) + pl.run_scoped(scope, plgpu.SMEM((8, 128), jnp.float32))


def at_an_index(x: Any, o: Any) -> None:
    o[...] = x[...] + jax.lax.broadcasted_iota(jnp.int32, x.shape, 0) + 8 * pl.program_id(0)


def by_scratch(x: Any, o: Any, s: Any) -> None:
    """The second half of scratch is filled in all steps, the first in every other one alone."""
    s[...] = x[...]

    @pl.when(pl.program_id(0) % 2 == 0)
    def _() -> None:
        s[:4] = x[:4] * 2

    o[...] = s[...]


NUMBERED: dict[str, tuple[Any, dict[str, Any]]] = {
    "branches": (in_branches, {}), "loops": (in_loops, {}), "scopes": (in_scopes, {}), "index": (at_an_index, {}),
    "scratch": (by_scratch, {"scratch_shapes": [plgpu.SMEM((8, 128), jnp.float32)]}),
    "parameters": (at_an_index, {"compiler_params": plgpu.CompilerParams(max_concurrent_steps=2), "name": "numbered"}),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERED)
def test_bodies_that_ask_which_step_it_is(name: str) -> None:
    """The bits of the call that is not split, on any number of devices."""
    body, params = NUMBERED[name]
    f = smalt.partition(call(body, **params))
    assert f.rule(X) == "i _ -> i _"
    want = np.asarray(jax.jit(call(body, **params))(X))
    for spec in (("a",), (("b", "a"),), (("a", "b"),)):
        np.testing.assert_array_equal(runs_apart(f, put(X, *spec), spec=spec), want)
    np.testing.assert_array_equal(jax.jit(f)(X), want)


def named(x: Any, o: Any) -> None:
    o[...] = x[...] + 10 * jax.lax.axis_index("rows") + 100 * jax.lax.axis_index("columns") + pl.program_id(1)


def test_two_axes_by_name_and_under_vmap() -> None:
    """An axis that `vmap` adds, in front, is none of the body's."""
    spec = pl.BlockSpec((8, 32), lambda i, j: (i, j))
    grid = pl.GridSpec(grid=(("rows", 16), ("columns", 4)), in_specs=[spec], out_specs=spec)
    fn = pl.pallas_call(named, out_shape=like(X), grid_spec=grid)
    want = X + np.kron(10 * np.arange(16)[:, None] + 101 * np.arange(4), np.ones((8, 32)))
    f = smalt.partition(fn)
    assert f.rule(X) == "i j -> i j"
    np.testing.assert_allclose(runs_apart(f, put(X, "a", "b"), spec=("a", "b")), want, rtol=1e-6)
    xs = np.stack([X] * 4)
    for g in (jax.vmap(f), smalt.partition(jax.vmap(fn))):
        np.testing.assert_allclose(runs_apart(g, put(xs, "b", "a"), spec=("b", "a")), want[None] + 0 * xs, rtol=1e-6)


def test_programs_of_tritons_that_ask() -> None:
    """By several warpgroups, as the call that is not split."""

    def products(x: Any, y: Any) -> Any:
        def body(x: Any, y: Any, o: Any) -> None:
            def turn(k: Any, acc: Any) -> Any:
                return acc + x[:, pl.ds(k * 32, 32)] @ y[pl.ds(k * 32, 32), :]

            o[...] = jax.lax.fori_loop(0, 4, turn, jnp.zeros((128, 64), jnp.float32)) * (pl.program_id(0) + 1)

        blocks = [pl.BlockSpec((128, 128), lambda i: (i, 0)), pl.BlockSpec((128, 64), lambda i: (0, 0))]
        how = dict(in_specs=blocks, out_specs=pl.BlockSpec((128, 64), lambda i: (i, 0)), compiler_params=plt.CompilerParams(num_warps=8))
        return pl.pallas_call(body, out_shape=like(x, x.shape[0], 64), grid=(x.shape[0] // 128,), **how)(x, y)

    x, y = normal(1024, 128), normal(128, 64, seed=1)
    f = smalt.partition(products)
    want = np.asarray(jax.jit(products)(x, y))
    np.testing.assert_array_equal(runs_apart(f, put(x, ("a", "b")), y, spec=(("a", "b"),)), want)
    exact = x @ y * np.repeat(np.arange(1, 9), 128)[:, None]
    np.testing.assert_allclose(want, exact, rtol=0, atol=2e-2 * np.abs(exact).max())


def test_derivatives_of_bodies_that_ask() -> None:
    """Whole operands, too, whose cotangents are added up over the devices."""

    def weighted(x: Any, w: Any) -> Any:
        def body(x: Any, w: Any, o: Any) -> None:
            o[...] = x[...] * w[...] * (pl.program_id(0) + 1)

        whole = pl.BlockSpec((1, 128), lambda i: (0, 0))
        return pl.pallas_call(body, out_shape=like(x), grid=(x.shape[0] // 8,), in_specs=[rows(128), whole], out_specs=rows(128))(x, w)

    n = np.repeat(np.arange(1.0, 17.0), 8)[:, None]
    f = smalt.partition(weighted)
    dx, dw = jax.jit(jax.grad(lambda x, w: (f(x, w) * X).sum(), (0, 1)))(put(X, ("a", "b")), W)
    np.testing.assert_allclose(dx, X * W * n, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dw, (X * X * n).sum(0, keepdims=True), rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------ random calls


@pytest.mark.parametrize("seed", range(40))
def test_random_calls(seed: int) -> None:
    """The rule has the axes that can be split, and no others; along each, devices that have some of its blocks compute the same."""
    make, arrays, grid, splits = random_call(seed)
    call = make(grid)
    rng = np.random.default_rng(seed)
    inputs = [rng.integers(-9, 9, x.shape(grid)).astype(np.int32) for x in arrays[:-1]]
    want = np.asarray(jax.jit(call)(*inputs))
    f = smalt.partition(call)
    if not any(n > 1 and s for n, s in zip(grid, splits)):
        return
    names = "ijk"
    expected = [" ".join("_" if a is None or not splits[a] else names[a] for a, _, _ in x.dims) for x in arrays]
    given = f.rule(*inputs)
    for axis, n in enumerate(grid):
        if n == 1:  # of one step, which moves or not
            given = given.replace(names[axis], "_")
            expected = [x.replace(names[axis], "_") for x in expected]
    assert given == f"{', '.join(expected[:-1])} -> {expected[-1]}"
    for axis, n in enumerate(grid):
        devices = min(n, len(jax.devices()))
        if n == 1 or not splits[axis] or n % devices:
            continue
        some = jax.make_mesh((devices,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices])
        sharded = [
            jax.device_put(v, jax.sharding.NamedSharding(some, P(*("d" if a == axis else None for a, _, _ in x.dims)))) for v, x in zip(inputs, arrays)
        ]
        assert collectives(f, *sharded) == set()
        np.testing.assert_array_equal(jax.jit(f)(*sharded), want)


# ------------------------------------------------------------------------------------------ transformations


def test_gradients() -> None:
    """What is split stays split; the cotangent of what each device has whole is added up."""
    f = smalt.partition(scaled)
    ct = normal(128, 128, seed=2)

    def loss(g: Any) -> Any:
        return jax.grad(lambda x, w: (g(x, w) * ct).sum(), (0, 1))

    x = put(X, "a")
    assert collectives(loss(f), x, W) == ({"all-reduce"} if len(jax.devices()) > 1 else set())
    got = jax.jit(loss(f))(x, W)
    assert is_split(got[0], "a")
    for g, e in zip(got, loss(scaled_reference)(X, W)):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-4)
    assert collectives(jax.grad(lambda x: (f(x, W) * put(ct, "a")).sum()), x) == set()


def test_vmap_and_its_gradients() -> None:
    xs, ws = normal(8, 32, 128), normal(8, 1, 128, seed=1)
    one, both = (jax.vmap(smalt.partition(scaled), in_axes=axes) for axes in ((0, None), (0, 0)))
    np.testing.assert_allclose(runs_apart(one, put(xs, "b", "a"), W, spec=("b", "a")), scaled_reference(xs, W), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(runs_apart(both, put(xs, "a"), put(ws, "a"), spec=("a",)), scaled_reference(xs, ws), rtol=1e-5, atol=1e-5)
    twice = jax.vmap(one, in_axes=(0, None))
    xss = xs.reshape(2, 4, 32, 128)
    np.testing.assert_allclose(runs_apart(twice, put(xss, "b", "a"), W, spec=("b", "a")), scaled_reference(xss, W), rtol=1e-5, atol=1e-5)
    for f, w in ((one, W), (both, ws)):
        got = jax.jit(jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)))(put(xs, "b", "a"), w)
        expected = jax.grad(lambda x, w: (scaled_reference(x, w) ** 2).sum(), (0, 1))(xs, w)
        for g, e in zip(got, expected):
            np.testing.assert_allclose(g, e, rtol=1e-3, atol=1e-3)


def test_scan_and_checkpoint() -> None:
    f = smalt.partition(scaled)

    def loop(g: Any) -> Any:
        return lambda x, w: jax.lax.scan(lambda c, _: (g(c, w), None), x, None, length=3)[0].sum()

    got = jax.jit(jax.grad(jax.checkpoint(loop(f)), (0, 1)))(put(X, "a"), W)
    for g, e in zip(got, jax.grad(loop(scaled_reference), (0, 1))(X, W)):
        np.testing.assert_allclose(g, e, rtol=1e-3, atol=1e-3)


@jax.custom_vjp
def own_rule(x: Any, w: Any) -> Any:
    return scaled(x, w)


own_rule.defvjp(lambda x, w: (scaled(x, w), (x, w)), lambda kept, ct: (ct * 3, jnp.sum(ct * 5, 0, keepdims=True)))


def test_a_derivative_of_the_users_own() -> None:
    f = smalt.partition(own_rule)
    assert f.rule(X, W) == "i _, _ _ -> i _"
    np.testing.assert_allclose(runs_apart(f, put(X, "a"), W, spec=("a",)), scaled_reference(X, W), rtol=1e-5, atol=1e-5)
    dx, dw = jax.jit(jax.grad(lambda x, w: f(x, w).sum(), (0, 1)))(put(X, "a"), W)
    np.testing.assert_array_equal(dx, np.full_like(X, 3))
    np.testing.assert_array_equal(dw, np.full_like(W, 5 * 128))


def test_under_shard_map() -> None:
    f = jax.shard_map(smalt.partition(scaled), mesh=mesh(), in_specs=(P("a"), P()), out_specs=P("a"), check_vma=False)
    np.testing.assert_allclose(runs_apart(f, put(X, "a"), W, spec=("a",)), scaled_reference(X, W), rtol=1e-5, atol=1e-5)


def test_explicit_axes() -> None:
    """Where shardings are part of types: an error, whose remedy works."""
    needs_devices()
    explicit = jax.make_mesh((len(jax.devices()),), ("a",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(explicit):
        x = jax.device_put(X, jax.sharding.NamedSharding(explicit, P("a", None)))
        f = smalt.partition(scaled)
        with pytest.raises(smalt.InvalidKernel, match=r"part of types(?s:.*)auto_axes\(scaled(?s:.*)suite_partition"):
            jax.jit(f)(x, W)
        out = jax.jit(jax.sharding.auto_axes(f, out_sharding=P("a", None)))(x, W)
        np.testing.assert_allclose(out, scaled_reference(X, W), rtol=1e-5, atol=1e-5)


def test_errors_of_shares_are_smalts() -> None:
    """What the emulator finds on a device is its own error, from the second call on, too."""

    def late(x: Any, i: Any) -> Any:
        def body(x: Any, i: Any, o: Any) -> None:
            o[...] = x[pl.ds(i[0], 8), :]

        specs = [rows(128, 16), pl.BlockSpec(memory_space=plgpu.GMEM)]
        out = like(x, x.shape[0] // 2, 128)
        return pl.pallas_call(body, out_shape=out, grid=(x.shape[0] // 16,), in_specs=specs, out_specs=rows(128))(x, i)

    f = jax.jit(smalt.partition(late))
    x = put(X, "a")
    np.testing.assert_array_equal(f(x, np.array([8], np.int32)), X.reshape(8, 2, 8, 128)[:, 1].reshape(64, 128))
    if jax.default_backend() == "cpu":
        for _ in range(2):
            with pytest.raises(smalt.ExecutionError, match="outside"):
                jax.block_until_ready(f(x, np.array([9], np.int32)))


# ------------------------------------------------------------------------------------------ misuse


def windows(x: Any, o: Any) -> None:
    o[...] = x[:8] + x[8:]


HALO = pl.BlockSpec((pl.Element(16, (0, 8)), 128), lambda i: (i * 8, 0))
WITHIN = r"the body asks for the step's index along it within custom_jvp_call"
WHOLE: dict[str, tuple[Any, str]] = {
    "program_id": (call(numbered_within_a_rule), WITHIN),
    "halo": (call(windows, spec=HALO, out=rows(128)), r"blocks of args\[0\] overlap: 16 elements, every 8"),
    "scratch": (call(carried, scratch_shapes=[plgpu.SMEM((8, 128), jnp.float32)]), r"depend on each other \((?s:.*)stored in scratch s"),
    "reversed": (call(spec=pl.BlockSpec((8, 128), lambda i: (15 - i, 0))), "another function than the step's index"),
    "revisited": (call(out=pl.BlockSpec((8, 128), lambda i: (0, 0))), "steps write the same block"),
    "part": (call(grid=(8,)), r"first to the last: 8 of 8, of 128"),
    "order": (call(compiler_params=plgpu.CompilerParams(dimension_semantics=["sequential"])), "dimension_semantics says so"),
    "one step": (call(grid=(1,), spec=pl.BlockSpec((128, 128), lambda i: (0, 0))), "each step has all of it"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_dimensions_that_cannot_be_split(name: str) -> None:
    fn, why = WHOLE[name]
    says = rf"nothing of it can be split(?s:.*)got: (?s:.*){why}(?s:.*)remedy: call it as it is(?s:.*)suite_partition"
    with pytest.raises(smalt.InvalidKernel, match=says) as found:
        smalt.partition(fn)(X)
    assert "suite_partition" in str(found.value.where)
    with pytest.raises(smalt.InvalidKernel, match=rf"the rule of(?s:.*)i, dimension 0 of argument 0(?s:.*)got: (?s:.*){why}(?s:.*)write _ for it"):
        smalt.partition(fn, "i _ -> i _")(X)


RULES: dict[str, tuple[Any, str, Any, str]] = {
    "contracted": (matmul, "i k, k j -> i j", (X, X), "k in operands only: it is contracted(?s:.*)write _ for k"),
    "made": (matmul, "_ _, _ _ -> i _", (X, X), "operand that is split along i(?s:.*)write _ for i"),
    "sizes": (matmul, "i _, i _ -> i _", (X, X[:64]), "one size for factor i(?s:.*)128 and 64"),
    "count": (matmul, "i _ -> i _", (X, X), "2 operands(?s:.*)got: 1"),
    "rank": (matmul, "i, _ _ -> i _", (X, X), r"2 dimensions of operand 0 \(float32\[128, 128\]\)(?s:.*)got: 1: i"),
    "twice": (matmul, "i i, _ _ -> i _", (X, X), "twice the same: i i"),
    "syntax": (matmul, "i _, _ _", (X, X), "an arrow"),
    "letters": (matmul, "i *, _ _ -> i _", (X, X), "names of factors"),
    "nothing": (matmul, "_ _, _ _ -> _ _", (X, X), "all whole(?s:.*)as it is"),
    "one of two": (scaled, "_ _, _ i -> _ i", (X, W), "i, dimension 1 of argument 1(?s:.*)each step has all of it: 128(?s:.*)write _"),
    "apart": (lambda x, y: pair(x, y), "i _, _ _ -> i _", (X, X), "move with those of other dimensions: i _, i _ -> i _(?s:.*)name together"),
    "fixed shapes": (lambda x: kernel(copied, like(X))(x), "i _ -> i _", (X,), r"1/2 of i(?s:.*)\[64, 128\](?s:.*)got: Invalid shape(?s:.*)remedy: let"),
}


def pair(x: Any, y: Any) -> Any:
    def body(x: Any, y: Any, o: Any) -> None:
        o[...] = x[...] + y[...]

    return pl.pallas_call(body, out_shape=like(x), grid=(16,), in_specs=[rows(128)] * 2, out_specs=rows(128))(x, y)


@pytest.mark.parametrize("name", RULES)
def test_wrong_rules(name: str) -> None:
    fn, rule, args, says = RULES[name]
    with pytest.raises((smalt.InvalidArgument, smalt.InvalidKernel, ValueError), match=rf"{says}(?s:.*)suite_partition"):
        smalt.partition(fn, rule)(*args)


def test_calls_without_operands() -> None:
    made = pl.pallas_call(lambda o: o.__setitem__(..., jnp.ones((8, 128))), out_shape=like(X), grid=(16,), out_specs=rows(128))
    with pytest.raises(smalt.InvalidKernel, match=r"nothing of it can be split(?s:.*)without operands(?s:.*)remedy"):
        smalt.partition(made)()


def test_without_a_rule() -> None:
    with pytest.raises(smalt.InvalidArgument, match=r"smalt.partition\(kernel_of_rows\) without a rule(?s:.*)one pl.pallas_call(?s:.*)remedy: say which"):
        smalt.partition(kernel_of_rows)(X, W)
    with pytest.raises(smalt.InvalidArgument, match=r"got: pallas_call, pallas_call(?s:.*)remedy"):
        smalt.partition(lambda x, w: scaled(scaled(x, w), w))(X, W)
    with pytest.raises(smalt.InvalidArgument, match=r"being traced(?s:.*)pass them as arguments"):
        jax.jit(lambda x, w: smalt.partition(lambda x: kernel_of_rows(x, w), "i _ -> i _")(x))(X, W)


def test_gradients_that_there_are_not() -> None:
    f = smalt.partition(kernel_of_rows, "rows _, _ _ -> rows _")
    with pytest.raises(smalt.Unsupported, match=r"jax.grad of a plgpu.kernel(?s:.*)custom_vjp"):
        jax.jit(jax.grad(lambda x: f(x, W).sum()))(put(X, "a"))
