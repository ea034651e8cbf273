"""Smaller programs: fewer outputs, steps replaced by inputs or constants, loops and branches opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from tests.programs.arrays.builder import is_float
from tests.programs.arrays.generate import trimmed
from tests.programs.arrays.program import STORES, Block, Form, Program, Ref, Step, Val, walk


def fewer_outputs(p: Program) -> Iterator[Program]:
    for keep in p.outputs:
        if len(p.outputs) > 1:
            yield _without_refs(p, {r.name for r in p.outputs} - {keep.name})
    for drop in p.outputs:
        if len(p.outputs) > 1:
            yield _without_refs(p, {drop.name})


def _without_refs(p: Program, names: set[str]) -> Program:
    return trimmed(p.but(steps=edited(p.steps, lambda s: () if s.kind in STORES and s.named["ref"] in names else (s,))))


def edited(steps: tuple[Step, ...], change: Callable[[Step], tuple[Step, ...]]) -> tuple[Step, ...]:
    """Every step, those in blocks first, as `change` has it."""
    out: list[Step] = []
    for s in steps:
        if s.blocks:
            s = s.but(blocks=tuple(dataclasses.replace(b, steps=edited(b.steps, change)) for b in s.blocks))
        out.extend(change(s))
    return tuple(out)


def _replaced(p: Program, old: Step, new: tuple[Step, ...], **changes: Any) -> Program:
    ids = tuple(o.id for o in old.outs)

    def change(s: Step) -> tuple[Step, ...]:
        return new if s.kind == old.kind and s.args == old.args and tuple(o.id for o in s.outs) == ids and s.params == old.params else (s,)

    return trimmed(p.but(steps=edited(p.steps, change), **changes))


def _input_for(p: Program, v: Val, name: str) -> Ref:
    if v.state != "whole" and is_float(v.dtype):
        domain = "bits"
    elif v.bound is not None and v.dtype != "bool":
        domain = f"whole {max(1, min(int(v.bound), 8))}"
    else:
        domain = "full"
    return Ref(name, v.shape, v.dtype, domain, tuple((d, -1) for d in range(len(v.shape))) if p.form.kind == "call" else ())


def cut(p: Program) -> Iterator[Program]:
    """Steps replaced: by loads of new inputs, by constants, by one of what they take."""
    every = [s for s in walk(p.steps) if s.outs]
    types: dict[int, Val] = {v.id: v for s in walk(p.steps) for v in (*s.outs, *(q for b in s.blocks for q in b.params))}
    for s in reversed(every):
        if s.kind != "load" or len(s.args) > 0:
            names = {r.name for r in p.inputs}
            fresh = [f"in{n}" for n in range(100, 200) if f"in{n}" not in names][: len(s.outs)]
            refs = tuple(_input_for(p, v, name) for v, name in zip(s.outs, fresh))
            loads = tuple(Step("load", (), (("ref", r.name), ("at", tuple(("all",) for _ in r.shape))), (v,)) for r, v in zip(refs, s.outs))
            yield _replaced(p, s, loads, inputs=(*p.inputs, *refs))
        if s.kind != "const":
            consts = tuple(Step("const", (), (("shape", v.shape), ("dtype", v.dtype)), (v,)) for v in s.outs)
            yield _replaced(p, s, consts)
        for o in s.outs:
            for a in s.args:
                if a in types and (types[a].shape, types[a].dtype) == (o.shape, o.dtype) and len(s.outs) == 1:
                    yield renamed(_replaced(p, s, ()), {o.id: a})


def renamed(p: Program, names: dict[int, int]) -> Program:
    def change(s: Step) -> tuple[Step, ...]:
        blocks = tuple(dataclasses.replace(b, results=tuple(names.get(r, r) for r in b.results)) for b in s.blocks)
        return (s.but(args=tuple(names.get(a, a) for a in s.args), blocks=blocks),)

    return trimmed(p.but(steps=edited(p.steps, change)))


def without_stores(p: Program) -> Iterator[Program]:
    """One store left out, where another one of the same reference stays."""
    stores = [s for s in walk(p.steps) if s.kind in STORES]
    for s in stores:
        name = s.named["ref"]
        whole = [t for t in stores if t.named["ref"] == name and (t.kind == "accumulate" or all(a[0] == "all" for a in t.named["at"]))]
        if s not in whole[:1]:
            yield _replaced(p, s, ())
        elif s.kind == "accumulate":
            v = next(v for t in walk(p.steps) for v in t.outs if v.id == s.args[0])
            yield _replaced(p, s, (Step("store", s.args, (("ref", name), ("at", tuple(("all",) for _ in v.shape))), ()),))


def opened(p: Program) -> Iterator[Program]:
    """Loops that go round once, in place; arms without their branch; fewer rounds, fewer carried values."""
    for s in [s for s in walk(p.steps) if s.blocks]:
        if s.kind in ("cond", "switch"):
            for b in s.blocks:
                yield _inlined(p, s, b, {})
        elif s.kind == "fori":
            (b,) = s.blocks
            carried = s.args[1:] if s.named["dynamic"] else s.args
            first = b.params[0]
            zero = Step("const", (), (("shape", ()), ("dtype", "int32")), (first,))
            yield _inlined(p, s, b, dict(zip((q.id for q in b.params[1:]), carried)), (zero,))
            if s.named["dynamic"]:
                yield _replaced(p, s, (s.but(args=carried, params=(("n", 2), ("dynamic", False), ("unroll", False))),))
            if s.named["n"] > 1:
                yield _replaced(p, s, (s.but(params=(("n", s.named["n"] - 1), *s.params[1:])),))
            for k in range(len(carried)):
                kept_args = (*s.args[: len(s.args) - len(carried)], *carried[:k], *carried[k + 1 :])
                less = Block((*b.params[: 1 + k], *b.params[2 + k :]), b.steps, (*b.results[:k], *b.results[k + 1 :]))
                one = s.but(args=kept_args, outs=(*s.outs[:k], *s.outs[k + 1 :]), blocks=(less,))
                yield renamed(_replaced(p, s, (one,)), {s.outs[k].id: carried[k], b.params[1 + k].id: carried[k]})
        elif s.kind == "while":
            b = s.blocks[1]
            zero = Step("const", (), (("shape", ()), ("dtype", "int32")), (b.params[0],))
            yield _inlined(p, s, b, dict(zip((q.id for q in b.params[1:]), s.args[1:])), (zero,))


def _inlined(p: Program, s: Step, b: Block, given: dict[int, int], before: tuple[Step, ...] = ()) -> Program:
    out = _replaced(p, s, (*before, *b.steps))
    return renamed(out, {**given, **{o.id: given.get(r, r) for o, r in zip(s.outs, b.results)}})


def plainer(p: Program) -> Iterator[Program]:
    """On a smaller grid, of one warpgroup, in other memory, without 64-bit types."""
    f = p.form
    if f.by_warps:
        yield p.but(form=dataclasses.replace(f, by_warps=False))
    if f.warpgroups > 1:
        yield p.but(form=dataclasses.replace(f, warpgroups=1))
        yield p.but(form=dataclasses.replace(f, warpgroups=2))
    for k, n in enumerate(f.grid):
        if n > 1:
            yield p.but(form=dataclasses.replace(f, grid=(*f.grid[:k], n - 1, *f.grid[k + 1 :])))
    if f.kind == "kernel" and f.grid and not any(s.kind == "pid" for s in walk(p.steps)):
        yield p.but(form=dataclasses.replace(f, grid=()))
    if f.kind == "call" and not any(s.kind in ("pid", "accumulate") for s in walk(p.steps)):
        whole = [dataclasses.replace(r, places=tuple((d, -1) for d in range(len(r.shape))), short=()) for r in (*p.inputs, *p.outputs)]
        n = len(p.inputs)
        yield p.but(form=Form("call", (), 1, None, f.slots), inputs=tuple(whole[:n]), outputs=tuple(whole[n:]))
        yield p.but(form=Form("kernel"), inputs=tuple(dataclasses.replace(r, places=(), space="") for r in whole[:n]), outputs=tuple(dataclasses.replace(r, places=(), space="") for r in whole[n:]))
    if f.slots > 1:
        yield p.but(form=dataclasses.replace(f, slots=1))
    if p.x64 and not any("64" in v.dtype for s in walk(p.steps) for v in s.outs):
        yield p.but(x64=False)
    for k, r in enumerate(p.inputs):
        if any(r.short):
            yield p.but(inputs=(*p.inputs[:k], dataclasses.replace(r, short=(0,) * len(r.short)), *p.inputs[k + 1 :]))
        if r.domain != "whole 1" and r.dtype != "bool" and not r.domain.startswith("table"):
            yield p.but(inputs=(*p.inputs[:k], dataclasses.replace(r, domain="whole 1"), *p.inputs[k + 1 :]))


SMALLER = (fewer_outputs, cut, without_stores, opened, plainer)
