"""`pl.pallas_call`: its parameters, grid and blocks."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import numpy as np
from jax._src import core as jax_core
from jax._src.pallas import core as pallas_core
from jax._src.pallas import pallas_call
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.state import types as state_types

from smalt._versions.features import IS_011, TRITON
from smalt._versions.jaxprs import open_jaxpr
from smalt._versions.runs import make_state


def led_by(block: Any, axis: int, size: int) -> Any:
    """A block mapping of an array with one dimension more in front, of which each index of a grid axis has its own part."""
    opened, consts = open_jaxpr(block.index_map_jaxpr)
    info = opened.debug_info._replace(result_paths=None)
    results = block.index_map_out_tree.unflatten(opened.outvars)
    opened = opened.replace(outvars=[opened.invars[axis], *opened.outvars], debug_info=info)
    return dataclasses.replace(
        block,
        index_map_out_tree=jax.tree.structure((0, *results)),
        block_shape=(pallas_core.Squeezed(), *block.block_shape),
        index_map_jaxpr=opened if IS_011 else jax_core.ClosedJaxpr(opened, consts),
        array_aval=block.array_aval.update(shape=(size, *block.array_aval.shape)),
    )


def summed(block: Any, ref: Any) -> tuple[Any, Any]:
    """A block mapping and the body's reference, of what is added up: in f32 where the type has fewer bits."""
    if ref.dtype.itemsize >= 4:
        return block, ref

    def wide(aval: Any) -> Any:
        return aval.update(inner_aval=aval.inner_aval.update(dtype=np.dtype(np.float32)))

    array = block.array_aval.update(dtype=np.dtype(np.float32))
    return dataclasses.replace(block, array_aval=array, transformed_block_aval=wide(block.transformed_block_aval)), wide(ref)


pallas_call_p = pallas_call.pallas_call_p


def grid_names(mapping: Any) -> tuple[Any, ...]:
    """Names of a grid's axes but those that `vmap` added, which have none (and no place in 0.10)."""
    names = tuple(mapping.grid_names or ())
    if len(names) < len(mapping.grid):
        return names
    return tuple(name for axis, name in enumerate(names) if axis not in mapping.vmapped_dims)


def grid_trace(mapping: Any) -> contextlib.AbstractContextManager[None]:
    """Within the scope, what is traced is in a body of this grid."""
    names = mapping.grid_names
    if names is not None and len(names) < len(mapping.grid):  # 0.10, under vmap
        own = iter(names)
        mapping = mapping.replace(grid_names=tuple(object() if a in mapping.vmapped_dims else next(own) for a in range(len(mapping.grid))))
    return mapping.trace_env()  # type: ignore[no-any-return]


def heed_grids_in_traces(refuse: Callable[[Any], Exception]) -> None:
    """Makes a call's grid part of the keys of what JAX remembers of tracing; `refuse`: what is wrong with a size that JAX only asserts is known.

    `pl.num_programs` is a number when a kernel is traced; JAX gives a kernel that it has traced before, whatever its grid was then. What JAX
    exports for a TPU with dynamic shapes may have any size.
    """
    own = pallas_core.tracing_grid_env
    if getattr(own, "_smalt", False):
        return
    grids = make_state(None)

    @contextlib.contextmanager
    def tracing_grid_env(grid: Any, mapped_dims: Any) -> Iterator[None]:
        for size in grid:
            is_known = size is pallas_core.dynamic_grid_dim or isinstance(size, (int, np.integer))
            if not is_known and not pallas_core.dynamic_shapes_export_enabled():
                raise refuse(size)
        with own(grid, mapped_dims), grids((tuple(grid), tuple(mapped_dims))):
            yield

    tracing_grid_env._smalt = True  # type: ignore[attr-defined]
    pallas_core.tracing_grid_env = tracing_grid_env


def is_gpu_compiler_params(params: Any) -> bool:
    return isinstance(params, gpu_core.CompilerParams)


def is_triton_compiler_params(params: Any) -> bool:
    return TRITON is not None and isinstance(params, TRITON.CompilerParams)


def is_tpu_compiler_params(params: Any) -> bool:
    module = sys.modules.get("jax._src.pallas.mosaic.core")
    return module is not None and isinstance(params, module.CompilerParams)


def has_side_effects(params: Any) -> bool:
    """Whether a call has side effects by its parameters."""
    return bool(getattr(params, "has_side_effects", False))


def compiler_params_for_gpu(params: Any) -> Any:
    """What a TPU's parameters mean here is what they mean for the grid; the others are about its compiler and its memories."""
    if params is None:
        return plgpu.CompilerParams()
    return plgpu.CompilerParams(dimension_semantics=params.dimension_semantics) if is_tpu_compiler_params(params) else params


def call_in_parts(params: dict[str, Any], axes: dict[int, int], arrays: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The parameters of a `pl.pallas_call` over a part of its grid and of its arrays. `axes`: into how many parts axes are split; `arrays`: of each
    operand and result, and each of its dimensions."""
    mapping = params["grid_mapping"]
    blocks = mapping.block_mappings
    first = len(arrays) - len(blocks)
    made = [
        dataclasses.replace(b, array_aval=b.array_aval.update(shape=tuple(n // p for n, p in zip(b.array_aval.shape, parts))))
        for b, parts in zip(blocks, arrays[first:])
    ]
    grid = tuple(n // axes[a] if a in axes else n for a, n in enumerate(mapping.grid))
    results = arrays[len(arrays) - len(params["out_avals"]) :]
    return params | {
        "grid_mapping": mapping.replace(grid=grid, block_mappings=tuple(made)),
        "out_avals": tuple(a.update(shape=tuple(n // p for n, p in zip(a.shape, parts))) for a, parts in zip(params["out_avals"], results)),
        "cost_estimate": None,
    }


def call_of_static_shape(params: dict[str, Any], grid: dict[int, int], shapes: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """The parameters of a `pl.pallas_call` with other sizes of these axes, over arrays of these shapes."""
    mapping = params["grid_mapping"]
    made = [dataclasses.replace(b, array_aval=b.array_aval.update(shape=shape)) for b, shape in zip(mapping.block_mappings, shapes)]
    results = shapes[mapping.num_inputs :]
    return params | {
        "grid_mapping": mapping.replace(grid=tuple(grid.get(a, n) for a, n in enumerate(mapping.grid)), block_mappings=tuple(made)),
        "out_avals": tuple(a.update(shape=shape) for a, shape in zip(params["out_avals"], results)),
        "cost_estimate": None,
    }


def is_fast_precision(precision: Any) -> bool:
    """Whether a product's `precision` needs nothing that tensor cores of its operands' types do not do."""
    given = precision if isinstance(precision, tuple) else (precision,)
    return all(p is None or p == jax.lax.Precision.DEFAULT for p in given)


def is_gmem_block(block_mapping: Any, is_output: bool) -> bool:
    """Whether an operand stays in device memory. A TPU's names for that are HBM, and ANY; there steps follow one another, so that an output is
    what the last of them leaves: in blocks that is seen to, in memory that steps store to as they like it is not."""
    space = block_mapping.transformed_block_aval.memory_space
    return space is gpu_core.MemorySpace.GMEM or not is_output and (space is pallas_core.MemorySpace.ANY or str(space) == "hbm")


def is_in_device_memory_of_tpu(block_mapping: Any) -> bool:
    space = block_mapping.transformed_block_aval.memory_space
    return space is pallas_core.MemorySpace.ANY or str(space) == "hbm"


def is_semaphore_of_tpu(aval: Any) -> bool:
    """Whether scratch is semaphores as TPUs have them, where steps follow one another."""
    return str(getattr(aval, "memory_space", "")) == "semaphore_mem"


def with_numbers(mapping: Any, count: int) -> tuple[Any, Any]:
    """A grid's mapping with one more input behind the others: integers that each step has all of; and the body's reference to it."""
    like = mapping.block_mappings[0]
    opened, consts = open_jaxpr(like.index_map_jaxpr)
    info = opened.debug_info._replace(result_paths=None)
    first = jax_core.Literal(np.int32(0), jax_core.ShapedArray((), np.dtype(np.int32)))
    opened = opened.replace(eqns=[], outvars=[first], effects=frozenset(), debug_info=info)
    array = jax_core.ShapedArray((count,), np.dtype(np.int32))
    aval = state_types.AbstractRef(array, pallas_core.MemorySpace.DEFAULT)
    block = dataclasses.replace(
        like,
        block_shape=(pallas_core.Blocked(count),),
        transformed_block_aval=aval,
        index_map_jaxpr=opened if IS_011 else jax_core.ClosedJaxpr(opened, consts),
        index_map_out_tree=jax.tree.structure((0,)),
        array_aval=array,
        origin="part_of_grid",
        transforms=(),
        pipeline_mode=None,
    )
    at = mapping.num_inputs
    blocks = (*mapping.block_mappings[:at], block, *mapping.block_mappings[at:])
    return mapping.replace(block_mappings=blocks, num_inputs=at + 1), aval
