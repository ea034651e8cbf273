"""Misuses of `pl.pallas_call` and of its derivatives: one error each, which names the user's line; and what it advises works.

A row is a function of `right`: without it the line that ends with `# BAD` is at fault, and with it the call is as the remedy says.
`python -m tests.emulated.errors.test_misuses [NAME…]` prints the messages.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.tpu as pltpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.pallas import triton as plt

import smalt
from tests.corpus.case import like

F32, F16, I32, I8 = jnp.float32, jnp.float16, jnp.int32, jnp.int8
X = np.random.default_rng(0).normal(size=(32, 128)).astype(np.float32)
N = np.arange(32, dtype=np.int32)
ANY, GMEM = pl.BlockSpec(memory_space=pl.ANY), plgpu.BlockSpec(memory_space=plgpu.GMEM)


@dataclasses.dataclass(frozen=True)
class Row:
    fn: Callable[[bool], Any]
    error: type[Exception]
    words: tuple[str, ...]
    line: int | None  # None: the call's, wherever it was made


TABLE: dict[str, Row] = {}


def misuse(error: type[Exception], *words: str) -> Callable[[Callable[[bool], Any]], Callable[[bool], Any]]:
    """`words` stand in the message, in this order; the last ones are of its remedy."""

    def register(fn: Callable[[bool], Any]) -> Callable[[bool], Any]:
        lines, first = inspect.getsourcelines(fn)
        marked = [first + i for i, text in enumerate(lines) if text.rstrip().endswith("# BAD")]
        assert len(marked) == 1 and fn.__name__ not in TABLE, fn.__name__
        TABLE[fn.__name__] = Row(fn, error, words, marked[0])
        return fn

    return register


def rows(n: int = 8, m: int = 128, **how: Any) -> pl.BlockSpec:
    return pl.BlockSpec((n, m), lambda i, *_: (i, 0), **how)


def specs(body: Any, **how: Any) -> dict[str, Any]:
    """A call over four blocks of eight rows, but for what is said."""
    return {"out_shape": like((32, 128)), "grid": (4,), "in_specs": [rows()], "out_specs": rows()} | how


def call(body: Any, **how: Any) -> Any:
    return pl.pallas_call(body, **specs(body, **how))


def twice(x: Any, o: Any) -> None:
    o[...] = x[...] * 2


# ------------------------------------------------------------------------------------------ blocks and grids


@misuse(smalt.InvalidKernel, "pl.BoundedSlice(4) (of args[0])", "got: a slice of 8", "remedy: a larger bound, or shorter slices")
def a_slice_longer_than_its_bound(right):
    spec = pl.BlockSpec((pl.BoundedSlice(8 if right else 4), 128), lambda i: (pl.ds(i * 8, 8), 0))
    return call(lambda x, o: o.__setitem__(..., jnp.resize(x[...], (8, 128))), in_specs=[spec])(X)  # BAD


@misuse(smalt.InvalidKernel, "dimension_semantics", "one for each of 1 grid axes", "got: 2", "remedy: name each axis")
def semantics_of_more_axes_than_there_are(right):
    params = plgpu.CompilerParams(dimension_semantics=["parallel"] if right else ["parallel"] * 2)
    return call(twice, compiler_params=params)(X)  # BAD


@misuse(smalt.InvalidKernel, "dimension_semantics of grid axis 0", "got: 'quick'", 'remedy: name each axis "parallel" or "sequential"')
def semantics_of_an_unknown_name(right):
    params = plgpu.CompilerParams(dimension_semantics=["parallel" if right else "quick"])
    return call(twice, compiler_params=params)(X)  # BAD


@misuse(smalt.InvalidKernel, "steps write the same block of outputs", 'remedy: dimension_semantics "sequential" for axis 0')
def a_parallel_axis_of_steps_that_write_one_block(right):
    params = plgpu.CompilerParams(dimension_semantics=["sequential" if right else "parallel"])
    return call(twice, out_shape=like((8, 128)), out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)), compiler_params=params)(X)  # BAD


@misuse(smalt.InvalidKernel, "what another one stored in scratch s", 'remedy: dimension_semantics "sequential" for axis 0')
def a_parallel_axis_with_scratch_that_lasts(right):
    def body(x, o, s):
        @pl.when(pl.program_id(0) == 0)
        def _():
            s[...] = jnp.zeros_like(s)

        s[...] += x[...]
        o[...] = s[...]

    params = plgpu.CompilerParams(dimension_semantics=["sequential" if right else "parallel"])
    return call(body, scratch_shapes=[pltpu.VMEM((8, 128), F32)], compiler_params=params)(X)  # BAD


@misuse(smalt.InvalidKernel, "what another one stored in outputs", 'remedy: dimension_semantics "sequential" for axis 0')
def a_parallel_axis_of_steps_that_add_to_device_memory(right):
    def body(x, o):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o[...] = jnp.zeros_like(o)

        o[...] += x[...]

    params = plgpu.CompilerParams(dimension_semantics=["sequential" if right else "parallel"])
    return call(body, out_shape=like((8, 128)), out_specs=GMEM, compiler_params=params)(X)  # BAD


@misuse(smalt.ExecutionError, "an index outside of its dimension", "remedy: bound the index")
def a_table_that_names_blocks_that_are_not_there(right):
    table = np.int32([0, 1, 2, 3 if right else 7])
    spec = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(4,), in_specs=[pl.BlockSpec((8, 128), lambda i, t: (t[i], 0))], out_specs=rows())
    return pl.pallas_call(lambda t, x, o: twice(x, o), out_shape=like((32, 128)), grid_spec=spec)(table, X)  # BAD


@misuse(smalt.InvalidKernel, "shared memory", "at most 232448 bytes", "remedy: use smaller tiles")
def scratch_that_has_no_room(right):
    def body(x, o, s):
        s[0:8] = x[...]
        o[...] = s[0:8]

    return call(body, scratch_shapes=[pltpu.VMEM((8 if right else 600, 128), F32)])(X)  # BAD


@misuse(smalt.Unsupported, "a store to args[0], an input that shares the buffer of outputs", "remedy: store to the reference of outputs")
def a_store_to_an_input_that_shares_its_buffer(right):
    def body(x, o):
        ref = o if right else x
        ref[...] = x[...] * 2

    return call(body, input_output_aliases={0: 0})(X)  # BAD


@misuse(smalt.Unsupported, "a store to state, which is prefetched, under jax.vmap", "remedy: copy it to scratch")
def a_store_to_prefetched_scalars_of_a_batch(right):
    def body(state, x, o, *s):
        ref = s[0] if right else state
        ref[0] = state[0] + 1
        o[...] = x[...] * 2

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(4,), in_specs=[rows()], out_specs=rows(), scratch_shapes=[pltpu.SMEM((1,), I32)] if right else []
    )
    f = pl.pallas_call(body, out_shape=like((32, 128)), grid_spec=spec)
    return jax.vmap(f, in_axes=(None, 0))(np.zeros(1, np.int32), np.stack([X, X]))  # BAD


@misuse(smalt.Unsupported, "a store to args[0], an input that the elements of a jax.vmap have in common", "remedy: map it too")
def a_store_to_an_input_that_a_batch_has_in_common(right):
    def body(x, y, o):
        x[...] = x[...] + 1
        o[...] = x[...] * y[...]

    whole = pl.BlockSpec((8, 128), lambda i: (0, 0))
    f = call(body, in_specs=[whole, rows()])
    ys = np.stack([X, X])
    return jax.vmap(f, in_axes=(0 if right else None, 0))(np.zeros((2, 8, 128), np.float32) if right else np.zeros((8, 128), np.float32), ys)  # BAD


@misuse(smalt.Unsupported, "stores to blocks of outputs that reach outside of an array of int4", "remedy: let blocks divide the array")
def an_output_of_4_bits_whose_blocks_reach_outside(right):
    n = 32 if right else 30
    f = pl.pallas_call(
        lambda x, o: o.__setitem__(..., x[...].astype(jnp.int4)), out_shape=like((n, 128), jnp.int4), grid=(4,), in_specs=[rows()], out_specs=rows()
    )
    return f(np.zeros((n, 128), np.int8))  # BAD


@misuse(smalt.Unsupported, "memory space", "remedy: plgpu.SMEM")
def scratch_of_a_tpus_own_memory(right):
    return call(lambda x, o, s: twice(x, o), scratch_shapes=[(pltpu.VMEM if right else pltpu.CMEM)((8, 128), F32)])(X)  # BAD


@misuse(smalt.InvalidKernel, "max_concurrent_steps", "got: 0", "remedy: 1, or leave it out")
def no_steps_at_once(right):
    return call(twice, compiler_params=plgpu.CompilerParams(max_concurrent_steps=1 if right else 0))(X)  # BAD


@misuse(smalt.InvalidKernel, "is read where other steps write outputs", 'remedy: dimension_semantics "sequential" for axis 0')
def a_parallel_axis_of_steps_that_read_what_others_write(right):
    params = plgpu.CompilerParams(dimension_semantics=["sequential" if right else "parallel"])
    turned = pl.BlockSpec((8, 128), lambda i: (3 - i, 0))
    return call(twice, in_specs=[turned], input_output_aliases={0: 0}, compiler_params=params)(X)  # BAD


@misuse(smalt.InvalidKernel, "dimension_semantics", "got: 'parallel'", "remedy: name each axis")
def semantics_that_are_one_word(right):
    return call(twice, compiler_params=plgpu.CompilerParams(dimension_semantics=["parallel"] if right else "parallel"))(X)  # BAD


@misuse(smalt.Unsupported, "a dimension that 32 bits do not count", "at most 2147483647", "remedy: reshape the array")
def an_array_with_too_long_a_dimension(right):
    x = like((2**20 if right else 2**31, 1), I8)
    spec = pl.BlockSpec((2**19, 1), lambda i: (i, 0))
    return jax.jit(pl.pallas_call(twice, out_shape=x, grid=(2,), in_specs=[spec], out_specs=spec)).lower(x) and 0.0  # BAD


@misuse(smalt.Unsupported, "the mesh of another backend", "got: TensorCoreMesh", "remedy: write it with plgpu.kernel")
def a_kernel_of_a_tpus_mesh(right):
    if right:
        return plgpu.kernel(twice, out_type=like((32, 128)))(X)
    return pl.kernel(twice, out_type=like((32, 128)), mesh=pltpu.create_tensorcore_mesh("core", num_cores=1))(X)  # BAD


# ------------------------------------------------------------------------------------------ references and indices


@misuse(smalt.ExecutionError, "outside of its dimension", "remedy: bound the index")
def a_row_behind_the_last_one(right):
    def body(x, o):
        o[...] = jnp.broadcast_to(x[jnp.minimum(pl.program_id(0) + 6, 7 if right else 99), :], (8, 128))  # BAD

    return call(body)(X)


@misuse(smalt.ExecutionError, "outside of its dimension", "remedy: bound the index")
def a_store_behind_the_last_row(right):
    def body(x, o):
        o[...] = x[...]
        o[jnp.minimum(pl.program_id(0) + 6, 7 if right else 99), :] = x[0, :]  # BAD

    return call(body)(X)


@misuse(smalt.ExecutionError, "a hint that is not true", "remedy: say what is true")
def a_hint_that_is_not_true(right):
    def body(x, o):
        at = pl.multiple_of(pl.program_id(0) * (8 if right else 3), 8)  # BAD
        o[...] = x[pl.ds(at, 8), :]

    return call(body, in_specs=[GMEM])(X)


@misuse(smalt.ExecutionError, "outside of its dimension", "remedy: bound the index")
def a_computed_slice_that_ends_outside(right):
    def body(x, o):
        o[...] = x[pl.ds(pl.program_id(0) * (0 if right else 4), 8), :]  # BAD

    return call(body)(X)


@misuse(smalt.ExecutionError, "outside of its dimension", "expected: an index from 0 to 7", "got: -9 in dimension 0", "remedy: bound the index")
def rows_by_numbers_from_before_the_end(right):
    def body(n, x, o):
        at = n[...]
        o[...] = x[jnp.maximum(at, -8) if right else at]  # BAD

    return call(body, in_specs=[pl.BlockSpec((8,), lambda i: (0,)), rows()])(np.int32([0, 1, -1, -2, 3, 4, -8, -9]), X)


@misuse(smalt.Unsupported, "a view of what an array of indices takes", "remedy: index last")
def a_view_of_rows_by_an_array(right):
    def body(n, x, o):
        at = n[...]
        o[...] = jnp.zeros_like(o)
        o[:, :64] = x.at[:, :64][at] if right else x.at[at][:, :64]  # BAD

    return call(body, in_specs=[pl.BlockSpec((8,), lambda i: (0,)), rows()])(np.arange(8, dtype=np.int32), X)


@misuse(smalt.Unsupported, "a slice of stride 0", "remedy: index the position")
def a_store_to_one_position_many_times(right):
    def body(x, o):
        o[...] = x[...]
        o[pl.ds(2, 4, 1 if right else 0), :] = x[pl.ds(0, 4), :]  # BAD

    return call(body)(X)


@misuse(smalt.Unsupported, "an array of indices into a slice of stride 0", "remedy: broadcast what is loaded, and index that")
def rows_by_an_array_of_what_is_repeated(right):
    def body(n, x, o):
        at = n[...]
        o[...] = x[pl.ds(2, 8, 0), :][at] if right else x.at[pl.ds(2, 8, 0), :][at]  # BAD

    return call(body, in_specs=[pl.BlockSpec((8,), lambda i: (0,)), rows()])(np.arange(8, dtype=np.int32), X)


# ------------------------------------------------------------------------------------------ masks, atomics, Triton's


def masked():
    return lax.broadcasted_iota(I32, (8, 128), 0) < 4


@misuse(smalt.ExecutionError, "outside of its dimension", "remedy: bound the index")
def a_mask_that_is_true_outside(right):
    def body(x, o):
        start = pl.program_id(0) + 1
        mask = lax.broadcasted_iota(I32, (8, 128), 0) + start < (8 if right else 9)
        o[...] = plt.load(x.at[pl.ds(start, 8), :], mask=mask, other=0.0)  # BAD

    return call(body)(X)


@misuse(smalt.Unsupported, "elements of type i4 that are chosen by a mask", "remedy: load or store a slice of them")
def a_mask_of_4_bit_elements(right):
    def body(x, o):
        o[...] = x[...].astype(F32) if right else plt.load(x.at[:, :], mask=masked(), other=jnp.zeros((8, 128), jnp.int4)).astype(F32)  # BAD

    return call(body)(jnp.zeros((32, 128), jnp.int4))


@misuse(smalt.Unsupported, "masked accesses to complex numbers", "remedy: keep real and imaginary parts in arrays of their own")
def a_mask_of_complex_numbers(right):
    def body(x, o):
        o[...] = x[...] if right else plt.load(x.at[:, :], mask=masked(), other=jnp.zeros((8, 128), jnp.complex64))  # BAD

    return call(body, out_shape=like((32, 128), jnp.complex64))(X.astype(np.complex64))


@misuse(smalt.Unsupported, "a mask for a reference of rank 0", "remedy: pl.when(mask)")
def a_mask_of_a_scalar(right):
    def body(s, x, o):
        if right:
            v = s[...]
        else:
            v = plt.load(s, mask=pl.program_id(0) < 2, other=0.0)  # BAD
        o[...] = x[...] * v

    return call(body, in_specs=[pl.BlockSpec((), lambda i: ()), rows()])(np.float32(2), X)


@misuse(smalt.Unsupported, "atomics, or accesses in order, on a block", "remedy: take the whole array")
def atomics_of_blocks_that_reach_outside(right):
    n = 32 if right else 24
    spec = pl.BlockSpec((n,), lambda i: (0 if right else i,))

    def body(x, c, o):
        plt.atomic_add(o, (x[:24],), jnp.ones((24,), I32))

    whole = pl.BlockSpec((32,), lambda i: (0,))
    f = pl.pallas_call(body, out_shape=like((32,), I32), grid=(2,), in_specs=[whole, spec], out_specs=spec, input_output_aliases={1: 0})
    return f(np.zeros(32, np.int32), np.zeros(32, np.int32))  # BAD


@misuse(smalt.InvalidKernel, "num_warps", "got: 3", "remedy: 4, or leave it out")
def warps_that_are_no_power_of_two(right):
    return call(twice, compiler_params=plt.CompilerParams(num_warps=4 if right else 3))(X)  # BAD


@misuse(smalt.InvalidKernel, "num_stages", "got: -1", "remedy: 1, or leave it out")
def a_negative_number_of_stages(right):
    return call(twice, compiler_params=plt.CompilerParams(num_stages=2 if right else -1))(X)  # BAD


@misuse(smalt.InvalidKernel, "no instruction of smalt's table", "remedy: write it with instructions that are in the table")
def assembly_of_an_unknown_instruction(right):
    def body(x, o):
        (o[...],) = plt.elementwise_inline_asm(  # BAD
            "add.f32 $0, $1, $1;" if right else "frobnicate.f32 $0, $1;", args=[x[...]], constraints="=f,f", pack=1, result_shape_dtypes=[like((8, 128))]
        )

    return call(body)(X)


@misuse(smalt.InvalidKernel, "constraints", "remedy: a constraint for each register")
def assembly_with_fewer_constraints_than_operands(right):
    def body(x, o):
        (o[...],) = plt.elementwise_inline_asm(  # BAD
            "add.f32 $0, $1, $1;", args=[x[...]], constraints="=f,f" if right else "=f", pack=1, result_shape_dtypes=[like((8, 128))]
        )

    return call(body)(X)


# ------------------------------------------------------------------------------------------ what TPUs have


@misuse(smalt.Unsupported, "prng_seed", "remedy: jax.random.wrap_key_data")
def random_numbers_of_a_tpu(right):
    def body(x, o):
        if right:
            bits = jax.random.bits(jax.random.key(0), (8, 128))
        else:
            pltpu.prng_seed(0)  # BAD
            bits = jnp.zeros((8, 128), jnp.uint32)
        o[...] = x[...] + (bits & 1).astype(F32)

    return call(body)(X)


DMA = {"in_specs": [ANY], "out_specs": ANY, "grid": (1,), "scratch_shapes": [pltpu.VMEM((32, 128), F32), pltpu.SemaphoreType.DMA]}


@misuse(smalt.Unsupported, "to another device", "remedy: plgpu.kernel with plgpu.remote_ref")
def a_copy_to_another_device(right):
    def body(x, o, s, sem):
        if right:
            c = pltpu.make_async_copy(x, o, sem)
        else:
            c = pltpu.make_async_remote_copy(x, o, sem, sem, device_id=0, device_id_type=pl.DeviceIdType.LOGICAL)
        c.start()  # BAD
        if right:
            c.wait()

    return call(body, **DMA)(X)


@misuse(smalt.Unsupported, "a semaphore of a TPU's copies", "remedy: leave it out, or count in scratch (pltpu.SMEM)")
def a_count_of_copies(right):
    def body(x, o, s, sem):
        pltpu.make_async_copy(x, s, sem).start()
        pltpu.make_async_copy(x, s, sem).wait()
        n = 1.0 if right else pl.semaphore_read(sem).astype(F32)  # BAD
        s[...] += n
        pltpu.sync_copy(s, o)

    return call(body, **DMA)(X)


@misuse(smalt.InvalidKernel, "expected: a target of float32[8, 128]", "remedy: take equal parts of both")
def a_copy_to_another_shape(right):
    def body(x, o, s, sem):
        pltpu.sync_copy(x, o)
        c = pltpu.make_async_copy(x if right else x.at[:8], s, sem)
        c.start()  # BAD
        c.wait()

    return call(body, **DMA)(X)


@misuse(smalt.InvalidKernel, "float32[32, 128]", "got: int32[32, 128]", "remedy: take equal parts of both")
def a_copy_to_another_type(right):
    def body(x, o, s, sem):
        pltpu.sync_copy(x, o)
        c = pltpu.make_async_copy(x, s, sem)
        c.start()  # BAD
        c.wait()

    return call(body, **DMA | {"scratch_shapes": [pltpu.VMEM((32, 128), F32 if right else I32), pltpu.SemaphoreType.DMA]})(X)


@misuse(smalt.Timeout, "deadlock", "remedy: count the signals")
def a_wait_for_what_nobody_signals(right):
    def body(x, o, sem):
        if right:
            pl.semaphore_signal(sem, 1)
        pl.semaphore_wait(sem, 1)  # BAD
        o[...] = x[...]

    return call(body, scratch_shapes=[pltpu.SemaphoreType.REGULAR])(X)


@misuse(smalt.InvalidKernel, "a device id in a kernel that runs on one device", "remedy: call the kernel under jax.shard_map")
def a_signal_to_another_device(right):
    def body(x, o, sem):
        pl.semaphore_signal(sem, 1, **({} if right else {"device_id": 1, "device_id_type": pl.DeviceIdType.LOGICAL}))  # BAD
        pl.semaphore_wait(sem, 1)
        o[...] = x[...]

    return call(body, scratch_shapes=[pltpu.SemaphoreType.REGULAR])(X)


# ------------------------------------------------------------------------------------------ what bodies compute


@misuse(smalt.Unsupported, "fft", "remedy: compute it outside of the kernel")
def a_fourier_transform(right):
    def body(x, o):
        o[...] = x[...] if right else jnp.fft.fft(x[...]).real  # BAD

    return call(body)(X)


@misuse(smalt.Unsupported, "`eigh`", "remedy: compute it outside of the kernel")
def eigenvalues(right):
    def body(x, o):
        v = x[...]
        o[...] = v if right else jnp.broadcast_to(jnp.linalg.eigh(v[:, :8])[0][:, None], (8, 128))  # BAD

    return call(body)(X)


@misuse(smalt.Unsupported, "the primitive `pure_callback`", "remedy: call back outside of the kernel")
def a_callback(right):
    def body(x, o):
        o[...] = x[...] if right else jax.pure_callback(lambda a: a, like((8, 128)), x[...])  # BAD

    return call(body)(X)


@misuse(smalt.Unsupported, "`psum` along an axis of the grid", "remedy: add to a block")
def a_sum_over_an_axis_of_the_grid(right):
    def body(x, o):
        o[...] = x[...] if right else lax.psum(x[...], "i")  # BAD

    return call(body, grid=(("i", 4),))(X)


# ------------------------------------------------------------------------------------------ derivatives


def with_rule(f):
    """As the remedy says: the call with a derivative of its own."""
    g = jax.custom_vjp(f)
    g.defvjp(lambda *xs: (f(*xs), xs), lambda xs, ct: tuple(2 * ct if x.dtype == np.float32 else np.zeros(x.shape, jax.dtypes.float0) for x in xs))
    return g


CUSTOM = "remedy: write the backward kernel, and give the call to jax.custom_vjp"


@misuse(smalt.Unsupported, "operands that share the buffers of results", CUSTOM)
def gradient_of_shared_buffers(right):
    f = call(twice, input_output_aliases={0: 0})
    f = with_rule(f) if right else f
    return jax.grad(lambda x: f(x).sum())(X)  # BAD


@misuse(smalt.Unsupported, "a store to args[0]", CUSTOM)
def gradient_of_an_input_that_is_stored_to(right):
    def body(x, o):
        x[...] = x[...] * 2
        o[...] = x[...]

    f = call(body)
    f = with_rule(f) if right else f
    return jax.grad(lambda x: f(x).sum())(X)  # BAD


@misuse(smalt.Unsupported, "steps that depend on each other", "scratch s", CUSTOM)
def gradient_of_scratch_that_lasts(right):
    def body(x, o, s):
        @pl.when(pl.program_id(0) == 0)
        def _():
            s[...] = jnp.zeros_like(s)

        s[...] += x[...]
        o[...] = s[...]

    f = call(body, scratch_shapes=[pltpu.VMEM((8, 128), F32)])
    f = with_rule(f) if right else f
    return jax.grad(lambda x: f(x).sum())(X)  # BAD


@misuse(smalt.Unsupported, "steps that write the same block of outputs", CUSTOM)
def gradient_of_a_result_that_steps_share(right):
    f = call(twice, out_shape=like((8, 128)), out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)))
    g = jax.custom_vjp(f)
    g.defvjp(lambda x: (f(x), None), lambda _, ct: (jnp.zeros((32, 128)).at[24:].set(2 * ct),))
    f = g if right else f
    return jax.grad(lambda x: f(x).sum())(X)  # BAD


@misuse(smalt.Unsupported, "a load from outputs, which a step may not have stored", CUSTOM)
def gradient_of_a_sum_over_steps(right):
    def body(x, o):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o[...] = jnp.zeros_like(o)

        o[...] += x[...]

    f = call(body, out_shape=like((8, 128)), out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)))
    g = jax.custom_vjp(f)
    g.defvjp(lambda x: (f(x), None), lambda _, ct: (jnp.tile(ct, (4, 1)),))
    f = g if right else f
    return jax.grad(lambda x: f(x).sum())(X)  # BAD


@misuse(smalt.Unsupported, "what JAX cannot differentiate backwards", CUSTOM)
def gradient_of_a_loop_of_unknown_length(right):
    def body(x, o):
        o[...] = lax.fori_loop(0, pl.program_id(0), lambda i, v: v * 2, x[...])

    f = call(body)
    f = with_rule(f) if right else f
    return jax.grad(lambda x: f(x).sum())(X)  # BAD


@misuse(smalt.Unsupported, "what JAX cannot differentiate backwards", CUSTOM)
def gradient_of_a_scope(right):
    def body(x, o):
        def scope(s):
            s[...] = x[...]
            o[...] = s[...] * 2

        pl.run_scoped(scope, pltpu.VMEM((8, 128), F32))

    f = call(body)
    f = with_rule(f) if right else f
    return jax.grad(lambda x: f(x).sum())(X)  # BAD


@misuse(smalt.Unsupported, "blocks in layouts of one's own", CUSTOM)
def gradient_of_blocks_in_layouts(right):
    spec = plgpu.BlockSpec((8, 128), lambda i: (i, 0), transforms=(plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128)))
    f = call(twice, in_specs=[spec])
    f = with_rule(f) if right else f
    return jax.grad(lambda x: f(x).sum())(X)  # BAD


@misuse(smalt.Unsupported, "jax.grad of a plgpu.kernel", CUSTOM)
def gradient_of_a_kernel(right):
    f = plgpu.kernel(twice, out_type=like((32, 128)))
    f = with_rule(f) if right else f
    return jax.grad(lambda x: f(x).sum())(X)  # BAD


@misuse(smalt.Unsupported, "scratch that holds no numbers", CUSTOM)
def gradient_of_semaphores(right):
    def body(x, o, sem):
        pl.semaphore_signal(sem, 1)
        pl.semaphore_wait(sem, 1)
        o[...] = x[...] * 2

    f = call(body, scratch_shapes=[pltpu.SemaphoreType.REGULAR])
    f = with_rule(f) if right else f
    return jax.grad(lambda x: f(x).sum())(X)  # BAD


@misuse(smalt.Unsupported, "what JAX cannot differentiate backwards", "got: Unimplemented stride support", CUSTOM)
def gradient_of_strides_under_masks(right):
    def body(x, o):
        v = plt.load(x.at[pl.ds(0, 4, 2), :], mask=lax.broadcasted_iota(I32, (4, 128), 0) < 9, other=0.0)
        o[...] = jnp.concatenate([v, v]) * 2

    f = call(body)
    f = with_rule(f) if right else f
    return jax.grad(lambda x: f(x).sum())(X)  # BAD


JVP = "remedy: give the call a derivative of its own: jax.custom_jvp"


def with_tangent(f):
    g = jax.custom_jvp(f)
    g.defjvp(lambda xs, ts: (f(*xs), 2 * ts[0]))
    return g


@misuse(smalt.Unsupported, "derivative of elementwise_inline_asm", JVP)
def tangent_of_assembly(right):
    def body(x, o):
        (o[...],) = plt.elementwise_inline_asm(  # BAD
            "add.f32 $0, $1, $1;", args=[x[...]], constraints="=f,f", pack=1, result_shape_dtypes=[like((8, 128))]
        )

    f = call(body)
    return jax.jvp(with_tangent(f) if right else f, [X], [X])


@misuse(smalt.Unsupported, "derivative of dma_start", JVP)
def tangent_of_a_tpus_copy(right):
    def body(x, o, s, sem):
        pltpu.sync_copy(x, s)  # BAD
        s[...] = s[...] * 2
        pltpu.sync_copy(s, o)

    f = call(body, **DMA)
    return jax.jvp(with_tangent(f) if right else f, [X], [X])


@misuse(smalt.Unsupported, "derivative of atomic_rmw", JVP)
def tangent_of_atomics(right):
    def body(x, c, o):
        plt.atomic_add(o, (slice(None), slice(None)), x[...])  # BAD

    whole = pl.BlockSpec((8, 128), lambda i: (0, 0))
    f = call(body, in_specs=[rows(), whole], out_shape=like((8, 128)), out_specs=whole, input_output_aliases={1: 0})
    g = jax.custom_jvp(f)
    g.defjvp(lambda xs, ts: (f(*xs), ts[0].reshape(4, 8, 128).sum(0)))
    c = np.zeros((8, 128), np.float32)
    return jax.jvp(lambda x: (g if right else f)(x, c), [X], [X])


@misuse(smalt.Unsupported, "with respect to scale, which is prefetched", "remedy: pass it as an operand, too")
def tangent_of_a_prefetched_scalar(right):
    def body(scale, x, o):
        o[...] = x[...] * scale[0]

    spec = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(4,), in_specs=[rows()], out_specs=rows())
    f = pl.pallas_call(body, out_shape=like((32, 128)), grid_spec=spec)
    g = (lambda s, x: f(lax.stop_gradient(s), x)) if right else f
    s = np.float32([3])
    return jax.jvp(g, [s, X], [s, X])  # BAD


@misuse(smalt.Unsupported, "derivative of copy_gmem_to_smem", JVP)
def tangent_of_an_asynchronous_copy(right):
    def body(x, o, s, barrier):
        plgpu.copy_gmem_to_smem(x, s, barrier)  # BAD
        plgpu.barrier_wait(barrier)
        o[...] = s[...] * 2

    f = plgpu.kernel(body, out_type=like((32, 128)), scratch_types=[plgpu.SMEM((32, 128), F32), plgpu.Barrier()])
    return jax.jvp(with_tangent(f) if right else f, [X], [X])


# ------------------------------------------------------------------------------------------ the test


@pytest.mark.parametrize("name", TABLE)
def test_one_error_at_the_users_line(name: str) -> None:
    row = TABLE[name]
    with smalt.emulated(), pytest.raises(row.error) as caught:
        jax.block_until_ready(row.fn(False))
    e = caught.value
    text, at = str(e), 0
    for word in row.words:
        at = text.find(word, at)
        assert at >= 0, f"{word!r} is not in\n{text}"
    assert isinstance(e, smalt.Error) and text.count("remedy:") == 1 and e.remedy
    assert e.where == f"{__file__}:{row.line}", text


@pytest.mark.parametrize("name", TABLE)
def test_what_is_advised_works(name: str) -> None:
    with smalt.emulated():
        jax.block_until_ready(TABLE[name].fn(True))


def test_there_are_sixty() -> None:
    assert len(TABLE) >= 60


if __name__ == "__main__":
    for key, row in TABLE.items():
        if sys.argv[1:] and key not in sys.argv[1:]:
            continue
        for right in False, True:
            try:
                with smalt.emulated():
                    jax.block_until_ready(row.fn(right))
                found = "no error"
            except Exception as e:
                found = f"{type(e).__name__}: {e}"
            if not right or found != "no error":
                print(f"==== {key}, line {row.line}, {'as advised' if right else 'misused'}\n{found}")
