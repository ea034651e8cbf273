"""Random keys and complex numbers in kernels: as arguments, in loops and branches, over several warpgroups and blocks."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from jax import lax

Struct = jax.ShapeDtypeStruct


def run(body: Any, out: Any, *args: Any, **options: Any) -> Any:
    with smalt.enabled(True):
        return plgpu.kernel(body, out_type=out, **options)(*args)


def same(x: Any, y: Any) -> None:
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


# ------------------------------------------------------------------------------------------ keys


def test_typed_keys_are_arguments_and_results() -> None:
    keys = jax.random.split(jax.random.key(3), 4)

    def body(keys: Any, o: Any, new: Any) -> None:
        mine = keys[1]
        o[...] = jax.random.uniform(mine, (10,))
        new[...] = jax.random.split(keys[3], 2)

    drawn, new = run(body, [Struct((10,), jnp.float32), Struct((2,), keys.dtype)], keys)
    same(drawn, jax.random.uniform(keys[1], (10,)))
    same(jax.random.key_data(new), jax.random.key_data(jax.random.split(keys[3], 2)))


def test_each_block_and_warpgroup_folds_its_number_in() -> None:
    data = jnp.array([5, 77], jnp.uint32)

    def body(data: Any, o: Any) -> None:
        block, group = lax.axis_index("b"), lax.axis_index("wg")
        key = jax.random.fold_in(jax.random.wrap_key_data(data[...]), 2 * block + group)
        o[block, group] = jax.random.bits(key, (33,))

    out = run(body, Struct((3, 2, 33), jnp.uint32), data, grid=(3,), grid_names=("b",), num_threads=2, thread_name="wg")
    key = jax.random.wrap_key_data(data)
    for i in range(6):
        same(out[i // 2, i % 2], jax.random.bits(jax.random.fold_in(key, i), (33,)))


def test_keys_are_carried_by_loops_and_branches() -> None:
    data = jnp.array([5, 77], jnp.uint32)

    def draw(data: Any) -> Any:
        def step(i: Any, state: Any) -> Any:
            key, total = state
            key, one, two = jax.random.split(key, 3)
            x = lax.cond(i % 2 == 0, lambda a, b: jax.random.randint(a, (9,), 0, 50), lambda a, b: jax.random.randint(b, (9,), 50, 99), one, two)
            return key, total + x

        return lax.fori_loop(0, 5, step, (jax.random.wrap_key_data(data), jnp.zeros(9, jnp.int32)))[1]

    def body(data: Any, o: Any) -> None:
        o[...] = draw(data[...])

    same(run(body, Struct((9,), jnp.int32), data), draw(data))


def test_keys_of_xlas_own_generator_are_refused() -> None:
    data = jnp.zeros(4, jnp.uint32)

    def body(data: Any, o: Any) -> None:
        o[...] = jax.random.bits(jax.random.wrap_key_data(data[...], impl="rbg"), (4,))

    with pytest.raises(smalt.Unsupported, match="(?s)'rbg'.*remedy: use threefry keys.*functions.py"):
        run(body, Struct((4,), jnp.uint32), data)


def test_dropout_as_people_write_it() -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((16, 128)), jnp.float32)
    seed = jnp.array([7], jnp.int32)

    def dropout(seed: Any, x: Any) -> Any:
        keep = jax.random.bernoulli(jax.random.key(seed), 0.75, x.shape)
        return jnp.where(keep, x / 0.75, 0)

    def body(seed: Any, x: Any, o: Any) -> None:
        o[...] = dropout(seed[0], x[...])

    same(run(body, Struct(x.shape, x.dtype), seed, x), jax.jit(dropout)(seed[0], x))


# ------------------------------------------------------------------------------------------ complex numbers


def complex_array(shape: tuple[int, ...], seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape), jnp.complex64)


def test_views_of_complex_references() -> None:
    z = complex_array((4, 6, 5))

    def body(z: Any, o: Any, p: Any) -> None:
        def step(i: Any, _: Any) -> None:
            o[i] = z[3 - i, 1:4, :] * 2j

        lax.fori_loop(0, 4, step, None)
        p[...] = z[2, pl.ds(1, 3), 2]

    o, p = run(body, [Struct((4, 3, 5), jnp.complex64), Struct((3,), jnp.complex64)], z)
    np.testing.assert_allclose(o, z[::-1, 1:4, :] * 2j, rtol=1e-6)
    same(p, z[2, 1:4, 2])


def test_complex_numbers_in_shared_memory() -> None:
    z = complex_array((8, 32))

    def body(z: Any, o: Any, buf: Any) -> None:
        buf[...] = z[...]
        o[...] = jnp.conj(buf[...]).T

    same(run(body, Struct((32, 8), jnp.complex64), z, scratch_types=[plgpu.SMEM((8, 32), jnp.complex64)]), jnp.conj(z).T)


def test_complex_carries_of_scans_and_whiles() -> None:
    z = complex_array((6, 10))

    def f(z: Any) -> Any:
        total, rows = lax.scan(lambda c, v: (c + v, c * 1j), jnp.zeros(10, jnp.complex64), z)
        out = lax.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, s[1] * 0.5j + 1), (0, total))[1]
        return rows, out

    def body(z: Any, rows: Any, o: Any) -> None:
        rows[...], o[...] = f(z[...])

    for x, y in zip(run(body, [Struct((6, 10), jnp.complex64), Struct((10,), jnp.complex64)], z), f(z)):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_a_fourier_transform_by_hand() -> None:
    """A radix-2 transform of 16 points, in registers."""
    z = complex_array((16,))

    def fft(x: Any) -> Any:
        n = x.shape[-1]
        if n == 1:
            return x
        even, odd = fft(x[0::2]), fft(x[1::2])
        angles = -2 * np.pi / n * jnp.arange(n // 2)
        twisted = odd * lax.complex(jnp.cos(angles), jnp.sin(angles))
        return jnp.concatenate([even + twisted, even - twisted])

    def body(z: Any, o: Any) -> None:
        o[...] = fft(z[...])

    np.testing.assert_allclose(run(body, Struct((16,), jnp.complex64), z), np.fft.fft(np.asarray(z)), rtol=2e-5, atol=2e-5)


# ------------------------------------------------------------------------------------------ linear algebra


@pytest.mark.parametrize("n", [1, 2, 7, 16, 31])
def test_factorisations_of_every_size(n: int) -> None:
    rng = np.random.default_rng(n)
    a = rng.standard_normal((n, n)).astype(np.float32)
    spd = jnp.asarray(a @ a.T + n * np.eye(n, dtype=np.float32))
    b = jnp.asarray(rng.standard_normal((n, 3)), jnp.float32)

    def body(a: Any, b: Any, low: Any, x: Any, lu: Any, p: Any) -> None:
        low[...] = lax.linalg.cholesky(a[...])
        x[...] = lax.linalg.triangular_solve(low[...], b[...], left_side=True, lower=True)
        lu[...], _, p[...] = lax.linalg.lu(a[...])

    outs = [Struct((n, n), jnp.float32), Struct((n, 3), jnp.float32), Struct((n, n), jnp.float32), Struct((n,), jnp.int32)]
    low, x, lu, p = (np.asarray(v, np.float64) for v in run(body, outs, spd, b))
    np.testing.assert_allclose(low @ low.T, spd, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(low @ x, b, rtol=1e-3, atol=1e-3)
    product = (np.tril(lu, -1) + np.eye(n)) @ np.triu(lu)
    np.testing.assert_allclose(product, np.asarray(spd)[p.astype(int)], rtol=1e-4, atol=1e-3)


def test_no_cholesky_of_an_indefinite_matrix() -> None:
    a = jnp.asarray([[1.0, 2.0], [2.0, 1.0]], jnp.float32)

    def body(a: Any, o: Any) -> None:
        o[...] = lax.linalg.cholesky(a[...])

    lower = np.tril_indices(2)
    assert np.isnan(np.asarray(run(body, Struct((2, 2), jnp.float32), a))[lower]).all()


# ------------------------------------------------------------------------------------------ loops whose condition is an array


def test_while_under_vmap() -> None:
    x = jnp.arange(1, 34, dtype=jnp.int32)

    def steps(n: Any) -> Any:
        """Collatz."""
        cond = lambda s: s[0] != 1  # noqa: E731
        body = lambda s: (jnp.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1)  # noqa: E731
        return lax.while_loop(cond, body, (n, jnp.int32(0)))[1]

    def body(x: Any, o: Any) -> None:
        o[...] = jax.vmap(steps)(x[...])

    same(run(body, Struct((33,), jnp.int32), x), jax.vmap(steps)(x))
