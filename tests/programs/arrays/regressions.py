"""Programs by name: what random ones found, made small. Each as a kernel, and what it must give."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

from tests.fuzz.bits import keep

Array = Any


@dataclasses.dataclass(frozen=True)
class Named:
    kernel: Callable[..., Any]  # of the arrays
    wanted: Callable[..., Any]  # by NumPy
    arrays: tuple[Array, ...]

    def check(self) -> None:
        got = jax.tree.leaves(jax.jit(self.kernel)(*self.arrays))
        wanted = jax.tree.leaves(self.wanted(*self.arrays))
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(keep(a), b)


REGRESSIONS: dict[str, Named] = {}


def regression(wanted: Callable[..., Any], *arrays: Array) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(kernel: Callable[..., Any]) -> Callable[..., Any]:
        REGRESSIONS[kernel.__name__] = Named(kernel, wanted, arrays)
        return kernel

    return register


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(3).integers(0, 100, shape).astype(dtype)


def like(x: Array, *shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape or x.shape, x.dtype)


# ------------------------------------------------------------------------------------------ slices of references with strides


@regression(lambda x: x[1::2, :, 3:40:7], numbers(5, 3, 41, dtype=np.int16))
def a_strided_load(x):
    def body(x, o):
        o[...] = x[1::2, :, 3:40:7]

    return plgpu.kernel(body, out_type=like(x, 2, 3, 6))(x)


def _with_every_third(x: Array, y: Array) -> Array:
    out = x.copy()
    out[2, 1::3] = y
    return out


@regression(_with_every_third, numbers(4, 33), numbers(11) + 500)
def a_strided_store(x, y):
    def body(x, y, o):
        o[...] = x[...]
        o[2, 1::3] = y[...]

    return plgpu.kernel(body, out_type=like(x))(x, y)


@regression(lambda x: np.concatenate([x[::2], x[1::2]]), numbers(12, 50))
def strides_in_scratch(x):
    def body(x, o, s):
        s[::2] = x[::2]
        s[1::2] = x[1::2]
        o[:6] = s[::2]
        o[6:] = s[1::2]

    return plgpu.kernel(body, out_type=like(x), scratch_types=[plgpu.SMEM(x.shape, jnp.float32)])(x)


# ------------------------------------------------------------------------------------------ complex numbers in blocks


@regression(lambda x: (x.real - 2 * x.imag).astype(np.float32), (numbers(6, 10) - 1j * numbers(6, 10)).astype(np.complex64))
def blocks_of_complex_numbers(x):
    def body(x, o):
        o[...] = x[...].real - 2 * x[...].imag

    spec = pl.BlockSpec((2, 10), lambda i: (i, 0))
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32), grid=(3,), in_specs=[spec], out_specs=spec)(x)


# ------------------------------------------------------------------------------------------ scans over odd slices


def _scanned(x: Array) -> Any:
    rows = np.cumsum(x[::-1].astype(np.int32), axis=0, dtype=np.int32)[::-1]
    return rows[0], rows, x[:, ::-1]


@regression(_scanned, numbers(6, 612, dtype=np.int16))
def a_scan_of_slices_with_few_twos(x):
    """Each thread would hold whole quarters of them, were they not dealt with padding."""

    def body(x, last, sums, flipped):
        def step(total, row):
            total = total + row.astype(jnp.int32)
            return total, (total, jnp.flip(row))

        last[...], (sums[...], flipped[...]) = jax.lax.scan(step, jnp.zeros(x.shape[1:], jnp.int32), x[...], reverse=True)

    outs = [jax.ShapeDtypeStruct(x.shape[1:], jnp.int32), jax.ShapeDtypeStruct(x.shape, jnp.int32), like(x)]
    return plgpu.kernel(body, out_type=outs)(x)


# ------------------------------------------------------------------------------------------ strides from anywhere, and of complex numbers


@regression(lambda x: x, numbers(3, 24, 5, dtype=np.int32))
def rows_that_warpgroups_take_in_turn(x):
    """What lies between is another one's."""

    def body(x, o):
        wg = jax.lax.axis_index("wg")
        every = pl.ds(wg, 8, 3)
        o[1, every] = x[1, every]
        for k in (0, 2):
            o[k, pl.ds(wg * 8, 8)] = x[k, pl.ds(wg * 8, 8)]

    return plgpu.kernel(body, out_type=like(x), num_threads=3, thread_name="wg")(x)


def _parts(x: Array, i: Array) -> Any:
    return x.real[:, ::3], x.imag[i, 1:]


@regression(_parts, (numbers(4, 10) - 1j * numbers(4, 10)).astype(np.complex64), np.array([3, 0, 3], np.int32))
def strides_and_indices_of_complex_numbers(x, i):
    def body(x, i, real, imag):
        real[...] = x[:, ::3].real
        imag[...] = x[i[...], 1:].imag

    outs = [jax.ShapeDtypeStruct((4, 4), jnp.float32), jax.ShapeDtypeStruct((3, 9), jnp.float32)]
    return plgpu.kernel(body, out_type=outs)(x, i)



# ------------------------------------------------------------------------------------------ what vmap writes


@regression(lambda x: x.transpose(2, 0, 1).reshape(5, -1), numbers(3, 4, 5))
def a_reshape_with_an_order(x):
    def body(x, o):
        o[...] = jax.lax.reshape(x[...], (5, 12), dimensions=(2, 0, 1))

    return plgpu.kernel(body, out_type=like(x, 5, 12))(x)
