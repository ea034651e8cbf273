"""Derivatives of `pl.pallas_call`, forwards."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
import numpy as np
import pytest
import smalt

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
def test_blocks_that_differ_are_not_guessed(wanted: tuple[int, ...]) -> None:
    """One of three operands is taken in another order: which tangent is which cannot be told, unless all or all alike are there."""
    *xs, a, b, c = operands()
    ts = [a, b, c]
    f = call([ROWS, TURNED, ROWS])
    with smalt.emulated():
        if wanted == (0, 1, 2):
            got = derivative(f, xs, ts, wanted)
            np.testing.assert_array_equal(got[1], jax.jvp(f, xs, ts)[1])
            return
        with pytest.raises(smalt.Unsupported, match="derivative of a pl.pallas_call") as e:
            derivative(f, xs, ts, wanted)
    assert e.value.got == f"tangents for {len(wanted)}" and "custom_jvp" in e.value.remedy
    assert e.value.where is not None and e.value.where.startswith(f"{__file__}:")


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
