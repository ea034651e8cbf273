"""`pl.pallas_call` over arrays of symbolic shapes, as `jax.export` has them.

A kernel is compiled for one shape. So a call whose arrays have symbolic dimensions is a loop over calls of static shapes, in the exported program: each takes
so many blocks along an axis of the grid. That is the same as one call if the axis can be split (`_partition_blocks.py`: independent steps, blocks
that follow one another, a body that does not ask which step it is). How many blocks a call takes is decided when the program runs,
or is compiled for a shape: the most of a few sizes that the array has. The last call begins earlier where they do not divide
the array, and computes some blocks again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from smalt import _blocks, _partition_blocks, _versions
from smalt._asked import Question
from smalt._errors import Unsupported

#: So many blocks a call takes.
SIZES = (1, 8, 64, 512)
#: Blocks of a grid that fill a GPU, so that there is nothing to gain from more of them.
FULL = 4096


@dataclasses.dataclass(frozen=True)
class _Axis:
    """An axis of the grid whose size is symbolic."""

    number: int
    count: Any  # of its blocks: symbolic
    #: By operand (results behind them): the dimension that moves with it, and a block's extent there.
    dims: dict[int, tuple[int, int]]


def is_wanted(avals: Sequence[Any]) -> bool:
    """Whether some of them have symbolic dimensions."""
    return any(not isinstance(n, (int, np.integer)) for aval in avals for n in getattr(aval, "shape", ()))


def calls(params: dict[str, Any]) -> Callable[..., list[Any]]:
    """A function of the call's operands, to be traced in its place."""
    mapping = params["grid_mapping"]
    _check(params)
    sizes = [a for a, n in enumerate(mapping.grid) if not isinstance(n, int)]
    axes = _axes(mapping, sizes)
    first = mapping.num_index_operands  # where arrays with blocks begin, behind the sizes of the grid
    two = {axis.number: 2 for axis in axes}
    static = _versions.call_of_static_shape(params, two, _extents(axes, mapping, two))
    prefetched = [v.aval for v in params["jaxpr"].invars[:first]]
    split = _partition_blocks.split(static, [len(a.shape) for a in (*prefetched, *(b.array_aval for b in mapping.block_mappings[: mapping.num_inputs]))])
    for axis in axes:
        if axis.number not in split.axes.values():
            at, (dim, _) = next((k, d) for k, d in axis.dims.items())
            raise _refused(
                f"axis {axis.number} of its grid, of {axis.count} blocks", "an axis that can be split: independent steps, whose blocks follow one another",
                split.reasons.get((first + at, dim), "steps along it depend on each other"), "export it for each size",
            )  # fmt: skip
    order = sorted(axes, key=lambda axis: axis.number)

    def run(*operands: Any) -> list[Any]:
        counts = {split.own.index(axis.number): axis.count for axis in axes if axis.number in split.own}
        asked = {q: counts[q.of] if q.kind == "count" else q.of for q in split.body.questions if q.kind != "index"}
        told = {q: _versions.dimension_value(dim) for q, dim in asked.items()}
        looped = _Looped(params, split, told, list(operands[len(sizes) : len(sizes) + first]))
        return looped.along(order, {}, {}, list(operands[len(sizes) + first :]))

    return run


def _check(params: dict[str, Any]) -> None:
    if params["input_output_aliases"]:
        raise _refused("operands that share the buffers of results", "no input_output_aliases", "it has some", "leave them out for the export")
    for eqn in _versions.all_equations(params["jaxpr"]):
        if is_wanted([v.aval for v in (*eqn.invars, *eqn.outvars)]):
            remedy = "compute with the size as a number, not with arrays of that size"
            raise _refused("a body that has arrays of them, too", "a body over blocks of known sizes", str(eqn.primitive), remedy)


def _axes(mapping: Any, sizes: Sequence[int]) -> list[_Axis]:
    """Of each symbolic axis what moves with it."""
    forms = [_blocks.Form(factors=((a, 1),)) for a in range(len(mapping.grid))]
    found: dict[int, _Axis] = {}
    for number, block in enumerate(mapping.block_mappings):
        maps = _blocks.forms_of(block.index_map_jaxpr, forms, mapping.grid)
        for k, (extent, dim, form) in enumerate(zip(block.array_aval.shape, block.block_shape, maps)):
            if isinstance(extent, int):
                continue
            size = int(getattr(dim, "block_size", 1))
            name = f"dimension {k} of {block.origin}, {extent}"
            if len(form.factors) != 1 or form.constant or form.unknown is not None or form.factors[0][0] not in sizes:
                wanted = "blocks that follow one another along an axis of the grid"
                raise _refused(name, wanted, "other blocks, or a whole dimension", "give it blocks, or a known size")
            ((axis, factor),) = form.factors
            if factor != 1 or type(dim).__name__ not in ("Blocked", "Squeezed") or extent % size != 0:
                raise _refused(name, f"a multiple of the block's {size}, for all values", str(extent), f'write it as such: "{size}*b"')
            count = extent // size
            one = found.setdefault(axis, _Axis(axis, count, {}))
            if one.count != count:
                raise _refused(name, f"{one.count} blocks, as other arrays have along axis {axis}", f"{count}", "let the arrays' dimensions be the same")
            one.dims[number] = k, size
    if left := sorted(set(sizes) - set(found)):
        wanted = "a symbolic size of the blocks of an array"
        raise _refused(f"axis {left[0]} of the grid", wanted, "a size that is computed", "let it follow from the arrays' shapes")
    return list(found.values())


def _extents(axes: Sequence[_Axis], mapping: Any, taken: dict[int, int]) -> list[tuple[int, ...]]:
    """The shapes of arrays that have so many blocks along each axis."""
    made = []
    for number, block in enumerate(mapping.block_mappings):
        shape = list(block.array_aval.shape)
        for axis in axes:
            if number in axis.dims:
                k, size = axis.dims[number]
                shape[k] = size * taken[axis.number]
        made.append(tuple(shape))
    return made


@dataclasses.dataclass(frozen=True)
class _Looped:
    params: dict[str, Any]
    split: _partition_blocks.Split
    told: Mapping[Question, Any]  # what the body asks of sizes
    index: list[Any]  # what index maps read

    def along(self, axes: Sequence[_Axis], taken: dict[int, int], begins: dict[int, Any], arrays: list[Any]) -> list[Any]:
        """The call along `axes`, of so many blocks along others, from these on."""
        mapping = self.params["grid_mapping"]
        if not axes:
            every = _axes(mapping, list(taken))
            static = _versions.call_of_static_shape(self.params, taken, _extents(every, mapping, taken))
            return self.split.bind(static, begins, [*self.index, *arrays], self.told)
        axis, *rest = axes
        sizes: Sequence[int] = (1,)
        if not rest:
            at_once = math.prod([n for n in mapping.grid if isinstance(n, int)] + list(taken.values()))
            sizes = [n for n in SIZES if n == 1 or n * at_once <= FULL]

        def of_size(size: int) -> Callable[..., list[Any]]:
            def call(start: Any, parts: list[Any]) -> list[Any]:
                return self.along(rest, taken | {axis.number: size}, begins | {axis.number: start}, parts)

            return lambda *xs: _along(axis, size, mapping, list(xs), call)

        count = _versions.dimension_value(axis.count)
        which = sum((count >= n).astype(jnp.int32) for n in sizes[1:]) if len(sizes) > 1 else 0
        return list(lax.switch(which, [of_size(n) for n in sizes], *arrays)) if len(sizes) > 1 else of_size(1)(*arrays)


def _along(axis: _Axis, size: int, mapping: Any, arrays: list[Any], call: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """The results, `size` blocks along an axis at a time. Arrays of fewer have the last one again."""
    total = jax.core.max_dim(axis.count, size)
    inputs = mapping.num_inputs
    dims = axis.dims
    padded = [_padded(x, *dims[i], axis.count, total) if i in dims else x for i, x in enumerate(arrays)]
    last = _versions.dimension_value(total) - size
    shapes = jax.eval_shape(lambda *xs: call(0, list(xs)), *[_part(x, *dims[i], 0, size) if i in dims else x for i, x in enumerate(padded)])
    results = []
    for r, shape in enumerate(shapes):
        k, block = dims[inputs + r]
        results.append(jnp.zeros((*shape.shape[:k], total * block, *shape.shape[k + 1 :]), shape.dtype))

    def turn(i: Any, made: list[Any]) -> list[Any]:
        start = jnp.minimum(i * size, last)
        found = call(start, [_part(x, *dims[n], start, size) if n in dims else x for n, x in enumerate(padded)])
        return [
            lax.dynamic_update_slice_in_dim(to, x, start * dims[inputs + r][1], dims[inputs + r][0]) for r, (to, x) in enumerate(zip(made, found))
        ]

    turns = (_versions.dimension_value(total) + size - 1) // size
    made = lax.fori_loop(0, turns, turn, results)
    return [lax.slice_in_dim(x, 0, axis.count * dims[inputs + r][1], axis=dims[inputs + r][0]) for r, x in enumerate(made)]


def _padded(x: Any, k: int, block: int, count: Any, total: Any) -> Any:
    if total is count:
        return x
    last = lax.slice_in_dim(x, (count - 1) * block, count * block, axis=k)
    shape = (*x.shape[:k], total - count, block, *x.shape[k + 1 :])
    more = jnp.broadcast_to(jnp.expand_dims(last, k), shape).reshape(*x.shape[:k], (total - count) * block, *x.shape[k + 1 :])
    return jnp.concatenate([x, more], axis=k)


def _part(x: Any, k: int, block: int, start: Any, size: int) -> Any:
    return lax.dynamic_slice_in_dim(x, start * block, size * block, axis=k)


def _refused(what: str, expected: str, got: str, remedy: str) -> Unsupported:
    return Unsupported(f"not supported yet: symbolic shapes in a pl.pallas_call: {what}\n  expected: {expected}\n  got: {got}\n  remedy: {remedy}")
