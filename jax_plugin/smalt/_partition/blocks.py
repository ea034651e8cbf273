"""Along which axes of its grid a `pl.pallas_call` can be split over devices, and a device's share of it.

A device has some of an axis's steps if they depend on no other steps, if the blocks of every array either move along one dimension with that axis, one
block after the other from the array's first element to its last, or do not move with it at all. If the body queries which step it is, it gets where
the device's begin (`_blocks/queries.py`). A block that is the same for all devices is an operand's: each has all of it. An output's would be written by all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from smalt import _blocks, _versions
from smalt._blocks import Block, Query, QueryingBody
from smalt._errors import Error

_NONE: Mapping[Query, Any] = {}

Dims = tuple[str | None, ...]  # of each dimension the factor along which it is split


@dataclasses.dataclass(frozen=True)
class Split:
    """What is known of one call.

    Attributes:
        operands, results: Of each dimension of each of them the factor.
        sizes: Into how many equal parts a factor can be split at most.
        reasons: By operand or result (its number, behind operands) and dimension: why it is whole.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: Mapping[str, int]
    reasons: Mapping[tuple[int, int], str]
    params: dict[str, Any]
    axes: Mapping[str, int]  # of the grid
    body: QueryingBody
    own: Sequence[int]  # the axes of the grid that the body has

    def share(self, parts: Mapping[str, int], places: Mapping[str, Any]) -> Any:
        """A device's part of the call, where factors are split into so many; `places`: which of them it is."""

        def run(*arrays: Any) -> list[Any]:
            by_axis = {self.axes[f]: n for f, n in parts.items() if f in self.axes}
            arrays_dims = [*self.operands, *self.results]
            params = _versions.call_in_parts(self.params, by_axis, [[parts.get(f, 1) if f else 1 for f in dims] for dims in arrays_dims])
            grid = params["grid_mapping"].grid
            return self.bind(params, {self.axes[f]: place * grid[self.axes[f]] for f, place in places.items() if f in self.axes}, arrays)

        return run

    def bind(self, params: dict[str, Any], begins: Mapping[int, Any], operands: Sequence[Any], sizes: Mapping[Query, Any] = _NONE) -> list[Any]:
        """A call over a part of the grid, which begins there along these axes of it."""
        given = {Query("index", self.own.index(axis)): at for axis, at in begins.items() if axis in self.own}
        return _blocks.bind_answers(params, self.body, {**given, **sizes}, operands)


def split(params: dict[str, Any], ranks: Sequence[int]) -> Split:
    """What is known of a call with these parameters; `ranks`: of its operands."""
    try:
        call = _blocks.Call(params)
    except Error as e:
        if not str(e).startswith("smalt: "):
            e.args = (f"smalt: {e}{_versions.here()}",)
        raise
    others = len(ranks) - call.mapping.num_inputs  # sizes of the grid, and what index maps read
    body = QueryingBody(call.jaxpr, _versions.grid_names(call.mapping))
    reasons: dict[tuple[int, int], str] = {}
    dims: list[list[str | None]] = [[None] * rank for rank in (*ranks[:others], *(len(b.dims) for b in call.blocks))]
    names: dict[str, int] = {}
    for axis in range(len(call.grid)):
        problem = _problem(call, axis, body)
        where = [(others + b.number, k) for b in call.blocks for k, d in enumerate(b.dims) if axis in d.form.axes]
        if problem is not None:
            reasons.update((at, problem) for at in where)
        elif where:
            name = _NAMES[axis % len(_NAMES)] + "x" * (axis // len(_NAMES))
            names[name] = axis
            for number, k in where:
                dims[number][k] = name
    for b in call.blocks:
        for k, d in enumerate(b.dims):
            if not d.form.axes:
                is_all = d.size * d.parts == d.extent
                reasons[others + b.number, k] = f"each step has all of it: {d.extent}" if is_all else "all steps have the same part of it"
    found = tuple(map(tuple, dims))
    at = others + call.mapping.num_inputs
    return Split(found[:at], found[at:], {name: call.grid[axis] for name, axis in names.items()}, reasons, params, names, body, call.own)


_NAMES = "ijklmnopqrstuvw"


def _problem(call: _blocks.Call, axis: int, body: QueryingBody) -> str | None:
    """Why an axis of the grid cannot be split."""
    size = call.grid[axis]
    if not isinstance(size, int):
        return "the grid's size along it is traced"
    if not call.parallel[axis]:
        reason = call.axes.reasons.get(axis)
        return f"steps along it depend on each other ({reason.what})" if reason else "steps along it run in order"
    if axis in call.own:
        for query in (Query("index", call.own.index(axis)), Query("count", call.own.index(axis))):
            if within := body.problem(query):
                return f"the body asks for the step's {query.kind} along it within {within}, which cannot be given the whole's"
    for block in call.blocks:
        if (problem := _moves(block, axis, size)) is not None:
            return problem
    return None


def _moves(block: Block, axis: int, size: int) -> str | None:
    """Why a block does not move with an axis as it should."""
    if any(form.reads and axis in form.axes for form in block.forms):
        return f"where blocks of {block.name} are is looked up in a table"
    found = [d for d in block.dims if axis in d.form.axes]
    if not found:
        return f"all steps along it write the same block of {block.name}" if block.is_output else None
    if len(found) > 1:
        return f"blocks of {block.name} move along several dimensions with it"
    (d,) = found
    if d.length is not None or not d.form.is_affine or len(d.form.factors) != 1 or d.form.constant or d.shift:
        return f"where blocks of {block.name} begin is another function than the step's index along one axis"
    step, length = d.form.factors[0][1] * d.scale, d.size * d.parts
    if 0 < step < length:
        return f"blocks of {block.name} overlap: {length} elements, every {step}"
    if step != length or size * length != d.extent or d.outside:
        return f"blocks of {block.name} are not its elements from the first to the last: {size} of {length}, of {d.extent}"
    return None
