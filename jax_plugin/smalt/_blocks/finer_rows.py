"""Blocks whose rows have nothing to do with each other are taken in finer parts than their block specs have.

A block of 16 rows of 4096 is 512 elements a thread; of one row it is 32. Where every operation of a body keeps the rows of its
blocks apart (element by element, or along other dimensions), the body of a part is the body, with fewer rows: `run` evaluates it so,
equation by equation, and `analyse` does the same without results, as a check. What mixes rows, or is not supported here, keeps its blocks.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax

from smalt import _programs, _versions
from smalt._programs import ELEMENTWISE, Mixed, Split

#: Elements of a part: 32 a thread. Measured on an H200, (8192, 4096): blocks of this size are the fastest, or within 2 % of them.
TARGET = 4096
#: Instructions of a part's thread, about: more of them take registers, and the assembler's time. 100 operations on 2^25 numbers on an
#: H200, by elements a part: 8192 727 us, 4096 485, 2048 412, 1024 338, 512 343, 256 354.
CODE = 1600
#: Elements of a part along the minor dimension: a block of fewer costs more than it does.
MINOR = 256
THREADS = 128
#: Sums of a product in a part: 64 a thread; and its rows, as the tensor cores take them.
PRODUCT_TARGET = 8192
PRODUCT_ROWS = 64

#: Instructions of an element, where they are more than one or two.
_INSTRUCTIONS = {
    **dict.fromkeys("exp logistic sqrt div integer_pow log2 exp2".split(), 10),
    **dict.fromkeys("tanh log sin cos rem cbrt expm1 asin acos".split(), 20),
    **dict.fromkeys("erf erfc log1p tan atan sinh cosh atan2 asinh acosh atanh erf_inv".split(), 30),
    **dict.fromkeys("pow lgamma digamma".split(), 60),
}


@dataclasses.dataclass(frozen=True)
class Rows:
    """A value (or ref) of which dimension `dim` is the rows."""

    value: Any
    dim: int


@dataclasses.dataclass(frozen=True, eq=False)
class Same:
    """An array of which any part along `dims` can be made, since it is equal there or counts: what an equation makes of these operands
    (`_Eval.make`)."""

    shape: tuple[int, ...]
    dims: frozenset[int]
    eqn: Any
    operands: tuple[Value, ...]


Value = Any  # Rows, Same, or an array or ref that has no rows


def parts(shapes: Sequence[tuple[tuple[int, ...], int | None]], body: Body) -> int:
    """Into how many parts blocks (shape, dimension of the rows or None) are best taken."""
    target, unit = (PRODUCT_TARGET, PRODUCT_ROWS) if body.products else (TARGET, 1)
    rows = {shape[dim] for shape, dim in shapes if dim is not None}
    if len(rows) != 1:
        return 1
    (n,) = rows
    row = max(math.prod(shape) // n for shape, dim in shapes if dim is not None) if n else 0
    if not body.products and n:
        target = min(target, THREADS * CODE * row * n // max(body.work, 1))
    if any(dim == len(shape) - 1 for shape, dim in shapes):
        unit = max(unit, MINOR)
    if n <= unit or n % unit or row * n <= target:
        return 1
    part = max(k for k in range(unit, n + 1, unit) if n % k == 0 and (row * k <= target or k == unit))
    shared = sum(math.prod(shape) for shape, dim in shapes if dim is None)
    return n // part if shared <= 2 * row * part else 1  # what all parts load again is not most of it


@dataclasses.dataclass(frozen=True)
class Body:
    """What a body with independent rows does."""

    products: bool
    #: Instructions of all its elements together, about.
    work: int


def analyse(jaxpr: Any, dims: Sequence[int | None], rows: int) -> Body | None:
    """None: the body mixes rows. `dims`: of each ref the dimension that is rows, by invar."""
    trial = _Eval(rows, rows, lambda: 0, (), (), dry=True)
    try:
        trial.body(jaxpr, [_Shape(v.aval) if d is None else Rows(_Shape(v.aval), d) for v, d in zip(jaxpr.invars, dims)])
    except Mixed:
        return None
    return Body(trial.products, trial.work)


def run(
    jaxpr: Any, refs: Sequence[Any], dims: Sequence[int | None], rows: int, part: int, first: Callable[[], Any], indices: Sequence[Any], sizes: Sequence[Any]
) -> None:
    """The body on `part` of its rows, from `first()` on: `refs` have so many; `indices` are what `program_id` gives, `sizes` what `num_programs`
    does."""
    values = [r if d is None else Rows(r, d) for r, d in zip(refs, dims)]
    _Eval(rows, part, first, indices, sizes, dry=False).body(jaxpr, values)


@dataclasses.dataclass(frozen=True)
class _Shape:
    """What stands for a value where only shapes matter."""

    aval: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.aval.shape)


@dataclasses.dataclass
class _Eval:
    rows: int
    part: int
    first: Callable[[], Any]
    indices: Sequence[Any]
    sizes: Sequence[Any]
    dry: bool
    used: frozenset[Any] = frozenset()  # variables of this jaxpr that are used
    products: bool = False
    work: int = 0
    #: What was made of each `Same`, by dimension and extent; what an arm of a `cond` makes is the arm's own.
    made: collections.ChainMap[tuple[Same, int | None], Any] = dataclasses.field(default_factory=collections.ChainMap)

    def body(self, jaxpr: Any, values: Sequence[Value], consts: Sequence[Any] = ()) -> list[Value]:
        env: dict[Any, Value] = dict(zip(jaxpr.invars, values))
        env.update(zip(jaxpr.constvars, consts))

        def read(atom: Any) -> Value:
            return _versions.literal_value(atom) if _versions.is_literal(atom) else env[atom]

        outer, self.used = self.used, _versions.used_variables(jaxpr)
        for eqn in jaxpr.eqns:
            with self.line(eqn):
                results = self.equation(eqn, [read(a) for a in eqn.invars])
            env.update(zip(eqn.outvars, results))
        self.used = outer
        return [read(a) for a in jaxpr.outvars]

    def line(self, eqn: Any) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.dry else _versions.at_line_of(eqn)

    # ------------------------------------------------------------------------------ equations

    def equation(self, eqn: Any, values: list[Value]) -> list[Value]:
        name, params = eqn.primitive.name, eqn.params
        if name in ELEMENTWISE:
            aval = eqn.outvars[0].aval
            self.work += math.prod(aval.shape) * _INSTRUCTIONS.get(name, 1) * (4 if aval.dtype.itemsize == 8 else 1)
        if name == "program_id":
            return [_Shape(eqn.outvars[0].aval) if self.dry else self.indices[params["axis"]]]
        if name == "num_programs":
            return [_Shape(eqn.outvars[0].aval) if self.dry else self.sizes[params["axis"]]]
        if name in ("get", "swap", "load", "store"):
            return self.memory(eqn, values)
        if name == "cond":
            return self.cond(eqn, values)
        if (callee := params.get(_versions.CALLS.get(name, ""))) is not None:
            jaxpr, consts = _versions.open_jaxpr(callee)
            if len(jaxpr.invars) == len(values):
                return self.body(jaxpr, values, consts)
        if name == "broadcast_in_dim" and not isinstance(values[0], Rows):
            return [self.broadcast(eqn, values)]
        if name == "iota" and len(values) == 0:
            return [self.iota(eqn)]
        if any(isinstance(v, Rows) for v in values):
            return self.divided(eqn, values)
        if name in ELEMENTWISE and any(isinstance(v, Same) for v in values):
            return self.same(eqn, values)
        return self.bind(eqn, [self.whole(v) for v in values])

    def divided(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        """Of operations on what has rows: their results have them, along the dimension for which the operands' rows are what is needed."""
        name = eqn.primitive.name
        if not eqn.outvars or any(_versions.is_ref_aval(a.aval) for a in eqn.invars):
            raise Mixed(name)
        shapes, result = [a.aval.shape for a in eqn.invars], eqn.outvars[0].aval.shape
        for dim in range(len(result)):
            try:
                splits = _programs.operand_splits(name, eqn.params, shapes, result, dim)
            except Mixed:
                continue
            if not all(_has(v, split) for v, split in zip(values, splits)):
                continue
            operands = [self.part_along(v, split) for v, split in zip(values, splits)]
            self.products |= name == "dot_general"
            part = [self.part if d == dim else n for d, n in enumerate(result)]
            return [Rows(r, dim) for r in self.bind(eqn, operands, _programs.params_of_part(eqn.params, part))]
        raise Mixed(name)

    def bind(self, eqn: Any, values: Sequence[Any], params: Mapping[str, Any] | None = None) -> list[Any]:
        if any(isinstance(v, (Rows, Same)) for v in values) or eqn.effects:
            raise Mixed(eqn.primitive.name)
        if self.dry:
            return [_Shape(v.aval) for v in eqn.outvars]
        out = eqn.primitive.bind(*values, **(eqn.params if params is None else params))
        return list(out) if eqn.primitive.multiple_results else [out]

    def same(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        """What is equal along what all operands are equal along."""
        common = frozenset.intersection(*(_free(v) for v in values if isinstance(v, Same) or _rank(v)))
        if not common:
            return self.bind(eqn, [self.whole(v) for v in values])
        if len(eqn.outvars) != 1:
            raise Mixed(eqn.primitive.name)
        return [Same(tuple(eqn.outvars[0].aval.shape), common, eqn, tuple(values))]

    def part_along(self, v: Value, split: Split) -> Any:
        """The rows of a value that has them (`_has`) along a dimension; None: all of it."""
        if isinstance(v, Rows):
            return v.value
        return self.make(v, split) if isinstance(v, Same) else v

    def broadcast(self, eqn: Any, values: Sequence[Value]) -> Value:
        params, (x, *dynamic) = eqn.params, values
        shape, at = tuple(params["shape"]), tuple(params["broadcast_dimensions"])
        if dynamic:
            raise Mixed("broadcast_in_dim")
        x = self.whole(x)
        small = eqn.invars[0].aval.shape
        free = frozenset(d for d in range(len(shape)) if d not in at or small[at.index(d)] == 1)
        return Same(shape, free, eqn, (x,))

    def iota(self, eqn: Any) -> Value:
        shape = tuple(eqn.params["shape"])
        dims = frozenset(range(len(shape)))
        if not jnp.issubdtype(eqn.params["dtype"], jnp.integer):  # a sum of numbers would be rounded twice
            dims -= {eqn.params["dimension"]}
        return Same(shape, dims, eqn, ())

    def whole(self, v: Value) -> Any:
        """A value without rows, as it is."""
        return self.make(v, None) if isinstance(v, Same) else v

    def make(self, same: Same, dim: int | None) -> Any:
        """A `Same` with a part's extent along `dim`; None: of its own shape. Each is made once, whatever uses it, and after what it is of."""
        stack = [same]
        while stack:
            v = stack[-1]
            needed = [x for x in v.operands if isinstance(x, Same) and (x, dim) not in self.made]
            if needed:
                stack += needed
                continue
            stack.pop()
            if (v, dim) in self.made:
                continue
            params = _programs.params_of_part(v.eqn.params, [self.part if d == dim else n for d, n in enumerate(v.shape)])
            operands = [self.made[x, dim] if isinstance(x, Same) else x for x in v.operands]
            with self.line(v.eqn):
                (made,) = self.bind(v.eqn, operands, params)
                if v.eqn.primitive.name == "iota" and v.eqn.params["dimension"] == dim and not self.dry:
                    made += jnp.asarray(self.first(), made.dtype)
            self.made[v, dim] = made
        return self.made[same, dim]

    def cond(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        index, *captured = values
        if eqn.outvars or isinstance(index, (Rows, Same)) or _rank(index):
            raise Mixed("cond")

        def arm(branch: Any) -> Callable[[], None]:
            jaxpr, consts = _versions.open_jaxpr(branch)

            def go() -> None:
                outer, self.made = self.made, self.made.new_child()
                self.body(jaxpr, captured, consts)
                self.made = outer

            return go

        arms = [arm(b) for b in eqn.params["branches"]]
        if self.dry:
            for go in arms:
                go()
        elif len(arms) == 2:
            lax.cond(jnp.asarray(index, jnp.bool_), arms[1], arms[0])
        else:
            lax.switch(index, arms)
        return []

    # ------------------------------------------------------------------------------ memory

    def memory(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        is_load = eqn.primitive.name in ("get", "load")
        ref, *rest = values
        stored, leaves = (None, rest) if is_load else (rest[0], rest[1:])
        if not is_load and any(v in self.used for v in eqn.outvars):
            raise Mixed("swap")
        tree = eqn.params["tree"]
        if any(isinstance(v, (Rows, Same)) for v in leaves):
            raise Mixed("an index with rows")
        transforms = tree.unflatten(leaves) if tree is not None else ()
        if len(transforms) > 1 or any(type(t).__name__ != "NDIndexer" for t in transforms):
            raise Mixed("a view")
        indices = list(transforms[0].indices) if transforms else None
        dim = None
        if isinstance(ref, Rows):
            dim, ref = ref.dim, ref.value
            if indices is not None:
                own = indices[ref_dim := dim]
                if (getattr(own, "start", None), getattr(own, "size", None), getattr(own, "stride", None)) != (0, self.rows, 1):
                    raise Mixed("part of the rows")
                if any(_rank(i) for i in indices if not hasattr(i, "size") or not hasattr(i, "stride")):
                    raise Mixed("an array of indices")
                dim = sum(hasattr(i, "stride") for i in indices[:ref_dim])
        if stored is not None:
            if dim is None and isinstance(stored, Rows):
                raise Mixed("rows stored to a place that all rows share")
            if dim is None:  # every part would store it
                raise Mixed("a store that is not of rows")
            if not _has(stored, dim):
                raise Mixed("a store of other rows")
            stored = self.part_along(stored, dim)
        if self.dry:
            loaded: Any = [_Shape(v.aval) for v in eqn.outvars]
        else:
            index = self._index(indices, ref, values[0])
            if is_load:
                loaded = [ref[index]]
            else:
                ref[index] = stored
                loaded = [None] * len(eqn.outvars)
        return [Rows(v, dim) if dim is not None else v for v in loaded]

    def _index(self, indices: list[Any] | None, ref: Any, original: Value) -> Any:
        if indices is None:
            return ...
        own = original.dim if isinstance(original, Rows) else None
        return tuple(
            slice(None) if d == own else pl.ds(i.start, i.size, i.stride) if hasattr(i, "stride") else i
            for d, i in enumerate(indices)
        )


def _free(v: Value) -> frozenset[int]:
    """The dimensions along which an array without rows goes with any number of them."""
    return v.dims if isinstance(v, Same) else frozenset(d for d, n in enumerate(v.shape) if n == 1)


def _has(v: Value, split: Split) -> bool:
    """Whether the rows of a value are along a dimension, or are to be had there; None: whether it has none."""
    if isinstance(v, Rows):
        return v.dim == split
    return split is None or not _rank(v) or split in _free(v)


def _rank(v: Any) -> int:
    return len(getattr(v, "shape", ()))
