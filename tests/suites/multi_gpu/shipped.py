"""The kernels over several devices that JAX ships, unmodified, against XLA's collectives. `python -m tests.suites.multi_gpu --only shipped`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas.ops.gpu import all_gather_mgpu, collective_matmul_mgpu, hopper_matmul_mgpu, reduce_scatter_mgpu

from smalt._devices import emulation
from tests.suites.multi_gpu.suite import MACHINES, P, Program, data, fetch, grid, line, over, subject

M, N = hopper_matmul_mgpu.MatmulDimension.M, hopper_matmul_mgpu.MatmulDimension.N

#: A grid has a block for each streaming multiprocessor; in the emulator few are as good as 132.
SMALL = "H200 with 8 SMs"
MACHINES[SMALL] = dataclasses.replace(emulation.DEVICES["H200"], core_count=8)


def _by_xla(f: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any, *args: Any) -> np.ndarray[Any, Any]:
    return fetch(jax.jit(over(f, mesh, in_specs, out_specs))(*args))


# ------------------------------------------------------------------------------------------ all_gather

GATHERS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "0 float32": (jnp.float32, 0, dict(num_blocks=4)),
    "0 bfloat16": (jnp.bfloat16, 0, dict(num_blocks=3)),
    "0 float16 tile": (jnp.float16, 0, dict(num_blocks=2, tile_size=1024)),
    "0 int32": (jnp.int32, 0, dict(num_blocks=4)),
    "1 float32": (jnp.float32, 1, dict(num_blocks=4)),
    "1 bfloat16": (jnp.bfloat16, 1, dict(num_blocks=4, tile_size=512)),
    "-1 float16 vec": (jnp.float16, -1, dict(num_blocks=2, vec_size=4)),
    "all SMs": (jnp.bfloat16, 0, {}),
}


@subject(*GATHERS, machine=SMALL, collectives=True)
def shipped_all_gather(n: int, what: str) -> Program:
    dtype, dimension, config = GATHERS[what]
    spec = P("x", None) if dimension == 0 else P(None, "x")
    f = functools.partial(all_gather_mgpu.all_gather, axis_name="x", gather_dimension=dimension, **config)
    x = data((64 * n, 128) if dimension == 0 else (32, 64 * n), dtype)
    expected = _by_xla(lambda x: lax.all_gather(x, "x", axis=dimension % 2, tiled=True), line(n), spec, P(None, None), x)
    return Program(over(f, line(n), spec, P("x", None)), [x], [np.concatenate([expected] * n)])


@subject("both", "b", machine=SMALL, devices=lambda n: n > 2 and n % 2 == 0, collectives=True)
def shipped_all_gather_of_two_axes(n: int, axes: str) -> Program:
    """Over both axes of a mesh, or over one, which JAX's backend cannot."""
    mesh = grid((2, n // 2), ("a", "b"))
    over_axes: Any = ("a", "b") if axes == "both" else "b"
    spec = P(("a", "b"), None)
    f = functools.partial(all_gather_mgpu.all_gather, axis_name=over_axes, num_blocks=2)
    x = data((32 * n, 128))
    expected = _by_xla(lambda x: lax.all_gather(x, over_axes, axis=0, tiled=True), mesh, spec, P(("a", "b"), None), x)
    return Program(over(f, mesh, spec, P(("a", "b"), None)), [x], [expected])


# ------------------------------------------------------------------------------------------ reduce_scatter

REDUCTIONS: dict[str, tuple[Any, int | None, str, dict[str, Any]]] = {
    "0 add float32": (jnp.float32, 0, "add", dict(num_blocks=4)),
    "0 add bfloat16": (jnp.bfloat16, 0, "add", dict(num_blocks=4)),
    "1 add float16": (jnp.float16, 1, "add", dict(num_blocks=4)),
    "1 max bfloat16": (jnp.bfloat16, 1, "max", dict(num_blocks=4)),
    "0 min float16": (jnp.float16, 0, "min", dict(num_blocks=3)),
    "0 xor int32": (jnp.int32, 0, "xor", dict(num_blocks=4)),
    "0 add int32": (jnp.int32, 0, "add", dict(num_blocks=4)),
    "none add bfloat16": (jnp.bfloat16, None, "add", dict(num_blocks=4)),
    "none or int32": (jnp.int32, None, "or", dict(num_blocks=4)),
    "all SMs": (jnp.bfloat16, 0, "add", {}),
    "1 add float32 tile": (jnp.float32, 1, "add", dict(num_blocks=2, tile_size=256)),
}
BY_NUMPY = {"add": np.add, "max": np.maximum, "min": np.minimum, "xor": np.bitwise_xor, "or": np.bitwise_or}


@subject(*REDUCTIONS, machine=SMALL, devices=lambda n: n in (2, 4, 8), collectives=True)
def shipped_reduce_scatter(n: int, what: str) -> Program:
    """Small integers: every order of a sum gives the same."""
    dtype, dimension, op, config = REDUCTIONS[what]
    f = functools.partial(reduce_scatter_mgpu.reduce_scatter, axis_name="x", scatter_dimension=dimension, reduction=op, **config)
    x = data((n, 32 * n, 64 * n), dtype, low=-8, high=8)
    whole = BY_NUMPY[op].reduce(x, 0).astype(np.dtype(dtype))
    if op == "add":
        by_xla = _by_xla(lambda x: lax.psum(x[0], "x"), line(n), P("x"), P(), x)
        np.testing.assert_array_equal(by_xla.astype(np.float64), whole.astype(np.float64))
    parts = [whole] * n if dimension is None else np.split(whole, n, dimension)
    return Program(over(lambda x: f(x[0]), line(n), P("x"), P("x")), [x], [np.concatenate(list(parts))])


# ------------------------------------------------------------------------------------------ collective matmul

MATMULS: dict[str, tuple[Any, dict[str, Any]]] = {
    "float16": (jnp.float16, {}),
    "bfloat16": (jnp.bfloat16, {}),
    "wg_m": (jnp.float16, dict(wg_dimension=M)),
    "minor_m": (jnp.float16, dict(grid_minor_dim=M, grid_tile_width=2)),
    "four steps": (jnp.bfloat16, dict(max_concurrent_steps=4)),
    "epilogue tiles": (jnp.float16, dict(tile_n=128, epi_tile_n=64, epi_tile_m=64)),
    "tile_m 128": (jnp.float16, dict(tile_m=128, wg_dimension=N)),
}


#: A device goes on when the devices to its right have signalled as often as they have blocks. A block may signal twice there before
#: another has signalled at all: from three devices on that is a race, and the checker says so where a run comes near it.
RACY = dict(check="warn")


def _collective_matmul(n: int, what: str) -> Program:
    """Small integers, whose products and sums are exact. The kernel wants all of JAX's devices."""
    dtype, config = MATMULS[what]
    base = dict(tile_m=64, tile_n=64, tile_k=64, max_concurrent_steps=2)
    tuning = hopper_matmul_mgpu.TuningConfig(**{**base, **config})
    f = functools.partial(collective_matmul_mgpu.all_gather_lhs_matmul, axis_name="x", config=tuning, dtype=dtype)
    a, b = data((256 * n, 128), dtype, low=-3, high=4), data((128, 256 * n), dtype, low=-3, high=4)
    specs, out = (P("x", None), P(None, "x")), P(None, "x")

    def reference(a, b):
        return (lax.all_gather(a, "x", axis=0, tiled=True).astype(jnp.float32) @ b.astype(jnp.float32)).astype(dtype)

    expected = _by_xla(reference, line(n), specs, out, a, b)
    return Program(over(f, line(n), specs, out), [a, b], [expected])


def _all_devices(n: int) -> bool:
    return n > 1 and n == jax.device_count()


@subject(*MATMULS, machine=SMALL, devices=_all_devices, **RACY, collectives=True)
def shipped_collective_matmul(n: int, what: str) -> Program:
    return _collective_matmul(n, what)


@subject(machine="H200", devices=_all_devices, **RACY, collectives=True)
def shipped_collective_matmul_on_132_SMs(n: int) -> Program:
    return _collective_matmul(n, "float16")
