"""Choices of loops, branches and memory: steps with blocks, loads and stores of references in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.programs.arrays.builder import Builder, Skip, _outputs, is_float, is_int, size
from tests.programs.arrays.choices import CHOICES, choice, kept
from tests.programs.arrays.program import Ref, Shape, Step, Val

MOST_DEPTH = 2


def random_step(g: Builder, tries: int = 40) -> None:
    """One step that fits, appended with what it needs."""
    names, weights = zip(*((name, weight) for name, (weight, _) in CHOICES.items()))
    for name in g.rng.choices(names, weights, k=tries):
        if g.attempt(CHOICES[name][1]):
            return


def _carried(g: Builder) -> list[Val]:
    found = []
    for _ in range(g.rng.randint(1, 3)):
        v = g.whole(lambda v: v.dtype not in ("complex64", "int4") and size(v.shape) <= 1000)
        v = g.within(v, 8) if is_float(v.dtype) else v
        if v not in found:
            found.append(v)
    return found


def _type(g: Builder, v: Val) -> Val:
    """A value of v's type, of which less is known."""
    return g.val(v.shape, v.dtype, 8 if is_float(v.dtype) else None)


def _to(g: Builder, v: Val, like: Val) -> Val:
    v = g.as_type(v, like.dtype)
    v = g.fitted(v, like.shape)
    return g.within(v, 8) if is_float(like.dtype) else v


def _inside(g: Builder, results: Sequence[Val], known: int, steps: int) -> list[Val]:
    """Some steps in a block, then values of those types, from the block if it has any."""
    for _ in range(steps):
        random_step(g)
    new = [v for v in g.pool[known:] if v.state == "whole" and v.dtype not in ("complex64", "int4")]
    out = []
    for r in results:
        fits = [v for v in new if v.shape == r.shape and v.dtype == r.dtype] or new
        if not fits:
            raise Skip("nothing in the block")
        out.append(_to(g, g.rng.choice(fits[-4:]), r))
    return out


def _deep(g: Builder) -> None:
    if g.depth >= MOST_DEPTH:
        raise Skip("depth")


@choice(1.6)
def fori(g: Builder) -> None:
    _deep(g)
    carried, rng = _carried(g), g.rng
    dynamic = rng.random() < 0.3
    n = rng.randint(0 if dynamic else 1, 4)
    args = [g.scalar_index(4), *carried] if dynamic else carried
    params = [g.val((), "int32", 8), *(_type(g, v) for v in carried)]
    known = len(g.pool)
    block = g.block(params, lambda: _inside(g, carried, known, rng.randint(1, 3)))
    outs = tuple(_type(g, v) for v in carried)
    named = (("n", n), ("dynamic", dynamic), ("unroll", not dynamic and rng.random() < 0.2))
    g.steps.append(Step("fori", tuple(a.id for a in args), named, outs, (block,)))
    g.add(*outs)


@choice(0.8)
def while_(g: Builder) -> None:
    _deep(g)
    carried, rng = _carried(g), g.rng
    limit = g.scalar_index(5)
    params = [g.val((), "int32", 8), *(_type(g, v) for v in carried)]

    def condition() -> list[Val]:
        x = g.within(params[1], 8) if is_float(params[1].dtype) else params[1]
        i = g.emit("index_of", g.emit("to_scalar", x), n=7)
        return [g.as_type(i, "bool")]

    known = len(g.pool)
    test = g.block(params, condition)
    params = [g.val(p.shape, p.dtype, p.bound) for p in params]
    block = g.block(params, lambda: _inside(g, carried, known, rng.randint(1, 2)))
    outs = tuple(_type(g, v) for v in carried)
    g.steps.append(Step("while", (limit.id, *(v.id for v in carried)), (), outs, (test, block)))
    g.add(*outs)


@choice(1.2)
def scan(g: Builder) -> None:
    _deep(g)
    carried, rng = _carried(g), g.rng
    n = rng.randint(2, 6)
    xs = []
    for _ in range(rng.randint(0, 2)):
        v = g.whole(lambda v: v.dtype not in ("complex64", "int4"))
        v = g.within(v, 8) if is_float(v.dtype) else v
        xs.append(g.fitted(v, (n, *g.odd_shape(100, rng.choice((0, 1, 2))))))
    params = [*(_type(g, v) for v in carried), *(g.val(v.shape[1:], v.dtype, v.bound) for v in xs)]
    ys: list[Val] = []

    known = len(g.pool)

    def build() -> list[Val]:
        results = _inside(g, carried, known, rng.randint(1, 3))
        for v in g.pool[known:][-rng.randint(0, 2) or len(g.pool) :]:
            if v.state == "whole" and v.dtype not in ("complex64", "int4") and len(v.shape) <= 3 and size(v.shape) * n <= g.most:
                results.append(v)
                ys.append(v)
        return results

    block = g.block(params, build)
    outs = (*(_type(g, v) for v in carried), *(g.val((n, *v.shape), v.dtype, v.bound) for v in ys))
    named = (("n", n), ("carried", len(carried)), ("reverse", rng.random() < 0.3))
    g.steps.append(Step("scan", tuple(v.id for v in (*carried, *xs)), named, outs, (block,)))
    g.add(*outs)


@choice(1.6)
def branch(g: Builder) -> None:
    _deep(g)
    templates, rng = _carried(g), g.rng
    arms = rng.choice((2, 2, 3))
    which = g.scalar_index(arms)
    if arms == 2:
        which = g.as_type(which, "bool")
    known = len(g.pool)
    blocks = []
    for _ in range(arms):
        if rng.random() < 0.2:
            blocks.append(g.block([], lambda: list(templates)))
        else:
            blocks.append(g.block([], lambda: _inside(g, templates, known, rng.randint(1, 2))))
    outs = tuple(_type(g, v) for v in templates)
    g.steps.append(Step("cond" if arms == 2 else "switch", (which.id,), (), outs, tuple(blocks)))
    g.add(*outs)


# ------------------------------------------------------------------------------------------ memory


def ref_index(g: Builder, shape: Shape, store: bool) -> tuple[tuple[Any, ...], list[Val], Shape]:
    """Where to load or store, the values that it needs, and the shape of what is there."""
    rng = g.rng
    at: list[Any] = []
    args = []
    arrays = 0
    inner: Shape = ()
    for k, n in enumerate(shape):
        kind = rng.random()
        if kind < 0.3:
            at.append(("all",))
        elif kind < 0.4:
            at.append(("int", rng.randrange(n)))
        elif kind < 0.6:
            at.append(("dyn",))
            args.append(g.scalar_index(n))
        elif kind < 0.75:
            m = rng.randint(1, n)
            at.append(("ds", m))
            args.append(g.scalar_index(n - m + 1))
        elif kind < 0.85:
            start = rng.randrange(n)
            at.append(("slice", start, rng.randint(start + 1, n), rng.choice((None, None, 2))))
        elif arrays == 0 and not any(a[0] in ("dyn", "int") for a in at):
            arrays += 1
            i = g.permutation(n) if store else g.indices((rng.randint(1, 9),), n)
            if store:
                m = rng.randint(1, n)
                i = g.emit("slice", i, small=n, at=(("slice", 0, m, None),))
            inner = i.shape
            at.append(("array",))
            args.append(i)
        else:
            at.append(("all",))
    if arrays:
        at = [("all",) if a[0] in ("dyn", "int") else a for a in at]
        args = [a for a in args if a.shape or any(p[0] == "ds" for p in at)]
        # A number among arrays of indices means another order of dimensions to NumPy: none here.
        args = []
        for k, a in enumerate(at):
            if a[0] == "ds":
                args.append(g.scalar_index(shape[k] - a[1] + 1))
            elif a[0] == "array":
                args.append(i)
    plain = tuple({"dyn": ("int", 0), "ds": ("slice", 0, a[1] if len(a) > 1 else 0, None)}.get(a[0], a) for a in at)
    types = ((shape, "int32"), *((inner, "int32") for a in at if a[0] == "array"))
    ((out, _),) = _outputs("index", types, (("at", plain),), False)
    return tuple(at), args, out


def load(g: Builder, ref: Ref, bound: float | None, state: str, whole: bool = False) -> Val:
    at: tuple[Any, ...] = tuple(("all",) for _ in ref.shape)
    args: list[Val] = []
    shape = ref.shape
    if not whole and ref.shape:
        at, args, shape = ref_index(g, ref.shape, False)
    out = g.val(shape, ref.dtype, bound, state)
    g.steps.append(Step("load", tuple(a.id for a in args), (("ref", ref.name), ("at", at)), (out,)))
    return out


def store(g: Builder, ref: Ref, v: Val, whole: bool = True) -> None:
    at: tuple[Any, ...] = tuple(("all",) for _ in ref.shape)
    args: list[Val] = []
    if not whole and ref.shape:
        at, args, shape = ref_index(g, ref.shape, True)
        v = g.fitted(v, shape)
    g.steps.append(Step("store", (v.id, *(a.id for a in args)), (("ref", ref.name), ("at", at)), ()))


def new_scratch(g: Builder, shape: Shape, dtype: str) -> Ref:
    ref = Ref(f"s{len(g.scratch)}", shape, dtype, space=g.rng.choice(("smem", "smem", "gmem")))
    g.scratch.append(ref)
    return ref


@choice(1.6)
def through_scratch(g: Builder) -> None:
    """Stored, changed in part, loaded in part."""
    if len(g.scratch) >= 4:
        raise Skip("scratch")
    x = g.array(lambda v: v.dtype not in ("int4", "complex64") and size(v.shape) <= 2000)
    ref = new_scratch(g, x.shape, x.dtype)
    store(g, ref, x)
    bound = x.bound
    if x.state == "whole" and g.rng.random() < 0.6:
        y = g.like(x)
        bound = None if bound is None or y.bound is None else max(bound, y.bound)
        store(g, ref, y, whole=False)
    out = load(g, ref, bound, x.state, whole=g.rng.random() < 0.4)
    if x.id in g.tolerance:
        g.tolerance[out.id] = g.tolerance[x.id]
    g.add(out)


@choice(0.8)
def filled_by_rows(g: Builder) -> None:
    """A loop that stores a row at a time."""
    _deep(g)
    if len(g.scratch) >= 4:
        raise Skip("scratch")
    rng = g.rng
    row = g.whole(lambda v: len(v.shape) < 4 and v.dtype not in ("int4", "complex64") and size(v.shape) <= 300)
    row = g.within(row, 8) if is_float(row.dtype) else row
    n = rng.randint(2, 5)
    ref = new_scratch(g, (n, *row.shape), row.dtype)
    i = g.val((), "int32", n)
    known = len(g.pool)

    def build() -> list[Val]:
        (v,) = _inside(g, [row], known, rng.randint(1, 2))
        at = (("dyn",), *(("all",) for _ in row.shape))
        g.steps.append(Step("store", (v.id, i.id), (("ref", ref.name), ("at", at)), ()))
        return []

    block = g.block([i], build)
    g.steps.append(Step("fori", (), (("n", n), ("dynamic", False), ("unroll", False)), (), (block,)))
    g.add(load(g, ref, 8 if is_float(row.dtype) else None, "whole", whole=rng.random() < 0.6))


__all__ = ["is_int", "kept"]
