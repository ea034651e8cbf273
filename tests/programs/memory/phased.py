"""Programs of several agents: warpgroups, the blocks of a cluster, blocks of a grid.

They work in phases. In each, every buffer belongs to one agent, or may be read by all; between phases there is a barrier, a cluster's
barrier or a semaphore. What a draft gets wrong (a race, a wait for the wrong phase) the interpreter finds, and it goes.
"""

from __future__ import annotations

import random
from typing import Any

from tests.programs.memory.generate import SHAPES, Draft
from tests.programs.memory.tree import (
    Arrive,
    At,
    Await,
    Bar,
    Bin,
    Body,
    Buffer,
    Commit,
    Const,
    CopyIn,
    Expr,
    For,
    If,
    Iota,
    Program,
    Roles,
    Signal,
    Stmt,
    Store,
    Var,
    View,
    Wait,
    WaitOut,
)


def draft(rng: random.Random, name: str, kind: str) -> Program:
    made = {"warpgroups": warpgroups, "cluster": cluster, "blocks": blocks}[kind]
    return made(rng, name, Draft(rng, name, kind))


def declarations(rng: random.Random, d: Draft, lead: int) -> None:
    """Few buffers, all alike, so that many statements fit them; GMEM's with a slot for each block, if there are several."""
    d.shape = shape = rng.choice(SHAPES)
    d.main = rng.choice(("int32", "int32", "float32", "float16", "int8"))
    decls: list[Any] = [Buffer("x", "in", shape, d.main), Buffer("n", "in", (4,))]
    many = (lead,) if lead else ()
    decls += [Buffer(f"o{i}", "out", (*many, *shape), d.main) for i in range(2)]
    decls += [Buffer(f"s{i}", "smem", shape, d.main) for i in range(rng.choice((2, 3)))]
    decls += [Buffer(f"c{i}", "smem", (4,)) for i in range(2)]
    d.declare(decls)


def initial(rng: random.Random, d: Draft, by: str) -> list[Stmt]:
    """Everything has a value; a warpgroup or block writes all of it."""
    out: list[Stmt] = []
    for b in d.buffers:
        if b.space == "in":
            continue
        if b.name in d.lead:
            out.append(Store(View(b.name, (At(d.lead[b.name]),)), Iota(b.shape[1:], 0)))
        else:
            out.append(Store(View(b.name), Bin("+", Iota(b.shape, len(b.shape) - 1), Var(by) if by else Const(rng.randint(0, 9)))))
    return out


def turn(rng: random.Random, d: Draft, mine: list[Buffer], shared: list[Buffer], count: int) -> Body:
    """Statements over some buffers, the shared ones read only."""
    every, d.buffers = d.buffers, [b for b in d.buffers if b.space == "in"] + mine + shared
    d.readonly = {b.name for b in shared}
    body = d.block(count)
    if rng.random() < 0.8:
        body.append(WaitOut(0))
    if rng.random() < 0.5:
        body.append(Commit())
    d.buffers, d.readonly = every, set()
    return tuple(body)


def shares(rng: random.Random, d: Draft, agents: int) -> tuple[list[list[Buffer]], list[Buffer]]:
    """Whose each buffer is in a phase; and those that all may read."""
    mine: list[list[Buffer]] = [[] for _ in range(agents)]
    shared: list[Buffer] = []
    for b in d.buffers:
        if b.space != "in":
            to = rng.randrange(agents + 1)
            (shared if to == agents else mine[to]).append(b)
    return mine, shared


def warpgroups(rng: random.Random, name: str, d: Draft) -> Program:
    declarations(rng, d, 0)
    d.declare([Bar("z", 2), Bar("h", 1), Bar("b0"), Bar("b1")])
    everyone = d.bars

    def rendezvous() -> list[Stmt]:
        return [Arrive("z"), Wait("z", polls=rng.random() < 0.15)]

    def phase(count: int) -> list[Stmt]:
        mine, shared = shares(rng, d, 2)
        roles = []
        for wg in range(2):
            d.bars = [b for b in everyone if b.name == f"b{wg}"]
            roles.append(turn(rng, d, mine[wg], shared, count))
        d.bars = everyone
        if rng.random() < 0.2:
            # One way: what the first did is the second's to use.
            roles[0], roles[1] = (*roles[0], Arrive("h")), (Wait("h"), *roles[1])
        order = (0, 1) if rng.random() < 0.5 else (1, 0)
        return [Roles(order, blocks=tuple(roles[k] for k in order))]

    body: list[Stmt] = [Roles((0,), blocks=(tuple(initial(rng, d, "")),)), *rendezvous()]
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.4:
            inner = [*phase(2), *rendezvous(), *(phase(2) if rng.random() < 0.5 else []), *rendezvous()]
            var = d.new("i")
            d.values.append((var, ()))
            inner += phase(2) + rendezvous()
            d.values.pop()
            body.append(For(var, Const(rng.randint(1, 3)), blocks=(tuple(inner),)))
        else:
            body += [*phase(rng.randint(1, 4)), *rendezvous()]
    return Program(name, tuple(d.decls), tuple(body), warpgroups=2)


def cluster(rng: random.Random, name: str, d: Draft) -> Program:
    declarations(rng, d, 2)
    d.declare([Bar("z", cluster=True), Bar("b"), Bar("bs", 1, 2)])
    everyone = d.bars
    d.bars = [b for b in everyone if not b.cluster]
    smem = [b for b in d.buffers if b.space == "smem"]

    def rendezvous() -> list[Stmt]:
        return [Arrive("z"), Wait("z")]

    def phase(count: int, crossed: bool) -> list[Stmt]:
        """Each block works on its own, and reads what of the other is written by neither."""
        here: Expr = Bin("-", Const(1), Var("cta")) if crossed else Var("cta")
        d.lead = {b.name: here for b in d.buffers if b.space == "out"}
        shared = [b for b in smem if rng.random() < 0.5]
        d.peers = {b.name for b in shared}
        mine = [b for b in d.buffers if b.space != "in" and b not in shared]
        out = list(turn(rng, d, mine, shared, count))
        d.peers = set()
        whole = [b for b in smem if b.shape == d.shape and len(b.shape) == 2]
        if whole and rng.random() < 0.4:
            # Both have to come by: not within a branch.
            dst = rng.choice(whole)
            out = [Commit(), *rendezvous(), CopyIn(View("x"), View(dst.name), "b", multicast=True), Wait("b"), *out]
        return out

    d.lead = {b.name: Var("cta") for b in d.buffers if b.space == "out"}
    body: list[Stmt] = [*initial(rng, d, "cta"), *rendezvous()]
    for i in range(rng.randint(1, 3)):
        crossed = i % 2 == 1
        if rng.random() < 0.3:
            body.append(For(d.new("i"), Const(rng.randint(1, 3)), blocks=((*phase(2, crossed), *rendezvous()),)))
        else:
            body += [*phase(rng.randint(1, 4), crossed), *rendezvous()]
    return Program(name, tuple(d.decls), tuple(body), ctas=2)


def blocks(rng: random.Random, name: str, d: Draft) -> Program:
    """Two blocks that take turns on memory of the device; a semaphore counts turns."""
    declarations(rng, d, 0)
    d.declare([Bar("b"), Bar("bs", 1, 2)])
    smem = [b for b in d.buffers if b.space == "smem"]
    body: list[Stmt] = [s for s in initial(rng, d, "block") if isinstance(s, Store) and s.dst.buffer in {b.name for b in smem}]
    for number in range(rng.randint(2, 4)):
        work: Body = turn(rng, d, [b for b in d.buffers if b.space != "in"], [], rng.randint(1, 4))
        if number == 0:
            gmem = [b for b in d.buffers if b.space == "out"]
            work = (*(Store(View(b.name), Iota(b.shape, 0)) for b in gmem), *work)
        before: Body = (Await(Const(number), polls=rng.random() < 0.3),) if number else ()
        body.append(If(Bin("==", Var("block"), Const(number % 2)), blocks=((*before, *work, WaitOut(0), Signal()), ())))
    return Program(name, tuple(d.decls), tuple(body), blocks=2, semaphore=True)
