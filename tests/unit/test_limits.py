"""What is too large for a kernel is refused at once: before the work that would grow with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import pytest
import smalt
from smalt import _native
from tests.corpus.case import kernel

pytestmark = pytest.mark.shared

SECONDS = 3.0  # of processor time: a product of 1024² f32 takes 1.3, all others less than 1


def refusal(body: Callable[..., Any], *shapes: tuple[int, ...], out: tuple[int, ...] | None = None, dtype: Any = jnp.float32) -> str:
    """The text with which a kernel is refused, by the library alone, in time."""
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    with smalt.emulated("H100"):
        ((_, descriptor, debug),) = smalt.descriptor(kernel(body, jax.ShapeDtypeStruct(out or shapes[0], dtype)), *arrays)
    start = time.process_time()
    with pytest.raises((smalt.InvalidKernel, smalt.Unsupported)) as caught:
        _native.compile(descriptor, debug, "sm_90a")
    took = time.process_time() - start
    text = str(caught.value)
    assert took < SECONDS, f"{took} s: {text}"
    for part in ("expected: ", "got: ", "remedy: ", "test_limits.py"):
        assert part in text, text
    return text


@pytest.mark.parametrize("n", [2**20, 2**24, 2**26, 2**26 + 1, 2**31])
def test_a_loop_that_carries_an_array(n: int) -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = jax.lax.fori_loop(0, 10, lambda _, a: a + x[...], jnp.zeros((n,), jnp.float32))

    text = refusal(body, (n,))
    words = "more values at once than a thread can hold" if n <= 2**26 else "at most 67108864 elements"
    assert words in text and f"{n // 128 if n <= 2**26 else n}" in text, text


@pytest.mark.parametrize("n", [1024, 2048, 4096, 16384])
def test_sorting(n: int) -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = jnp.sort(x[...], axis=-1)

    refusal(body, (n, n))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.int8])
@pytest.mark.parametrize("n", [1024, 4096])
def test_products(n: int, dtype: Any) -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = (x[...] @ x[...]).astype(dtype)

    text = refusal(body, (n, n), dtype=dtype)
    assert "more values at once than a thread can hold" in text, text


@pytest.mark.parametrize("name", ["cumsum", "flip", "take", "concatenate", "sum"])
def test_whole_arrays(name: str) -> None:
    def body(x: Any, o: Any) -> None:
        v = x[...]
        made: dict[str, Callable[[], Any]] = {
            "cumsum": lambda: jnp.cumsum(v, axis=0),
            "flip": lambda: jnp.flip(v, axis=0),
            "take": lambda: v[jnp.arange(8192) // 2],
            "concatenate": lambda: jnp.concatenate([v[4096:], v[:4096]]),
            "sum": lambda: v / jnp.sum(v),
        }
        o[...] = made[name]()

    refusal(body, (8192, 8192))


def test_code_without_end() -> None:
    def body(x: Any, o: Any) -> None:
        v = x[...]
        for _ in range(400):
            v = jnp.sin(v) + 1
        o[...] = v

    assert "more code than a kernel can have" in refusal(body, (512, 1024))


@pytest.mark.parametrize("stages", [3, 2**12, 2**31])
def test_shared_memory(stages: int) -> None:
    def body(x: Any, o: Any, buffers: Any) -> None:
        o[...] = x[...] + buffers[0]

    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    call = kernel(body, shape, plgpu.SMEM((stages, 256, 256), jnp.float32))
    start = time.process_time()
    with smalt.emulated("H100"), pytest.raises(smalt.InvalidKernel, match="at most 232448 bytes for a block"):
        jax.jit(call).lower(shape)
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize("vec", [2**17, 2**28, 2**32 - 1, 2**50])
def test_vectors_of_layouts(vec: int) -> None:
    """Mosaic GPU's own class refuses them where it knows the shape; what only a descriptor can hold is in `tests/fuzzing/extremes.rs`."""

    def body(x: Any, o: Any) -> None:
        o[...] = plgpu.layout_cast(x[...] + 1, plgpu.Layout.WG_STRIDED((128,), vec))

    f = kernel(body, jax.ShapeDtypeStruct((128,), jnp.float32))
    with smalt.emulated("H100"), pytest.raises(smalt.InvalidKernel, match="WG_STRIDED"):
        smalt.descriptor(f, jax.ShapeDtypeStruct((128,), jnp.float32))


def test_large_arrays_in_parts_compile() -> None:
    """What is large in memory alone is not too large."""

    def body(x: Any, o: Any) -> None:
        def step(i: Any, _: None) -> None:
            part = pl.ds(i * 4096, 4096)
            o[part] = x[part] + 1

        jax.lax.fori_loop(0, 2**20, step, None)

    array = jax.ShapeDtypeStruct((2**32,), jnp.int8)
    with smalt.emulated("H100"):
        ((_, descriptor, debug),) = smalt.descriptor(kernel(body, array), array)
    assert _native.compile(descriptor, debug, "sm_90a").ptx


def test_an_index_into_a_dimension_of_no_elements() -> None:
    def body(x: Any, o: Any) -> None:
        i = jax.lax.axis_index("i")
        o[i] = x[i]

    call = kernel(body, jax.ShapeDtypeStruct((4, 64), jnp.float32), grid=(4,), grid_names=("i",))
    with smalt.emulated("H100"), pytest.raises(smalt.Error, match="an index outside of its dimension"):
        jax.block_until_ready(jax.jit(call)(jnp.zeros((0, 64), jnp.float32)))


def test_copies_of_too_many_sorts() -> None:
    """Each has a tensor map, and a kernel's parameters have a limit."""

    def body(x: Any, y: Any, o: Any) -> None:
        def scoped(buffer: Any, barrier: Any) -> None:
            for rows in range(130):
                for source in (x, y):
                    part = source.at[pl.ds(1, rows + 2), pl.ds(0, 32)]
                    plgpu.copy_gmem_to_smem(part, buffer.at[pl.ds(0, rows + 2)], barrier)
                    plgpu.barrier_wait(barrier)
            o[...] = buffer[...]

        pl.run_scoped(scoped, plgpu.SMEM((256, 32), jnp.float32), plgpu.Barrier())

    text = refusal(body, (300, 64), (300, 64), out=(256, 32))
    assert "copies of too many sorts" in text and "at most 32764 bytes of parameters" in text and "got: 3" in text
