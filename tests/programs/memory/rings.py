"""Rings of slots that one warpgroup fills by bulk loads and others work on, who learn of a load by its barrier, or otherwise.

In round `i` the loader fills slot `i % slots`. A worker waits for the load at any point of its round, or is signalled by who has waited; it reads and
writes slots before and behind that, in whatever layouts; then it frees the slot. Rounds are loops or are written out.
What a draft gets wrong the interpreter finds, and it goes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.programs.memory.generate import Draft
from tests.programs.memory.tree import (
    Arrive,
    At,
    Bar,
    Bin,
    Body,
    Buffer,
    Commit,
    Const,
    CopyIn,
    CopyOut,
    Expr,
    For,
    If,
    Iota,
    Load,
    Program,
    Reduce,
    Roles,
    Shape,
    Stmt,
    Store,
    Var,
    View,
    Wait,
    WaitOut,
)

SHAPES: tuple[Shape, ...] = ((128,), (256,), (64, 32), (64, 8), (16, 128))
#: Rows of a worker's output for each round: what is done in a round has rows of its own, so that nothing orders one behind the other.
TOUCHES = 8
#: Of a round and its slot.
Step = Callable[[Expr, Expr], list[Stmt]]


def draft(rng: random.Random, name: str) -> Program:
    d = Draft(rng, name, "rings")
    shape = rng.choice(SHAPES)
    slots = rng.choice((1, 2, 2, 3))
    rounds = slots * rng.choice((1, 1, 2, 3)) + rng.choice((0, 0, 0, 1))
    rings = [f"r{k}" for k in range(rng.choice((1, 1, 1, 2)))]
    together = rng.random() < 0.6  # on one barrier
    warpgroups = rng.choice((2, 2, 3))
    workers = [1] if warpgroups == 2 or rng.random() < 0.4 else [1, 2]
    # Who else knows that a load is over: the loader, or a warpgroup that does nothing but signal.
    informers = [wg for wg in range(warpgroups) if wg not in workers and rng.random() < 0.7]
    fulls = ["full"] if together or len(rings) == 1 else [f"full{k}" for k in range(len(rings))]
    per_full = len(rings) // len(fulls)
    d.declare([Buffer("x", "in", (3, *shape)), *(Buffer(f"o{wg}", "out", (TOUCHES * rounds, *shape)) for wg in workers)])
    d.declare([Buffer(r, "smem", (slots, *shape)) for r in rings])
    d.declare([Buffer(f"s{wg}", "smem", shape) for wg in workers])
    d.declare([Bar(f, per_full, slots) for f in fulls])
    d.declare([Bar("free", len(workers) + sum(wg != 0 for wg in informers), slots)])
    d.declare([Bar(f"go{wg}", 1, slots) for wg in workers for _ in informers[:1]])

    def waits(slot: Expr) -> list[Stmt]:
        return [Wait(f, slot) for f in fulls]

    def load(i: Expr, slot: Expr) -> list[Stmt]:
        fill: list[Stmt] = [CopyIn(View("x", (At(remainder(i, 3)),)), View(r, (At(slot),)), fulls[k // per_full], slot) for k, r in enumerate(rings)]
        again: list[Stmt] = [Wait("free", slot)]
        behind_first: list[Stmt] = [If(Bin("<", Const(slots - 1), i), blocks=(tuple(again), ()))] if not isinstance(i, Const) else again if i.value >= slots else []
        return [*behind_first, *fill, *(tell(0, slot) if 0 in informers else [])]

    def tell(by: int, slot: Expr) -> list[Stmt]:
        """Waits for what is loaded; the first that does signals the workers."""
        return [*waits(slot), *(Arrive(f"go{wg}", slot) for wg in workers if informers[0] == by)]

    def inform(_: Expr, slot: Expr) -> list[Stmt]:
        return [*tell(warpgroups - 1, slot), Arrive("free", slot)]

    def work(wg: int) -> Step:
        """One choice of statements for all rounds of a loop."""
        told = bool(informers) and rng.random() < 0.8
        count = [rng.choice((0, 0, 0, 1)), rng.choice((0, 1, 1, 2)), rng.choice((0, 1, 1, 2))]
        plan = [[touch(wg, known) for _ in range(n)] for n, known in zip(count, (False, bool(informers), True))]
        late = rng.random() < 0.7  # signalled before it waits

        def steps(i: Expr, slot: Expr) -> list[Stmt]:
            parts = [[s for t in part for s in t(i, slot)] for part in plan]
            first: list[Stmt] = [Wait(f"go{wg}", slot)] if informers else []
            second = waits(slot)
            if informers and (not told or not late):
                first, second = second, first
            return [*parts[0], *first, *parts[1], *second, *parts[2], Arrive("free", slot)]

        return steps

    def touch(wg: int, known: bool) -> Step:
        """Something that is done to the slot, or to another one; before the load is known to be over, to what is the worker's own."""
        ring = rng.choice(rings) if len(workers) == 1 else rings[workers.index(wg) % len(rings)]
        other = None if rng.random() < 0.8 else rng.randrange(slots)
        what = rng.choice((*("store", "load") * 6, "update", "update", "whole", "scratch", "out", "scalar"))
        row = rng.randrange(TOUCHES)
        layouts = [rng.getrandbits(32) for _ in range(2)]

        def cast(e: Expr, k: int) -> Expr:
            before = d.rng
            d.rng = random.Random(layouts[k])
            made = d.cast(e, shape)
            d.rng = before
            return made

        def steps(i: Expr, slot: Expr) -> list[Stmt]:
            view = View(ring, (At(slot if other is None else Const(other)),))
            own = View(f"s{wg}")
            at: Expr = Const(i.value + row * rounds) if isinstance(i, Const) else Bin("+", i, Const(row * rounds))
            out = View(f"o{wg}", (At(at),))
            made: dict[str, list[Stmt]] = {
                "store": [Store(view, cast(Bin("+", Iota(shape, len(shape) - 1), i), 0))],
                "load": [Store(out, cast(Load(view), 0))],
                "update": [Store(view, cast(Bin("+", cast(Load(view), 0), i), 1))],
                "whole": [Store(out, Reduce("sum", Load(View(ring)), 0))],
                "scratch": [Store(own, cast(Load(view), 0)), Store(out, cast(Load(own), 1))],
                "out": [Commit(), CopyOut(view, out), WaitOut(0, rng.random() < 0.3)],
                "own": [Store(out, cast(Load(own), 1)), Store(own, cast(Bin("+", Iota(shape, 0), i), 0))],
                "scalar": [Store(View(ring, (*view.index, *(At(Const(0)) for _ in shape))), i)],
            }
            return made[what if known else "own"]

        return steps

    def role(step: Callable[[], Step]) -> Body:
        """All rounds: in loops, or written out, or one behind the other."""
        cuts = sorted({0, rounds, *([rng.randint(1, rounds)] if rng.random() < 0.3 else [])})
        out: list[Stmt] = []
        for first, last in zip(cuts, cuts[1:]):
            one = step()
            if rng.random() < 0.7:
                var = d.new("i")
                i: Expr = Var(var) if first == 0 else Bin("+", Var(var), Const(first))
                out.append(For(var, Const(last - first), blocks=(tuple(one(i, remainder(i, slots))),)))
            else:
                out += [s for i in range(first, last) for s in one(Const(i), Const(i % slots))]
        return tuple(out)

    roles: list[Body] = []
    for wg in range(warpgroups):
        if wg == 0:
            last = [Wait("free", Const(i % slots)) for i in range(max(rounds - slots, 0), rounds)]
            roles.append((*role(lambda: load), *last))
        elif wg in workers:
            roles.append((Store(View(f"s{wg}"), Iota(shape, 0)), *role(lambda wg=wg: work(wg))))  # type: ignore[misc]
        else:
            roles.append(role(lambda: inform) if wg in informers else ())
    order = list(range(warpgroups))
    rng.shuffle(order)
    body: list[Stmt] = [Roles(tuple(order), blocks=tuple(roles[wg] for wg in order))]
    return Program(name, tuple(d.decls), tuple(body), warpgroups=warpgroups)


def remainder(i: Expr, n: int) -> Expr:
    if isinstance(i, Const):
        return Const(i.value % n)
    if n == 1:
        return Const(0)
    return Bin("&", i, Const(n - 1)) if n & (n - 1) == 0 else Bin("rem", i, Const(n))
