"""Arrays of many registers a thread: programs that are long rather than wide run, in seconds; those that no thread can hold are
refused when they are compiled, at the user's line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from smalt import _native
from tests.corpus.case import EXACT, kernel


def run(body: Callable[..., Any], *arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    with smalt.emulated("H100"):
        return np.asarray(jax.jit(kernel(body, out))(*arrays))


def normal(*shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape, np.float32) * np.float32(scale)


def test_512_elements_a_thread() -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = jnp.sin(x[...]) * jnp.cos(x[...])

    x = normal(256, 256, scale=100)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(run(body, x), np.sin(wide) * np.cos(wide), rtol=1e-6, atol=2e-7)


@pytest.mark.shared
def test_18_sines() -> None:
    """Nearly as much code as a kernel can have."""

    def body(x: Any, o: Any) -> None:
        o[...] = functools.reduce(lambda v, _: jnp.sin(v), range(18), x[...])

    x = normal(64, 128, scale=100)
    want = functools.reduce(lambda v, _: np.sin(v), range(18), x.astype(np.float64))
    np.testing.assert_allclose(run(body, x), want, rtol=1e-5, atol=1e-6)


def ptx_of(body: Callable[..., Any], *shape: int) -> str:
    array = jax.ShapeDtypeStruct(shape, jnp.float32)
    with smalt.emulated("H100"):
        ((_, descriptor, debug),) = smalt.descriptor(kernel(body, array), array)
    return _native.compile(descriptor, debug, "sm_90a").ptx


def turns(ptx: str) -> int:
    """How often the code goes back from stores to loads of the input."""
    kinds = [line.split()[0] for line in ptx.splitlines() if line.lstrip().startswith(("ld.global", "st.global"))]
    return sum(a.startswith("st") and b.startswith("ld") for a, b in zip(kinds, kinds[1:]))


def test_elementwise_code_is_listed_in_tiles_where_registers_run_out() -> None:
    def body(x: Any, o: Any) -> None:
        v = x[...]
        o[...] = 0.5 * v * (1.0 + jnp.tanh(0.7978845608 * (v + 0.044715 * v * v * v)))

    assert turns(ptx_of(body, 1, 4096)) == 0
    assert turns(ptx_of(body, 8, 4096)) >= 3


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="refused before JAX 0.11 (test_plugin.py)")
def test_an_aliased_buffer_is_read_before_it_is_written() -> None:
    """The rows change places in one buffer: no store may pass a load of the same bytes, however many registers that takes."""

    def body(x: Any, o: Any) -> None:
        first, second = x[0], x[1]
        o[0] = second * 2.0 + 1.0
        o[1] = first * 3.0 - 1.0

    spec = pl.BlockSpec(memory_space=plgpu.GMEM)
    x = normal(2, 16384)
    call = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        input_output_aliases={0: 0},
        compiler_params=EXACT,
        in_specs=[spec],
        out_specs=spec,
    )
    with smalt.emulated("H100"):
        got = np.asarray(jax.jit(call)(x))
    np.testing.assert_array_equal(got, np.stack([x[1] * np.float32(2) + 1, x[0] * np.float32(3) - 1]))


def test_shared_memory_in_place() -> None:
    def body(x: Any, o: Any, smem: Any) -> None:
        smem[...] = x[...] + 1.0
        plgpu.commit_smem()
        smem[...] = smem[...] * smem[...]
        plgpu.commit_smem()
        o[...] = smem[...] - 1.0

    x = normal(64, 512)
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    with smalt.emulated("H100"):
        got = np.asarray(jax.jit(kernel(body, out, plgpu.SMEM((64, 512), jnp.float32)))(x))
    np.testing.assert_array_equal(got, (x + 1) * (x + 1) - 1)


def test_what_no_thread_holds_is_refused_at_its_line() -> None:
    def body(x: Any, o: Any) -> None:
        v = x[...]
        o[...] = v / jnp.sum(v)

    with pytest.raises(smalt.Unsupported, match="more values at once than a thread can hold") as caught:
        run(body, normal(1024, 1024))
    text = str(caught.value)
    assert "f32[1024,1024] made here" in text and "smaller blocks" in text, text
    assert "test_big_arrays.py" in text and "v = x[...]" not in text.splitlines()[0], text


def test_the_same_over_parts_is_accepted() -> None:
    def body(x: Any, o: Any) -> None:
        total = jax.lax.fori_loop(0, 64, lambda i, s: s + jnp.sum(x[pl.ds(i * 16, 16)]), jnp.float32(0))

        def scale(i: Any, carry: None) -> None:
            rows = pl.ds(i * 16, 16)
            o[rows] = x[rows] / total

        jax.lax.fori_loop(0, 64, scale, None)

    x = np.abs(normal(1024, 1024))
    np.testing.assert_allclose(run(body, x), x / x.sum(dtype=np.float64), rtol=1e-4)
