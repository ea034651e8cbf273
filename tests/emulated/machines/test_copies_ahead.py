"""Products of what a loop loads where a producer would keep registers: one warpgroup computes, and copies ahead by itself."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import smalt

with warnings.catch_warnings():  # JAX is about to remove it
    warnings.simplefilter("ignore", DeprecationWarning)
    import jax.experimental.pallas.triton as plt

F32 = jnp.float32


def call(body: Any, out: tuple[int, ...], stages: int | None, *arrays: Any) -> tuple[np.ndarray, Any]:
    """What it gives on the GPU that is emulated, and its report."""
    params = plt.CompilerParams(num_stages=stages)
    f = jax.jit(pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(out, F32), compiler_params=params))
    with smalt.enabled(True, triton=True):
        (report,) = smalt.inspect(f, *arrays)
        return np.asarray(f(*arrays)), report


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float16)


def is_alone(report: Any) -> bool:
    return report.threads == 128 and "a warpgroup computes, and copies ahead" in str(report)


@pytest.mark.parametrize("device", ("A100", "L4", "RTX 5090"))
@pytest.mark.parametrize("stages, steps", ((None, 4), (1, 3), (2, 1), (2, 5), (3, 2), (4, 2), (4, 7)))
def test_as_many_steps_ahead_as_there_are_slots(device: str, stages: int | None, steps: int) -> None:
    x, y = normal(64, 32 * steps), normal(32 * steps, 64)

    def body(x: Any, y: Any, o: Any) -> None:
        def add(i: Any, acc: Any) -> Any:
            k = pl.ds(i * 32, 32)
            return acc + jnp.dot(x[:, k], y[k, :], preferred_element_type=F32)

        o[...] = lax.fori_loop(0, steps, add, jnp.zeros((64, 64), F32))

    with smalt.emulated(device):
        got, report = call(body, (64, 64), stages, x, y)
    np.testing.assert_allclose(got, x.astype(np.float32) @ y.astype(np.float32), rtol=1e-3, atol=1e-2)
    assert is_alone(report) and "cp.async.cg" in report.ptx
    if steps > 1:
        # All have left the slot that is copied into: once a step, or twice where it is the one that is read.
        assert report.ptx.count("bar.sync") == (2 if stages == 1 else 1)


@pytest.mark.parametrize("count", (0, 1, 2, 3, 6))
def test_a_loop_that_ends_by_what_it_loads(count: int) -> None:
    """Neither the list of tiles nor the flags are read behind the end, though the copies are ahead; what is loaded once is there behind no step."""
    q, tiles = normal(64, 64), normal(64 * 6, 64)
    order = np.array([3, 0, 5, 1, 4, 2], np.int32)
    goes_on = np.array([1] * count + [0], np.int32)

    def body(q: Any, tiles: Any, order: Any, goes_on: Any, o: Any) -> None:
        mine = q[...]

        def step(state: Any) -> Any:
            i, acc = state
            tile = tiles[pl.ds(pl.multiple_of(order[i] * 64, 64), 64), :]
            return i + 1, acc + jnp.dot(mine, tile, preferred_element_type=F32)

        _, acc = lax.while_loop(lambda s: goes_on[s[0]] != 0, step, (jnp.int32(0), jnp.zeros((64, 64), F32)))
        o[...] = acc + jnp.dot(mine, mine, preferred_element_type=F32)

    with smalt.emulated("A100"):
        got, report = call(body, (64, 64), 3, q, tiles, order[: max(count, 1)], goes_on)
    parts = [q, *(tiles[64 * i : 64 * i + 64] for i in order[:count])]
    want = sum(q.astype(np.float32) @ part.astype(np.float32) for part in parts)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-2)
    assert is_alone(report)


def attention(rows: int, tile: int, depth: int, steps: int, loops: int = 1, branches: bool = False) -> tuple[Any, tuple[Any, ...], np.ndarray]:
    q, k, v = normal(rows, depth), normal(loops * tile * steps, depth), normal(loops * tile * steps, depth) + np.float16(0.5)

    def body(q: Any, k: Any, v: Any, o: Any) -> None:
        mine = q[...]

        def step(i: Any, carry: Any) -> Any:
            acc, most, total = carry
            part = pl.ds(i * tile, tile)
            s = jnp.dot(mine, k[part, :].T, preferred_element_type=F32)
            now = jnp.maximum(most, s.max(axis=1))
            p, kept = jnp.exp(s - now[:, None]), jnp.exp(most - now)
            acc = acc * kept[:, None] + jnp.dot(p.astype(jnp.float16), v[part, :], preferred_element_type=F32)
            return acc, now, total * kept + p.sum(axis=1)

        carry = jnp.zeros((rows, depth), F32), jnp.full((rows,), -jnp.inf), jnp.zeros((rows,), F32)
        for n in range(loops):

            def loop(carry: Any, n: int = n) -> Any:
                return lax.fori_loop(n * steps, n * steps + steps, step, carry)

            carry = lax.cond(q[0, 0] < 100, loop, lambda c: c, carry) if branches else loop(carry)
        o[...] = carry[0] / carry[2][:, None]

    s = q.astype(np.float64) @ k.astype(np.float64).T
    p = np.exp(s - s.max(1, keepdims=True))
    return body, (q, k, v), p / p.sum(1, keepdims=True) @ v.astype(np.float64)


@pytest.mark.parametrize(
    "rows, tile, depth, loops, branches",
    ((64, 64, 64, 1, False), (128, 64, 64, 1, False), (128, 128, 64, 1, False), (64, 32, 128, 1, False), (128, 64, 64, 2, False), (64, 64, 64, 2, True)),
)
def test_attention(rows: int, tile: int, depth: int, loops: int, branches: bool) -> None:
    """Queries stay in registers if there is room, in each of the loops; 128 rows are one warpgroup's."""
    body, arrays, want = attention(rows, tile, depth, 3, loops, branches)
    with smalt.emulated("A100"):
        got, report = call(body, (rows, depth), 2, *arrays)
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=4e-3)
    assert is_alone(report)
    loads = report.ptx.count("ldmatrix")
    steps = rows // 64 * depth // 16 + tile * depth // 256 * 2  # of queries, keys and values
    if loops == 1:
        assert loads == steps
    first = report.ptx.index("ldmatrix")
    is_kept = "bar.sync" in report.ptx[first : report.ptx.index("mma.sync")]
    assert is_kept == (tile < 128)


def test_sums_that_one_warpgroup_has_no_room_for() -> None:
    """256 columns of 128 rows: two compute, and one copies."""
    x, y = normal(128, 64), normal(64, 256)

    def body(x: Any, y: Any, o: Any) -> None:
        def add(i: Any, acc: Any) -> Any:
            k = pl.ds(i * 32, 32)
            return acc + jnp.dot(x[:, k], y[k, :], preferred_element_type=F32)

        o[...] = lax.fori_loop(0, 2, add, jnp.zeros((128, 256), F32))

    with smalt.emulated("A100"):
        got, report = call(body, (128, 256), 2, x, y)
    np.testing.assert_allclose(got, x.astype(np.float32) @ y.astype(np.float32), rtol=1e-3, atol=1e-2)
    assert report.threads == 384 and "one copies ahead" in str(report)


def test_where_registers_are_given_there_is_a_producer() -> None:
    body, arrays, want = attention(64, 64, 64, 3)
    for device in ("H100", "B200"):
        with smalt.emulated(device):
            got, report = call(body, (64, 64), 2, *arrays)
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=4e-3)
        assert report.threads == 256 and "one copies ahead" in str(report)
