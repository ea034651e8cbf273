"""Choices of one step each: element-wise, reductions, shapes. `CHOICES` has the makers with their weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.programs.arrays.builder import FLOATS, LIMITS, Builder, Skip, is_float, is_int, is_real, size
from tests.programs.arrays.program import Shape, Val

Maker = Callable[[Builder], None]
CHOICES: dict[str, tuple[float, Maker]] = {}


def choice(weight: float) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        CHOICES[maker.__name__] = (weight, maker)
        return maker

    return register


def kept(v: Val) -> dict[str, Any]:
    """The bounds of what only moves elements."""
    return {"bound": v.bound, "small": v.bound}


# ------------------------------------------------------------------------------------------ element-wise


@choice(4)
def unary(g: Builder) -> None:
    x = g.whole()
    if is_real(x.dtype):
        op = g.rng.choice(("negative", "abs", "sign", "square", "floor", "ceil", "round", "trunc", "relu", "rint"))
    elif x.dtype == "complex64":
        op = g.rng.choice(("negative", "conj", "real", "imag"))
    elif x.dtype == "bool":
        op = "logical_not"
    else:
        op = g.rng.choice(("negative", "abs", "sign", "square", "invert", "population_count", "clz", "relu", "bitwise_count"))
    bound = x.bound or 0
    if op == "relu":
        g.add(g.emit("relu", x, **kept(x)))
    else:
        g.add(g.emit("unary", x, bound=bound * bound if op == "square" else bound, op=op))


@choice(8)
def binary(g: Builder) -> None:
    x = g.whole()
    y = g.broadcasting(x)
    a, b = x.bound or 0, y.bound or 0
    if x.dtype == "bool":
        op = g.rng.choice(("logical_and", "logical_or", "logical_xor", "bitwise_and", "maximum", "minimum"))
    elif x.dtype == "complex64":
        op = g.rng.choice(("add", "subtract", "multiply"))
    elif is_float(x.dtype):
        op = g.rng.choice(("add", "add", "subtract", "multiply", "multiply", "maximum", "minimum", "max", "min"))
    else:
        op = g.rng.choice(("add", "subtract", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide", "remainder"))
    if op in ("max", "min") and y.shape != x.shape:
        op = "maximum"
    if op in ("floor_divide", "remainder"):
        y = g.emit("nonzero_of", y)  # XLA takes x / x for 1
    if op in ("max", "min"):
        g.add(g.emit("binary", x, y, bound=max(a, b), op=op + "imum"))
        return
    product = op == "multiply"
    if product and is_float(x.dtype) and a * b * 2 > LIMITS[x.dtype] and x.dtype != "complex64":
        x, y = g.within(x, 8), g.within(y, 8)
        a, b = x.bound or 0, y.bound or 0
    g.add(g.emit("binary", x, y, bound=2 * a * b if product else a + b if op in ("add", "subtract") else max(a, b), op=op))


@choice(2)
def scalar_op(g: Builder) -> None:
    x = g.whole(lambda v: v.dtype != "bool")
    k = g.rng.randint(1, 3)
    op = g.rng.choice(("add", "subtract", "multiply") if x.dtype == "complex64" else ("add", "subtract", "multiply", "maximum", "minimum"))
    bound = (x.bound or 0) * (k if op == "multiply" else 1) + k
    g.add(g.emit("scalar_op", x, bound=bound, op=op, k=k, left=g.rng.random() < 0.3))


@choice(1.5)
def shifts(g: Builder) -> None:
    x = g.whole(lambda v: is_int(v.dtype))
    g.add(g.emit("shift", x, g.broadcasting(x), left=g.rng.random() < 0.5))


@choice(1)
def power(g: Builder) -> None:
    x = g.whole(lambda v: v.dtype not in ("bool", "complex64"))
    k = g.rng.choice((2, 3))
    if is_float(x.dtype):
        x = g.within(x, 8)
    g.add(g.emit("power", x, bound=(x.bound or 0) ** k, k=k))


@choice(3)
def compare(g: Builder) -> None:
    x = g.pick(lambda v: v.state in ("whole", "bits") and v.dtype not in ("int4", "complex64"))
    if x.state == "bits":
        y = g.pick(lambda v: v.state == "bits" and v.dtype == x.dtype and v.shape == x.shape)
    else:
        y = g.broadcasting(x)
    g.add(g.emit("binary", x, y, state="whole", op=g.rng.choice(("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"))))


@choice(4)
def where(g: Builder) -> None:
    x = g.pick(lambda v: v.state != "end" and v.dtype != "int4")
    conditions = [v for v in g.pool if v.dtype == "bool"]
    c = g.rng.choice(conditions) if conditions else g.as_type(g.whole(lambda v: v.dtype != "complex64"), "bool")
    c = g.fitted(c, x.shape if g.rng.random() < 0.7 else tuple(1 if g.rng.random() < 0.5 else n for n in x.shape))
    if x.dtype != "bool" and x.state == "whole" and g.rng.random() < 0.4:
        k = 2 if x.dtype.startswith("u") or g.rng.random() < 0.5 else -1
        g.add(g.emit("where_scalar", c, x, bound=max(2, x.bound or 0), k=float(k) if is_float(x.dtype) else k))
        return
    y = g.like(x) if x.state == "whole" else g.pick(lambda v: v.dtype == x.dtype and v.state != "end" and v.shape == x.shape)
    c, x, y = (c, x, y) if g.rng.random() < 0.5 else (c, y, x)
    g.add(g.emit("where", c, x, y, bound=max(x.bound or 0, y.bound or 0)))


@choice(1.5)
def clip(g: Builder) -> None:
    x = g.whole(lambda v: v.dtype not in ("bool", "complex64"))
    lo = 0 if x.dtype.startswith("u") else -g.rng.randint(0, 3)
    g.add(g.emit("clip", x, bound=x.bound, small=8, lo=lo, hi=g.rng.randint(1, 7)))


@choice(5)
def convert(g: Builder) -> None:
    x = g.whole()
    types = [*FLOATS, *FLOATS, "int8", "int16", "int32", "uint8", "uint32", "bool"]
    if g.x64:
        types += ["int64", "float64"]
    if g.rng.random() < 0.12:
        types = ["float8_e4m3fn", "float8_e5m2", "int4", "complex64"]
    if x.dtype == "complex64":
        types = ["float32"]
        x = g.emit("unary", x, bound=x.bound, op=g.rng.choice(("real", "imag")))
    dtype = g.rng.choice([t for t in types if t != x.dtype] or ["int32"])
    y = g.as_type(x, dtype)
    if dtype in ("float8_e4m3fn", "float8_e5m2", "int4"):
        # Back again: little is done in these types.
        y = g.emit("convert", y, bound=8, small=8, dtype=g.rng.choice(("float32", "int32", "bfloat16") if dtype != "int4" else ("int32", "int8")))
    g.add(y)


@choice(0.5)
def complexes(g: Builder) -> None:
    x = g.within(g.as_type(g.whole(lambda v: v.dtype != "complex64"), "float32"), 64)
    y = g.within(g.like(x), 64)
    g.add(g.emit("complex", x, y, bound=max(x.bound or 0, y.bound or 0) * 2))


NEAR = ("sin", "cos", "tanh", "exp", "log", "log1p", "sqrt", "rsqrt", "sigmoid", "silu", "third", "reciprocal", "cbrt", "erf", "atan")


def ulps(dtype: str) -> float:
    return 8 if dtype in ("float16", "bfloat16") else 24


def near(g: Builder, v: Val, mode: str, ulps: float) -> None:
    g.tolerance[v.id] = (mode, ulps)
    g.add(v)


@choice(1.5)
def near_unary(g: Builder) -> None:
    x = g.within(g.whole(lambda v: v.dtype in FLOATS or v.dtype == "float64"), 64)
    near(g, g.emit("near_unary", x, state="near", op=g.rng.choice(NEAR)), "each", ulps(x.dtype))


@choice(1.2)
def near_reduce(g: Builder) -> None:
    x = g.within(g.whole(lambda v: v.dtype in FLOATS and len(v.shape) > 0), 64)
    op = g.rng.choice(("mean", "var", "std", "logsumexp"))
    out = g.emit("near_reduce", x, state="end", op=op, axis=g.axis(x), keepdims=g.rng.random() < 0.4)
    near(g, out, f"norm:{x.bound:.0f}", 4 * ulps(x.dtype))


@choice(1.2)
def near_along(g: Builder) -> None:
    x = g.within(g.whole(lambda v: v.dtype in FLOATS and len(v.shape) > 0), 64)
    op = g.rng.choice(("softmax", "log_softmax", "layernorm", "cumlogsumexp"))
    near(g, g.emit("near_along", x, state="end", op=op, axis=g.axis(x)), f"norm:{x.bound:.0f}", 4 * ulps(x.dtype))


# ------------------------------------------------------------------------------------------ reductions and runs


@choice(6)
def reduce(g: Builder) -> None:
    x = g.whole(lambda v: len(v.shape) > 0)
    rng = g.rng
    axes = tuple(sorted(rng.sample(range(len(x.shape)), rng.choice((1, 1, 1, min(2, len(x.shape)), len(x.shape))))))
    n = size(tuple(x.shape[a] for a in axes))
    axis: Any = None if len(axes) == len(x.shape) and rng.random() < 0.5 else axes[0] if len(axes) == 1 and rng.random() < 0.7 else axes
    if x.dtype == "complex64":
        op = "sum"
    elif x.dtype == "bool":
        op = rng.choice(("any", "all", "sum", "count_nonzero"))
    elif is_float(x.dtype):
        op = rng.choice(("sum", "sum", "max", "min", "any", "count_nonzero", "ptp"))
    else:
        op = rng.choice(("sum", "max", "min", "prod", "all", "any", "count_nonzero", "ptp"))
    bound = x.bound or 0
    if op == "sum" and is_float(x.dtype) and bound * n > LIMITS[x.dtype]:
        x = g.as_type(x, "float32") if x.dtype in ("float16", "bfloat16") and bound * n < LIMITS["float32"] else g.within(x, 8)
        bound = x.bound or 0
    bound = bound * n if op == "sum" else 2 * bound if op == "ptp" else bound
    g.add(g.emit("reduce", x, bound=bound, op=op, axis=axis, keepdims=rng.random() < 0.3))


@choice(2)
def arg_reduce(g: Builder) -> None:
    x = g.pick(lambda v: v.state in ("whole", "bits") and len(v.shape) > 0 and v.dtype not in ("int4", "complex64"))
    axis = g.axis(x) if g.rng.random() < 0.8 else None
    n = x.shape[axis] if axis is not None else size(x.shape)
    g.add(g.emit("arg_reduce", x, state="whole", small=n, op=g.rng.choice(("argmax", "argmin")), axis=axis, keepdims=g.rng.random() < 0.3))


@choice(3)
def running(g: Builder) -> None:
    x = g.whole(lambda v: len(v.shape) > 0 and v.dtype not in ("bool", "complex64"))
    axis = g.axis(x)
    ops = ("cumsum", "cummax", "cummin") if is_float(x.dtype) else ("cumsum", "cumprod", "cummax", "cummin")
    op = g.rng.choice(ops)
    if op == "cumsum" and is_float(x.dtype) and (x.bound or 0) * x.shape[axis] > LIMITS[x.dtype]:
        x = g.within(x, 8)
    bound = (x.bound or 0) * (x.shape[axis] if op == "cumsum" else 1)
    g.add(g.emit("running", x, bound=bound, op=op, axis=axis, reverse=g.rng.random() < 0.3))


@choice(1.2)
def window(g: Builder) -> None:
    x = g.whole(lambda v: 0 < len(v.shape) <= 3 and v.dtype not in ("bool", "complex64", "int4"))
    rng = g.rng
    sizes = tuple(rng.randint(1, min(3, n)) for n in x.shape)
    op = rng.choice(("add", "max", "min"))
    strides = tuple(rng.randint(1, 2) for _ in x.shape)
    padding: Any = rng.choice(("SAME", "VALID")) if op == "add" or is_int(x.dtype) else "VALID"
    if is_float(x.dtype) and op == "add" and (x.bound or 0) * size(sizes) > LIMITS[x.dtype]:
        x = g.within(x, 8)
    g.add(g.emit("window", x, bound=(x.bound or 0) * (size(sizes) if op == "add" else 1), op=op, size=sizes, strides=strides, padding=padding))


@choice(0.3)
def associative(g: Builder) -> None:
    x = g.whole(lambda v: len(v.shape) > 0 and v.dtype not in ("complex64", "int4", "bool") and max(v.shape) <= 64)
    g.add(g.emit("associative", x, **kept(x), axis=g.axis(x), reverse=g.rng.random() < 0.3))


# ------------------------------------------------------------------------------------------ shapes


def factors(rng: random.Random, n: int) -> Shape:
    """A shape of n elements."""
    out: list[int] = []
    for p in (2, 2, 2, 2, 3, 3, 5, 7, 11, 13):
        if n % p == 0 and rng.random() < 0.8:
            n //= p
            out.append(p)
    out.append(n)
    rng.shuffle(out)
    while len(out) > 4 or (len(out) > 1 and rng.random() < 0.5):
        last = out.pop()
        out[rng.randrange(len(out))] *= last
    if len(out) < 4 and rng.random() < 0.2:
        out.insert(rng.randrange(len(out) + 1), 1)
    return tuple(out)


@choice(3)
def reshape(g: Builder) -> None:
    x = g.array()
    g.add(g.emit("reshape", x, **kept(x), shape=factors(g.rng, size(x.shape))))


@choice(3)
def transpose(g: Builder) -> None:
    x = g.array(lambda v: len(v.shape) > 1)
    perm = list(range(len(x.shape)))
    g.rng.shuffle(perm)
    g.add(g.emit("transpose", x, **kept(x), perm=tuple(perm)))


@choice(2)
def broadcasts(g: Builder) -> None:
    x = g.pick()
    rng = g.rng
    what = rng.randrange(4)
    if what == 0:
        g.add(g.emit("expand", x, **kept(x), axis=rng.randint(0, len(x.shape))))
    elif what == 1 and 1 in x.shape:
        g.add(g.emit("squeeze", x, **kept(x)))
    elif what == 2 and x.dtype != "int4":
        shape = tuple(rng.randint(2, 9) if n == 1 else n for n in x.shape)
        g.add(g.emit("broadcast_to", x, **kept(x), shape=(rng.randint(1, 6), *shape) if rng.random() < 0.7 or shape == x.shape else shape))
    else:
        dims = sorted(rng.sample(range(len(x.shape) + 1), len(x.shape)))
        shape = tuple(x.shape[dims.index(d)] if d in dims else rng.randint(1, 5) for d in range(len(x.shape) + 1))
        g.add(g.emit("broadcast_in_dim", x, **kept(x), shape=shape, dims=tuple(dims)))


@choice(2.5)
def joined(g: Builder) -> None:
    x = g.array()
    if x.state != "whole" or g.rng.random() < 0.2:
        y = x
    else:
        y = g.like(x)
    bound = max(x.bound or 0, y.bound or 0) if x.dtype != "bool" else 1
    small = None if x.bound is None or y.bound is None else bound
    axis = g.axis(x)
    if g.rng.random() < 0.3:
        g.add(g.emit("stack", x, y, bound=bound, small=small, axis=g.rng.randint(0, len(x.shape))))
        return
    if x.state == "whole" and g.rng.random() < 0.6:
        y = g.fitted(y, tuple(g.rng.randint(1, 5) if d == axis else n for d, n in enumerate(x.shape)))
    parts = [x, y] if g.rng.random() < 0.5 else [y, x]
    if g.rng.random() < 0.2:
        parts.append(x)
    g.add(g.emit("concatenate", *parts, bound=bound, small=small, axis=axis))


@choice(2.5)
def padded(g: Builder) -> None:
    x = g.array(lambda v: v.dtype not in ("int4", "complex64"))
    rng = g.rng
    if rng.random() < 0.5:
        config = tuple((rng.randint(-1, 3), rng.randint(-1, 3), rng.choice((0, 0, 0, 1, 2))) for _ in x.shape)
        k: Any = False if x.dtype == "bool" else rng.randint(0, 2)
        bound = None if x.bound is None else max(x.bound, 2)
        g.add(g.emit("pad", x, bound=bound, small=bound, config=config, k=k))
    else:
        widths = tuple((rng.randint(0, min(2, n - 1)), rng.randint(0, min(2, n - 1))) for n in x.shape)
        g.add(g.emit("pad_mode", x, **kept(x), widths=widths, mode=rng.choice(("edge", "reflect", "wrap", "symmetric"))))


def static_index(rng: random.Random, shape: Shape) -> tuple[Any, ...]:
    at: list[Any] = []
    for n in shape:
        kind = rng.random()
        if kind < 0.3:
            at.append(("all",))
        elif kind < 0.45:
            at.append(("int", rng.randrange(-n, n)))
        elif kind < 0.85:
            start = rng.randrange(n)
            at.append(("slice", start, rng.randint(start + 1, n), rng.choice((None, None, 2, 3))))
        else:
            at.append(("slice", None, None, rng.choice((-1, -2, 2))))
    if rng.random() < 0.1 and len(shape) < 4:
        at.insert(rng.randrange(len(at) + 1), ("new",))
    return tuple(at)


@choice(4)
def sliced(g: Builder) -> None:
    x = g.array()
    g.add(g.emit("slice", x, **kept(x), at=static_index(g.rng, x.shape)))


@choice(1.5)
def set_slice(g: Builder) -> None:
    x = g.whole(lambda v: len(v.shape) > 0 and v.dtype not in ("int4", "complex64"))
    at = static_index(g.rng, x.shape)
    if all(a[0] == "all" for a in at):
        raise Skip("JAX captures an array of no indices")
    part = g.emit("slice", x, **kept(x), at=at)
    y = g.like(x, part.shape)
    op = g.rng.choice(("set", "set", "max", "min") if x.dtype == "bool" else ("set", "set", "add", "max", "min"))
    a, b = x.bound or 0, y.bound or 0
    g.add(g.emit("set_slice", x, y, bound=a + b if op == "add" else max(a, b), at=at, op=op))


@choice(3)
def moved(g: Builder) -> None:
    x = g.array(lambda v: v.dtype != "int4")
    rng = g.rng
    axis = g.axis(x)
    match rng.randrange(8):
        case 0:
            axes: Any = axis if rng.random() < 0.7 else tuple(range(len(x.shape)))
            out = g.emit("flip", x, **kept(x), axis=axes)
        case 1:
            out = g.emit("roll", x, **kept(x), k=rng.randint(-5, 5), axis=rng.choice((axis, None)))
        case 2:
            out = g.emit("roll_by", x, g.scalar_index(9), **kept(x), state=x.state, axis=axis)
        case 3:
            out = g.emit("tile", x, **kept(x), reps=tuple(rng.choice((1, 2, 3)) for _ in x.shape))
        case 4:
            out = g.emit("repeat", x, **kept(x), k=rng.randint(2, 3), axis=axis)
        case 5:
            parts = [k for k in (2, 3, 5) if x.shape[axis] % k == 0]
            if not parts:
                raise Skip("split")
            outs = g.emit_many("split", x, **kept(x), k=rng.choice(parts), axis=axis)
            g.add(*outs[:2])
            return
        case 6:
            if len(x.shape) < 2:
                raise Skip("rank")
            out = g.emit("rot90", x, **kept(x), k=rng.randint(1, 3))
        case _:
            if x.state == "bits" or len(x.shape) < 2:
                raise Skip("bits")
            out = g.emit("tri", x, **kept(x), upper=rng.random() < 0.5, k=rng.randint(-2, 2))
    g.add(out)


@choice(0.7)
def diagonals(g: Builder) -> None:
    x = g.array(lambda v: len(v.shape) in (1, 2) and v.dtype not in ("int4", "complex64") and v.state == "whole")
    if len(x.shape) == 1 or g.rng.random() < 0.5:
        g.add(g.emit("diag", x, **kept(x)))
    elif g.rng.random() < 0.5 and x.dtype != "bool":
        g.add(g.emit("trace", x, bound=(x.bound or 0) * min(x.shape)))
    else:
        g.add(g.emit("diagonal", x, **kept(x), offset=g.rng.randint(-1, 1)))


@choice(1)
def iota(g: Builder) -> None:
    shape = g.pick().shape if g.rng.random() < 0.7 else g.odd_shape(300)
    if not shape:
        raise Skip("rank")
    dim = g.rng.randrange(len(shape))
    dtype = g.rng.choice(("int32", "int32", "float32", "int16", "uint32", "uint8"))
    g.add(g.emit("iota", bound=shape[dim], small=shape[dim] if dtype != "uint8" else None, shape=shape, dim=dim, dtype=dtype))


@choice(0.8)
def outer(g: Builder) -> None:
    x = g.whole(lambda v: 1 < size(v.shape) <= 60 and v.dtype not in ("bool", "complex64", "int4"))
    y = g.like(x, (g.rng.randint(1, 30),))
    a, b = x.bound or 0, y.bound or 0
    op = g.rng.choice(("multiply", "add", "maximum", "less"))
    g.add(g.emit("outer", x, y, bound=a * b if op == "multiply" else a + b, op=op))
