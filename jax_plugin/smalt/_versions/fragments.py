"""MLIR of `inline_mgpu`: fragmented arrays, memrefs, attributes."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from jax._src.interpreters import mlir as _mlir
from jax._src.pallas.mosaic_gpu import helpers as gpu_helpers
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import launch_context as mgpu_launch
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import builtin as builtin_dialect
from jaxlib.mlir.dialects import func as func_dialect
from jaxlib.mlir.dialects import llvm as llvm_dialect

FragmentedArray = mgpu.FragmentedArray
StockLaunchContext = mgpu_launch.LaunchContext


def is_inline_ptx_helper(function: Any) -> bool:
    """Whether it is what JAX's `inline_ptx(asm)` makes of a text."""
    return function.__code__ is inline_ptx_code()


@functools.cache
def inline_ptx_code() -> Any:
    codes = [c for c in gpu_helpers.inline_ptx.__code__.co_consts if hasattr(c, "co_name")]
    return next((c for c in codes if "asm" in c.co_freevars), None)


@contextlib.contextmanager
def mlir_function(arch: tuple[int, int]) -> Iterator[Callable[[Sequence[Any]], Any]]:
    """A context of MLIR of its own; what it gives makes a function with arguments of these types, and a place in it to build at."""
    context = _mlir.make_ir_context()
    with context, ir.Location.unknown(context), contextlib.ExitStack() as stack:
        mgpu.dialect.register_dialect(context)
        module = ir.Module.create()
        i32 = ir.IntegerType.get_signless(32)
        for name, number in zip(("arch_major", "arch_minor"), arch):
            module.operation.attributes[f"mosaic_gpu.{name}"] = ir.IntegerAttr.get(i32, number)

        def enter(types: Sequence[Any]) -> Any:
            with ir.InsertionPoint(module.body):
                block = func_dialect.FuncOp("inline_mgpu", ir.FunctionType.get(list(types), [])).add_entry_block()
            stack.enter_context(ir.InsertionPoint(block))
            return block

        yield enter


def mlir_type(dtype: Any) -> Any:
    return mgpu_utils.dtype_to_ir_type(dtype)


def mlir_memref_type(shape: Sequence[int], strides: Sequence[int], element: Any, shared: bool) -> Any:
    dense = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        dense[i] = dense[i + 1] * shape[i + 1]
    layout = None if list(strides) == dense else ir.StridedLayoutAttr.get(0, list(strides))
    return ir.MemRefType.get(list(shape), element, layout=layout, memory_space=mgpu_utils.smem() if shared else None)


def mlir_shared_pointer(far: bool) -> Any:
    """To the block's shared memory, or to another block's of its cluster."""
    return ir.Type.parse("!llvm.ptr<7>" if far else "!llvm.ptr<3>")


def barrier_reference(address: Any) -> Any:
    """A `BarrierRef` at an address, as the kernel's functions have them. Phases are not counted: they are the kernel's."""
    zero = mgpu_utils.c(0, ir.IntegerType.get_signless(32))
    return mgpu_utils.BarrierRef(address, zero, None, 1)


def kernel_argument(memref: Any) -> Any:
    """The memref, marked as JAX marks the kernel's own arguments in device memory."""
    cast = builtin_dialect.UnrealizedConversionCastOp([memref.type], [memref])
    cast.attributes[mgpu_launch.ORIGINAL_KERNEL_ARG_ATTR] = ir.UnitAttr.get()
    return cast.result


def is_device_memref(value: Any) -> bool:
    return str(value.type).startswith("memref<") and ir.MemRefType(value.type).memory_space is None


def add_pointer(block: Any) -> Any:
    """One more argument: a generic pointer."""
    return block.add_argument(ir.Type.parse("!llvm.ptr"), ir.Location.unknown())


def transformed_memref(memref: Any, transforms: Sequence[Any]) -> tuple[list[int], list[int], Any]:
    """The shape, strides and element type (NumPy's) of a memref behind JAX's transforms."""
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        block = func_dialect.FuncOp("transformed", ir.FunctionType.get([memref.type], [])).add_entry_block()
    with ir.InsertionPoint(block):
        seen = block.arguments[0]
        for t in transforms:
            seen = t.apply(seen)
        made = ir.MemRefType(seen.type)
        strides, _ = made.get_strides_and_offset()
        return list(made.shape), list(strides), _numpy_type(str(made.element_type))


def _numpy_type(name: str) -> Any:
    """Of an element type of MLIR's of whole bytes."""
    special = {"bf16": "bfloat16", "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2", "f8E8M0FNU": "float8_e8m0fnu"}
    if name in special:
        return np.dtype(getattr(ml_dtypes, special[name]))
    return np.dtype(f"{'f' if name.startswith('f') else 'i'}{int(name[1:]) // 8}")


def mlir_memref(value_type: Any) -> Any:
    return ir.MemRefType(value_type)


def fragmented_array(registers: Sequence[Any], layout: Any, shape: Sequence[int], dtype: Any) -> Any:
    array = np.empty(len(registers), object)
    array[:] = registers
    return mgpu.FragmentedArray(
        _registers=array.reshape(layout.registers_shape(tuple(shape))), _layout=layout, _is_signed=mgpu_utils.is_signed(dtype)
    )


def fragment_types(layout: Any, shape: Sequence[int], dtype: Any) -> list[Any]:
    """The MLIR types of the registers of a fragmented array."""
    element = layout.registers_element_type(mlir_type(dtype))
    return [element] * int(np.prod(layout.registers_shape(tuple(shape)), dtype=np.int64))


def first_lane(layout: Any, shape: Sequence[int]) -> list[int]:
    """The elements that the first lane has in a fragmented array, in its registers' order, by their numbers in row-major order."""
    if isinstance(layout, mgpu.WGSplatFragLayout):
        return [0]
    n = int(np.prod(shape, dtype=np.int64))
    if isinstance(layout, mgpu.WGStridedFragLayout):
        return [i * 128 * layout.vec_size + j for i in range(n // (128 * layout.vec_size)) for j in range(layout.vec_size)]
    at = np.arange(n).reshape(tuple(shape))
    for tile in layout.tiling.tiles:
        rank, k = at.ndim, len(tile)
        split = [part for d, t in zip(at.shape[rank - k :], tile) for part in (d // t, t)]
        at = at.reshape(at.shape[: rank - k] + tuple(split))
        first = rank - k
        at = at.transpose(*range(first), *range(first, first + 2 * k, 2), *range(first + 1, first + 2 * k, 2))
    index = [slice(None)] * at.ndim
    for d in (*layout.warp_dims, *layout.lane_dims):
        if isinstance(d, int):
            index[d] = slice(0, 1)
    return [int(i) for i in np.moveaxis(at[tuple(index)], layout.vector_dim, -1).ravel()]


def splat_layout(shape: Sequence[int]) -> Any:
    return mgpu.WGSplatFragLayout(tuple(shape))


def mlir_attribute(op: Any, name: str) -> Any:
    """An attribute of an op; None if it has none of this name."""
    return op.attributes[name] if name in op.attributes else None


def mlir_ints(attribute: Any) -> list[int]:
    """The numbers of an array attribute of whatever width."""
    text = str(attribute)
    inner = text[text.index(":") + 1 : text.rindex(">")] if text.startswith("array<") and ":" in text else text.strip("[]") if text.startswith("[") else ""
    return [int(part.split(":")[0]) for part in inner.split(",") if part.strip()]


def mlir_dimension(attribute: Any) -> str:
    """The member that an attribute of an enumeration is: `x` of `#gpu<dim x>` or `#gpu.dim<x>`."""
    text = str(attribute)
    found = re.search(r"<(?:\w+ )?([^<>]+)>$", text)
    return found.group(1) if found else text


def mlir_numbers(attribute: Any) -> list[float]:
    """The value of a constant; one number where all elements are equal."""
    try:
        dense = ir.DenseElementsAttr(attribute)
    except (ValueError, TypeError):
        return [attribute.value]
    if dense.is_splat:
        return [dense.get_splat_value().value]
    for cls in (ir.DenseIntElementsAttr, ir.DenseFPElementsAttr):
        if cls.isinstance(attribute) if hasattr(cls, "isinstance") else isinstance(attribute, cls):
            return list(cls(attribute))
    raise TypeError(f"a constant {attribute}")


def mlir_shape(value_type: Any) -> list[int]:
    """Of a vector; one of no dimensions is a scalar's."""
    return list(ir.VectorType(value_type).shape) if str(value_type).startswith("vector<") else []


def mlir_element(value_type: Any) -> Any:
    return ir.VectorType(value_type).element_type if str(value_type).startswith("vector<") else value_type


def mlir_fields(value_type: Any) -> list[Any]:
    """The types of the results of an assembly: none of void, those in a structure, or one."""
    text = str(value_type)
    if text == "!llvm.void":
        return []
    return list(llvm_dialect.StructType(value_type).body) if text.startswith("!llvm.struct") else [value_type]
