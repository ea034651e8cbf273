"""Choices of one step each: indices, order, products, random numbers, the table of functions."""

from __future__ import annotations

import functools
import json
from typing import Any

from tests import ROOT
from tests.oracles.functions.case import DTYPES
from tests.programs.arrays.builder import FLOATS, LIMITS, Builder, Skip, is_float, is_int, size
from tests.programs.arrays.choices import choice, kept, near
from tests.programs.arrays.program import Ref, Step, Val

# ------------------------------------------------------------------------------------------ indices


@choice(3)
def dynamic(g: Builder) -> None:
    x = g.array(lambda v: v.dtype != "int4")
    rng = g.rng
    if rng.random() < 0.3:
        axis = g.axis(x)
        i = g.scalar_index(x.shape[axis])
        g.add(g.emit("dynamic_index", x, i, **kept(x), state=x.state, axis=axis, keepdims=rng.random() < 0.4))
        return
    sizes = tuple(rng.choice((n, rng.randint(1, n))) for n in x.shape)
    # Starts that reach outside are clamped.
    starts = [g.scalar_index(n + 1) for n in x.shape]
    if rng.random() < 0.6 or x.state != "whole":
        g.add(g.emit("dynamic_slice", x, *starts, **kept(x), state=x.state, sizes=sizes))
    else:
        y = g.like(x, sizes)
        bound = max(x.bound or 0, y.bound or 0)
        g.add(g.emit("dynamic_update", x, y, *starts, bound=bound))


@choice(3)
def take(g: Builder) -> None:
    x = g.array(lambda v: v.dtype not in ("int4", "complex64"))
    axis = g.axis(x)
    mode = g.rng.choice(("clip", "wrap", "fill"))
    if mode == "fill" and (x.state != "whole" or is_float(x.dtype)):
        mode = "clip"
    i = g.indices(g.odd_shape(40, g.rng.choice((0, 1, 1, 2))), x.shape[axis], loose=g.rng.random() < 0.5)
    g.add(g.emit("take", x, i, **(kept(x) if mode != "fill" else {}), state=x.state, axis=axis, mode=mode))


def mixed_index(g: Builder, x: Val) -> tuple[tuple[Any, ...], list[Val]]:
    """Arrays of indices among slices and numbers."""
    rng = g.rng
    shape = g.odd_shape(24, rng.choice((1, 1, 2)))
    at: list[Any] = []
    arrays = []
    for n in x.shape:
        kind = rng.random()
        if kind < 0.5:
            at.append(("array",))
            arrays.append(g.indices(shape if rng.random() < 0.8 else shape[-1:], n))
        elif kind < 0.7:
            at.append(("int", rng.randrange(-n, n)))
        elif kind < 0.9:
            at.append(("all",))
        else:
            start = rng.randrange(n)
            at.append(("slice", start, rng.randint(start + 1, n), None))
    if not arrays:
        at[0] = ("array",)
        arrays.append(g.indices(shape, x.shape[0]))
    return tuple(at), arrays


@choice(2.5)
def indexed(g: Builder) -> None:
    x = g.array(lambda v: v.dtype not in ("int4", "complex64"))
    at, arrays = mixed_index(g, x)
    g.add(g.emit("index", x, *arrays, **kept(x), state=x.state, at=at))


@choice(2.5)
def scattered(g: Builder) -> None:
    x = g.whole(lambda v: len(v.shape) > 0 and v.dtype not in ("int4", "complex64"))
    at, arrays = mixed_index(g, x)
    part = g.emit("index", x, *arrays, **kept(x), state=x.state, at=at)
    y = g.like(x, part.shape)
    ops = ("set", "max", "min") if x.dtype == "bool" else ("set", "add", "add", "max", "min")
    op = g.rng.choice(ops if is_float(x.dtype) or x.dtype == "bool" else (*ops, "multiply"))
    a, b = x.bound or 0, y.bound or 0
    g.add(g.emit("scatter", x, y, *arrays, bound=a + b * size(part.shape) if op == "add" else max(a, b), at=at, op=op))


@choice(2)
def take_along(g: Builder) -> None:
    x = g.array(lambda v: v.dtype not in ("int4", "complex64"))
    axis = g.axis(x)
    shape = tuple(g.rng.randint(1, 9) if d == axis else n for d, n in enumerate(x.shape))
    g.add(g.emit("take_along", x, g.indices(shape, x.shape[axis]), **kept(x), state=x.state, axis=axis))


@choice(1.5)
def counted(g: Builder) -> None:
    rng = g.rng
    match rng.randrange(5):
        case 0:
            i = g.indices(g.odd_shape(60, rng.choice((0, 1, 2))), 7)
            g.add(g.emit("one_hot", i, bound=1, small=1, n=rng.randint(1, 9), dtype=rng.choice(("float32", "int32", "bfloat16", "int8"))))
        case 1:
            x = g.whole(lambda v: len(v.shape) == 1 and v.dtype not in ("bool", "complex64"))
            g.add(g.emit("searchsorted", x, g.like(x, g.odd_shape(40, rng.choice((0, 1, 2)))), small=size(x.shape), side=rng.choice(("left", "right"))))
        case 2:
            x = g.indices(g.odd_shape(100, rng.choice((1, 2))), 9)
            g.add(g.emit("bincount", x, small=size(x.shape), n=rng.randint(1, 12)))
        case 3:
            x = g.whole(lambda v: 0 < len(v.shape) <= 3 and v.dtype != "complex64")
            g.add(*g.emit_many("nonzero", x, small=max(x.shape), n=rng.randint(1, 20)))
        case _:
            x = g.whole(lambda v: len(v.shape) > 0 and v.dtype not in ("bool", "complex64"))
            i = g.indices(x.shape[:1], 5)
            g.add(g.emit("segment_sum", x, i, bound=(x.bound or 0) * x.shape[0], n=5))


# ------------------------------------------------------------------------------------------ order


@choice(3)
def ordered(g: Builder) -> None:
    rng = g.rng
    x = g.pick(lambda v: v.state in ("whole", "bits") and len(v.shape) > 0 and v.dtype not in ("int4", "complex64"))
    axis = g.axis(x)
    match rng.randrange(4):
        case 0:
            g.add(g.emit("sort", x, **kept(x), axis=axis, descending=rng.random() < 0.4))
        case 1:
            g.add(g.emit("argsort", x, state="whole", small=x.shape[axis], axis=axis, descending=rng.random() < 0.4))
        case 2:
            if x.dtype == "bool":
                raise Skip("bool")
            values, indices = g.emit_many("top_k", x, **kept(x), k=rng.randint(1, x.shape[-1]))
            indices = g.val(indices.shape, indices.dtype, x.shape[-1])
            step = g.steps[-1]
            g.steps[-1] = step.but(outs=(step.outs[0], indices))
            g.add(values, indices)
        case _:
            if x.state != "whole":
                raise Skip("bits")
            others = [g.fitted(g.whole(lambda v: v.dtype not in ("int4", "complex64")), x.shape) for _ in range(rng.randint(1, 2))]
            step_args = [x, *others]
            outs = g.emit_many("sort_many", *step_args, bound=1, axis=axis, keys=rng.randint(1, 2))
            fixed = tuple(Val(o.id, o.shape, o.dtype, a.bound, "whole") for o, a in zip(outs, step_args))
            g.steps[-1] = g.steps[-1].but(outs=fixed)
            g.add(*fixed)


# ------------------------------------------------------------------------------------------ products


def operand(g: Builder, dtype: str, shape: tuple[int, ...]) -> Val:
    same = [v for v in g.pool if v.dtype == dtype and v.state == "whole"]
    v = g.rng.choice(same) if same and g.rng.random() < 0.7 else g.as_type(g.whole(lambda v: v.dtype not in ("int4", "complex64")), dtype)
    return g.fitted(g.within(v, 8) if is_float(dtype) else v, shape)


SPECS = ("ij,jk->ik", "ij,kj->ik", "ji,jk->ki", "bij,bjk->bik", "bij,jk->bik", "i,i->", "ij,j->i", "ijk,kl->ijl", "ij,kl->ikjl", "ab,ab->a", "bhi,bhj->bhij", "ijk,ijl->kl", "ij,ij->ij")


@choice(3)
def product(g: Builder) -> None:
    rng = g.rng
    dtype = rng.choice(("float32", "float32", "float16", "bfloat16", "int8", "int32"))
    spec = rng.choice(SPECS)
    few = len(spec) > 11
    sizes = {c: rng.choice((1, 2, 3, 5) if few else (1, 2, 3, 5, 8, 13, 16, 17, 32, 33, 64)) for c in sorted(set(spec) - set(",->"))}
    left, right = spec.split("->")[0].split(",")
    x = operand(g, dtype, tuple(sizes[c] for c in left))
    y = operand(g, dtype, tuple(sizes[c] for c in right))
    summed = size(tuple(sizes[c] for c in set(left + right) - set(spec.split("->")[1])))
    out = None
    if dtype in ("float16", "bfloat16"):
        out = "float32"
    elif dtype == "int8":
        out = "int32"
    bound = (x.bound or 0) * (y.bound or 0) * summed
    if out == "float32" and bound <= LIMITS[dtype] and rng.random() < 0.3:
        out = None
    if spec == "ij,jk->ik" and out is None and rng.random() < 0.6:
        g.add(g.emit("matmul", x, y, bound=bound))
    elif spec == "bij,bjk->bik" and rng.random() < 0.5:
        g.add(g.emit("dot_general", x, y, bound=bound, dims=(((2,), (1,)), ((0,), (0,))), out=out))
    else:
        g.add(g.emit("einsum", x, y, bound=bound, spec=spec, out=out))


@choice(0.8)
def convolution(g: Builder) -> None:
    rng = g.rng
    dtype = rng.choice(("float32", "float32", "bfloat16", "float16", "int32"))
    if rng.random() < 0.3:
        x, y = operand(g, dtype, (rng.randint(1, 40),)), operand(g, dtype, (rng.randint(1, 7),))
        g.add(g.emit("convolve", x, y, bound=(x.bound or 0) * (y.bound or 0) * min(x.shape[0], y.shape[0]), mode=rng.choice(("full", "same", "valid"))))
        return
    dims = rng.randint(1, 2)
    groups = rng.choice((1, 1, 1, 2))
    spatial = tuple(rng.randint(3, 9) for _ in range(dims))
    kernel = tuple(rng.randint(1, 3) for _ in range(dims))
    channels = groups * rng.randint(1, 3)
    x = operand(g, dtype, (rng.randint(1, 2), channels, *spatial))
    w = operand(g, dtype, (groups * rng.randint(1, 3), channels // groups, *kernel))
    bound = (x.bound or 0) * (w.bound or 0) * size(w.shape[1:])
    padding = rng.choice(("SAME", "VALID", tuple((rng.randint(0, 2), rng.randint(0, 2)) for _ in range(dims))))
    lhs = tuple(rng.choice((1, 1, 1, 2)) for _ in range(dims))
    if padding in ("SAME", "VALID") and max(lhs) > 1:
        lhs = (1,) * dims
    rhs = tuple(rng.choice((1, 1, 1, 2)) for _ in range(dims))
    strides = tuple(rng.randint(1, 2) for _ in range(dims))
    g.add(g.emit("conv", x, w, bound=bound, strides=strides, padding=padding, lhs=lhs, rhs=rhs, groups=groups))


@choice(1)
def vmapped(g: Builder) -> None:
    rng = g.rng
    x = g.whole(lambda v: len(v.shape) == 2 and v.shape[1] >= 2 and v.dtype not in ("bool", "complex64"))
    op = rng.choice(("dot", "take", "set", "search", "slice"))
    if op == "dot":
        if is_float(x.dtype):
            x = g.within(x, 8)
        y = g.like(x)
        y = g.within(y, 8) if is_float(y.dtype) else y
        g.add(g.emit("vmapped", x, y, bound=(x.bound or 0) * (y.bound or 0) * x.shape[1], op=op))
    elif op == "search":
        g.add(g.emit("vmapped", x, g.like(x, (x.shape[0], rng.randint(1, 4))), small=x.shape[1], op=op))
    else:
        g.add(g.emit("vmapped", x, g.indices((x.shape[0], rng.randint(1, 4)), x.shape[1]), **kept(x), op=op))


# ------------------------------------------------------------------------------------------ random numbers


@choice(1)
def drawn(g: Builder) -> None:
    key, shape, rng = g.scalar(), g.odd_shape(200), g.rng
    match rng.choice(("bits", "uniform", "randint", "bernoulli", "permutation", "normal", "shuffle")):
        case "bits":
            g.add(g.emit("draw", key, op="bits", shape=shape, dtype=rng.choice(("uint32", "uint8"))))
        case "uniform":
            g.add(g.emit("draw", key, state="bits", op="uniform", shape=shape, dtype=rng.choice(("float32", "bfloat16", "float16"))))
        case "randint":
            g.add(g.emit("draw", key, small=9, op="randint", shape=shape, dtype=rng.choice(("int32", "int8"))))
        case "bernoulli":
            g.add(g.emit("draw", key, op="bernoulli", shape=shape, dtype="bool"))
        case "permutation":
            n = rng.randint(1, 50)
            g.add(g.emit("draw", key, small=n, op="permutation", shape=(n,), dtype="int32"))
        case "shuffle":
            x = g.array(lambda v: v.dtype not in ("int4", "complex64"))
            g.add(g.emit("shuffle", key, x, **kept(x), state=x.state))
        case _:
            near(g, g.emit("draw", key, state="near", op="normal", shape=shape, dtype="float32"), "each", 64)


# ------------------------------------------------------------------------------------------ the table of functions

_RESULTS = ROOT / "tests/oracles/functions/results/emulator.json"
#: Calls that take long, here or there, and those whose integers depend on roundings.
_NOT = ("jnp.unique", "lax.betainc", "random.gamma", "random.loggamma", "random.beta", "random.dirichlet", "random.chisquare", "random.t", "random.f")


@functools.cache
def table_names() -> tuple[tuple[str, ...], frozenset[str]]:
    """All calls that could be made, and those that are right on their own."""
    from tests.oracles.functions.table import CASES

    found = json.loads(_RESULTS.read_text())["functions"]
    right = {name for name, r in found.items() if r["calls"] == r["right"]}
    names = []
    for name, case in CASES.items():
        types = [a.split("[")[0] for a in case.args]
        if case.args and not case.x64 and "c64" not in types and case.function not in _NOT:
            names.append(name)
    return tuple(names), frozenset(n for n in names if CASES[n].function in right)


@choice(2.5)
def table(g: Builder) -> None:
    """A call of any function; integers without a domain come from the program."""
    if g.depth:
        raise Skip("inside of a loop nothing is loaded")
    from tests.oracles.functions.table import CASES

    names, right = table_names()
    name = g.rng.choice(names)  # of all: what is right changes, and then these programs alone do
    if name not in right:
        raise Skip("refused")
    case = CASES[name]
    if any("any" in a for a in case.args):
        raise Skip("subnormals")
    args = []
    for text in case.args:
        kind, _, domain = text.partition(":")
        dtype, _, rest = kind.partition("[")
        shape = tuple(int(n) for n in rest.rstrip("]").split(",") if n)
        dtype = str(DTYPES[dtype])
        if size(shape) > g.most:
            raise Skip("size")
        if domain == "" and is_int(dtype) and dtype != "int4" and dtype != "uint4" and "bits" not in case.function:
            v = g.within(g.as_type(g.whole(lambda v: v.dtype not in ("int4", "complex64")), dtype), 15)
            args.append(g.fitted(v, shape))
        else:
            ref = Ref(f"in{len(g.inputs)}", shape, dtype, f"table {text}")
            g.inputs.append(ref)
            v = g.val(shape, dtype, None, "bits")
            g.steps.append(Step("load", (), (("ref", ref.name), ("at", tuple(("all",) for _ in shape))), (v,)))
            args.append(v)
    outs = g.emit_many("table", *args, state="end", name=name)
    for o in outs:
        mode = "bits" if case.compare == "bits" or is_int(o.dtype) or o.dtype == "bool" else "norm"
        near(g, o, mode, max(64, 8 * case.ulps))


__all__ = ["FLOATS", "is_int"]
