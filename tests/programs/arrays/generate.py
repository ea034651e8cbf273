"""A random program of a seed: where it runs, what it loads, its steps, what it stores."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from tests.programs.arrays import choices_more, choices_order  # noqa: F401: they register their choices
from tests.programs.arrays.builder import FLOATS, INTS, LIMITS, ODD, WIDE, Builder, Skip, is_float, size
from tests.programs.arrays.control import load, random_step, store
from tests.programs.arrays.program import Form, Program, Ref, Shape, Step, Val, live, used

MOST_OUTPUTS = 5


def generate(seed: int) -> Program:
    attempt = 0
    while True:
        try:
            return _generate(seed, random.Random(f"{seed} {attempt}"))
        except Skip:
            attempt += 1


def _generate(seed: int, rng: random.Random) -> Program:
    x64 = seed % 8 == 5
    if x64:
        from tests.oracles.functions.judge import x64 as wide

        with wide(True):
            return _build(seed, rng, True)
    return _build(seed, rng, False)


def _build(seed: int, rng: random.Random, x64: bool) -> Program:
    form = _form(rng)
    g = Builder(rng, x64, rng.choice((200, 600, 1200, 2500, 2500, 8000)))
    if form.kind == "call" or form.lead:
        for axis, n in enumerate(form.grid if form.kind == "call" else form.lead):
            if rng.random() < 0.5:
                v = g.val((), "int32", n)
                g.steps.append(Step("pid", (), (("axis", axis),), (v,)))
                g.add(v)
    types = [*FLOATS, "float32", "int32", *INTS, "bool"]
    if x64:
        types += WIDE * 3
    for _ in range(rng.randint(1, 4)):
        dtype = rng.choice(types)
        if rng.random() < 0.06:
            dtype = rng.choice((*ODD, "complex64"))
        _input(g, form, dtype)
    for _ in range(rng.choice((rng.randint(3, 12), rng.randint(3, 12), rng.randint(12, 20)))):
        random_step(g)
    return _finish(seed, g, form, x64)


def _form(rng: random.Random) -> Form:
    if rng.random() < 0.5:
        grid = tuple(rng.randint(1, 3) for _ in range(rng.choice((0, 0, 0, 1, 2))))
        return Form("kernel", grid, rng.choice((1, 1, 1, 2, 3)))
    grid = tuple(rng.randint(1, 3) for _ in range(rng.choice((0, 1, 1, 2, 2, 3))))
    return Form("call", grid, 1, None, rng.randint(1, 3))


def _input(g: Builder, form: Form, dtype: str) -> None:
    rng = g.rng
    shape = g.odd_shape(rank=rng.randint(1, 3) if dtype == "int4" else None)
    state, domain, bound = "whole", "full", None
    if is_float(dtype):
        if dtype in FLOATS and rng.random() < 0.25:
            state, domain = "bits", "bits"
        else:
            domain, bound = "whole", 8 if dtype != "float8_e5m2" else 4
            domain = f"whole {bound}"
    elif dtype not in ("bool", "int4") and rng.random() < 0.5:
        domain, bound = "whole 8", 8
    ref = Ref(f"in{len(g.inputs)}", shape, dtype, domain)
    g.inputs.append(ref)
    v = load(g, ref, bound, state, whole=dtype == "int4" or rng.random() < 0.7)
    if dtype in ODD:
        v = g.emit("convert", v, bound=8, small=8, dtype=rng.choice(("float32", "bfloat16") if dtype != "int4" else ("int32", "int8")))
    g.add(v)


def _places(rng: random.Random, shape: Shape, grid: Shape, axes: list[int], may_miss: bool) -> tuple[tuple[int, int], ...]:
    """Where the grid's axes move a block: along one of its dimensions, or along one of its own."""
    moves: list[tuple[int, int]] = [(d, -1) for d in range(len(shape))]
    for axis in axes:
        if may_miss and rng.random() < 0.35:
            continue
        free = [k for k, (d, a) in enumerate(moves) if d >= 0 and a < 0]
        if free and rng.random() < 0.6:
            k = rng.choice(free)
            moves[k] = (moves[k][0], axis)
        else:
            moves.insert(rng.randint(0, len(moves)), (-1, axis))
    return tuple(moves)


def _real(g: Builder, v: Val) -> list[Val]:
    """JAX's interpreter has no outputs of complex numbers."""
    return [g.emit("unary", v, bound=v.bound, op=op) for op in ("real", "imag")] if v.dtype == "complex64" else [v]


def _finish(seed: int, g: Builder, form: Form, x64: bool) -> Program:
    rng = g.rng
    taken = used(tuple(g.steps))
    leaves = [v for v in g.pool if v.id not in taken and v.dtype not in ODD]
    leaves = [w for v in leaves for w in _real(g, v)]
    rng.shuffle(leaves)
    if not leaves:
        raise Skip("no result")
    outputs: list[Ref] = []
    tolerances = []
    summed: set[int] = set()
    for v in leaves[:MOST_OUTPUTS]:
        own = [a for a in range(len(form.grid)) if form.kind == "call" and form.grid[a] > 0 and rng.random() < 0.2]
        ref = Ref(f"out{len(outputs)}", v.shape, v.dtype)
        if own and v.state == "whole" and v.dtype not in ("bool", "complex64"):
            n = size(tuple(form.grid[a] for a in own))
            try:
                op = rng.choice(("add", "add", "max"))
                if is_float(v.dtype) and op == "add" and (v.bound or 0) * n > LIMITS[v.dtype]:
                    v = g.within(v, 8)
            except Skip:
                op = "max"
            g.steps.append(Step("accumulate", (v.id,), (("ref", ref.name), ("axes", tuple(own)), ("op", op))))
            summed |= set(own)
        else:
            own = []
            store(g, ref, v)
            if v.state == "whole" and v.dtype not in ("int4", "complex64") and rng.random() < 0.25:

                def partly(g: Builder, v: Val = v, ref: Ref = ref) -> None:
                    store(g, ref, g.like(v), whole=False)

                g.attempt(partly)
        if form.kind == "call":
            axes = [a for a in range(len(form.grid)) if a not in own]
            rng.shuffle(axes)
            places = _places(rng, v.shape, form.grid, axes, False)
            short = tuple(rng.randint(0, v.shape[d] - 1) if d >= 0 and a >= 0 and rng.random() < 0.2 else 0 for d, a in places)
            ref = dataclasses.replace(ref, places=places, short=short)
        outputs.append(ref)
        if v.id in g.tolerance and v.state in ("near", "end"):
            tolerances.append((ref.name, *g.tolerance[v.id]))
    inputs = g.inputs
    steps = live(tuple(g.steps))
    if form.kind == "call":
        inputs = [_input_places(rng, r, form, steps) for r in inputs]
        if rng.random() < 0.4:
            form = dataclasses.replace(
                form, semantics=tuple("sequential" if a in summed else rng.choice(("parallel", "sequential")) for a in range(len(form.grid)))
            )
    return trimmed(Program(seed, form, tuple(inputs), tuple(g.scratch), tuple(outputs), steps, x64, tuple(tolerances)))


def _input_places(rng: random.Random, r: Ref, form: Form, steps: tuple[Step, ...]) -> Ref:
    axes = list(range(len(form.grid)))
    rng.shuffle(axes)
    places = _places(rng, r.shape, form.grid, axes, True)
    short: Any = (0,) * len(places)
    whole = all(a[0] == "all" for s in steps if s.kind == "load" and s.named["ref"] == r.name for a in s.named["at"])
    if whole and not r.domain.startswith("table") and rng.random() < 0.2:
        short = tuple(rng.randint(0, r.shape[d] - 1) if d >= 0 and a >= 0 else 0 for d, a in places)
    space = "gmem" if not any(short) and rng.random() < 0.1 else ""
    return dataclasses.replace(r, places=places, short=short, space=space)


def trimmed(p: Program) -> Program:
    """Without references that nothing names."""
    from tests.programs.arrays.program import walk

    steps = live(p.steps)
    named = {s.named["ref"] for s in walk(steps) if "ref" in s.named}
    inputs = tuple(r for r in p.inputs if r.name in named)
    return p.but(
        steps=steps,
        inputs=inputs,
        scratch=tuple(r for r in p.scratch if r.name in named),
        outputs=tuple(r for r in p.outputs if r.name in named),
        tolerances=tuple(t for t in p.tolerances if t[0] in named),
    )
