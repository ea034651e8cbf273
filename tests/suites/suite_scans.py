"""Kernels in loops of XLA's, on slices of arrays: XLA:GPU passes them slices in place, and their results are slices, too.

What a kernel changes in place, and the scratch that is zero when it begins, are operands that share memory with results. XLA's fusions of
slices with calls do not keep that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

from tests.corpus.case import kernel
from tests.machine import enabled
from tests.suites.suite_barriers import F32, out, random

STEPS = 5
ROWS, COLUMNS = 64, 128
ONE = out(ROWS, COLUMNS, F32)


def scan(f: Callable[[Any], Any], x: Any) -> Any:
    return jax.lax.scan(lambda c, v: (c, f(v)), None, x)[1]


def reverse_scan(f: Callable[[Any], Any], x: Any) -> Any:
    return jax.lax.scan(lambda c, v: (c, f(v)), None, x, reverse=True)[1]


def into_zeros(f: Callable[[Any], Any], x: Any) -> Any:
    return jax.lax.fori_loop(0, x.shape[0], lambda i, made: made.at[i].set(f(x[i])), jnp.zeros_like(x))


def in_place(f: Callable[[Any], Any], x: Any) -> Any:
    return jax.lax.fori_loop(0, x.shape[0], lambda i, x: x.at[i].set(f(x[i])), x)


def one_by_one(f: Callable[[Any], Any], x: Any) -> Any:
    return jnp.stack([f(x[i]) for i in range(x.shape[0])])


LOOPS = {f.__name__: f for f in (scan, reverse_scan, into_zeros, in_place, one_by_one)}


def halves_in_place(x: Any) -> Any:
    """The first half of the rows is doubled; the others are what they were."""

    def body(x: Any, o: Any) -> None:
        del x
        o[: ROWS // 2] = o[: ROWS // 2] * 2

    return pl.pallas_call(body, out_shape=ONE, input_output_aliases={0: 0})(x)


def halves_by_blocks(x: Any) -> Any:
    def body(x: Any, o: Any) -> None:
        del x

        @pl.when(pl.program_id(0) < 4)
        def _() -> None:
            o[...] = o[...] * 2

    spec = pl.BlockSpec((ROWS // 8, COLUMNS), lambda i: (i, 0))
    return pl.pallas_call(body, out_shape=ONE, grid=(8,), in_specs=[spec], out_specs=spec, input_output_aliases={0: 0})(x)


def counted(x: Any) -> Any:
    """Each of four blocks adds what its semaphore says: 1, if it was zero when the kernel began."""

    def body(x: Any, o: Any, semaphore: Any) -> None:
        i = jax.lax.axis_index("i")
        pl.semaphore_signal(semaphore, 1)
        part = pl.ds(i * (ROWS // 4), ROWS // 4)
        o[part] = x[part] + pl.semaphore_read(semaphore).astype(jnp.float32)

    return kernel(body, ONE, plgpu.SemaphoreType.REGULAR, grid=(4,), grid_names=("i",))(x)


def doubled_half(x: Any) -> Any:
    return np.concatenate([x[:, : ROWS // 2] * 2, x[:, ROWS // 2 :]], axis=1)


KERNELS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "in place": (halves_in_place, doubled_half),
    "blocks in place": (halves_by_blocks, doubled_half),
    "scratch": (counted, lambda x: x + 1),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_in_loops(name: str, loop: str) -> None:
    f, reference = KERNELS[name]
    x = random((STEPS, ROWS, COLUMNS), F32)
    with enabled():
        run = jax.jit(lambda x: LOOPS[loop](f, x))
        operand = jnp.asarray(x)
        for _ in range(3):
            np.testing.assert_array_equal(run(operand), reference(x))
            np.testing.assert_array_equal(operand, x)


#: Slices of them begin at any byte.
ODD: dict[str, tuple[tuple[int, ...], Any]] = {
    "84 bytes": ((3, 7), F32),
    "4 bytes": ((1,), F32),
    "16 bytes": ((4,), F32),
    "66 bytes": ((33,), np.float16),
    "129 bytes": ((129,), np.int8),
    "240 bytes": ((5, 12), F32),
    "1040 bytes": ((5, 52), F32),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", ODD)
def test_slices_that_begin_anywhere(name: str, loop: str) -> None:
    shape, dtype = ODD[name]

    def f(x: Any) -> Any:
        def body(x: Any, o: Any) -> None:
            o[...] = x[...] + 1

        return pl.pallas_call(body, out_shape=out(*shape, dtype))(x)

    x = np.arange(STEPS * np.prod(shape)).reshape(STEPS, *shape).astype(dtype)
    with enabled():
        np.testing.assert_array_equal(jax.jit(lambda x: LOOPS[loop](f, x))(x), x + dtype(1))
