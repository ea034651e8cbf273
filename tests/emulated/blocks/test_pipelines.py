"""Outputs of `plgpu.emit_pipeline` whose blocks stay for several steps."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

import smalt

X = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
LINE = 0


def pipeline(grid: tuple[int, ...], in_map: Callable[..., Any], out_map: Callable[..., Any], space: Any = None) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        global LINE

        def inner(indices: Any, x: Any, o: Any) -> None:
            o[...] = x[...] * 2

        LINE = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
        run = plgpu.emit_pipeline(
            inner,
            grid=grid,
            in_specs=[plgpu.BlockSpec((16, 64), in_map)],
            out_specs=[plgpu.BlockSpec((16, 64), out_map, memory_space=space)],
            max_concurrent_steps=2,
        )
        run(x_ref, o_ref)

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(X.shape, jnp.float32))


def warned(f: Any) -> list[Any]:
    with smalt.enabled(True), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with smalt.emulated("H100", check="off"):
            f(X)
    return [w for w in found if "emit_pipeline" in str(w.message)]


@pytest.mark.parametrize(
    "grid,in_map,out_map,stays",
    [
        ((4, 4), lambda i, j: (i, j), lambda i, j: (i, 0), 4),
        ((4, 4), lambda i, j: (i, j), lambda i, j: (i, j // 2), 2),
        ((4,), lambda i: (i, 0), lambda i: (i // 4 * 3, 0), 4),  # the map uses an index, though it gives one block
        ((2, 2, 2), lambda i, j, k: (i * 2 + j, k), lambda i, j, k: (jnp.minimum(i + j, 1), k * 0), 6),
    ],
)
def test_blocks_that_stay_are_told(grid: Any, in_map: Any, out_map: Any, stays: int) -> None:
    (found,) = warned(pipeline(grid, in_map, out_map))
    text = str(found.message)
    assert "out_specs[0]" in text and f"one block for up to {stays} steps" in text and "remedy: " in text
    assert os.path.basename(found.filename) == os.path.basename(__file__) and found.lineno == LINE


@pytest.mark.parametrize(
    "grid,in_map,out_map",
    [
        ((4, 4), lambda i, j: (i, j), lambda i, j: (i, j)),
        ((4, 4), lambda i, j: (j, i), lambda i, j: (j, i)),
        ((2, 4, 4), lambda k, i, j: (i, j), lambda k, i, j: (i, j)),  # comes again, and is stored each time
        ((4, 1), lambda i, j: (i, 0), lambda i, j: (i, 0)),
        ((1,), lambda i: (0, 0), lambda i: (i, 0)),
    ],
)
def test_blocks_that_change_are_right(grid: Any, in_map: Any, out_map: Any) -> None:
    f = pipeline(grid, in_map, out_map)
    assert not warned(f)
    with smalt.emulated():
        got = np.asarray(f(X))
    steps = np.indices(grid).reshape(len(grid), -1).T
    for i, j in {tuple(int(n) for n in out_map(*step)) for step in steps}:
        at = (slice(16 * i, 16 * i + 16), slice(64 * j, 64 * j + 64))
        np.testing.assert_array_equal(got[at], 2 * X[at])


def test_what_is_stored_at_the_end_is_right() -> None:
    f = pipeline((4,), lambda i: (i, 0), lambda i: (0, 0))
    assert not warned(f)
    with smalt.emulated():
        np.testing.assert_array_equal(np.asarray(f(X))[:16, :64], 2 * X[48:, :64])


def test_nothing_is_said_of_maps_that_are_not_known() -> None:
    """Whose numbers are loaded, and of grids of a traced size."""

    def body(x_ref: Any, t_ref: Any, o_ref: Any) -> None:
        first = t_ref[0]
        plgpu.emit_pipeline(
            lambda _, x, o: o.__setitem__(..., x[...] * 2),
            grid=(4,),
            in_specs=[plgpu.BlockSpec((16, 64), lambda i: (i, 0))],
            out_specs=[plgpu.BlockSpec((16, 64), lambda i: (i, first))],
        )(x_ref, o_ref)

    f = plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(X.shape, jnp.float32))
    assert not warned(lambda x: f(x, np.array([1], np.int32)))


def test_the_remedy() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        def inner(indices: Any, x: Any, o: Any) -> None:
            o[...] = jax.lax.fori_loop(0, 4, lambda j, v: v + x[:, pl.ds(j * 64, 64)], jnp.zeros((16, 64), jnp.float32))

        plgpu.emit_pipeline(
            inner,
            grid=(4,),
            in_specs=[plgpu.BlockSpec((16, 256), lambda i: (i, 0))],
            out_specs=[plgpu.BlockSpec((16, 64), lambda i: (i, 0))],
        )(x_ref, o_ref)

    f = plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32))
    assert not warned(f)
    with smalt.emulated():
        np.testing.assert_allclose(f(X), X.reshape(64, 4, 64).sum(1), rtol=1e-5, atol=1e-5)


def test_jax_is_as_before_when_nobody_wants_it() -> None:
    before = plgpu.emit_pipeline
    with smalt.enabled(True):
        assert hasattr(plgpu.emit_pipeline, "_smalt")
    assert plgpu.emit_pipeline is before
