"""`pl.pallas_call` with Mosaic GPU's parameters."""

from __future__ import annotations

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.triton as plt
import jax.numpy as jnp
import numpy as np

import smalt
from tests.corpus.case import case, f16, f32, i32, like

TILED_F16 = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


@case(f32(256, 128), f32(256, 128), reference=lambda x, y: np.maximum(x + y, 0))
def pallas_call_elementwise(x, y):
    def body(x, y, o):
        o[...] = jax.nn.relu(x[...] + y[...])

    spec = pl.BlockSpec((64, 128), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=like((256, 128)),
        grid=(4,),
        in_specs=[spec, spec],
        out_specs=spec,
        compiler_params=smalt.CompilerParams(),
    )(x, y)


@case(f32(64, 64), reference=lambda x: x + 1)
def pallas_call_without_grid(x):
    def body(x, o):
        o[...] = x[...] + 1

    return pl.pallas_call(body, out_shape=like((64, 64)), compiler_params=plgpu.CompilerParams())(x)


@case(f16(256, 256), f16(256, 128), reference=lambda a, b: np.asarray(a, np.float32) @ np.asarray(b, np.float32), tolerance=2e-3)
def pallas_call_matmul(a, b):
    """A sequential axis: the pipeline; an accumulator in scratch; transformed blocks."""

    def body(a, b, o, acc):
        plgpu.wgmma(acc, a, b)
        plgpu.wgmma_wait(0)

        @pl.when(pl.program_id(2) == 3)
        def _():
            o[...] = acc[...]

    return pl.pallas_call(
        body,
        out_shape=like((256, 128)),
        grid=(4, 2, 4),
        in_specs=[
            plgpu.BlockSpec((64, 64), lambda m, n, k: (m, k), transforms=TILED_F16),
            plgpu.BlockSpec((64, 64), lambda m, n, k: (k, n), transforms=TILED_F16),
        ],
        out_specs=plgpu.BlockSpec((64, 64), lambda m, n, k: (m, n)),
        scratch_shapes=[plgpu.ACC((64, 64), jnp.float32)],
        compiler_params=plgpu.CompilerParams(
            dimension_semantics=["parallel", "parallel", "sequential"], max_concurrent_steps=2
        ),
    )(a, b)


@case(f32(4, 64), f32(8, 64), reference=lambda x, y: x + np.arange(4, dtype=np.float32)[:, None] + y[:4])
def pallas_call_program_id_and_gmem(x, y):
    """Squeezed dimensions, grid indices, a whole array in GMEM."""

    def body(x, y, o):
        i = pl.program_id(0)
        o[...] = x[...] + i.astype(jnp.float32) + y[i]

    row = pl.BlockSpec((None, 64), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=like((4, 64)),
        grid=(4,),
        in_specs=[row, pl.BlockSpec(memory_space=plgpu.GMEM)],
        out_specs=row,
        compiler_params=plgpu.CompilerParams(),
    )(x, y)


@case(f32(3, 128, 64), reference=lambda x: x * 2)
def pallas_call_vmapped(x):
    def body(x, o, buf):
        buf[...] = x[...]
        o[...] = buf[...] * 2

    spec = pl.BlockSpec((64, 64), lambda i: (i, 0))
    call = pl.pallas_call(
        body,
        out_shape=like((128, 64)),
        grid=(2,),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[plgpu.SMEM((64, 64), jnp.float32)],
        compiler_params=plgpu.CompilerParams(dimension_semantics=["sequential"], max_concurrent_steps=2),
    )
    return jax.vmap(call)(x)


# ------------------------------------------------------------------------------------------ written for Pallas:Triton


@case(i32(4, 96, low=0, high=16), i32(16, low=0, high=9), reference=lambda x, y: y + np.bincount(x.ravel(), minlength=16).astype(np.int32))
def triton_histogram(x, y):
    """Atomics of steps that run at once, at arrays of indices, under a mask."""

    def body(x, _, o):
        at = plt.load(x.at[pl.program_id(0)], eviction_policy="evict_first")
        plt.atomic_add(o, (at,), jnp.ones(96, jnp.int32), mask=at < 16)

    params = plt.CompilerParams(num_warps=4, num_stages=2)
    return pl.pallas_call(body, out_shape=like((16,), jnp.int32), grid=(4,), input_output_aliases={1: 0}, compiler_params=params)(x, y)


@case(f32(100, low=-3, high=3), reference=lambda x: np.stack([x + x, np.maximum(x, 0)]))
def triton_assembly(x):
    """Texts with LLVM's constraints, of one element and of two; a barrier of the block."""

    def body(x, o):
        like_x = [jax.ShapeDtypeStruct((100,), jnp.float32)]
        (twice,) = plt.elementwise_inline_asm("add.f32 $0, $1, $1;", args=[x[...]], constraints="=f,f", pack=1, result_shape_dtypes=like_x)
        o[0] = twice
        plt.debug_barrier()
        text = "max.f32 $0, $2, 0f00000000; max.f32 $1, $3, 0f00000000;"
        (positive,) = plt.elementwise_inline_asm(text, args=[x[...]], constraints="=f,=f,f,f", pack=2, result_shape_dtypes=like_x)
        o[1] = positive

    return pl.pallas_call(body, out_shape=like((2, 100)), compiler_params=plt.CompilerParams())(x)
