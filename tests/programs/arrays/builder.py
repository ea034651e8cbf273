"""Makes steps one by one: knows the values so far, their types, and what may be done to them without a rounding."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tests.programs.arrays.program import Block, Ref, Shape, Step, Val
from tests.programs.arrays.steps import STEPS

#: Names of types, and how large whole numbers of them may be so that sums of two are still exact.
LIMITS = {
    "float32": 2.0**22,
    "float16": 1024.0,
    "bfloat16": 128.0,
    "float64": 2.0**40,
    "complex64": 2.0**22,
    "float8_e4m3fn": 8.0,
    "float8_e5m2": 4.0,
}
FLOATS = ("float32", "float16", "bfloat16")
INTS = ("int8", "int16", "int32", "uint8", "uint32")
WIDE = ("int64", "float64")
ODD = ("float8_e4m3fn", "float8_e5m2", "int4")
SIZES = (
    [],
    [1, 7, 31, 33, 64, 100, 127, 129, 128, 255, 300, 513],
    [1, 2, 3, 5, 8, 13, 16, 17, 24, 31, 32, 33, 40],
    [1, 2, 3, 4, 5, 7, 8, 9, 12],
    [1, 2, 3, 4, 5, 6],
)
STATES = ("whole", "bits", "near", "end")
RANGE = {"int4": 7, "int8": 127, "uint8": 255, "int16": 32767, "uint16": 65535}
MOST_RANK = 4


class Skip(Exception):
    """This choice does not fit here."""


def is_float(dtype: str) -> bool:
    return dtype in LIMITS


def is_real(dtype: str) -> bool:
    return is_float(dtype) and dtype != "complex64"


def is_int(dtype: str) -> bool:
    return not is_float(dtype) and dtype != "bool"


def size(shape: Shape) -> int:
    return int(np.prod(shape, dtype=np.int64))


@functools.lru_cache(maxsize=50_000)
def _outputs(kind: str, avals: tuple[tuple[Shape, str], ...], params: tuple[tuple[str, Any], ...], x64: bool) -> tuple[tuple[Shape, str], ...]:
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in avals]
    out = jax.eval_shape(lambda *xs: STEPS[kind](*xs, **dict(params)), *structs)
    return tuple((tuple(o.shape), str(o.dtype)) for o in (out if isinstance(out, tuple) else (out,)))


class Builder:
    def __init__(self, rng: random.Random, x64: bool, most: int) -> None:
        self.rng = rng
        self.x64 = x64
        self.most = most
        self.steps: list[Step] = []
        self.pool: list[Val] = []
        self.tolerance: dict[int, tuple[str, float]] = {}
        self.inputs: list[Ref] = []
        self.scratch: list[Ref] = []
        self.depth = 0
        self.taken: set[int] = set()
        self._ids = 0

    # ------------------------------------------------------------------------------------------ steps

    def val(self, shape: Shape, dtype: str, bound: float | None = None, state: str = "whole") -> Val:
        self._ids += 1
        if dtype == "bool":
            bound = 1
        return Val(self._ids, tuple(shape), dtype, bound, state)

    def emit(self, kind: str, /, *args: Val, bound: float | None = None, state: str | None = None, small: float | None = None, **params: Any) -> Val:
        """A step of one result. `bound` is of floats, `small` of integers (None: the type's range)."""
        (out,) = self.emit_many(kind, *args, bound=bound, state=state, small=small, **params)
        return out

    def emit_many(
        self, kind: str, /, *args: Val, bound: float | None = None, state: str | None = None, small: float | None = None, **params: Any
    ) -> list[Val]:
        named = tuple(params.items())
        avals = tuple((a.shape, a.dtype) for a in args)
        try:
            outs = _outputs(kind, avals, named, self.x64)
        except Skip:
            raise
        except Exception as e:  # JAX says no: not a program
            raise Skip(f"{kind}: {e}") from e
        if state is None:
            state = max((a.state for a in args), key=STATES.index, default="whole")
        vals = []
        for shape, dtype in outs:
            if size(shape) > self.most or size(shape) == 0 or len(shape) > MOST_RANK:
                raise Skip("size")
            if dtype not in LIMITS and dtype not in ("bool", "int4", "uint4", "uint16", "uint64", *INTS, *WIDE):
                raise Skip(dtype)
            if state == "whole" and is_float(dtype):
                if bound is None or bound > LIMITS[dtype]:
                    raise Skip("bound")
                vals.append(self.val(shape, dtype, bound, state))
            else:
                vals.append(self.val(shape, dtype, small if is_int(dtype) else None, state))
        worst = [self.tolerance[a.id] for a in args if a.id in self.tolerance]
        if worst and state in ("near", "end"):
            for v in vals:
                self.tolerance[v.id] = max(worst)
        self.steps.append(Step(kind, tuple(a.id for a in args), named, tuple(vals)))
        self.taken.update(a.id for a in args)
        return vals

    def add(self, *vals: Val) -> None:
        self.pool.extend(vals)

    def attempt(self, make: Callable[[Builder], None]) -> bool:
        """Makes a choice, or leaves all as it was."""
        before = (len(self.steps), len(self.pool), len(self.inputs), len(self.scratch))
        try:
            make(self)
            return True
        except Skip:
            for items, n in zip((self.steps, self.pool, self.inputs, self.scratch), before):
                del items[n:]  # type: ignore[attr-defined]
            return False

    # ------------------------------------------------------------------------------------------ picks

    def pick(self, fits: Callable[[Val], bool] = lambda v: v.state != "end") -> Val:
        """One that fits, late ones rather than early ones."""
        found = [v for v in self.pool if fits(v)]
        if not found:
            raise Skip("none fits")
        if self.rng.random() < 0.6:
            found = [v for v in found if v.id not in self.taken] or found
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]

    def whole(self, fits: Callable[[Val], bool] = lambda v: True) -> Val:
        return self.pick(lambda v: v.state == "whole" and v.dtype not in ODD and fits(v))

    def array(self, fits: Callable[[Val], bool] = lambda v: True) -> Val:
        """Of any state that may be moved, of at least one dimension."""
        return self.pick(lambda v: v.state != "end" and len(v.shape) > 0 and fits(v))

    def axis(self, v: Val) -> int:
        if not v.shape:
            raise Skip("no axis")
        return self.rng.randrange(len(v.shape))

    # ------------------------------------------------------------------------------------------ to make values fit

    def bound(self, v: Val) -> float:
        return v.bound if v.bound is not None else RANGE.get(v.dtype, 2**31) + 1

    def within(self, v: Val, limit: float) -> Val:
        """v, or what of it does not exceed the limit."""
        if v.state != "whole":
            raise Skip("state")
        if v.dtype == "bool" or v.bound is not None and v.bound <= limit:
            return v
        if is_int(v.dtype):
            if RANGE.get(v.dtype, 2**31) <= limit:
                return v
            mask = 1 << max(0, int(np.log2(limit + 1)))
            if v.dtype in ("int4", "uint4"):
                raise Skip("int4")
            return self.emit("low", v, small=mask - 1, mask=mask - 1)
        if limit < 8 or v.dtype not in ("float32", "float16", "bfloat16", "float64"):
            raise Skip("wrap")
        return self.emit("wrap", v, bound=8)

    def as_type(self, v: Val, dtype: str) -> Val:
        """v as a whole value of the type."""
        if v.state != "whole":
            raise Skip("state")
        if v.dtype == dtype:
            return v
        if v.dtype == "complex64":
            if not is_float(dtype):
                v = self.emit("unary", v, bound=v.bound, op="real")
                return self.as_type(v, dtype)
            raise Skip("complex")
        if dtype == "complex64":
            v = self.as_type(v, "float32")
        elif is_float(dtype):
            v = self.within(v, min(LIMITS[dtype], 8 if dtype.startswith("float8_e4") else 4 if dtype.startswith("float8") else LIMITS[dtype]))
        elif is_float(v.dtype) and dtype != "bool":
            v = self.within(v, RANGE.get(dtype, 2.0**31 - 1))
            if dtype.startswith("u"):
                v = self.emit("unary", v, bound=v.bound, op="abs")
        elif dtype == "int4":
            v = self.within(v, 7)
        bound = self.bound(v)
        if is_int(dtype) and is_int(v.dtype) and bound is not None and (bound > RANGE.get(dtype, 2**31) or dtype.startswith("u")):
            bound = None
        return self.emit("convert", v, bound=bound, small=bound, dtype=dtype)

    def fitted(self, v: Val, shape: Shape) -> Val:
        if v.shape == tuple(shape):
            return v
        if v.shape == () or self.rng.random() < 0.3 and size(v.shape) == 1:
            x = v if v.shape == () else self.emit("reshape", v, bound=v.bound, small=v.bound, shape=())
            return self.emit("broadcast_to", x, bound=v.bound, small=v.bound, shape=tuple(shape))
        if size(v.shape) == size(shape):
            return self.emit("reshape", v, bound=v.bound, small=v.bound, shape=tuple(shape))
        if v.dtype == "int4":
            raise Skip("int4")
        return self.emit("fit", v, bound=v.bound, small=v.bound, shape=tuple(shape))

    def like(self, x: Val, shape: Shape | None = None) -> Val:
        """A whole value of x's type and shape; another where there is one."""
        shape = x.shape if shape is None else shape
        same = [v for v in self.pool if v.dtype == x.dtype and v.state == "whole" and v.shape == shape and v.id != x.id]
        if same and self.rng.random() < 0.7:
            return self.rng.choice(same)
        same = [v for v in self.pool if v.dtype == x.dtype and v.state == "whole" and v.id != x.id]
        if same and self.rng.random() < 0.8:
            return self.fitted(self.rng.choice(same), shape)
        v = self.whole(lambda v: v.dtype != "complex64" or x.dtype == "complex64")
        return self.fitted(self.as_type(v, x.dtype), shape)

    def broadcasting(self, x: Val) -> Val:
        """A partner whose shape goes with x's."""
        kind = self.rng.random()
        if kind < 0.5 or not x.shape:
            return self.like(x)
        shape = tuple(1 if self.rng.random() < 0.4 else n for n in x.shape)
        if kind < 0.7:
            shape = shape[self.rng.randrange(len(shape)) :]
        elif kind < 0.8:
            shape = ()
        return self.like(x, shape)

    # ------------------------------------------------------------------------------------------ indices

    def integers(self) -> Val:
        return self.whole(lambda v: v.dtype not in ("complex64", "int4"))

    def scalar(self) -> Val:
        """A scalar of int32 that depends on the data."""
        found = [v for v in self.pool if v.shape == () and v.state == "whole" and is_int(v.dtype) and v.dtype in INTS]
        if found and self.rng.random() < 0.6:
            return self.rng.choice(found)
        v = self.integers()
        if is_float(v.dtype):
            v = self.within(v, 1000)
        return self.emit("to_scalar", v)

    def scalar_index(self, n: int) -> Val:
        return self.emit("index_of", self.scalar(), small=n, n=n)

    def indices(self, shape: Shape, n: int, loose: bool = False) -> Val:
        """Indices of a dimension of n; `loose`: negative ones, and some outside."""
        v = self.integers()
        if is_float(v.dtype):
            v = self.as_type(v, "int32")
        v = self.fitted(v, shape)
        return self.emit("around", v, small=2 * n, n=n) if loose else self.emit("index_of", v, small=n, n=n)

    def permutation(self, n: int) -> Val:
        """Indices of which no two are equal."""
        v = self.whole(lambda v: v.dtype not in ("complex64", "int4") and v.state == "whole")
        return self.emit("argsort", self.fitted(v, (n,)), small=n, axis=0, descending=self.rng.random() < 0.5)

    # ------------------------------------------------------------------------------------------ blocks

    def block(self, params: Sequence[Val], build: Callable[[], Sequence[Val]]) -> Block:
        """A block of which `build` makes the steps and gives the results."""
        steps, pool = self.steps, self.pool
        self.steps, self.pool = [], [*self.pool, *params]
        self.depth += 1
        try:
            results = tuple(v.id for v in build())
            return Block(tuple(params), tuple(self.steps), results)
        finally:
            self.steps, self.pool = steps, pool
            self.depth -= 1

    def odd_shape(self, most: int | None = None, rank: int | None = None) -> Shape:
        rng, most = self.rng, most or self.most
        rank = rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)) if rank is None else rank
        while True:
            sizes = SIZES[rank]
            if most > 2500 and rank in (1, 2):
                sizes = [*sizes, 1000, 4096] if rank == 1 else [*sizes, 64, 100]
            shape = tuple(rng.choice((rng.choice(sizes), rng.randint(1, max(sizes)))) for _ in range(rank))
            if size(shape) <= most:
                return shape


__all__ = ["FLOATS", "INTS", "LIMITS", "ODD", "RANGE", "STATES", "WIDE", "Builder", "Skip", "is_float", "is_int", "is_real", "size"]
