"""The tests of `plgpu.as_torch_kernel`: PyTorch's tensors on a GPU, or on the CPU for the emulator."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt

from tests.corpus.case import kernel
from tests.machine import ON_GPU

torch: Any = pytest.importorskip("torch")
DEVICE = "cuda" if ON_GPU else "cpu"


@pytest.fixture(autouse=True)
def enabled() -> Any:
    with smalt.enabled():
        yield


def out(*shape_and_dtype: Any) -> Any:
    *shape, dtype = shape_and_dtype
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def numbers(*shape: int, dtype: Any = torch.int32, seed: int = 0) -> Any:
    made = torch.from_numpy(np.random.default_rng(seed).integers(-100, 100, shape).astype(np.int32))
    return made.to(dtype).to(DEVICE)


def doubled(x: Any, o: Any) -> None:
    o[...] = x[...] + x[...]


TYPES = ["int8", "uint8", "int16", "int32", "float16", "bfloat16", "float32"]


@pytest.mark.parametrize("name", TYPES)
def test_types(name: str) -> None:
    x = numbers(4, 128, dtype=torch.int8).to(getattr(torch, name))
    got = plgpu.as_torch_kernel(kernel(doubled, out(4, 128, jnp.dtype(name))))(x)
    assert got.dtype == x.dtype and got.device == x.device and got.data_ptr() != x.data_ptr()
    assert torch.equal(got, x + x)


def test_bools_and_scalars() -> None:
    def body(x: Any, n: Any, o: Any) -> None:
        o[...] = jnp.where(x[...], n[()], -n[()])

    x = numbers(128) > 0
    n = torch.tensor(7, dtype=torch.int32, device=DEVICE)
    got = smalt.as_torch_kernel(kernel(body, out(128, jnp.int32)))(x, n)
    assert torch.equal(got, torch.where(x, 7, -7).to(torch.int32))


def test_trees_several_kernels_and_jit() -> None:
    def add(x: Any, y: Any, o: Any, p: Any) -> None:
        o[...] = x[...] + y[...]
        p[...] = x[...] - y[...]

    both = kernel(add, (out(128, jnp.int32), out(128, jnp.int32)))

    @jax.jit
    def fn(pair: Any, more: Any) -> Any:
        s, d = both(pair["a"], pair["b"])
        t, _ = both(s, more)
        return {"sum": t, "unused": d, "same": more}

    a, b, c = (numbers(128, seed=i) for i in range(3))
    got = plgpu.as_torch_kernel(fn)({"a": a, "b": b}, c)
    assert torch.equal(got["sum"], a + b + c) and torch.equal(got["unused"], a - b) and got["same"] is c


def test_constants() -> None:
    def body(x: Any, y: Any, o: Any) -> None:
        o[...] = x[...] * y[...]

    table = np.arange(128, dtype=np.float32)

    def fn(x: Any) -> Any:
        return kernel(body, out(128, jnp.bfloat16))(x, jnp.asarray(table, jnp.bfloat16) * 2)

    x = numbers(128, dtype=torch.bfloat16)
    expected = x * (torch.from_numpy(table).to(torch.bfloat16) * 2).to(DEVICE)
    assert torch.equal(plgpu.as_torch_kernel(fn)(x), expected)


def test_one_function_for_tensors_of_several_types() -> None:
    def fn(x: Any) -> Any:
        return kernel(doubled, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    call = plgpu.as_torch_kernel(fn)
    for shape, dtype in [((128,), torch.int32), ((2, 64), torch.float32), ((128,), torch.int32)]:
        x = numbers(*shape, dtype=dtype)
        assert torch.equal(call(x), x + x)


def test_semaphores_are_zero_at_each_call() -> None:
    """Blocks that count each other: what they leave in the scratch is gone at the next call."""

    def body(x: Any, o: Any, sem: Any) -> None:
        i = jax.lax.axis_index("i")
        pl.semaphore_signal(sem, 1)
        pl.semaphore_wait(sem, 4, decrement=False)
        o[i] = x[i] + pl.semaphore_read(sem)

    def whole(x: Any, o: Any) -> None:
        body(x, o, pl.get_global(plgpu.SemaphoreType.REGULAR))

    call = plgpu.as_torch_kernel(kernel(whole, out(4, 128, jnp.int32), grid=(4,), grid_names=("i",)))
    x = numbers(4, 128)
    for _ in range(3):
        assert torch.equal(call(x), x + 4)


def test_a_matmul() -> None:
    from examples.pingpong_matmul import ping_pong

    a, b = numbers(256, 128, dtype=torch.float16), numbers(128, 256, dtype=torch.float16, seed=1)
    got = plgpu.as_torch_kernel(lambda a, b: ping_pong(a, b, tiles=1))(a, b)
    expected = (a.float() @ b.float()).half()
    assert torch.allclose(got.float(), expected.float(), rtol=1e-3)


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_streams() -> None:
    """The kernel is behind what its stream was given before."""
    big = torch.randn(4096, 4096, device="cuda")
    small = plgpu.as_torch_kernel(kernel(doubled, out(4096, jnp.float32)))
    side = torch.cuda.Stream()
    small(big[0].clone())
    torch.cuda.synchronize()
    for _ in range(20):
        with torch.cuda.stream(side):
            x = (big @ big)[0].clone()
            got = small(x)
            expected = x + x
        side.synchronize()
        assert torch.equal(got, expected)


# ------------------------------------------------------------------------------------------ misuse


def fails(error: type[Exception], says: str, fn: Any, *args: Any) -> None:
    with pytest.raises(error, match=says):
        plgpu.as_torch_kernel(fn)(*args)


def test_misuse() -> None:
    double = kernel(doubled, out(128, jnp.int32))
    x = numbers(128)
    fails(smalt.InvalidKernel, r"argument 0(?s:.*)expected: a torch.Tensor(?s:.*)got: ndarray(?s:.*)remedy", double, np.zeros(128, np.int32))
    fails(smalt.InvalidKernel, r"contiguous(?s:.*)strides \(2,\)(?s:.*)t.contiguous\(\)", double, numbers(256)[::2])
    fails(smalt.InvalidKernel, r"a multiple of 16 bytes(?s:.*)t.clone\(\)", double, numbers(129)[1:])
    fails(smalt.InvalidKernel, r"up to 32 bits(?s:.*)jax_enable_x64", double, numbers(128).to(torch.int64))
    fails(smalt.Unsupported, r"`sort` of tensors, beside kernels(?s:.*)elementary operations(?s:.*)remedy(?s:.*)suite_torch", lambda x: jnp.sort(double(x)), x)
    with pytest.raises(Exception, match="64"):
        plgpu.as_torch_kernel(kernel(lambda x, o: doubled(x.at[pl.ds(0, 64)], o), out(128, jnp.int32)))(x)


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_stock_is_taken_where_smalt_is_not_enabled() -> None:
    call = plgpu.as_torch_kernel(kernel(doubled, out(128, jnp.int32)))
    x = numbers(128)
    with smalt.enabled(False):
        theirs = call(x)
    assert torch.equal(theirs, call(x))
