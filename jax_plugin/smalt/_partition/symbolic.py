"""`pl.pallas_call` over arrays of symbolic shapes, as `jax.export` has them.

A kernel is compiled for one shape. So a call whose arrays have symbolic dimensions is a loop over calls of static shapes, in the exported program
(`loops.py`): each takes so many blocks along an axis of the grid. That is the same as one call if the axis can be split (`blocks.py`:
independent steps, blocks that follow one another; what a body queries of the whole grid comes as an operand).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smalt import _blocks, _versions
from smalt._blocks import Query
from smalt._errors import Unsupported
from smalt._partition import blocks, loops
from smalt._partition.loops import Axis, is_symbolic


def symbolic_calls(params: dict[str, Any]) -> Callable[..., list[Any]]:
    """A function of the call's operands, to be traced in its place."""

    def run(*operands: Any) -> list[Any]:
        call, arrays = _Call(params).of(operands)
        return loops.forward(call, arrays)

    return run


def symbolic_backward(params: dict[str, Any], operands: Sequence[Any], wanted: Sequence[int], cotangents: Mapping[int, Any]) -> dict[int, Any]:
    """The cotangents of some of the arrays with blocks, given those of some results."""
    call, arrays = _Call(params).of(operands)
    return dict(zip(wanted, loops.backward(call, arrays, wanted, cotangents)))


def symbolic_sample(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the call over two blocks along each symbolic axis; the call itself where it has none."""
    return _Call(params).static if is_symbolic([b.array_aval for b in params["grid_mapping"].block_mappings]) else params


class _Call:
    """What is known of a call over arrays of symbolic shapes."""

    def __init__(self, params: dict[str, Any]) -> None:
        mapping = self.mapping = params["grid_mapping"]
        _check(params)
        self.params = params
        sizes = [a for a, n in enumerate(mapping.grid) if not isinstance(n, int)]
        self.axes = sorted(_axes(mapping, sizes), key=lambda axis: axis.number)
        self.sizes, self.first = len(sizes), len(sizes) + mapping.num_index_operands  # where arrays with blocks begin
        self.static = self.of_size({axis.number: 2 for axis in self.axes})
        prefetched = [v.aval for v in params["jaxpr"].invars[: mapping.num_index_operands]]
        ranks = [len(a.shape) for a in (*prefetched, *(b.array_aval for b in mapping.block_mappings[: mapping.num_inputs]))]
        split = self.split = blocks.split(self.static, ranks)
        for axis in self.axes:
            if axis.number not in split.axes.values():
                at, (dim, _) = next((k, d) for k, d in axis.dims.items())
                raise _refused(
                    f"axis {axis.number} of its grid, of {axis.count} blocks",
                    "an axis that can be split: independent steps, whose blocks follow one another",
                    split.reasons.get((len(prefetched) + at, dim), "steps along it depend on each other"), "export it for each size",
                )  # fmt: skip

    def of_size(self, taken: Mapping[int, int]) -> dict[str, Any]:
        """Its parameters, over so many blocks along each symbolic axis."""
        shapes = []
        for number, block in enumerate(self.mapping.block_mappings):
            shape = list(block.array_aval.shape)
            for axis in self.axes:
                if number in axis.dims:
                    k, size = axis.dims[number]
                    shape[k] = size * taken[axis.number]
            shapes.append(tuple(shape))
        return _versions.call_of_static_shape(self.params, dict(taken), shapes)

    def of(self, operands: Sequence[Any]) -> tuple[_Bound, Sequence[Any]]:
        """The call with the sizes that the body queries, and what index maps read, as a function of arrays with blocks; and those."""
        counts = {self.split.own.index(axis.number): axis.count for axis in self.axes if axis.number in self.split.own}
        dims = {q: counts[q.of] if q.kind == "count" else q.of for q in self.split.body.queries if q.kind != "index"}
        sizes = {q: _versions.dimension_value(dim) for q, dim in dims.items()}
        return _Bound(self, sizes, operands[self.sizes : self.first]), operands[self.first :]


class _Bound:
    """A call as a function of arrays that have blocks."""

    def __init__(self, call: _Call, sizes: Mapping[Query, Any], prefetched: Sequence[Any]) -> None:
        self.axes, self.inputs = call.axes, call.mapping.num_inputs
        self._call, self._sizes, self._prefetched = call, sizes, prefetched

    def bind(self, taken: dict[int, int], begins: dict[int, Any], arrays: list[Any]) -> list[Any]:
        return self._call.split.bind(self._call.of_size(taken), begins, [*self._prefetched, *arrays], self._sizes)

    def others(self, taken: dict[int, int]) -> int:
        return math.prod([n for n in self._call.mapping.grid if isinstance(n, int)] + list(taken.values()))


def _check(params: dict[str, Any]) -> None:
    for eqn in _versions.all_equations(params["jaxpr"]):
        if is_symbolic([v.aval for v in (*eqn.invars, *eqn.outvars)]):
            remedy = "compute with the size as a number, not with arrays of that size"
            raise _refused("a body that has arrays of them, too", "a body over blocks of known sizes", str(eqn.primitive), remedy)


def _axes(mapping: Any, sizes: Sequence[int]) -> list[Axis]:
    """Of each symbolic axis what moves with it."""
    forms = [_blocks.Form(factors=((a, 1),)) for a in range(len(mapping.grid))]
    found: dict[int, Axis] = {}
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
            one = found.setdefault(axis, Axis(axis, count, {}))
            if one.count != count:
                raise _refused(name, f"{one.count} blocks, as other arrays have along axis {axis}", f"{count}", "let the arrays' dimensions be the same")
            one.dims[number] = k, size
    if left := sorted(set(sizes) - set(found)):
        wanted = "a symbolic size of the blocks of an array"
        raise _refused(f"axis {left[0]} of the grid", wanted, "a size that is computed", "let it follow from the arrays' shapes")
    return list(found.values())


def _refused(what: str, expected: str, got: str, remedy: str) -> Unsupported:
    return Unsupported(f"not supported yet: symbolic shapes in a pl.pallas_call: {what}\n  expected: {expected}\n  got: {got}\n  remedy: {remedy}")
