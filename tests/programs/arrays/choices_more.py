"""Choices that wrap others: under vmap, in functions of their own, gradients; and references updated in place."""

from __future__ import annotations

from typing import Any

from tests.programs.arrays.builder import LIMITS, Builder, Skip, is_float, size
from tests.programs.arrays.choices import CHOICES, choice
from tests.programs.arrays.control import MOST_DEPTH, load, new_scratch, ref_index, store
from tests.programs.arrays.program import Step, Val

#: Steps with several lives: a loop's, memory's, or those that are wrapped already.
_NOT = {"load", "store", "fori", "while", "scan", "cond", "switch", "table", "draw", "shuffle", "vmapped", "batched", "jitted", "grad", "pid"}


def some_step(g: Builder, fits: Any = lambda s: True) -> tuple[Step, list[Val]]:
    """A step that is made as it might be, and not kept; and what it takes (what it needs is kept)."""
    names, weights = zip(*((name, weight) for name, (weight, _) in CHOICES.items()))
    for name in g.rng.choices(names, weights, k=12):
        if name in ("batched", "jitted", "gradient", "table"):
            continue
        known = len(g.pool)
        if not g.attempt(CHOICES[name][1]):
            continue
        del g.pool[known:]
        last = g.steps[-1]
        vals = {v.id: v for v in g.pool} | {v.id: v for s in g.steps for v in s.outs}
        if last.kind in _NOT or not last.outs or not all(a in vals for a in last.args) or not last.args or not fits(last):
            continue
        g.steps.pop()
        return last, [vals[a] for a in last.args]
    raise Skip("no step")


@choice(1.6)
def batched(g: Builder) -> None:
    s, args = some_step(g)
    rng, n = g.rng, g.rng.randint(2, 4)
    given, axes = [], []
    for k, v in enumerate(args):
        if (k > 0 and rng.random() < 0.3) or v.state != "whole" or len(v.shape) >= 4:
            given.append(v)
            axes.append(None)
            continue
        axis = rng.choice((0, 0, len(v.shape)))
        given.append(g.fitted(v, (*v.shape[:axis], n, *v.shape[axis:])))
        axes.append(axis)
    if all(a is None for a in axes):
        raise Skip("nothing is batched")
    out = s.outs[0]
    outs = g.emit_many("batched", *given, bound=out.bound, small=out.bound, state=out.state, kind=s.kind, inner=s.params, axes=tuple(axes), out=0)
    if len({o.bound for o in s.outs}) > 1:
        outs = [Val(o.id, o.shape, o.dtype, i.bound, o.state) for o, i in zip(outs, s.outs)]
        g.steps[-1] = g.steps[-1].but(outs=tuple(outs))
    _keep(g, s, outs)


def _keep(g: Builder, s: Step, outs: list[Val]) -> None:
    for o, i in zip(outs, s.outs):
        if i.id in g.tolerance:
            g.tolerance[o.id] = g.tolerance[i.id]
    g.add(*outs)


@choice(0.8)
def jitted(g: Builder) -> None:
    s, args = some_step(g)
    outs = g.emit_many("jitted", *args, bound=s.outs[0].bound, state=s.outs[0].state, kind=s.kind, inner=s.params, how=g.rng.choice(("jit", "remat")))
    outs = [Val(o.id, o.shape, o.dtype, i.bound, i.state) for o, i in zip(outs, s.outs)]
    g.steps[-1] = g.steps[-1].but(outs=tuple(outs))
    _keep(g, s, outs)


#: Steps of which the gradient is a whole number where what they take is, and by how much more than y times n it may be.
_SMOOTH = {
    "reshape", "transpose", "expand", "squeeze", "broadcast_to", "broadcast_in_dim", "concatenate", "stack", "pad", "pad_mode", "slice", "flip",
    "roll", "tile", "repeat", "tri", "diagonal", "diag", "take", "index", "take_along", "dynamic_slice", "dynamic_update", "dynamic_index",
    "set_slice", "scatter", "where", "rot90", "fit", "einsum", "matmul", "dot_general", "conv", "roll_by",
}  # fmt: skip


@choice(1)
def gradient(g: Builder) -> None:
    def fits(s: Step) -> bool:
        params = s.named
        return s.kind in _SMOOTH and params.get("op") in (None, "set", "add") and params.get("mode") not in ("fill",) and len(s.outs) == 1

    s, args = some_step(g, fits)
    x = args[0]
    if s.kind == "where":
        raise Skip("a condition first")
    if x.dtype not in ("float32", "float64") or s.outs[0].dtype != x.dtype or x.state != "whole":
        raise Skip("type")
    # Each element of x may be in every one of y.
    product = s.kind in ("einsum", "matmul", "dot_general", "conv")
    others = max((v.bound or 0 for v in args[1:] if is_float(v.dtype)), default=1) if product else 1
    bound = (s.outs[0].bound or 0) * others * size(s.outs[0].shape)
    if bound > LIMITS[x.dtype]:
        raise Skip("bound")
    g.add(g.emit("grad", *args, bound=bound, kind=s.kind, inner=s.params))


# ------------------------------------------------------------------------------------------ memory


@choice(1.2)
def updated_in_place(g: Builder) -> None:
    """A reference that a loop changes in part, reading what is there."""
    if g.depth >= MOST_DEPTH or len(g.scratch) >= 5:
        raise Skip("depth")
    rng = g.rng
    x = g.whole(lambda v: len(v.shape) > 0 and v.dtype not in ("int4", "complex64", "bool") and size(v.shape) <= 1500)
    n = rng.randint(2, 4)
    x = g.within(x, 8) if is_float(x.dtype) else x
    ref = new_scratch(g, x.shape, x.dtype)
    store(g, ref, x)
    i = g.val((), "int32", n)

    def build() -> list[Val]:
        g.add(i)
        at, args, shape = ref_index(g, ref.shape, True)
        old = g.val(shape, x.dtype, 64 if is_float(x.dtype) else None)
        place: Any = (("ref", ref.name), ("at", at))
        g.steps.append(Step("load", tuple(a.id for a in args), place, (old,)))
        y = g.fitted(x, shape)
        new = g.emit("binary", old, y, bound=72, op=rng.choice(("add", "maximum", "subtract")))
        g.steps.append(Step("store", (new.id, *(a.id for a in args)), place, ()))
        return []

    block = g.block([i], build)
    g.steps.append(Step("fori", (), (("n", n), ("dynamic", False), ("unroll", False)), (), (block,)))
    g.add(load(g, ref, 64 if is_float(x.dtype) else None, "whole", whole=rng.random() < 0.6))


@choice(0.8)
def stored_in_an_arm(g: Builder) -> None:
    """A reference that a branch may or may not change."""
    if g.depth >= MOST_DEPTH or len(g.scratch) >= 5:
        raise Skip("depth")
    rng = g.rng
    x = g.whole(lambda v: v.dtype not in ("int4", "complex64") and size(v.shape) <= 1500)
    y = g.like(x)
    ref = new_scratch(g, x.shape, x.dtype)
    store(g, ref, x)
    which = g.as_type(g.scalar_index(2), "bool")

    def build() -> list[Val]:
        store(g, ref, y, whole=rng.random() < 0.3)
        return []

    blocks = (g.block([], lambda: []), g.block([], build))
    g.steps.append(Step("cond", (which.id,), (), (), blocks))
    bound = None if x.bound is None or y.bound is None else max(x.bound, y.bound)
    g.add(load(g, ref, bound, "whole", whole=rng.random() < 0.5))
