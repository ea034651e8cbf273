"""Bad inputs: each raises one clear error, with the user's line, and the process computes right afterwards.

A row of the table is a function whose offending line ends with `# BAD`: its file and line must be the first place that the
message names. `python -m tests.emulated.errors.test_errors [NAME…]` prints the messages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import inspect
import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.triton as plt
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from jax import lax
from jax._src.pallas.mosaic_gpu import helpers
from jax._src.state.types import TransposeTransform
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import llvm, memref
from smalt import _native
from smalt._messages.schema import MESSAGES
from tests import ROOT
from tests.corpus.case import Arg, called, f16, f32, i32, kernel, like, x64

ACC, SMEM, Barrier = plgpu.ACC, plgpu.SMEM, plgpu.Barrier
F16, F32, I32 = jnp.float16, jnp.float32, jnp.int32
RunTimeError = jax.errors.JaxRuntimeError  # what XLA makes of a custom call's error


@dataclasses.dataclass(frozen=True)
class Bad:
    """One row: a function that must fail, how, and where."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    error: type[Exception]
    words: tuple[str, ...]
    line: int

    def run(self) -> None:
        with smalt.emulated("H100"):
            jax.block_until_ready(jax.jit(self.fn)(*[np.zeros(a.shape, a.dtype) for a in self.args]))


TABLE: dict[str, Bad] = {}


def bad(error: type[Exception], *words: str, args: tuple[Any, ...] = (f32(128),)) -> Any:
    """A row of the table; `words` must stand in the message, in this order."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        lines, first = inspect.getsourcelines(fn)
        marked = [i for i, text in enumerate(lines) if text.rstrip().endswith("# BAD")]
        assert len(marked) <= 1 and fn.__name__ not in TABLE, fn.__name__
        TABLE[fn.__name__] = Bad(fn, args, error, words, first + sum(marked))
        return fn

    return register


def tiled(dtype: Any, swizzle: int = 128) -> tuple[Any, ...]:
    return (plgpu.TilingTransform((8, swizzle // jnp.dtype(dtype).itemsize)), plgpu.SwizzleTransform(swizzle))


# ------------------------------------------------------------------------------------------ what smalt lacks


@bad(smalt.Unsupported, "not supported yet: `eigh`", "remedy: compute it outside of the kernel, and pass", args=(f32(16, 16),))
def unsupported_eigenvalues(x):
    def body(x, o):
        o[...] = lax.linalg.eigh(x[...])[0]  # BAD

    return kernel(body, like((16, 16)))(x)


@bad(smalt.Unsupported, "conv_general_dilated: a convolution with a window of (300,)", "at most 256 taps", "remedy: multiply patches", args=(f32(1, 1, 300),))
def unsupported_convolution(x):
    def body(x, o):
        o[...] = lax.conv(x[...], x[...], (1,), "SAME")  # BAD

    return kernel(body, like((1, 1, 300)))(x)


@bad(smalt.Unsupported, "the primitive `pure_callback`", "remedy: call back outside of the kernel")
def unsupported_callback(x):
    def body(x, o):
        o[...] = jax.pure_callback(lambda a: a, like((128,)), x[...])  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.Unsupported, "`sort` of complex numbers", "remedy: compute it from the real and imaginary parts", args=(Arg((128,), jnp.complex64),))
def unsupported_complex(x):
    def body(x, o):
        o[...] = jnp.sort(x[...])  # BAD

    return kernel(body, like((128,), jnp.complex64))(x)


def factor(value: Any) -> Any:
    return lax.linalg.eigh(value)[0]


@bad(
    smalt.Unsupported,
    "eigh",
    "(factor)\n  in ",
    "(unsupported_in_a_helper.<locals>.body)\n  called from",
    "(unsupported_in_a_helper)",
    args=(f32(16, 16),),
)
def unsupported_in_a_helper(x):
    def body(x, o):
        o[...] = factor(x[...])

    return kernel(body, like((16, 16)))(x)


TABLE["unsupported_in_a_helper"] = dataclasses.replace(
    TABLE["unsupported_in_a_helper"], line=factor.__code__.co_firstlineno + 1
)


def profiled(x, **params):
    def body(x, o):
        o[...] = x[...]

    return kernel(body, like((128,)), params=smalt.CompilerParams(**params), grid=(4096, 4), grid_names=("i", "j"))(x)


@bad(smalt.InvalidKernel, "profile_space of a kernel", "expected: how many ranges", "got: -1", "remedy: leave it at 0")
def invalid_negative_profile(x):
    return profiled(x, profile_space=-1, profile_dir=str(ROOT))


@bad(smalt.InvalidKernel, "profile_dir of a kernel", "expected: a folder that can be written", "/missing: no such folder", "remedy: create it")
def invalid_missing_profile_dir(x):
    return profiled(x, profile_space=8, profile_dir=str(ROOT / "missing"))


@bad(smalt.InvalidKernel, "profile_dir of a kernel", "/README.md: a file", "remedy: create it, or name another one")
def invalid_profile_dir_that_is_a_file(x):
    return profiled(x, profile_space=8, profile_dir=str(ROOT / "README.md"))


@bad(
    smalt.InvalidKernel,
    "a profile of more than 1 GiB",
    "expected: profile_space of at most 4092",
    "got: profile_space 100000, for each of 16384 warpgroups",
    "remedy: set CompilerParams.profile_space to how many ranges",
)
def invalid_profile_that_is_too_large(x):
    return profiled(x, profile_space=100_000, profile_dir=str(ROOT))


for _name in ("negative_profile", "missing_profile_dir", "profile_dir_that_is_a_file", "profile_that_is_too_large"):
    TABLE[f"invalid_{_name}"] = dataclasses.replace(TABLE[f"invalid_{_name}"], line=profiled.__code__.co_firstlineno + 4)


def inline_mgpu_row(layout: Any, dtype: Any = F32, shape: Any = (128,)) -> Any:
    return plgpu.ShapeDtypeStruct(shape, dtype, layout=layout)


ROW = plgpu.Layout.WG_STRIDED((128,), 1)


@bad(smalt.Unsupported, "the MLIR operation `memref.alloc`", "expected: operations of arith", "remedy: write this part with plgpu")
def unsupported_inline_mgpu_operation(x):
    def body(x, o):
        @plgpu.inline_mgpu(arg_types=(ROW,), return_type=inline_mgpu_row(ROW))
        def f(ctx, x):
            memref.alloc(ir.MemRefType.get((4,), ir.F32Type.get()), [], [])
            return x

        o[...] = f(plgpu.layout_cast(x[...], ROW))  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.Unsupported, "the MLIR operation `math.sin`", "got: ", "remedy: ")
def unsupported_inline_mgpu_function(x):
    def body(x, o):
        @plgpu.inline_mgpu(arg_types=(ROW,), return_type=inline_mgpu_row(ROW))
        def f(ctx, x):
            return x.sin()

        o[...] = f(plgpu.layout_cast(x[...], ROW))  # BAD

    return kernel(body, like((128,)))(x)


def copying(load):
    """A function that copies an array to a buffer."""
    return plgpu.inline_mgpu(arg_types=(plgpu.RefType(),) * 3)(load)


def run_copy(body, x):
    return kernel(body, like((64,)), SMEM((64,), F32), Barrier())(x)


@bad(smalt.Unsupported, "`device_id` of the launch context", "expected: cluster_size, async_copy", "remedy: other devices, waits and barriers are plgpu's")
def unsupported_inline_mgpu_context(x):
    def body(x, o):
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
        def f(ctx, x):
            ctx.device_id()

        f(x)  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.Unsupported, "`async_copy(gmem_peer_id=…)` of the launch context", "got: ctx.async_copy", "remedy: other devices", args=(f32(64),))
def inline_mgpu_copy_to_another_device(x):
    def body(x, o, b, bar):
        copying(lambda ctx, x, b, bar: ctx.async_copy(src_ref=x, dst_ref=b, barrier=bar, gmem_peer_id=1))(x, b, bar)  # BAD

    return run_copy(body, x)


@bad(smalt.InvalidKernel, "failed", "expected: a function that builds MLIR", "got: ValueError: Barriers are required", "remedy: ", args=(f32(64),))
def inline_mgpu_copy_without_a_barrier(x):
    def body(x, o, b, bar):
        copying(lambda ctx, x, b, bar: ctx.async_copy(src_ref=x, dst_ref=b))(x, b, bar)  # BAD

    return run_copy(body, x)


@bad(smalt.InvalidKernel, "failed", "got: ValueError: Expected the SMEM reference to have the same shape", "remedy: ", args=(f32(64),))
def inline_mgpu_copy_of_another_shape(x):
    def body(x, o, b, bar):
        copying(lambda ctx, x, b, bar: ctx.async_copy(src_ref=x, dst_ref=b, barrier=bar, gmem_slice=mgpu.ds(0, 32)))(x, b, bar)  # BAD

    return run_copy(body, x)


@bad(smalt.InvalidKernel, "a copy of device memory", "got: one that was made of it", "remedy: slice it in the copy", args=(f32(64),))
def inline_mgpu_copy_of_a_slice_in_the_function(x):
    def load(ctx, x, b, bar):
        ctx.async_copy(src_ref=mgpu_utils.memref_slice(x, mgpu.ds(0, 64)), dst_ref=b, barrier=bar)

    def body(x, o, b, bar):
        copying(load)(x, b, bar)  # BAD

    return run_copy(body, x)


@bad(
    smalt.Unsupported,
    "inline_mgpu: a tensor map over f32[64] of ",
    "expected: a reference that begins at a multiple of 16 bytes",
    "got: a slice that begins at byte 4",
    "remedy: pass the whole reference, and slice it in the copy (gmem_slice=)",
    args=(f32(128),),
)
def inline_mgpu_copy_of_a_slice(x):
    def body(x, o, b, bar):
        copying(lambda ctx, x, b, bar: ctx.async_copy(src_ref=x, dst_ref=b, barrier=bar))(x.at[pl.ds(1, 64)], b, bar)  # BAD

    return run_copy(body, x)


@bad(smalt.InvalidKernel, "result 0 of `f`", "expected: the layout WGStridedFragLayout(shape=(128,), vec_size=1), as in return_type", "got: ", "remedy: return what return_type says")
def inline_mgpu_of_another_layout(x):
    def body(x, o):
        @plgpu.inline_mgpu(arg_types=(ROW,), return_type=inline_mgpu_row(ROW))
        def f(ctx, x):
            return mgpu.FragmentedArray.splat(mgpu.c(1.0, ir.F32Type.get()), (128,))

        o[...] = f(plgpu.layout_cast(x[...], ROW))  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "result 0 of `f`", "expected: elements of type f16, as in return_type", "got: f32")
def inline_mgpu_of_another_type(x):
    def body(x, o):
        @plgpu.inline_mgpu(arg_types=(ROW,), return_type=inline_mgpu_row(ROW, F16))
        def f(ctx, x):
            return x

        o[...] = f(plgpu.layout_cast(x[...], ROW))  # BAD

    return kernel(body, like((128,), F16))(x)


@bad(smalt.InvalidKernel, "result 0 of `f`", "expected: the shape (256,), as in return_type", "got: (128,)")
def inline_mgpu_of_another_shape(x):
    def body(x, o):
        @plgpu.inline_mgpu(arg_types=(ROW,), return_type=inline_mgpu_row(plgpu.Layout.WG_STRIDED((256,), 1), shape=(256,)))
        def f(ctx, x):
            return x

        o[...] = f(plgpu.layout_cast(x[...], ROW))  # BAD

    return kernel(body, like((256,)))(x)


@bad(smalt.InvalidKernel, "what `f` returns", "remedy: return a FragmentedArray for each plgpu.ShapeDtypeStruct")
def inline_mgpu_of_fewer_results(x):
    def body(x, o):
        @plgpu.inline_mgpu(arg_types=(ROW,), return_type=(inline_mgpu_row(ROW), inline_mgpu_row(ROW)))
        def f(ctx, x):
            return x

        o[...] = f(plgpu.layout_cast(x[...], ROW))[0]  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "result 0 of `f`", "expected: a FragmentedArray", "got: float")
def inline_mgpu_of_a_number(x):
    def body(x, o):
        @plgpu.inline_mgpu(return_type=inline_mgpu_row(ROW))
        def f(ctx):
            return 1.0

        o[...] = f()  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "`f` failed", "got: ZeroDivisionError: division by zero (line", "1 / 0")
def inline_mgpu_that_raises(x):
    def body(x, o):
        @plgpu.inline_mgpu()
        def f(ctx):
            1 / 0

        f()  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "`f` failed", "got: TypeError: ", "takes 1 positional argument but 2 were given")
def inline_mgpu_of_more_arguments(x):
    def body(x, o):
        @plgpu.inline_mgpu(arg_types=(ROW,))
        def f(ctx):
            pass

        f(plgpu.layout_cast(x[...], ROW))  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "the transforms of a reference", "expected: those of its RefType: tiling (8, 32), swizzle 128", "got: none", args=(f32(64, 64),))
def inline_mgpu_of_other_transforms(x):
    def body(x, o, buffer):
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(tiled(F32)),))
        def f(ctx, buffer):
            pass

        f(buffer)  # BAD

    params = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane)
    return kernel(body, like((64, 64)), SMEM((64, 64), F32), params=params)(x)


@bad(smalt.Unsupported, "a row of a tiled reference", "remedy: slice whole tiles, and index in the function", args=(f32(64, 64),))
def unsupported_inline_mgpu_row(x):
    def body(x, o, buffer):
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(tiled(F32)),))
        def f(ctx, buffer):
            pass

        f(buffer.at[3])  # BAD

    return kernel(body, like((64, 64)), SMEM((64, 64), F32, transforms=tiled(F32)))(x)


@bad(smalt.InvalidKernel, "no instruction of smalt's table", "got: `frobnicate.b32", "remedy: ", args=(i32(128),))
def inline_mgpu_of_unknown_assembly(x):
    def body(x, o):
        @plgpu.inline_mgpu(arg_types=(plgpu.Layout.WG_SPLAT(()),))
        def f(ctx, n):
            llvm.inline_asm(ir.Type.parse("!llvm.void"), [n.registers.item()], "frobnicate.b32 $0;", "r", has_side_effects=True)

        f(x[0])  # BAD

    return kernel(body, like((128,), I32))(x)


@bad(smalt.InvalidKernel, "which is an input", "expected: a write to an output")
def inline_mgpu_that_stores_to_an_input(x):
    def body(x, o):
        @plgpu.inline_mgpu(arg_types=(ROW, plgpu.RefType()))
        def f(ctx, v, x):
            v.store_untiled(x, optimized=False)

        f(plgpu.layout_cast(x[...], ROW), x)  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "inline_mgpu of arrays in a warp region", "remedy: call it outside of the warp region")
def inline_mgpu_of_arrays_in_a_warp(x):
    def body(x, o):
        @plgpu.inline_mgpu(return_type=inline_mgpu_row(ROW))
        def f(ctx):
            return mgpu.FragmentedArray.splat(mgpu.c(1.0, ir.F32Type.get()), (128,), mgpu.WGStridedFragLayout((128,), 1))

        @pl.core_map(plgpu.WarpMesh(axis_name="warp"))
        def warps():
            f()  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.Unsupported, "arrays as indices of a copy", "sm_100a", "remedy: copy row by row in a loop")
def unsupported_gather_copy(x):
    def body(x, o, rows, buf, bar):
        plgpu.copy_gmem_to_smem(x.at[rows[...]], buf, bar)  # BAD
        plgpu.barrier_wait(bar)

    return kernel(body, like((128,)), SMEM((128,), jnp.int32), SMEM((128,), F32), Barrier())(x)


@bad(smalt.ExecutionError, "a check failed: not positive: 0.0, and 3.50")
def check_that_fails(x):
    def body(x, o):
        from jax.experimental import checkify

        checkify.check(x[0] > 0, "not positive: {}, and {y:.2f}", x[0], y=x[1] + 3.5)  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.ExecutionError, "a check failed: [0.0, 0.0] in block 2", "got: in block (2, 1), warpgroup 1")
def check_that_fails_in_one_block(x):
    def body(x, o):
        from jax.experimental import checkify

        i, j, wg = lax.axis_index("i"), lax.axis_index("j"), lax.axis_index("wg")
        checkify.check((i != 2) | (j != 1) | (wg != 1), "{} in block {}", x[0:2], i)  # BAD
        o[i, j, wg] = x[...]

    return kernel(body, like((3, 2, 2, 128)), grid=(3, 2), grid_names=("i", "j"), num_threads=2, thread_name="wg")(x)


@bad(smalt.InvalidKernel, "the format 'not {} but {}' of a print", "got: 1 argument: Replacement index 1", "remedy: pass what each {}")
def check_that_says_more_than_there_is(x):
    def body(x, o):
        from jax.experimental import checkify

        checkify.check(x[0] > 0, "not {} but {}", x[0])  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "the format '{} and {}' of a print", "with an argument for each field", "got: 1 argument: Replacement index 1", "remedy: pass what each {}")
def print_of_more_than_there_is(x):
    def body(x, o):
        pl.debug_print("{} and {}", x[0])  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "the format '{}' of a print", "expected: a field for each argument", "got: none for argument 1 of 2", "remedy: add a {}")
def print_of_less_than_there_is(x):
    def body(x, o):
        pl.debug_print("{}", x[0], x[1])  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "the format '{}, {name}' of a print", "got: 1 argument: no 'name'", "remedy: pass what each {}")
def print_of_an_unknown_name(x):
    def body(x, o):
        pl.debug_print("{}, {name}", x[0])  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "a format specification of a print that does not fit", "expected: one of e, E, f", "got: type \"x\" for argument 0 of type float32")
def print_of_a_float_in_hexadecimal(x):
    def body(x, o):
        pl.debug_print("{:x}", x[0])  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "the format \"{:5q}\" of a print", "expected: Python's format syntax", "got: the specification \"5q\"", "remedy: ")
def print_with_a_broken_specification(x):
    def body(x, o):
        pl.debug_print("{:5q}", x[0])  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.Unsupported, "a complex operand", "remedy: pass the real and imaginary parts")
def print_of_complex_numbers(x):
    def body(x, o):
        pl.debug_print("{} {}", x[0] + 1j, x[1])  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "a reference as an argument of a print", "expected: scalars and arrays", "remedy: load it first: ref[...]")
def print_of_a_reference(x):
    def body(x, o):
        pl.debug_print("{}", x)  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "a reference as an argument of a print", "expected: scalars and arrays", "remedy: load it first: ref[...]", args=(f16(64, 64),))
def print_of_an_accumulator_in_flight(x):
    def body(x, o):
        def scoped(acc, a):
            a[...] = x[...]
            plgpu.commit_smem()
            plgpu.wgmma(acc, a, a)
            pl.debug_print("{}", acc)  # BAD
            o[...] = acc[...]

        tiles = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
        pl.run_scoped(scoped, ACC((64, 64), F32), SMEM((64, 64), F16, transforms=tiles))

    return kernel(body, like((64, 64)))(x)


@bad(smalt.InvalidKernel, "a device id in a kernel that runs on one device", "remedy: call the kernel under jax.shard_map", args=(f32(2, 64),))
def remote_reference_without_a_mesh(x):
    def body(x, o):
        o[...] = plgpu.remote_ref(x, 1)[...]  # BAD

    return kernel(body, like((2, 64)))(x)


@bad(smalt.InvalidKernel, "a device id in a kernel that runs on one device", "remedy: call the kernel under jax.shard_map")
def remote_semaphore_without_a_mesh(x):
    def body(x, o, sem):
        pl.semaphore_signal(sem, 1, device_id=0)  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)), plgpu.SemaphoreType.REGULAR)(x)


@bad(smalt.Unsupported, "tensor memory (tcgen05) on sm_90a", "expected: a GPU that has this: sm_100a", "remedy: multiply arrays", args=(f32(128, 128),))
def unsupported_tensor_memory(x):
    def body(x, o, tmem):
        o[...] = plgpu.async_load_tmem(tmem)  # BAD

    return kernel(body, like((128, 128)), plgpu.TMEM((128, 128), F32))(x)


@bad(smalt.Unsupported, "the target sm_42", "expected: sm_80, ", "remedy: leave CompilerParams.target")
def unsupported_target(x):
    def body(x, o):
        o[...] = x[...]

    return kernel(body, like((128,)), params=smalt.CompilerParams(target="sm_42"))(x)  # BAD


@bad(smalt.Unsupported, "a warp region inside of a warp region", "remedy: branch on the warp's index")
def unsupported_nested_warp_regions(x):
    def body(x, o):
        @helpers.warp_map
        def _(warp):
            inner = lambda w: None  # noqa: E731
            helpers.warp_map(inner)  # BAD

        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.Unsupported, "scratch of several threads allocated inside of a warp region", "remedy: leave collective_axes out")
def unsupported_scratch_of_several_threads_of_a_warp(x):
    def body(x, o):
        @helpers.warp_map
        def _(warp):
            pl.run_scoped(lambda s: None, SMEM((2, 128), F32), collective_axes="wg")  # BAD

        o[...] = x[...]

    return kernel(body, like((128,)), num_threads=2, thread_name="wg")(x)


@bad(smalt.Unsupported, "a union of references allocated inside of a warp region", "remedy: allocate it before the warp region")
def unsupported_union_of_a_warp(x):
    def body(x, o):
        def scope(union):
            a, b = union
            a[...] = x[...]

        @helpers.warp_map
        def _(warp):
            pl.run_scoped(scope, plgpu.RefUnion(SMEM((128,), F32), SMEM((64,), F32)))  # BAD

        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.Unsupported, "leader-tracked cluster barriers over several axes", "remedy: name one axis")
def unsupported_leader_of_several_axes(x):
    def body(x, o, bar):
        plgpu.barrier_arrive(bar)  # BAD
        o[...] = x[...]

    bar = plgpu.ClusterBarrier(collective_axes=("a", "b"), leader_tracked=True)
    return kernel(body, like((128,)), bar, cluster=(2, 2), cluster_names=("a", "b"))(x)


@bad(smalt.InvalidKernel, "an accumulator allocated inside of a warp region", "remedy: carry an array through the loop")
def an_accumulator_of_a_warp(x):
    def body(x, o):
        @helpers.warp_map
        def _(warp):
            pl.run_scoped(lambda acc: None, plgpu.ACC((64, 64), F32))  # BAD

        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "layout WGMMA in a warp region", "got: one in which the four warps hold different elements", "remedy: leave the layout")
def a_layout_of_four_warps_in_a_warp(x):
    def body(x, o):
        @helpers.warp_map
        def _(warp):
            o[...] = plgpu.layout_cast(x[...], plgpu.Layout.WGMMA)  # BAD

    return kernel(body, like((64, 64)))(jnp.zeros((64, 64), jnp.float32))


# What legality refuses, by types and views.


@bad(smalt.Unsupported, "nextafter of f16", args=(f16(128),))
def unsupported_function_of_a_type(x):
    def body(x, o):
        o[...] = lax.nextafter(x[...], x[...])  # BAD

    return kernel(body, like((128,), F16))(x)


@bad(smalt.Unsupported, "conversion to float8_e8m0fnu", "remedy: compute the exponents plus 127 as uint8")
def unsupported_conversion(x):
    def body(x, o):
        o[...] = x[...].astype(jnp.float8_e8m0fnu).astype(F32)  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.Unsupported, "atomic_update: max of f32", "remedy: update int32", "maximum or minimum of float16")
def unsupported_atomic_maximum(x):
    def body(x, o):
        plgpu.atomic_max(o, x[...])  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.Unsupported, "atomic_update: add of i16", args=(Arg((128,), jnp.int16),))
def unsupported_atomic_of_a_type(x):
    def body(x, o):
        plgpu.atomic_add(o, x[...])  # BAD

    return kernel(body, like((128,), jnp.int16))(x)


@bad(
    smalt.Unsupported, "blocks of complex numbers that reach outside", "remedy: choose blocks that divide", args=(Arg((2, 9), jnp.complex64),)
)
def unsupported_complex_block_outside(x):
    def body(x, o):
        o[...] = x[...].real

    spec = pl.BlockSpec((2, 6), lambda i: (0, i))
    return pl.pallas_call(body, out_shape=like((2, 9)), grid=(2,), in_specs=[spec], out_specs=spec)(x)  # BAD


@bad(smalt.Unsupported, "strided slices", "remedy: take all of them and slice the array")
def unsupported_strided_slice(x):
    """A copy of them: loads and stores go element by element."""

    def body(x, o, s, bar):
        plgpu.copy_gmem_to_smem(x.at[pl.ds(0, 64, stride=2)], s, bar)  # BAD
        plgpu.barrier_wait(bar)
        o[...] = s[...]

    return kernel(body, like((64,)), plgpu.SMEM((64,), jnp.float32), plgpu.Barrier())(x)


@bad(smalt.Unsupported, "a view of what an array of indices takes", "remedy: index last", args=(f32(128), i32(8)))
def unsupported_view_of_gather(x, rows):
    def body(x, rows, o):
        o[...] = x.at[rows[...]].at[pl.ds(0, 8)][...]  # BAD

    return kernel(body, like((8,)))(x, rows)


@bad(smalt.Unsupported, "a store of 15 elements of i4", "expected: a multiple of 2", "remedy: pad the array", args=(i32(3, 5),))
def unsupported_half_byte(x):
    def body(x, o):
        o[pl.ds(0, 3), pl.ds(0, 5)] = x[...].astype(jnp.int4)  # BAD

    return kernel(body, like((5, 8), jnp.int4))(x)


@bad(smalt.Unsupported, "4-bit elements at addresses that are not whole bytes", "remedy: store slices that begin and end with whole bytes", args=())
def unsupported_column_of_half_bytes():
    def body(o):
        o[:, 0:1] = jnp.zeros((8, 1), jnp.int32).astype(jnp.int4) + jnp.int4(1)  # BAD

    return kernel(body, like((8, 4), jnp.int4))()


@bad(smalt.Unsupported, "4-bit elements at addresses that are not whole bytes", "or keep the array as int8", args=(i32(3, 4),))
def unsupported_odd_columns_of_half_bytes(x):
    def body(x, o):
        o.transpose((1, 0))[...] = x[...].astype(jnp.int4)  # BAD

    return kernel(body, like((4, 3), jnp.int4))(x)


@bad(smalt.InvalidKernel, "wgmma accumulator", "M a multiple of 64", "got: acc f32[96,64]", "remedy: change the tile's shape", args=())
def accumulator_of_odd_shape():
    def body(o):
        o[...] = pl.run_scoped(lambda acc: acc[...], ACC((96, 64), F32))  # BAD

    return kernel(body, like((96, 64)))()


@bad(smalt.InvalidKernel, "shared memory", "at most 232448 bytes", "2097184 bytes: cumsum to f32[4096,128]", "remedy: work on smaller blocks", args=(f32(4096, 128),))
def too_long_a_running_sum(x):
    def body(x, o):
        o[...] = lax.cumsum(x[...], axis=0)  # BAD

    return kernel(body, like((4096, 128)))(x)


@bad(smalt.Unsupported, "for: an array of 1024 elements a thread", "expected: at most 512", "remedy:", args=(f32(1024, 128),))
def too_long_a_loop_over_an_array(x):
    def body(x, o):
        _, o[...] = lax.scan(lambda c, row: (c, row * 2), 0, x[...])  # BAD

    return kernel(body, like((1024, 128)))(x)


@bad(smalt.InvalidKernel, "the grid's size", "got: [1073741824] clusters of [2]", "remedy: give each block more work")
def too_large_a_grid_of_clusters(x):
    def body(x, o):
        o[...] = x[...]

    return kernel(body, like((128,)), grid=(1 << 30,), grid_names=("a",), cluster=(2,), cluster_names=("c",))(x)  # BAD


# ------------------------------------------------------------------------------------------ resources


@bad(
    smalt.InvalidKernel,
    "shared memory",
    "expected: at most 232448 bytes for a block",
    "got: 295",
    "262144 bytes: f32[256, 256]",
    "32768 bytes: f16[128, 128]",
    "all barriers, and what aligns them",
    "remedy: use smaller tiles, fewer pipeline stages",
)
def too_much_shared_memory(x):
    def body(x, o):
        def scope(small, large):
            small[...] = jnp.zeros((128, 128), F16)
            large[...] = jnp.zeros((256, 256), F32)
            o[...] = large[0, :128] + small[0].astype(F32)

        pl.run_scoped(scope, SMEM((128, 128), F16), SMEM((256, 256), F32))  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.Unsupported, "an array of 100 barriers", "expected: at most 32", "remedy: use several barrier arrays")
def too_many_barriers(x):
    def body(x, o, bars):
        plgpu.barrier_arrive(bars.at[70])
        plgpu.barrier_wait(bars.at[70])
        o[...] = x[...]

    return kernel(body, like((128,)), Barrier(num_barriers=100))(x)  # BAD


@bad(smalt.InvalidKernel, "a barrier's number of arrivals", "from 1 to 4096", "got: 100000", "remedy: count")
def too_many_arrivals(x):
    def body(x, o, bar):
        plgpu.barrier_arrive(bar)
        o[...] = x[...]

    return kernel(body, like((128,)), Barrier(num_arrivals=100000))(x)  # BAD


@bad(smalt.InvalidKernel, "too many Pallas threads", "num_threads <= 8", "got: num_threads = 9", "remedy: use fewer threads")
def too_many_threads(x):
    def body(x, o):
        o[...] = x[...]

    return kernel(body, like((128,)), num_threads=9, thread_name="wg")(x)  # BAD


@bad(
    smalt.InvalidKernel,
    "set_max_registers: more registers than a block has",
    "expected: at most 504",
    "got: 40 + 240 + 240 = 520",
    "remedy: let the warpgroups that only issue copies decrease to 24 or 40",
)
def too_many_registers(x):
    def body(x, o):
        wg = lax.axis_index("wg")

        @pl.when(wg == 0)
        def _():
            plgpu.set_max_registers(40, action="decrease")

        @pl.when(wg > 0)
        def _():
            plgpu.set_max_registers(240, action="increase")  # BAD
            o[...] = x[...]

    return kernel(body, like((128,)), num_threads=3, thread_name="wg")(x)


@bad(
    smalt.InvalidKernel,
    "set_max_registers: more registers than a block has",
    "expected: at most 480",
    "got: 40 + 112 + 112 + 112 + 112 = 488",
    "remedy: let",
)
def more_registers_than_five_warpgroups_begin_with(x):
    def body(x, o):
        wg = lax.axis_index("wg")

        @pl.when(wg == 0)
        def _():
            plgpu.set_max_registers(40, action="decrease")

        @pl.when(wg > 0)
        def _():
            plgpu.set_max_registers(112, action="increase")  # BAD
            o[...] = x[...]

    return kernel(body, like((128,)), num_threads=5, thread_name="wg")(x)


@bad(smalt.InvalidKernel, "set_max_registers: more registers than a block has", "got: 2147483640 + 2147483640 + 2147483640 = 6442450920", "remedy: let")
def more_registers_than_can_be_counted(x):
    def body(x, o):
        plgpu.set_max_registers(2**31 - 8, action="increase")  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)), num_threads=3, thread_name="wg")(x)


@bad(smalt.InvalidKernel, "the cluster's size", "1 to 16 blocks", "got: [32]", "remedy: use a smaller cluster")
def too_large_a_cluster(x):
    def body(x, o):
        o[...] = x[...]

    return kernel(body, like((128,)), cluster=(32,), cluster_names=("c",))(x)  # BAD


@bad(smalt.InvalidKernel, "the grid's size", "fewer than 2^31 blocks", "got: [65536, 65536]", "remedy: give each block more work")
def too_large_a_grid(x):
    def body(x, o):
        o[...] = x[...]

    return kernel(body, like((128,)), grid=(65536, 65536), grid_names=("a", "b"))(x)  # BAD


@bad(smalt.InvalidKernel, "a grid without blocks", "got: [3, 0]", "remedy: do not call the kernel for an empty array")
def empty_grid(x):
    def body(x, o):
        o[...] = x[...]

    return kernel(body, like((128,)), grid=(3, 0), grid_names=("a", "b"))(x)  # BAD


# ------------------------------------------------------------------------------------------ layouts and copies


@bad(smalt.InvalidKernel, "layout WGMMA", "its tile [64, 8] covers", "got: [128]", "remedy: cast to another layout")
def impossible_layout(x):
    def body(x, o):
        o[...] = plgpu.layout_cast(x[...], plgpu.Layout.WGMMA)  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "layout WG_STRIDED", "expected: arguments that fit", "got: ", "100", "remedy: give it another shape", args=(f32(100),))
def impossible_strided_layout(x):
    def body(x, o):
        o[...] = plgpu.layout_cast(x[...], plgpu.Layout.WG_STRIDED((100,), vec_size=1))  # BAD

    return kernel(body, like((100,)))(x)


@bad(
    smalt.Unsupported,
    "copy_gmem_to_smem",
    f"got: f16[8, 16] of {called('x')}argument 0 of the kernel (f16[128, 16] in GMEM): the SMEM view starts at an offset only known to be a multiple of 32 bytes; the copy needs 128",
    "remedy: copy to whole slots",
    "pl.multiple_of",
    args=(f16(128, 16),),
)
def misaligned_slice_of_a_swizzled_buffer(x):
    def body(x, o, buf, bar):
        i = lax.axis_index("i")
        plgpu.copy_gmem_to_smem(x.at[pl.ds(0, 8)], buf.at[pl.ds(i * 3, 8)], bar)  # BAD
        plgpu.barrier_wait(bar)
        o[i] = buf[pl.ds(0, 8)]

    buf = SMEM((128, 16), F16, transforms=tiled(F16, 32))
    return kernel(body, like((4, 8, 16), F16), buf, Barrier(), grid=(4,), grid_names=("i",))(x)


@bad(
    smalt.InvalidKernel,
    "copy_gmem_to_smem",
    "begins at element 3 of the minor dimension, no multiple of 8: a GPU takes that for an illegal instruction",
    "remedy: begin at a multiple of 8 and slice what was copied",
    args=(f16(128, 128),),
)
def copy_that_begins_within_16_bytes_as_is_known(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x.at[pl.ds(0, 8), pl.ds(3, 64)], buf, bar)  # BAD
        plgpu.barrier_wait(bar)
        o[...] = buf[...]

    return kernel(body, like((8, 64), F16), SMEM((8, 64), F16), Barrier())(x)


@bad(
    smalt.InvalidKernel,
    "copy_smem_to_gmem",
    "begins at element 20 of the minor dimension, no multiple of 16",
    "remedy: begin at a multiple of 16",
    args=(i32(8, 16),),
)
def store_that_begins_within_16_bytes_as_is_known(x):
    def body(x, o, buf):
        i = lax.axis_index("i")
        buf[...] = x[...].astype(jnp.int8)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buf, o.at[pl.ds(i * 8, 8), pl.ds(20, 16)])  # BAD
        plgpu.wait_smem_to_gmem(0)

    return kernel(body, like((16, 64), jnp.int8), SMEM((8, 16), jnp.int8), grid=(2,), grid_names=("i",))(x)


@bad(
    smalt.InvalidKernel,
    "copy_gmem_to_smem",
    "the minor dimension is not contiguous in GMEM",
    "remedy: transpose the array outside of the kernel, or load it with ref[...]",
    args=(f32(64, 128),),
)
def copy_to_a_transposed_allocation(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x, buf, bar)  # BAD
        plgpu.barrier_wait(bar)
        o[...] = buf[...]

    return kernel(body, like((64, 128)), SMEM((64, 128), F32, transforms=(TransposeTransform((1, 0)),)), Barrier())(x)


@bad(
    smalt.Unsupported,
    "a swizzle in front of a transposition of an allocation",
    "expected: plgpu.SwizzleTransform as the last one",
    "remedy: transposition and tiling first, in either order, then the swizzle",
    args=(f32(64, 32),),
)
def swizzle_in_front_of_a_transposition(x):
    def body(x, o, buf):
        buf[...] = x[...]
        o[...] = buf[...]

    transforms = (plgpu.SwizzleTransform(128), TransposeTransform((1, 0)))
    return kernel(body, like((64, 32)), SMEM((64, 32), F32, transforms=transforms))(x)  # BAD


@bad(
    smalt.Unsupported,
    "elements of type i4 that are chosen by a mask or stored at indices of an array",
    "expected: elements of whole bytes",
    "remedy: load or store a slice of them, or one at a time, or keep them as int8",
    args=(Arg((128,), jnp.int4), i32(128)),
)
def narrow_elements_at_indices(x, at):
    def body(x, at, o):
        o[...] = x[...]
        o[at[...]] = x[...]  # BAD

    return kernel(body, like((128,), jnp.int4))(x, at)


@bad(
    smalt.ExecutionError,
    "a copy whose start along the minor dimension is no multiple of 16 bytes",
    "expected: a multiple of 8 elements of 2 bytes",
    "got: [8, 64] at [0, 3]",
    "remedy: start there and slice what was copied",
    args=(f16(128, 128), Arg((), jnp.int32)),
)
def copy_that_begins_within_16_bytes(x, start):
    def body(x, start, o, buf, bar):
        plgpu.copy_gmem_to_smem(x.at[pl.ds(0, 8), pl.ds(start[...] + 3, 64)], buf, bar)  # BAD
        plgpu.barrier_wait(bar)
        o[...] = buf[...]

    return kernel(body, like((8, 64), F16), SMEM((8, 64), F16), Barrier())(x, start)


@bad(
    smalt.Unsupported,
    "copy_gmem_to_smem",
    "multiple of 2 bytes; the copy needs 128",
    "remedy: copy to whole slots",
    args=(f16(128, 64),),
)
def misaligned_slice_of_a_buffer(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x.at[0], buf.at[pl.ds(3, 64)], bar)  # BAD
        plgpu.barrier_wait(bar)
        o[...] = buf[pl.ds(3, 64)]

    return kernel(body, like((64,), F16), SMEM((128,), F16), Barrier())(x)


@bad(
    smalt.InvalidKernel,
    "copy_gmem_to_smem",
    "a stride of 4004 bytes in GMEM is no multiple of 16",
    "remedy: pad the array's minor dimension",
    args=(f32(8, 1001),),
)
def stride_that_no_copy_takes(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x.at[:, pl.ds(0, 64)], buf, bar)  # BAD
        plgpu.barrier_wait(bar)
        o[...] = buf[...]

    return kernel(body, like((8, 64)), SMEM((8, 64), F32), Barrier())(x)


@bad(smalt.InvalidKernel, 'the collective axis "i"', "an axis of the cluster", "got: an axis of the grid", "remedy: move the axis")
def shared_copy_over_the_grid(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x, buf, bar, collective_axes="i")  # BAD
        plgpu.barrier_wait(bar)
        o[...] = buf[...]

    return kernel(body, like((128,)), SMEM((128,), F32), Barrier(), grid=(2,), grid_names=("i",))(x)


@bad(smalt.InvalidKernel, "a collective axis", "an axis of the cluster", "got: the thread axis", "remedy: name axes of cluster=")
def cluster_barrier_over_threads(x):
    def body(x, o, bar):
        plgpu.barrier_arrive(bar)
        o[...] = x[...]

    barrier = plgpu.ClusterBarrier(collective_axes=("wg",))
    return kernel(body, like((128,)), barrier, num_threads=2, thread_name="wg", cluster=(2,), cluster_names=("c",))(x)  # BAD


@bad(smalt.InvalidKernel, f"`store` to {called('x')}argument 0", "which is an input", "remedy: make the argument a mutable reference")
def store_to_an_input(x):
    def body(x, o):
        x[...] = x[...] * 2  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "memory or barriers of one thread", "remedy: pass collective_axes to pl.run_scoped", args=(f32(64, 64),))
def private_shared_memory(x):
    def body(x, o):
        def scope(buf):
            buf[...] = x[...]
            o[...] = buf[...]

        pl.run_scoped(scope, SMEM((64, 64), F32))  # BAD

    return kernel(body, like((64, 64)), num_threads=2, thread_name="wg")(x)


@bad(smalt.InvalidKernel, "copy_gmem_to_smem", "96 bits, no multiple of 16 bytes", "remedy: copy rows of a multiple", args=(f32(64, 8),))
def copy_of_twelve_byte_rows(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x.at[:, pl.ds(0, 3)], buf, bar)  # BAD
        plgpu.barrier_wait(bar)
        o[...] = buf[...]

    return kernel(body, like((64, 3)), SMEM((64, 3), F32), Barrier())(x)


@bad(
    smalt.Unsupported,
    "copy_gmem_to_smem",
    "the copy needs 7 dimensions; tensor maps have 5",
    "remedy: copy in a loop over the outer dimensions",
    args=(f32(3, 3, 3, 3, 3, 3, 64),),
)
def copy_of_seven_dimensions(x):
    shape = (2, 2, 2, 2, 2, 2, 32)

    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x.at[tuple(pl.ds(0, n) for n in shape)], buf, bar)  # BAD
        plgpu.barrier_wait(bar)
        o[...] = buf[...]

    return kernel(body, like(shape), SMEM(shape, F32), Barrier())(x)


@bad(
    smalt.InvalidKernel,
    "view of a reference",
    "expected: slices of whole tiles",
    "slice of dimension 1 cuts tiles of 64",
    "remedy: start slices at multiples of the tile",
    args=(f16(64, 64),),
)
def slice_through_tiles(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x, buf.at[:, pl.ds(32, 64)], bar)  # BAD
        plgpu.barrier_wait(bar)
        o[...] = buf[:, pl.ds(32, 64)]

    return kernel(body, like((64, 64), F16), SMEM((64, 128), F16, transforms=tiled(F16)), Barrier())(x)


@bad(smalt.InvalidKernel, "on several barriers", "expected: one barrier", "got: shape [2]", "remedy: index the array")
def copy_on_two_barriers(x):
    def body(x, o, buf, bars):
        plgpu.copy_gmem_to_smem(x, buf, bars)  # BAD
        o[...] = buf[...]

    return kernel(body, like((128,)), SMEM((128,), F32), Barrier(num_barriers=2))(x)


@bad(smalt.InvalidKernel, "`set_max_registers`", "expected: a multiple of 8 between 24 and 256", "got: 8", "remedy: take 24 or 40")
def too_few_registers(x):
    def body(x, o):
        plgpu.set_max_registers(8, action="decrease")  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "num_threads of a kernel", "expected: 1 to 8", "got: -1", "remedy: leave it out")
def negative_threads(x):
    def body(x, o):
        o[...] = x[...]

    return kernel(body, like((128,)), num_threads=-1, thread_name="wg")(x)  # BAD


@bad(smalt.InvalidKernel, "`barrier_wait` of something else", "expected: a barrier", "got: `buf`, a scratch buffer (f32[64] in SMEM, op1", "remedy: look at")
def wait_for_a_buffer(x):
    def body(x, o, buf, bar):
        plgpu.barrier_wait(buf)  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)), SMEM((64,), F32), Barrier())(x)


@bad(smalt.InvalidKernel, "`copy_gmem_to_smem` of something else", "expected: a barrier", "got: `buf`, a scratch buffer (f32[128] in SMEM", "remedy: look at")
def copy_with_a_buffer_for_a_barrier(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x, buf, buf)  # BAD
        o[...] = buf[...]

    return kernel(body, like((128,)), SMEM((128,), F32), Barrier())(x)


@bad(smalt.InvalidKernel, "an index outside of its reference, dimension 0", "within 0..4", "got: 7 of `bars`, a scratch buffer (4 barriers in SMEM", "remedy: index")
def barrier_that_is_not_there(x):
    def body(x, o, bars):
        plgpu.barrier_wait(bars.at[7])  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)), Barrier(num_barriers=4))(x)


@bad(smalt.Unsupported, "a bitcast of a reference between widths", "got: `buf`, a scratch buffer (f32[64, 64] in SMEM", "as f16", "remedy: load it")
def bitcast_between_widths(x):
    def body(x, o, buf):
        o[...] = buf.bitcast(F16)[0].astype(F32)[0:1] * x[...]  # BAD

    return kernel(body, like((128,)), SMEM((64, 64), F32))(x)


@bad(smalt.InvalidKernel, "the axis 'c'", "expected: an axis of the kernel", "the axes are: i", "remedy: name it")
def peer_without_a_cluster(x):
    def body(x, o, buf):
        o[...] = plgpu.cluster_ref(buf, {"c": 1})[...]  # BAD

    return kernel(body, like((128,)), SMEM((128,), F32), grid=(2,), grid_names=("i",))(x)


@bad(smalt.Unsupported, "semaphore_signal` to a core", "remedy: a GPU has no cores")
def signal_to_a_core(x):
    def body(x, o, sem):
        pl.semaphore_signal(sem, 1, core_index=0)  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)), plgpu.SemaphoreType.REGULAR)(x)


@bad(smalt.InvalidKernel, "the cluster's size", "got: [32]", "remedy: use a smaller cluster", args=())
def cluster_called_outside_of_jit():
    def body(x, o):
        o[...] = x[...]

    with jax.disable_jit(False), jax.ensure_compile_time_eval():
        return kernel(body, like((128,)), cluster=(32,), cluster_names=("c",))(np.zeros(128, np.float32))  # BAD


@bad(smalt.InvalidKernel, "`multiple_of`", "expected: positive numbers", "got: [8, -4]", "remedy: name the steps")
def negative_multiple(x):
    def body(x, o):
        o[...] = x[...] * pl.multiple_of(lax.axis_index("i"), (8, -4))  # BAD

    return kernel(body, like((128,)), grid=(3,), grid_names=("i",))(x)


@bad(smalt.InvalidKernel, "multiple_of", "expected: whole numbers", "got: (8, 2.0)", "remedy: name the steps")
def fractional_multiple(x):
    def body(x, o):
        o[...] = x[...] * pl.multiple_of(lax.axis_index("i"), (8, 2.0))  # BAD

    return kernel(body, like((128,)), grid=(3,), grid_names=("i",))(x)


@bad(RunTimeError, "a hint that is not true", "expected: a multiple of 24", "got: 12", "remedy: say what is true")
def untrue_multiple(x):
    def body(x, o):
        i = pl.multiple_of(lax.axis_index("i") * 12, (8, 6))  # BAD
        o[...] = x[...] * i

    return kernel(body, like((128,)), grid=(3,), grid_names=("i",))(x)


# ------------------------------------------------------------------------------------------ tensor cores


def multiply(m, n, k, dtype, *, acc=F32, transforms=None):
    """One wgmma of SMEM buffers."""

    def body(o, a, b):
        def compute(acc):
            plgpu.wgmma(acc, a, b)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((m, n), acc))

    transforms = tiled(dtype) if transforms is None else transforms
    return kernel(body, like((m, n), acc), SMEM((m, k), dtype, transforms=transforms), SMEM((k, n), dtype, transforms=transforms))()


def in_multiply(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The offending line is `multiply`'s wgmma."""
    lines, first = inspect.getsourcelines(multiply)
    at = first + next(i for i, text in enumerate(lines) if "plgpu.wgmma" in text)
    TABLE[fn.__name__] = dataclasses.replace(TABLE[fn.__name__], line=at)
    return fn


@in_multiply
@bad(smalt.InvalidKernel, "`wgmma`", "in f16, bf16", "got: f32[64,64] += i32[64,32] @ i32[32,64]", "remedy: convert", args=())
def wgmma_of_integers():
    return multiply(64, 64, 32, jnp.int32)


@in_multiply
@bad(smalt.InvalidKernel, "`wgmma`", "got: f16[64,64] += bf16[64,64]", "remedy:", "accumulate in float32", args=())
def wgmma_with_a_small_accumulator():
    return multiply(64, 64, 64, jnp.bfloat16, acc=F16)


@in_multiply
@bad(smalt.InvalidKernel, "`wgmma`", "m a multiple of 64", "got: f32[32,64]", "remedy: pad the tile", args=())
def wgmma_of_half_a_warpgroup():
    return multiply(32, 64, 64, F16)


@in_multiply
@bad(smalt.InvalidKernel, "`wgmma`", "k a multiple of 16 for f16", "got: f32[64,64] += f16[64,24]", "remedy: pad k", args=())
def wgmma_of_odd_depth():
    return multiply(64, 64, 24, F16, transforms=())


def product_into(part: Callable[[Any, Any], Any]) -> Any:
    """One wgmma that is added to a part of an accumulator."""

    def body(o, a, b):
        def compute(acc):
            i = lax.axis_index("i")
            plgpu.wgmma(part(acc, i), a, b)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((128, 128), F32))

    buffer = SMEM((64, 64), F16, transforms=tiled(F16))
    return kernel(body, like((128, 128)), buffer, buffer, grid=(2,), grid_names=("i",))()


def in_product_into(fn: Callable[..., Any]) -> Callable[..., Any]:
    lines, first = inspect.getsourcelines(product_into)
    at = first + next(i for i, text in enumerate(lines) if "plgpu.wgmma" in text)
    TABLE[fn.__name__] = dataclasses.replace(TABLE[fn.__name__], line=at)
    return fn


@in_product_into
@bad(smalt.InvalidKernel, "a part of its accumulator", "columns from a multiple of 8", "got: acc[0:64, 4:68]", "remedy: let the part", args=())
def part_off_the_tiles():
    return product_into(lambda acc, i: acc.at[pl.ds(0, 64), pl.ds(4, 64)])


@in_product_into
@bad(smalt.InvalidKernel, "a part of its accumulator", "starts are known", "got: a computed start in dimension 1", "remedy: go over", args=())
def part_from_a_computed_column():
    return product_into(lambda acc, i: acc.at[pl.ds(64, 64), pl.ds(i * 64, 64)])


@in_product_into
@bad(smalt.InvalidKernel, "a part of its accumulator", "expected: slices", "got: a step of 2 in dimension 1", "remedy:", args=())
def part_with_a_step():
    return product_into(lambda acc, i: acc.at[pl.ds(0, 64), pl.ds(0, 64, 2)])


@bad(smalt.Unsupported, "a store with a step to a reference to registers", "got: a step in dimension 0", "remedy: load the whole")
def registers_with_a_step(x):
    def body(x, o):
        def program(ref):
            ref[pl.ds(0, 64, 2)] = ref[pl.ds(64, 64)]  # BAD

        o[...] = pl.run_state(program)(x[...])

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "run_state of a function that returns values", "expected: one that returns nothing", "got: 1 value", "remedy: store them")
def run_state_that_returns(x):
    def body(x, o):
        o[...] = pl.run_state(lambda ref: ref[...] + 1)(x[...])  # BAD

    return kernel(body, like((128,)))(x)


@bad(smalt.Unsupported, "arrays as indices of a reference", "remedy: keep the array in SMEM", args=(f32(128), i32(16)))
def registers_at_an_array_of_indices(x, at):
    def body(x, at, o):
        def program(ref):
            ref[pl.ds(0, 16)] = ref[at[...]]  # BAD

        o[...] = pl.run_state(program)(x[...])

    return kernel(body, like((128,)))(x, at)


@bad(smalt.Unsupported, "wgmma left operand in SMEM", "got: f16[64, 64] of `a`, a scratch buffer (f16[4096] in SMEM", "remedy: give the buffer", args=())
def wgmma_of_a_flat_buffer():
    def body(o, a, b):
        def compute(acc):
            plgpu.wgmma(acc, a.reshape(64, 64), b)  # BAD
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), F32))

    return kernel(body, like((64, 64)), SMEM((4096,), F16), SMEM((64, 64), F16))()


@in_multiply
@bad(smalt.InvalidKernel, "wgmma right operand in SMEM", "multiples of 8 rows", "got: `b`, a scratch buffer (f16[64, 24] in SMEM", "remedy: pad the buffer", args=())
def wgmma_of_odd_width():
    return multiply(64, 24, 64, F16, transforms=())


@in_multiply
@bad(
    smalt.InvalidKernel,
    "wgmma right operand",
    "expected: an SMEM tile of 8 rows",
    "32-bit operands must be contiguous along K",
    "remedy:",
    args=(),
)
def wgmma_with_a_transposed_operand():
    return multiply(64, 64, 32, F32)


@bad(
    smalt.InvalidKernel,
    "`wgmma`",
    "expected: a reference to SMEM",
    f"got: {called('b')}argument 0 of the kernel (f16[64, 64] in GMEM)",
    "remedy: copy it to an SMEM scratch buffer",
    args=(f16(64, 64),),
)
def wgmma_of_global_memory(b):
    def body(b, o, a):
        def compute(acc):
            plgpu.wgmma(acc, a, b)  # BAD
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), F32))

    return kernel(body, like((64, 64)), SMEM((64, 64), F16, transforms=tiled(F16)))(b)


@bad(
    smalt.InvalidKernel,
    "wgmma left operand",
    "expected: an SMEM tile of 8 rows",
    "its offset must be a multiple of 1024 bytes",
    "remedy: give the buffer plgpu.TilingTransform",
    args=(),
)
def wgmma_of_half_a_tile():
    def body(o, a, b):
        def compute(acc):
            plgpu.wgmma(acc, a.at[pl.ds(4, 64)], b)  # BAD
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), F32))

    buffers = [SMEM((m, 64), F16, transforms=tiled(F16)) for m in (128, 64)]
    return kernel(body, like((64, 64)), *buffers)()


@bad(smalt.InvalidKernel, "an accumulator shared by several threads", "remedy: give each warpgroup its own accumulator", args=())
def shared_accumulator():
    def body(o, a):
        def compute(acc):
            plgpu.wgmma(acc, a, a)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), F32), collective_axes="wg")  # BAD

    return kernel(body, like((64, 64)), SMEM((64, 64), F16, transforms=tiled(F16)), num_threads=2, thread_name="wg")()


# ------------------------------------------------------------------------------------------ at run time


@bad(
    RunTimeError,
    "deadlock: every warp waits",
    "warps 0, 1, 2, 3 at op",
    "test_errors.py",
    "(`bar`, number 0 of 1 barrier of 2 arrivals",
    "1 of 2 arrivals to come",
    "remedy: count the barrier_arrive calls",
)
def deadlock_for_want_of_an_arrival(x):
    def body(x, o, bar):
        plgpu.barrier_arrive(bar)
        plgpu.barrier_wait(bar)  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)), Barrier(num_arrivals=2))(x)


@bad(RunTimeError, "deadlock", "phase 1 (parity 1)", "remedy:")
def deadlock_in_the_second_phase(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x, buf, bar)
        plgpu.barrier_wait(bar)
        o[...] = buf[...]
        plgpu.barrier_wait(bar)  # BAD

    return kernel(body, like((128,)), SMEM((128,), F32), Barrier())(x)


@bad(
    RunTimeError,
    "an index outside of its dimension",
    "CTA (2, 0, 0)",
    "expected: an index from 0 to 127",
    f"got: 200 in dimension 0 of {called('x')}buffer 0 (input f32[128]), which has 128 there",
    "remedy: bound the index (indices at run time are not clamped)",
)
def load_out_of_bounds(x):
    def body(x, o):
        i = lax.axis_index("i")
        o[i] = x[i * 100]  # BAD

    return kernel(body, like((3,)), grid=(3,), grid_names=("i",))(x)


@bad(RunTimeError, "outside of its dimension", f"got: 4 in dimension 0 of {called('o')}buffer 1 (output f32[4,64])", "remedy:", args=(f32(4, 64),))
def store_out_of_bounds(x):
    def body(x, o):
        i = lax.axis_index("i")
        o[i + 1] = x[i]  # BAD

    return kernel(body, like((4, 64)), grid=(4,), grid_names=("i",))(x)


@bad(RunTimeError, "outside of its dimension", "expected: a slice of 64 that starts from 0 to 64", f"got: 100 to 163 in dimension 1 of {called('x')}buffer 0", args=(f32(64, 128),))  # fmt: skip
def load_beyond_a_row(x):
    """What it would read is the next row: inside of the buffer."""

    def body(x, o):
        i = lax.axis_index("i")
        o[i] = x[0, pl.ds(i * 100, 64)]  # BAD

    return kernel(body, like((2, 64)), grid=(2,), grid_names=("i",))(x)


@bad(RunTimeError, "outside of its dimension", f"got: 100 to 163 in dimension 1 of {called('o')}buffer 1 (output f32[64,128])", args=(f32(64),))
def store_beyond_a_row(x):
    def body(x, o):
        i = lax.axis_index("i")
        o[0, pl.ds(i * 100, 64)] = x[...]  # BAD

    return kernel(body, like((64, 128)), grid=(2,), grid_names=("i",))(x)


@bad(RunTimeError, "outside of its dimension", f"got: -1 in dimension 0 of {called('x')}buffer 0", args=(f32(4, 64),))
def load_before_the_first_row(x):
    def body(x, o):
        i = lax.axis_index("i")
        o[i] = x[i - 1]  # BAD

    return kernel(body, like((4, 64)), grid=(4,), grid_names=("i",))(x)


@bad(
    RunTimeError,
    "outside of its dimension",
    "expected: an index from 0 to 1",
    "got: 2 in dimension 0 of shared memory at shared offset 0 (`a`, f32[2, 128], op1, ",
    args=(i32(1),),
)
def shared_slot_out_of_bounds(x):
    """What it would read is the next allocation."""

    def body(x, o, a, b):
        a[...] = jnp.zeros((2, 128), F32)
        b[...] = jnp.ones((2, 128), F32)
        o[...] = a[x[0] + 2] + b[0]  # BAD

    return kernel(body, like((128,)), SMEM((2, 128), F32), SMEM((2, 128), F32))(x)


@bad(RunTimeError, "outside of its dimension", "got: 3 in dimension 0 of shared memory at", args=(i32(8),))
def shared_scalar_out_of_bounds(x):
    def body(x, o, s):
        s[0], s[1], s[2] = 1, 2, 3
        o[...] = x[...] + s[x[0] + 3]  # BAD

    return kernel(body, like((8,), jnp.int32), SMEM((3,), jnp.int32))(x)


@bad(RunTimeError, "outside of its dimension", "got: 2 in dimension 0 of shared memory at", args=(f32(3, 128),))
def copy_into_a_slot_out_of_bounds(x):
    def body(x, o, buf, bar):
        @pl.loop(0, 3)
        def _(i):
            plgpu.copy_gmem_to_smem(x.at[i], buf.at[i], bar)  # BAD
            plgpu.barrier_wait(bar)

        o[...] = buf[0]

    return kernel(body, like((128,)), SMEM((2, 128), F32), Barrier())(x)


@bad(RunTimeError, "outside of its dimension", "got: 7 in dimension 0 of barriers at shared offset ", "(`bars`, 2 barriers", args=(i32(1),))
def barrier_out_of_bounds(x):
    def body(x, o, bars):
        plgpu.barrier_arrive(bars.at[x[0] + 7])  # BAD
        o[...] = x[...]

    return kernel(body, like((1,), jnp.int32), Barrier(num_barriers=2))(x)


@bad(RunTimeError, "outside of its dimension", "got: 3 in dimension 0 of buffer 2 (scratch", args=(i32(1),))
def semaphore_out_of_bounds(x):
    def body(x, o, sems):
        pl.semaphore_signal(sems.at[x[0] + 3], 1)  # BAD
        o[...] = x[...]

    return kernel(body, like((1,), jnp.int32), plgpu.SemaphoreType.REGULAR((3,)))(x)


@bad(RunTimeError, "deadlock", "wait for the word at byte 0 of buffer 2 (scratch", "to be at least 1", "remedy: count the signals")
def deadlock_on_a_semaphore(x):
    def body(x, o, sem):
        pl.semaphore_wait(sem, 1)  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)), plgpu.SemaphoreType.REGULAR)(x)


@bad(RunTimeError, "outside of its dimension", "got: 100000 in dimension 0 of shared memory at", "remedy: bound the index", args=(i32(1),))
def shared_memory_out_of_bounds(x):
    def body(x, o, buf):
        buf[...] = jnp.zeros((2, 128), F32)
        o[...] = buf[x[0] + 100000]  # BAD

    return kernel(body, like((128,)), SMEM((2, 128), F32))(x)


# ------------------------------------------------------------------------------------------ whose kernels


def triton(body: Callable[..., None], out: Any = like((128,)), **how: Any) -> Callable[..., Any]:
    params = plt.CompilerParams(num_warps=how.pop("num_warps", None), num_stages=how.pop("num_stages", None))
    return pl.pallas_call(body, out_shape=out, compiler_params=params, **how)


@bad(smalt.InvalidKernel, "plt.CompilerParams: `num_warps`", "expected: a power of two up to 32", "got: 3", "remedy: 4, or leave it out")
def warps_of_triton(x):
    return triton(lambda x, o: None, num_warps=3)(x)  # BAD


@bad(smalt.InvalidKernel, "plt.CompilerParams: `num_warps`", "got: True")
def warps_of_triton_that_are_no_number(x):
    return triton(lambda x, o: None, num_warps=True)(x)  # BAD


@bad(smalt.InvalidKernel, "plt.CompilerParams: `num_stages`", "expected: 1 and more", "got: 0", "remedy: 1, or leave it out")
def stages_of_triton(x):
    return triton(lambda x, o: None, num_stages=0)(x)  # BAD


def assembly(text: str, x: Any, constraints: str, pack: int = 1, dtype: Any = F32) -> dict[str, Any]:
    types = [jax.ShapeDtypeStruct(x.shape, dtype)]
    return {"asm": text, "args": [x], "constraints": constraints, "pack": pack, "result_shape_dtypes": types}


@bad(smalt.InvalidKernel, "plt.elementwise_inline_asm: constraint 1", "expected: one of h, r, f, l, d", "got: 'i'", "remedy:")
def constraints_of_triton(x):
    def body(x, o):
        (o[...],) = plt.elementwise_inline_asm(**assembly("mov.b32 $0, $1;", x[...], "=f,i"))  # BAD

    return triton(body)(x)


@bad(smalt.InvalidKernel, "plt.elementwise_inline_asm: constraint 0", "expected: one of =h, =r", "got: 'f'", "results first")
def constraints_of_triton_without_results(x):
    def body(x, o):
        (o[...],) = plt.elementwise_inline_asm(**assembly("mov.b32 $0, $1;", x[...], "f,f"))  # BAD

    return triton(body)(x)


@bad(smalt.InvalidKernel, "plt.elementwise_inline_asm: constraints", "expected: 2 for the results (=r), and 2 for the arguments: pack=2", "got: '=f,f'", "remedy:")
def too_few_constraints_of_triton(x):
    def body(x, o):
        (o[...],) = plt.elementwise_inline_asm(**assembly("mov.b32 $0, $1;", x[...], "=f,f", pack=2))  # BAD

    return triton(body)(x)


@bad(smalt.InvalidKernel, "plt.elementwise_inline_asm: `$2`", "expected: operands $0 to $1", "remedy: results are counted first")
def operands_of_triton(x):
    def body(x, o):
        (o[...],) = plt.elementwise_inline_asm(**assembly("add.f32 $0, $1, $2;", x[...], "=f,f"))  # BAD

    return triton(body)(x)


@bad(smalt.InvalidKernel, "inline PTX, line 1: no instruction of smalt's table", "got: `add.f99 {0}, {1}, {1}`", "remedy:")
def instructions_of_triton(x):
    def body(x, o):
        (o[...],) = plt.elementwise_inline_asm(**assembly("add.f99 $0, $1, $1;", x[...], "=f,f"))  # BAD

    return triton(body)(x)


@bad(smalt.InvalidKernel, "plt.elementwise_inline_asm: types", "expected: numbers of 8 bits and more", "got: bool", "remedy: convert it")
def truths_of_triton(x):
    def body(x, o):
        (o[...],) = plt.elementwise_inline_asm(**assembly("mov.b32 $0, $1;", x[...] > 0, "=f,r"))  # BAD

    return triton(body)(x)


@bad(smalt.Unsupported, "plt.elementwise_inline_asm of 128 bits of one array and 16 of another", "expected: at most 64 bits", "got: pack=2", "remedy: pack=4", args=(Arg((128,), jnp.int8),))
def packs_of_triton(x):
    def body(x, o):
        (o[...],) = plt.elementwise_inline_asm(**assembly("mov.b64 $0, 0; mov.b64 $1, 0;", x[...], "=l,=l,h", pack=2, dtype=np.int64))  # BAD

    with x64(True):
        return triton(body, like((128,), np.int64))(x)


@bad(smalt.Unsupported, "not supported yet: masked accesses to complex numbers", "remedy:", args=(Arg((128,), jnp.complex64),))
def masks_of_complex_numbers(x):
    def body(x, o):
        o[...] = plt.load(x, mask=jnp.arange(128) < 3)  # BAD

    return triton(body, like((128,), jnp.complex64))(x)


@bad(smalt.InvalidKernel, "plt.debug_barrier in a plgpu.kernel", "expected: a call in the body of a pl.pallas_call", "remedy: smalt.named_barrier_sync")
def barrier_of_triton_in_a_kernel(x):
    def body(x, o):
        plt.debug_barrier()  # BAD
        o[...] = x[...]

    return kernel(body, like((128,)))(x)


@bad(smalt.InvalidKernel, "plt.atomic_add of uint16", "expected: one of uint32", "got: a reference to uint16", args=(Arg((128,), jnp.uint16),))
def types_of_atomics_of_triton(x):
    def body(x, o):
        plt.atomic_add(o, (0,), x[0])  # BAD

    return triton(body, like((128,), jnp.uint16))(x)


@bad(
    smalt.Unsupported,
    "pallas_call: atomics, or accesses in order, on a block of",
    "that reaches outside of its array",
    "expected: blocks that divide the array",
    "got: blocks of [100] of an array of [128]",
    "remedy: take the whole array",
)
def atomics_of_triton_on_blocks_that_reach_outside(x):
    def body(x, o):
        plt.atomic_add(o, (0,), x[0])

    block = pl.BlockSpec((100,), lambda i: (i,))
    return triton(body, grid=(2,), in_specs=[block], out_specs=block)(x)  # BAD


@bad(smalt.Unsupported, "plgpu.kernel with the compiler parameters of another backend", "remedy: pass smalt.CompilerParams()")
def parameters_of_tpu_for_a_kernel(x):
    import jax.experimental.pallas.tpu as pltpu

    def body(x, o):
        o[...] = x[...]

    return kernel(body, like((128,)), params=pltpu.CompilerParams())(x)  # BAD


@bad(smalt.Unsupported, "the mesh of another backend", "expected: one plgpu.Mesh", "got: TensorCoreMesh", "remedy: write it with plgpu.kernel")
def foreign_mesh(x):
    import jax.experimental.pallas.tpu as pltpu

    mesh = pltpu.create_tensorcore_mesh("c", num_cores=2)
    return pl.kernel(lambda x, o: pltpu.sync_copy(x, o), out_type=like((128,)), mesh=mesh)(x)  # BAD


@bad(smalt.InvalidKernel, "steps of a parallel grid axis that depend on each other", "for an axis of a traced size", 'remedy: dimension_semantics "sequential"')
def traced_grid(x):
    def body(x, o):
        o[...] = x[...]

    size = jnp.sum(x).astype(jnp.int32)
    params = plgpu.CompilerParams(dimension_semantics=["parallel"])
    return pl.pallas_call(body, out_shape=like((128,)), grid=(size,), compiler_params=params)(x)  # BAD


@bad(smalt.InvalidKernel, "pl.BoundedSlice(16) (of args[0])", "expected: slices of at most 16", "got: a slice of 17", "remedy: a larger bound")
def slice_over_its_bound(x):
    def body(x, o):
        o[...] = x[...]

    specs = {"in_specs": [pl.BlockSpec((pl.BoundedSlice(16),), lambda i: (pl.ds(i * 16, 17),))], "out_specs": pl.BlockSpec((16,), lambda i: (i,))}
    return pl.pallas_call(body, out_shape=like((128,)), grid=(7,), **specs)(x)  # BAD


@bad(smalt.Unsupported, "a block dimension pl.Indirect (of args[0])", "remedy: take the whole dimension")
def indirect_block(x):
    def body(x, o):
        o[...] = x[...]

    specs = {"in_specs": [pl.BlockSpec((pl.Indirect(16),), lambda i: (i,))], "out_specs": pl.BlockSpec((16,), lambda i: (i,))}
    return pl.pallas_call(body, out_shape=like((128,)), grid=(8,), **specs)(x)  # BAD


@bad(
    smalt.InvalidKernel,
    "steps of a parallel grid axis that depend on each other: steps write the same block of output",
    "expected: axis 0 to run sequentially",
    'got: dimension_semantics "parallel" for an axis of 4 steps',
    'remedy: dimension_semantics "sequential" for axis 0',
)
def parallel_blocks_of_one_output(x):
    def body(x, o):
        o[...] += x[...]

    params = plgpu.CompilerParams(dimension_semantics=["parallel"])
    spec = pl.BlockSpec((32,), lambda i: (i,))
    whole = pl.BlockSpec((32,), lambda i: (0,))
    return pl.pallas_call(body, out_shape=like((32,)), grid=(4,), in_specs=[spec], out_specs=whole, compiler_params=params)(x)  # BAD


@bad(smalt.Unsupported, "blocks of output", "that reach outside of an array of int4", "got: blocks of [5, 30]", "remedy: let blocks divide")
def four_bits_outside(x):
    def body(x, o):
        o[...] = jnp.zeros((5, 30), jnp.int4)

    spec = pl.BlockSpec((5, 30), lambda i: (i, 0))
    out = jax.ShapeDtypeStruct((16, 30), jnp.int4)
    return pl.pallas_call(body, out_shape=out, grid=(4,), out_specs=spec)(x)  # BAD


@bad(smalt.InvalidKernel, "dimension_semantics", "expected: one for each of 1 grid axes", "got: 2", "remedy: name each axis")
def wrong_dimension_semantics(x):
    def body(x, o):
        o[...] = x[...]

    params = plgpu.CompilerParams(dimension_semantics=["parallel", "sequential"])
    return pl.pallas_call(body, out_shape=like((128,)), grid=(1,), compiler_params=params)(x)  # BAD


# ------------------------------------------------------------------------------------------ the tests


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A hang ends the process with every thread's stack."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@jax.jit
def good(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x, buf, bar)
        plgpu.barrier_wait(bar)
        o[...] = buf[...] * 2 + 1

    return kernel(body, like((128,)), SMEM((128,), F32), Barrier())(x)


def computes_right() -> None:
    x = np.arange(128, dtype=np.float32)
    with smalt.emulated("H100"):
        np.testing.assert_array_equal(good(x), x * 2 + 1)


def in_order(words: tuple[str, ...], text: str) -> None:
    at = 0
    for word in words:
        found = text.find(word, at)
        assert found >= 0, f"{word!r} is not there, or not in order:\n{text}"
        at = found + len(word)


@pytest.mark.parametrize("name", TABLE)
def test_one_clear_error(name: str) -> None:
    row = TABLE[name]
    with pytest.raises(row.error) as caught:
        row.run()
    text = str(caught.value)
    assert "smalt: " in text
    if isinstance(caught.value, smalt.Unsupported | smalt.InvalidKernel):
        assert caught.value.remedy and caught.value.where, text
    in_order(row.words, text)
    places = [line for line in text.split("\n") if line.startswith(("  at ", "  in ", "  called from "))]
    places = [line for line in places if os.path.dirname(jax.__file__) not in line]  # helpers of JAX's own
    assert places and f"{__file__}:{row.line} (" in places[0], f"line {row.line} is wanted:\n{text}"
    assert "panicked" not in text and "internal error" not in text and "Error {" not in text
    computes_right()


def test_there_are_forty() -> None:
    assert len(TABLE) + len(DESCRIPTORS) + len(SETTINGS) >= 60


# ------------------------------------------------------------------------------------------ descriptors


def golden(name: str = "element_wise_loop") -> bytes:
    files = sorted((ROOT / "tests/corpus/golden").glob("*/*.pb"))
    return next((f for f in files if f.stem == name), files[0]).read_bytes()


def version_field(number: int) -> bytes:
    """A descriptor that says that it is of this version."""
    return bytes([8, number]) + golden()[2:]


DESCRIPTORS: dict[str, tuple[Callable[[], bytes], tuple[str, ...]]] = {
    "nothing": (lambda: b"", ("descriptor",)),
    "text": (lambda: b"not a descriptor at all", ("descriptor",)),
    "zeros": (lambda: bytes(1000), ("descriptor",)),
    "cut off": (lambda: golden()[: len(golden()) // 2], ("descriptor",)),
    "a newer version": (lambda: version_field(99), ("version", "99")),
    "a message that goes on for ever": (lambda: b"\x0a\xff\xff\xff\xff\x7f" + golden(), ("descriptor",)),
    "deep nesting": (lambda: nested(5000), ("descriptor",)),
}


def nested(depth: int) -> bytes:
    """Regions in ops in regions, by the schema's field numbers of KernelDescriptor.body, Region.ops and Op.regions."""
    region, op = MESSAGES["Region"]["ops"][0], MESSAGES["Op"]["regions"][0]
    data = b""
    for level in range(depth):
        number = op if level % 2 == 0 else region
        data = varint(number << 3 | 2) + varint(len(data)) + data
    return varint(MESSAGES["KernelDescriptor"]["body"][0] << 3 | 2) + varint(len(data)) + data


def varint(n: int) -> bytes:
    out = b""
    while n >= 128:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_malformed_descriptors(name: str) -> None:
    make, words = DESCRIPTORS[name]
    with pytest.raises(smalt.CompileError) as caught:
        _native.compile(make(), b"", "sm_90a")
    assert caught.value.report["fault"] == "InvalidDescriptor"
    in_order(words, str(caught.value))
    computes_right()


@pytest.mark.parametrize("debug", [b"garbage", b"\xff" * 100, b"\x0a\x7f"])
def test_damaged_locations_are_no_error(debug: bytes) -> None:
    """Locations are a help: a kernel without them compiles."""
    assert _native.compile(golden(), debug, "sm_90a").ptx


def test_mutated_descriptors_never_kill_the_process() -> None:
    """Through the C API, compiled to PTX: an artifact or an error. tests/fuzzing/damaged.rs does many more, without code generation."""
    rng = np.random.default_rng(0)
    files = [f for f in sorted((ROOT / "tests/corpus/golden").glob("*/*.pb")) if f.stat().st_size < 6000]
    outcomes: dict[str, int] = {}
    for _ in range(600):
        data = bytearray(files[rng.integers(len(files))].read_bytes())
        for _ in range(rng.integers(1, 3)):
            at = int(rng.integers(len(data)))
            match rng.integers(8):
                case 0:
                    data[at] ^= 1 << int(rng.integers(8))
                case 1:
                    data[at] = int(rng.integers(256))
                case 2:
                    del data[at]
                case 3:
                    data.insert(at, int(rng.integers(256)))
                case _:
                    data[at] = int(rng.integers(16))  # a small number stays one byte: more kernels
        try:
            _native.compile(bytes(data), b"", "sm_90a")
            outcome = "kernel"
        except smalt.Error as e:
            outcome = e.report["fault"]
            assert outcome != "Internal", f"{e}\n{bytes(data)!r}"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes["kernel"] > 5 and outcomes["Unsupported"] > 5 and outcomes["InvalidDescriptor"] > 100, outcomes
    computes_right()


# ------------------------------------------------------------------------------------------ the machine


def test_run_on_a_gpu_that_is_not_there() -> None:
    if "cuda" in _native.doctor()["driver"]:
        pytest.skip("there is a driver")
    artifact = _native.compile(golden(), b"", "sm_90a")
    buffers = [np.zeros(b["bytes"], np.uint8) for b in artifact.report()["buffers"]]
    with pytest.raises(smalt.CompileError) as caught:
        artifact.run(buffers, device=0)
    in_order(("no NVIDIA driver", "expected: a GPU of compute capability 9.0", "remedy: run on the CPU"), str(caught.value))
    computes_right()


def test_wrong_buffers() -> None:
    """As when a program of 64-bit types meets a kernel of 32-bit ones."""
    with smalt.emulated("H100"):
        ((_, descriptor, debug),) = smalt.descriptor(good, jax.ShapeDtypeStruct((128,), np.float32))
    artifact = _native.compile(descriptor, debug, "sm_90a")
    with pytest.raises(smalt.InvalidKernel) as caught:
        artifact.run([np.zeros(128, np.float64), np.zeros(128, np.float32)])
    in_order(("buffer 0", "wrong size", "expected: 512 bytes (f32[128])", "got: 1024 bytes"), str(caught.value))
    with pytest.raises(smalt.InvalidKernel, match="wrong number of buffers"):
        artifact.run([np.zeros(128, np.float32)])
    with pytest.raises(ValueError, match="buffer 1 of a run: expected a C-contiguous, writable array"):
        artifact.run([np.zeros(128, np.float32), np.zeros(256, np.float32)[::2]])
    computes_right()


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: smalt.CompilerParams(target="H100"), "`target`\n  expected: an architecture like 'sm_90a'\n  got: 'H100'\n  remedy: target='sm_90a'"),
        (lambda: smalt.CompilerParams(target=90), "`target`\n  expected: an architecture like 'sm_90a'\n  got: 90\n  remedy: target='sm_90a'"),
        (lambda: smalt.CompilerParams(wait_timeout_ns="1s"), "`wait_timeout_ns`\n  expected: a number of nanoseconds >= 0\n  got: '1s'\n  remedy: 0"),
        (lambda: smalt.CompilerParams(wait_timeout_ns=1e9), "`wait_timeout_ns`\n  expected: a number of nanoseconds >= 0\n  got: 1000000000.0"),
        (lambda: smalt.CompilerParams(wait_timeout_ns=-1), "`wait_timeout_ns`\n  expected: a number of nanoseconds >= 0\n  got: -1\n  remedy: 0"),
        (lambda: smalt.CompilerParams(accumulate_products="yes"), "`accumulate_products`\n  expected: True or False\n  got: 'yes'\n  remedy: acc"),
        (lambda: smalt.CompilerParams(precise_division="no"), "`precise_division`\n  expected: True or False\n  got: 'no'\n  remedy: precise_"),
        (lambda: smalt.CompilerParams(precise_division=None), "`precise_division`\n  expected: True or False\n  got: None"),
        (lambda: smalt.CompilerParams(fp_contract="off"), "`fp_contract`\n  expected: True, False or None\n  got: 'off'\n  remedy: fp_contract=True"),
        (lambda: smalt.CompilerParams(enabled=1), "`enabled`\n  expected: True, False or None\n  got: 1"),
        (lambda: smalt.CompilerParams(approx_math="fast"), "`approx_math`\n  expected: True or False\n  got: 'fast'\n  remedy: approx_math=True"),
        (lambda: smalt.CompilerParams(unsafe_no_auto_barriers=0), "`unsafe_no_auto_barriers`\n  expected: True or False\n  got: 0"),
        (lambda: smalt.CompilerParams(profile_space=8), "profile_space and profile_dir"),
        (lambda: smalt.CompilerParams(profile_dir="/tmp"), "profile_space and profile_dir"),
        (lambda: smalt.emulated("TPU").__enter__(), "`device`\n  expected: one of 'A100', 'A10', 'RTX A6000', "),
    ],
)
def test_wrong_choices(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


# Each in a process of its own: settings are read once. The package's folder, not the package: that would import JAX.
SCRIPT = """
import sys, types
package = types.ModuleType("smalt")
package.__path__ = [sys.argv[1]]
sys.modules["smalt"] = package
from smalt import _native, _errors
try:
    _native.compile(open(sys.argv[2], "rb").read(), b"", sys.argv[3]).assemble()
    print("no error")
except _errors.Error as error:
    print(type(error).__name__, error)
"""

# environment, target -> decisive words
SETTINGS: dict[str, tuple[dict[str, str], str, tuple[str, ...]]] = {
    "SMALT_DUMP": ({"SMALT_DUMP": "asm"}, "sm_90a", ("CompileError", "SMALT_DUMP", "expected: all, or a list of: descriptor, ir", "got: asm")),
    "SMALT_ASSEMBLER": ({"SMALT_ASSEMBLER": "gas"}, "sm_90a", ("SMALT_ASSEMBLER", "expected: auto, nvjitlink, ptxas or driver", "got: gas")),
    "SMALT_LINEINFO": ({"SMALT_LINEINFO": "yes"}, "sm_90a", ("SMALT_LINEINFO", "expected: 0 or 1", "got: yes")),
    "SMALT_PARK": ({"SMALT_PARK": "no"}, "sm_90a", ("SMALT_PARK", "expected: auto, always or never", "got: no")),
    "SMALT_SEED": ({"SMALT_SEED": "-1"}, "sm_90a", ("SMALT_SEED", "expected: a number below 2^64", "got: -1")),
    "SMALT_SCHEDULE": ({"SMALT_SCHEDULE": "random"}, "sm_90a", ("SMALT_SCHEDULE", "expected: latest, earliest or seeded", "got: random")),
    "SMALT_CACHE_LIMIT": ({"SMALT_CACHE_LIMIT": "lots"}, "sm_90a", ("SMALT_CACHE_LIMIT", "expected: a size in bytes", "got: lots")),
    "SMALT_PTXAS": ({"SMALT_PTXAS": "/nowhere/ptxas"}, "sm_90a", ("ptxas was asked for and is not there", "remedy")),
    "SMALT_LIBRARY": ({"SMALT_LIBRARY": "/nowhere/libsmalt.so"}, "sm_90a", ("NotInstalled", "native library", "expected", "/nowhere/libsmalt.so", "got: ", "remedy: unset SMALT_LIBRARY")),
    "no ptxas": ({"SMALT_ASSEMBLER": "ptxas", "PATH": "/nowhere", "CUDA_HOME": "/nowhere"}, "sm_90a", ("ptxas", "remedy", "pip install")),
    "no nvJitLink": ({"SMALT_ASSEMBLER": "nvjitlink", "PATH": "/nowhere", "CUDA_HOME": "/nowhere"}, "sm_90a", ("nvJitLink", "remedy", "pip install")),
    "a target": ({}, "gfx942", ("the target gfx942", "expected: sm_80, ", "sm_90a")),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str) -> None:
    changed, target, words = SETTINGS[name]
    environment = dict(os.environ, SMALT_LIBRARY=str(_native.library_path())) | changed
    file = next(f for f in sorted((ROOT / "tests/corpus/golden").glob("*/*.pb")))
    command = [sys.executable, "-c", SCRIPT, str(ROOT / "jax_plugin/smalt"), str(file), target]
    if name.startswith("no "):
        command.insert(1, "-S")  # no site-packages, where pip puts assemblers
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    in_order(words, done.stdout)


def test_no_assembler_at_all(tmp_path: pathlib.Path) -> None:
    """Neither ptxas nor nvJitLink: the driver assembles where there is one; what needs a cubin says so."""
    file = tmp_path / "kernel.pb"
    file.write_bytes(golden())
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "jax_plugin"), SMALT_LIBRARY=str(_native.library_path()), SMALT_ASSEMBLER="driver")
    command = [sys.executable, "-m", "smalt", "compile", str(file), "--cubin", str(tmp_path / "kernel.cubin")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    in_order(("there is no assembler here", "python -m smalt doctor", "what to install"), done.stderr)


def import_smalt(*flags: str, path: pathlib.Path) -> str:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(path), str(ROOT / "jax_plugin")]))
    done = subprocess.run([sys.executable, *flags, "-c", "from smalt import enable"], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    return done.stderr


def fake_jax(folder: pathlib.Path, version: str, text: str) -> pathlib.Path:
    """A package that calls itself JAX of this version."""
    (folder / "jax").mkdir()
    (folder / "jax" / "__init__.py").write_text(textwrap.dedent(text))
    (folder / f"jax-{version}.dist-info").mkdir()
    (folder / f"jax-{version}.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: jax\nVersion: {version}\n")
    return folder


def test_unsupported_jax(tmp_path: pathlib.Path) -> None:
    text = import_smalt(path=fake_jax(tmp_path, "0.9.1", "class Array: pass"))
    in_order(("NotInstalled: smalt: this version of JAX is not supported", "expected: jax 0.10.2", "got: jax 0.9.1", "remedy: pip install"), text)


def test_missing_jax(tmp_path: pathlib.Path) -> None:
    in_order(("NotInstalled: smalt: JAX is not installed", "expected: jax 0.10.2", "remedy: pip install"), import_smalt("-S", path=tmp_path))


def test_missing_absl(tmp_path: pathlib.Path) -> None:
    fake_jax(tmp_path, "0.10.2", "raise ModuleNotFoundError(\"No module named 'absl'\", name='absl')")
    in_order(("NotInstalled: smalt: jax 0.10.2 needs absl-py", "remedy: pip install absl-py"), import_smalt(path=tmp_path))


def test_wrong_enable() -> None:
    with pytest.raises(ValueError, match="SMALT_ENABLE\n  expected: 0 or 1\n  got: 'perhaps'\n  remedy: SMALT_ENABLE=1") as caught:
        with contextlib.ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setenv("SMALT_ENABLE", "perhaps")
            smalt._config.choice._from_environment()
    assert isinstance(caught.value, smalt.InvalidArgument) and caught.value.expected == "0 or 1"


if __name__ == "__main__":
    for key, row in TABLE.items():
        if sys.argv[1:] and key not in sys.argv[1:]:
            continue
        print(f"==== {key}, line {row.line}")
        try:
            row.run()
            print("!!!! no error")
        except Exception as e:
            print(f"{type(e).__name__}: {e}")
