"""`pl.pallas_call` over arrays of symbolic shapes, as `jax.export` has them.

A kernel is compiled for one shape. So a call whose arrays have symbolic dimensions is a loop over calls of static shapes, in the exported program: each takes
so many blocks along an axis of the grid. That is the same as one call if the axis can be split (`_partition_blocks.py`: independent steps, blocks
that follow one another, a body that does not ask which step it is). How many blocks a call takes is decided when the program runs,
or is compiled for a shape: the most of a few sizes that the array has. The last call begins earlier where they do not divide
the array, and computes some blocks again.
"""

from __future__ import annotations

import dataclasses
import functools
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
    call = _Call(params)

    def run(*operands: Any) -> list[Any]:
        looped = _Looped(call, call.told(), list(call.prefetched(operands)))
        return looped.along(call.axes, {}, {}, list(operands[call.first :]))

    return run


def sample(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the call over two blocks along each symbolic axis; the call itself where it has none."""
    return _Call(params).static if is_wanted([b.array_aval for b in params["grid_mapping"].block_mappings]) else params


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
        split = self.split = _partition_blocks.split(self.static, ranks)
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

    def prefetched(self, operands: Sequence[Any]) -> Sequence[Any]:
        """What index maps read."""
        return operands[self.sizes : self.first]

    def told(self) -> dict[Question, Any]:
        """What the body asks of sizes."""
        counts = {self.split.own.index(axis.number): axis.count for axis in self.axes if axis.number in self.split.own}
        asked = {q: counts[q.of] if q.kind == "count" else q.of for q in self.split.body.questions if q.kind != "index"}
        return {q: _versions.dimension_value(dim) for q, dim in asked.items()}

    def at_once(self, taken: Mapping[int, int]) -> list[int]:
        """So many blocks a call takes along the last axis, where it takes so many along the others."""
        others = math.prod([n for n in self.mapping.grid if isinstance(n, int)] + list(taken.values()))
        return [n for n in SIZES if n == 1 or n * others <= FULL]


def _check(params: dict[str, Any]) -> None:
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


@dataclasses.dataclass(frozen=True)
class _Looped:
    """The call as loops of calls."""

    call: _Call
    told: Mapping[Question, Any]
    index: list[Any]  # what index maps read

    def along(self, axes: Sequence[_Axis], taken: dict[int, int], begins: dict[int, Any], arrays: list[Any]) -> list[Any]:
        """The call along `axes`, of so many blocks along others, from these on."""
        if not axes:
            return self.call.split.bind(self.call.of_size(taken), begins, [*self.index, *arrays], self.told)
        axis, *rest = axes

        def of_size(sizes: Sequence[int], *xs: Any) -> list[Any]:
            def call(start: Any, parts: list[Any]) -> list[Any]:
                return self.along(rest, taken | {axis.number: sizes[-1]}, begins | {axis.number: start}, parts)

            return _along(axis, sizes[-1], self.call.mapping, list(xs), call)

        return self.chosen(axis, taken, not rest, of_size, arrays)

    def chosen(self, axis: _Axis, taken: dict[int, int], is_last: bool, do: Callable[..., list[Any]], arrays: Sequence[Any]) -> list[Any]:
        """What is done for so many blocks as there are of an axis: `do` takes the numbers that a call may have of them, then the arrays."""
        sizes = self.call.at_once(taken) if is_last else [1]
        count = _versions.dimension_value(axis.count)
        which = sum((count >= n).astype(jnp.int32) for n in sizes[1:])
        ways = [functools.partial(do, sizes[: k + 1]) for k in range(len(sizes))]
        return list(lax.switch(which, ways, *arrays)) if len(ways) > 1 else ways[0](*arrays)


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


# ------------------------------------------------------------------------------------------ backwards


def backward(params: dict[str, Any], operands: Sequence[Any], wanted: Sequence[int], cotangents: Mapping[int, Any]) -> dict[int, Any]:
    """The cotangents of some of the arrays, given those of some results: of so many blocks at a time, too, each of them once. What the blocks of an
    axis share is added up, in f32 at least."""
    call = _Call(params)
    looped = _Backward(call, call.told(), list(call.prefetched(operands)), list(wanted), list(cotangents))
    arrays = list(operands[call.first :])
    made = looped.cotangents(call.axes, {}, {}, arrays, list(cotangents.values()))
    return {i: x.astype(arrays[i].dtype) for i, x in zip(wanted, made)}


@dataclasses.dataclass(frozen=True)
class _Backward(_Looped):
    wanted: list[int]
    given: list[int]

    def cotangents(self, axes: Sequence[_Axis], taken: dict[int, int], begins: dict[int, Any], arrays: list[Any], given: list[Any]) -> list[Any]:
        """Those of the wanted arrays' parts."""
        if axes:
            axis, *rest = axes
            return self.chosen(axis, taken, not rest, lambda sizes, *xs: self.loops(axis, rest, sizes, taken, begins, xs), [*arrays, *given])
        static = self.call.of_size(taken)

        def some(*floats: Any) -> list[Any]:
            now = list(arrays)
            for i, x in zip(self.wanted, floats):
                now[i] = x
            found = self.call.split.bind(static, begins, [*self.index, *now], self.told)
            return [found[o] for o in self.given]

        return list(jax.vjp(some, *(arrays[i] for i in self.wanted))[1](given))

    def loops(
        self, axis: _Axis, rest: Sequence[_Axis], sizes: Sequence[int], taken: dict[int, int], begins: dict[int, Any], xs: Sequence[Any]
    ) -> list[Any]:
        """The most blocks at a time first, then fewer for those that are left. `xs`: arrays, then cotangents."""
        mapping = self.call.mapping
        total = jax.core.max_dim(axis.count, sizes[-1])
        first = len(xs) - len(self.given)
        dims = [axis.dims.get(n) for n in (*range(first), *(mapping.num_inputs + o for o in self.given))]
        padded = [x if at is None else _padded(x, *at, axis.count, total) for x, at in zip(xs, dims)]
        results = []
        for i in self.wanted:
            dtype = padded[i].dtype if dims[i] else jnp.promote_types(padded[i].dtype, jnp.float32)
            results.append(jnp.zeros(padded[i].shape, dtype))
        done, count = jnp.int32(0), _versions.dimension_value(axis.count)
        for size in reversed(sizes):

            def turn(i: Any, made: list[Any], size: int = size, done: Any = done) -> list[Any]:
                start = done + i * size
                some = [x if at is None else _part(x, *at, start, size) for x, at in zip(padded, dims)]
                found = self.cotangents(rest, taken | {axis.number: size}, begins | {axis.number: start}, some[:first], some[first:])
                out = []
                for n, to, x in zip(self.wanted, made, found):
                    at, x = dims[n], x.astype(to.dtype)
                    out.append(to + x if at is None else lax.dynamic_update_slice_in_dim(to, x, start * at[1], at[0]))
                return out

            turns = (count - done) // size
            results = lax.fori_loop(0, turns, turn, results)
            done = done + turns * size
        return [x if (at := dims[i]) is None else lax.slice_in_dim(x, 0, axis.count * at[1], axis=at[0]) for i, x in zip(self.wanted, results)]


def _refused(what: str, expected: str, got: str, remedy: str) -> Unsupported:
    return Unsupported(f"not supported yet: symbolic shapes in a pl.pallas_call: {what}\n  expected: {expected}\n  got: {got}\n  remedy: {remedy}")
