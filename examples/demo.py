"""Runs real Pallas:Mosaic-GPU kernels through smalt, inside `jax.jit` programs, and checks them against NumPy.

On a machine with an NVIDIA GPU they run there; without one the same PTX instructions run in smalt's emulator (smaller sizes).
    make demo        or        PYTHONPATH=jax_plugin python -m examples.demo
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

import smalt
from examples.matmul import matmul as specialised_matmul

ON_GPU = jax.default_backend() == "gpu"


def kernel(body: Callable[..., Any], out: Any, **kwargs: Any) -> Callable[..., Any]:
    return plgpu.kernel(body, out_type=out, **kwargs)


def scaled_sum(x: jax.Array, y: jax.Array, tile: int = 128) -> jax.Array:
    """An element-wise kernel: asynchronous copies in and out, pipelined by `emit_pipeline`."""
    rows, columns = x.shape

    def body(x_gmem: Any, y_gmem: Any, o_gmem: Any) -> None:
        def step(_: Any, x_smem: Any, y_smem: Any, o_smem: Any) -> None:
            o_smem[...] = x_smem[...] * 2 + y_smem[...]

        block = plgpu.BlockSpec((64, tile), lambda i, j: (i, j))
        plgpu.emit_pipeline(
            step, grid=(rows // 64, columns // tile), in_specs=[block, block], out_specs=[block], max_concurrent_steps=2
        )(x_gmem, y_gmem, o_gmem)

    return kernel(body, jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def shipped_matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """JAX's own hopper_matmul kernel, unmodified: persistent, with a 2-CTA cluster and multicast."""
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hm

    config = hm.TuningConfig(
        tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4, epi_tile_n=64, epi_tile_m=64,
        grid_minor_dim=hm.MatmulDimension.N, grid_tile_width=8,
        wg_dimension=hm.MatmulDimension.M, cluster_dimension=hm.MatmulDimension.N,
    )
    return hm.matmul(a, b, None, config)


def run(name: str, f: Callable[..., Any], inputs: list[Any], expected: np.ndarray[Any, Any], tolerance: float) -> bool:
    sizes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in inputs)
    print(f"  {name} of {sizes} ...", end="", flush=True)

    @jax.jit
    def program(*args: Any) -> Any:  # XLA ops around the kernel, one program
        return f(*(x * 1 for x in args)), jnp.sum(f(*args).astype(jnp.float32))

    start = time.perf_counter()
    out, total = jax.block_until_ready(program(*inputs))
    first = time.perf_counter() - start
    start = time.perf_counter()
    jax.block_until_ready(program(*inputs))
    again = time.perf_counter() - start
    got = np.asarray(out).astype(np.float64)
    error = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
    ok = error <= tolerance and np.isfinite(float(total))
    print(f" {'ok' if ok else 'WRONG'}: error {error:.1e} against NumPy; first call {first:.2f} s, then {again * 1e3:.2f} ms")
    return ok


def main() -> int:
    smalt.enable()
    where = jax.devices()[0].device_kind if ON_GPU else "the emulator (no GPU here): the same PTX instructions, on the CPU"
    print(f"smalt: kernels run on {where}; jax {jax.__version__}")
    rng = np.random.default_rng(0)
    n = 4096 if ON_GPU else 256
    x, y = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    a, b = (jnp.asarray(rng.standard_normal((n, n)), jnp.float16) for _ in range(2))
    product = np.asarray(a).astype(np.float64) @ np.asarray(b).astype(np.float64) if n <= 1024 else None
    if product is None:
        product = np.asarray(a).astype(np.float32) @ np.asarray(b).astype(np.float32)
    results = []
    with smalt.emulated("H100"):
        results.append(run("x*2 + y by emit_pipeline", scaled_sum, [jnp.asarray(x), jnp.asarray(y)], x.astype(np.float64) * 2 + y, 1e-6))
        results.append(run("a warp-specialised matmul", specialised_matmul, [a, b], product, 5e-4))
        m, k, columns = (n, n, n) if ON_GPU else (256, 128, 256)
        results.append(run("JAX's own hopper_matmul", shipped_matmul, [a[:m, :k], b[:k, :columns]], np.asarray(a[:m, :k]).astype(np.float64) @ np.asarray(b[:k, :columns]).astype(np.float64), 5e-4))
    print("all right" if all(results) else "something is wrong")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
