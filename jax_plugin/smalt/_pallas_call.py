"""`pl.pallas_call`, re-expressed as `plgpu.kernel` around `plgpu.emit_pipeline`.

"parallel" grid axes become the kernel's grid, "sequential" ones a pipelined loop; blocks live in shared memory. The
body was traced by JAX with refs of block shape; a primitive of ours carries its jaxpr into the new kernel, where the
walker (`_rules.py`, "pallas_block") writes it with each block's ref standing for a slot of the pipeline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from smalt import _versions
from smalt._errors import InvalidKernel, Unsupported


@dataclasses.dataclass(frozen=True)
class Block:
    """How one ref of the body is written: what the body's uses start with, and what stands there instead."""

    strip: int  # the body's own unswizzle and untile
    treedef: Any  # of the pipeline's transforms


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """The static parameter of the primitive: the jaxpr, and how its operands are laid out."""

    jaxpr: Any
    grid_rank: int
    blocks: tuple[Block, ...]


def _abstract_eval(*avals: Any, body: Body) -> tuple[list[Any], set[Any]]:
    at = body.grid_rank
    refs = []
    for block in body.blocks:
        refs.append(at)
        at += 1 + block.treedef.num_leaves
    refs += range(at, len(avals))  # scratch
    return [], _versions.ref_effects(refs) | _versions.plain_effects(body.jaxpr)


pallas_block_p = _versions.make_primitive("pallas_block", _abstract_eval)


class _Allocation:
    """A scratch ref with a type that is already known."""

    def __init__(self, aval: Any) -> None:
        self._aval = aval

    def get_ref_aval(self) -> Any:
        return self._aval


def kernel(arrays: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A function of the call's operands, to be traced and lowered in its place."""
    mapping = params["grid_mapping"]
    _check(params)
    compiler_params = params["compiler_params"] or plgpu.CompilerParams()
    parallel = _parallel_axes(mapping, compiler_params.dimension_semantics)
    grid = tuple(mapping.grid)
    loops = tuple(n for n, p in zip(grid, parallel) if not p)
    blocks = tuple(n for n, p in zip(grid, parallel) if p)
    names = tuple(f"d{i}" for i in range(len(blocks)))
    # An aliased output is its operand's buffer: the kernel gets one ref, which the body sees twice.
    sources = {result: operand for operand, result in params["input_output_aliases"]}
    out = [jax.ShapeDtypeStruct(a.shape, a.dtype) for i, a in enumerate(params["out_avals"]) if i not in sources]
    operands = [jax.new_ref(a) if i in sources.values() else a for i, a in enumerate(arrays)]
    block_mappings = tuple(mapping.block_mappings)

    def merge(indices: Sequence[Any]) -> list[Any]:
        """Grid indices in the call's order, from the loop's and the kernel's."""
        loop, block = iter(indices), iter([lax.axis_index(n) for n in names])
        return [next(block) if p else next(loop) for p in parallel]

    specs = [_spec(m, merge) for m in block_mappings]
    piped = [i for i, s in enumerate(specs) if s is not None]

    def body(*refs: Any) -> None:
        given = iter(refs[mapping.num_inputs :])
        gmem = list(refs[: mapping.num_inputs])
        gmem += [gmem[sources[i]] if i in sources else next(given) for i in range(len(params["out_avals"]))]
        scratch = list(given)

        def step(indices: Sequence[Any], *slots: Any) -> None:
            views = list(gmem)
            for i, slot in zip(piped, slots):
                views[i] = slot
            _bind(params["jaxpr"], [jnp.asarray(i, jnp.int32) for i in merge(indices)], block_mappings, views, scratch)

        ins = [i for i in piped if i < mapping.num_inputs]
        outs = [i for i in piped if i >= mapping.num_inputs]
        plgpu.emit_pipeline(
            step,
            grid=loops,
            in_specs=[specs[i] for i in ins],
            out_specs=[specs[i] for i in outs],
            max_concurrent_steps=compiler_params.max_concurrent_steps,
        )(*[gmem[i] for i in piped])

    run = plgpu.kernel(
        body,
        out_type=out,
        scratch_types=[_Allocation(a) for a in mapping.scratch_avals],
        compiler_params=compiler_params.replace(dimension_semantics=None),
        grid=blocks,
        grid_names=names,
        kernel_name=params.get("name") or params["jaxpr"].debug_info.func_name,
    )
    results = iter(run(*operands))
    return [jax.freeze(operands[sources[i]]) if i in sources else next(results) for i in range(len(params["out_avals"]))]


def _bind(jaxpr: Any, indices: list[Any], mappings: Sequence[Any], views: Sequence[Any], scratch: Sequence[Any]) -> None:
    operands: list[Any] = list(indices)
    blocks = []
    for block_mapping, view in zip(mappings, views):
        ref, transforms = _versions.ref_and_transforms(view)
        leaves, treedef = jax.tree.flatten(transforms)
        operands += [ref, *leaves]
        blocks.append(Block(len(block_mapping.transforms), treedef))
    for ref in scratch:
        operands.append(_versions.ref_and_transforms(ref)[0])
    pallas_block_p.bind(*operands, body=Body(jaxpr, len(indices), tuple(blocks)))


def _check(params: dict[str, Any]) -> None:
    mapping = params["grid_mapping"]
    if params["input_output_aliases"] and not _versions.REFERENCES_IN_RULES:
        raise Unsupported(
            "not supported yet: pallas_call: input_output_aliases before JAX 0.11"
            "\n  remedy: use plgpu.kernel with a mutable ref (jax.new_ref)"
        )
    if mapping.num_index_operands:
        raise Unsupported("not supported yet: pallas_call: scalar prefetch operands\n  remedy: use plgpu.kernel")
    if any(not isinstance(n, int) for n in mapping.grid):
        raise Unsupported("not supported yet: pallas_call: a grid with traced sizes\n  remedy: use plgpu.kernel and a loop")
    if params.get("mesh") is not None:
        raise Unsupported("not supported yet: pallas_call over a mesh\n  remedy: use plgpu.kernel")


def _parallel_axes(mapping: Any, semantics: Sequence[str] | None) -> list[bool]:
    """Whether each grid axis is parallel; axes that `vmap` added are."""
    rank = len(mapping.grid)
    if semantics is None:
        return [True] * rank
    own = [i for i in range(rank) if i not in mapping.vmapped_dims]
    if len(semantics) != len(own):
        raise InvalidKernel(
            f"dimension_semantics\n  expected: one for each of {len(own)} grid axes\n  got: {len(semantics)}"
            '\n  remedy: name each axis "parallel" or "sequential"'
        )
    by_axis = dict(zip(own, semantics))
    return [by_axis.get(i, "parallel") == "parallel" for i in range(rank)]


def _spec(block_mapping: Any, merge: Any) -> Any:
    """The pipeline's spec of a block; None for an array that stays in GMEM."""
    if _versions.is_gmem_block(block_mapping):
        return None

    def index_map(*indices: Any) -> tuple[Any, ...]:
        return tuple(_versions.eval_jaxpr(block_mapping.index_map_jaxpr, [jnp.asarray(i, jnp.int32) for i in merge(indices)]))

    return plgpu.BlockSpec(block_mapping.block_shape, index_map, transforms=tuple(block_mapping.transforms))
