"""`pl.pallas_call`s as they are written for TPUs: names that mean the same here, and what is said of those that mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.tpu as pltpu
import jax.numpy as jnp
import numpy as np
import pytest

import smalt
from smalt._blocks import pallas_call

F32 = jnp.float32
X = np.random.default_rng(0).normal(size=(32, 128)).astype(np.float32)
NUMBER = np.repeat(np.arange(1, 5), 8)[:, None].astype(np.float32)  # of the step, counted from 1


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    with smalt.emulated():
        yield


def rows(**how: Any) -> pl.BlockSpec:
    return pl.BlockSpec((8, 128), lambda i: (i, 0), **how)


def call(body: Callable[..., None], **how: Any) -> Any:
    given = {"out_shape": jax.ShapeDtypeStruct((32, 128), F32), "grid": (4,), "in_specs": [rows()], "out_specs": rows()}
    return pl.pallas_call(body, **given | how)


def twice(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def decided(f: Any, *arrays: Any) -> Any:
    (eqn,) = (e for e in jax.make_jaxpr(f)(*arrays).jaxpr.eqns if e.primitive.name == "pallas_call")
    return pallas_call.Call(eqn.params)


# ------------------------------------------------------------------------------------------ memories


def test_blocks_in_vmem() -> None:
    f = call(twice, in_specs=[rows(memory_space=pltpu.VMEM)], out_specs=rows(memory_space=pltpu.VMEM))
    np.testing.assert_array_equal(f(X), 2 * X)


@pytest.mark.parametrize("space", [pl.ANY, pltpu.HBM])
def test_arrays_that_stay_in_device_memory(space: Any) -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[pl.ds(pl.program_id(0) * 8, 8), :] * 2

    f = call(body, in_specs=[pl.BlockSpec(memory_space=space)])
    np.testing.assert_array_equal(f(X), 2 * X)
    assert decided(f, X).blocks[0].in_gmem


@pytest.mark.parametrize("space", [pl.ANY, pltpu.HBM])
def test_outputs_in_device_memory_are_what_the_last_step_leaves(space: Any) -> None:
    def sums(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    out = jax.ShapeDtypeStruct((8, 128), F32)
    got = call(sums, out_shape=out, out_specs=pl.BlockSpec(memory_space=space))(X)
    np.testing.assert_allclose(got, X.reshape(4, 8, 128).sum(0), rtol=1e-5, atol=1e-6)

    def stores(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    np.testing.assert_array_equal(call(stores, out_shape=out, out_specs=pl.BlockSpec(memory_space=space))(X), X[24:])


def test_scalars_in_smem() -> None:
    def body(s_ref: Any, n_ref: Any, x_ref: Any, o_ref: Any, p_ref: Any) -> None:
        o_ref[...] = x_ref[...] * s_ref[0, 1] + n_ref[0, 0]
        p_ref[0, 0] = n_ref[0, 0] * 2

    one = pl.BlockSpec((1, 1), lambda i: (i, 0), memory_space=pltpu.SMEM)
    n = np.float32([[3], [4], [5], [6]])
    f = call(
        body, in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), one, rows()], out_specs=[rows(), one],
        out_shape=[jax.ShapeDtypeStruct((32, 128), F32), jax.ShapeDtypeStruct((4, 1), F32)],
    )  # fmt: skip
    o, p = f(np.float32([[7, 2]]), n, X)
    np.testing.assert_array_equal(o, X * 2 + np.repeat(n, 8, 0))
    np.testing.assert_array_equal(p, 2 * n)


def test_scratch() -> None:
    """Of arrays in VMEM, of a counter in SMEM, in a scope, and semaphores."""

    def body(x_ref: Any, o_ref: Any, v_ref: Any, n_ref: Any, sem: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            n_ref[0] = 0

        n_ref[0] = n_ref[0] + 1
        pl.semaphore_signal(sem, 1)
        pl.semaphore_wait(sem, 1)

        def scope(w_ref: Any) -> None:
            w_ref[...] = x_ref[...] * n_ref[0]
            v_ref[...] = w_ref[...] + 1

        pl.run_scoped(scope, pltpu.VMEM((8, 128), F32))
        o_ref[...] = v_ref[...]

    f = call(body, scratch_shapes=[pltpu.VMEM((8, 128), F32), pltpu.SMEM((1,), jnp.int32), pltpu.SemaphoreType.REGULAR])
    np.testing.assert_array_equal(f(X), X * NUMBER + 1)


def test_semaphores_keep_the_order_of_steps() -> None:
    """A step waits for what the one before it has signalled."""

    def body(x_ref: Any, o_ref: Any, sem: Any) -> None:
        @pl.when(pl.program_id(0) > 0)
        def _() -> None:
            pl.semaphore_wait(sem, 1)

        o_ref[...] = x_ref[...] * 2

        @pl.when(pl.program_id(0) < pl.num_programs(0) - 1)
        def _() -> None:
            pl.semaphore_signal(sem, 1)

    f = call(body, scratch_shapes=[pltpu.SemaphoreType.REGULAR])
    np.testing.assert_array_equal(f(X), 2 * X)
    assert decided(f, X).parallel == (False,)


def test_prefetched_scalars_and_scratch_of_a_grid_spec() -> None:
    def body(table: Any, x_ref: Any, o_ref: Any, s_ref: Any) -> None:
        s_ref[...] = x_ref[...]
        o_ref[...] = s_ref[...] * table[0]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, t: (t[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, t: (i, 0)),
        scratch_shapes=[pltpu.VMEM((8, 128), F32)],
    )
    f = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((32, 128), F32), grid_spec=spec)
    table = np.array([2, 0, 1, 3], np.int32)
    np.testing.assert_array_equal(f(table, X), 2 * X.reshape(4, 8, 128)[table].reshape(32, 128))


# ------------------------------------------------------------------------------------------ parameters


def revisits(x_ref: Any, o_ref: Any) -> None:
    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += x_ref[...]


PARALLEL, ARBITRARY = pltpu.GridDimensionSemantics.PARALLEL, pltpu.GridDimensionSemantics.ARBITRARY


@pytest.mark.parametrize("params", [pltpu.CompilerParams, plgpu.CompilerParams, smalt.CompilerParams])
@pytest.mark.parametrize("semantics", [("parallel", "arbitrary"), ("arbitrary", "arbitrary"), (PARALLEL, ARBITRARY), ("core_parallel", ARBITRARY), None])
def test_dimension_semantics(params: Any, semantics: Any) -> None:
    """"arbitrary" promises nothing: whether its steps run at once is decided by what they do."""
    f = call(
        revisits,
        grid=(4, 2),
        in_specs=[pl.BlockSpec((8, 64), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((8, 64), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((32, 64), F32),
        compiler_params=params(dimension_semantics=semantics),
    )
    np.testing.assert_array_equal(f(X), X[:, :64] + X[:, 64:])
    assert decided(f, X).parallel == (True, False)


def test_parallel_axes_of_a_tpu_are_hints() -> None:
    """Steps that depend on each other run in order, as on a core of a TPU; a promise to a GPU is an error."""
    how = {
        "grid": (4, 2),
        "in_specs": [pl.BlockSpec((8, 64), lambda i, j: (i, j))],
        "out_specs": pl.BlockSpec((8, 64), lambda i, j: (i, 0)),
        "out_shape": jax.ShapeDtypeStruct((32, 64), F32),
    }
    f = call(revisits, compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")), **how)
    with pytest.warns(UserWarning, match="which runs in order: steps write the same block of output.*\n.*along axis 1"):
        np.testing.assert_array_equal(f(X), X[:, :64] + X[:, 64:])
    assert decided(f, X).parallel == (True, False)
    with pytest.raises(smalt.InvalidKernel, match="steps write the same block"):
        call(revisits, compiler_params=plgpu.CompilerParams(dimension_semantics=("parallel", "parallel")), **how)(X)


def test_an_output_that_is_scratch_of_parallel_steps() -> None:
    """Every step begins it anew, and the array has what the last one left: JAX's splash attention has its sums so."""

    def body(x_ref: Any, sums_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            sums_ref[...] = jnp.zeros_like(sums_ref)

        sums_ref[...] += x_ref[...]
        o_ref[...] = sums_ref[...] * 2

    f = call(
        body,
        grid=(4, 2),
        in_specs=[pl.BlockSpec((8, 64), lambda i, j: (i, j))],
        out_specs=[pl.BlockSpec((8, 64), lambda i, j: (0, 0)), pl.BlockSpec((8, 64), lambda i, j: (i, 0))],
        out_shape=[jax.ShapeDtypeStruct((8, 64), F32), jax.ShapeDtypeStruct((32, 64), F32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )
    with pytest.warns(UserWarning, match="which runs in order: steps write the same block of output"):
        sums, out = f(X)
    want = X[:, :64] + X[:, 64:]
    np.testing.assert_array_equal(sums, want[24:])
    np.testing.assert_array_equal(out, 2 * want)


def test_what_is_about_a_tpus_compiler_is_left_out() -> None:
    params = pltpu.CompilerParams(vmem_limit_bytes=1 << 20, allow_input_fusion=[True], disable_bounds_checks=True, collective_id=3)
    np.testing.assert_array_equal(call(twice, compiler_params=params)(X), 2 * X)


@pytest.mark.parametrize("effects", [False, True])
def test_side_effects_are_kept(effects: bool) -> None:
    """XLA leaves out a call of whose results nothing is used, unless its parameters say that it does more."""

    def f(x: Any) -> Any:
        call(twice, compiler_params=pltpu.CompilerParams(has_side_effects=effects))(x)
        return x + 1

    text = jax.jit(f).lower(X).compile().as_text()
    assert ("smalt_kernel" in text) == effects


def test_derivatives_with_parameters_of_a_tpu() -> None:
    def body(x_ref: Any, o_ref: Any, s_ref: Any) -> None:
        s_ref[...] = x_ref[...] ** 2
        o_ref[...] = s_ref[...] * (pl.program_id(0) + 1)

    f = call(body, scratch_shapes=[pltpu.VMEM((8, 128), F32)], compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)))
    np.testing.assert_allclose(jax.jvp(f, [X], [X])[1], 2 * X * X * NUMBER, rtol=1e-6)


# ------------------------------------------------------------------------------------------ blocks


def test_elements_with_padding() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[1:9, :]

    got = call(body, in_specs=[pl.BlockSpec((pl.Element(9, (1, 0)), 128), lambda i: (i * 8, 0))])(X)
    np.testing.assert_array_equal(got, X)


@pytest.mark.parametrize("dim", [None, pl.Squeezed(), pl.Blocked(1)])
def test_squeezed_dimensions(dim: Any) -> None:
    spec = pl.BlockSpec((dim, 128), lambda i: (i, 0))
    np.testing.assert_array_equal(call(twice, grid=(32,), in_specs=[spec], out_specs=spec)(X), 2 * X)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_buffers(count: int) -> None:
    """How many blocks are loaded ahead is max_concurrent_steps' to say."""
    np.testing.assert_array_equal(call(twice, in_specs=[rows(pipeline_mode=pl.Buffered(count))])(X), 2 * X)


# ------------------------------------------------------------------------------------------ operations


@pytest.mark.parametrize("shift", [0, 1, 5, 127, 130])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("stride", [None, 0, 1, 3])
def test_roll(shift: int, axis: int, stride: int | None) -> None:
    how = {} if stride is None else {"stride": stride, "stride_axis": 1 - axis}

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = pltpu.roll(x_ref[...], shift, axis, **how)

    f = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((8, 128), F32))
    lines = np.moveaxis(X[:8], 1 - axis, 0)
    want = np.stack([np.roll(line, shift + k * (stride or 0), 0) for k, line in enumerate(lines)])
    np.testing.assert_array_equal(f(X[:8]), np.moveaxis(want, 0, 1 - axis))


@pytest.mark.parametrize("source,target", [("float32", "int32"), ("float32", "bfloat16"), ("int32", "int8"), ("int16", "uint32"), ("int8", "float32")])
def test_bitcast(source: str, target: str) -> None:
    x = np.random.default_rng(1).integers(0, 256, (16, 128 * np.dtype(source).itemsize)).astype(np.uint8).view(source)
    if source == "int8":  # of numbers that are no NaNs
        x = np.abs(x)

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = pltpu.bitcast(x_ref[...], target)

    out = jax.eval_shape(lambda x: pltpu.bitcast(x, target), x)
    make = lambda interpret: pl.pallas_call(body, out_shape=out, interpret=interpret)(x)  # noqa: E731
    assert np.asarray(make(False)).tobytes() == np.asarray(make(True)).tobytes()


# ------------------------------------------------------------------------------------------ what has no meaning


def refused(f: Any, *words: str) -> None:
    with pytest.raises(smalt.Unsupported) as e:
        f(X)
    assert e.value.remedy, str(e.value)
    for word in words:
        assert word in str(e.value), str(e.value)


def test_what_means_nothing_names_what_does() -> None:
    def random(x_ref: Any, o_ref: Any) -> None:
        pltpu.prng_seed(0)
        o_ref[...] = x_ref[...]

    refused(call(random), "prng_seed", "jax.random")
    refused(call(lambda x, o, s: None, scratch_shapes=[pltpu.CMEM((8, 128), F32)]), "memory space", "plgpu.SMEM")
