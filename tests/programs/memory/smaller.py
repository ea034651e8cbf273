"""Smaller programs, valid or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tests.programs.memory.tree import (
    Arrive,
    Bin,
    Body,
    Buffer,
    Cast,
    CommitGroup,
    Const,
    CopyIn,
    CopyOut,
    Expr,
    For,
    Full,
    If,
    Iota,
    Let,
    Path,
    Program,
    Reduce,
    Reshape,
    Scope,
    Spread,
    Stmt,
    Transpose,
    Union,
    Wait,
    WaitOut,
    While,
    edited,
    parts,
    replaced,
    statements,
)


def blocks(body: Body, at: Path = ()) -> Iterator[tuple[Path, Body]]:
    """Every block: the path of its first statement less the last index, and the block."""
    yield at, body
    for i, s in enumerate(body):
        for b, block in enumerate(s.blocks):
            yield from blocks(block, (*at, i, b))


def without_statements(program: Program) -> Iterator[Program]:
    """Without halves, quarters, …, single statements of a block, the late ones first."""
    for at, block in list(blocks(program.body)):
        size = len(block)
        while size >= 1:
            for start in range(len(block) - size, -1, -size):
                yield dataclasses.replace(
                    program, body=edited(program.body, (*at, start), lambda b, i, n=size: (*b[:i], *b[i + n :]))
                )
            size //= 2


def without_pairs(program: Program) -> Iterator[Program]:
    """Without a copy or an arrival and a wait: neither can go alone."""
    every = list(statements(program.body))
    for i, (first, s) in enumerate(every):
        for second, t in every[i + 1 :]:
            if isinstance(s, (CopyIn, Arrive)) and isinstance(t, Wait) and s.bar == t.bar or isinstance(s, CopyOut) and isinstance(t, (CommitGroup, WaitOut)):
                yield replaced(replaced(program, second, ()), first, ())


def flattened(program: Program) -> Iterator[Program]:
    """With loops once, arms without their branch, fewer iterations, fewer declarations."""
    for path, s in list(statements(program.body)):
        if isinstance(s, For):
            before: list[Stmt] = [Let(s.var, Const(0)), *(Let(c.name, c.init) for c in s.carry)]
            yield replaced(program, path, (*before, *s.blocks[0], *(Let(c.result, c.next) for c in s.carry)))
            for k in range(len(s.carry)):
                yield replaced(program, path, (dataclasses.replace(s, carry=s.carry[:k] + s.carry[k + 1 :]),))
            fewer = range(s.count.value) if isinstance(s.count, Const) else range(3)
            for n in fewer:
                yield replaced(program, path, (dataclasses.replace(s, count=Const(n)),))
        elif isinstance(s, If):
            for k in range(2):
                yield replaced(program, path, (*s.blocks[k], *(Let(p.result, p.values[k]) for p in s.picks)))
            for k in range(len(s.picks)):
                yield replaced(program, path, (dataclasses.replace(s, picks=s.picks[:k] + s.picks[k + 1 :]),))
            if s.blocks[1]:
                yield replaced(program, path, (dataclasses.replace(s, blocks=(s.blocks[0], ())),))
        elif isinstance(s, While):
            yield replaced(program, path, s.blocks[0])
        elif isinstance(s, Scope):
            yield dataclasses.replace(replaced(program, path, s.blocks[0]), decls=(*program.decls, *s.decls))
            for k in range(len(s.decls)):
                yield replaced(program, path, (dataclasses.replace(s, decls=s.decls[:k] + s.decls[k + 1 :]),))
        elif len(s.blocks) > 1 and hasattr(s, "which"):
            for k in range(len(s.blocks)):
                fewer_arms = {"which": s.which[:k] + s.which[k + 1 :], "blocks": s.blocks[:k] + s.blocks[k + 1 :]}
                yield replaced(program, path, (dataclasses.replace(s, **fewer_arms),))
    used = {getattr(p, field) for p in parts(program.body) for field in ("buffer", "bar") if hasattr(p, field)}
    kept = tuple(d for d in program.decls if used & ({b.name for g in d.groups for b in g} if isinstance(d, Union) else {d.name}) or d == next(iter(program.of("out")), None))
    if kept != program.decls:
        yield dataclasses.replace(program, decls=kept)
    for k, d in enumerate(program.decls):
        simpler_ones: list[Any] = []
        if isinstance(d, Buffer):
            simpler_ones = [dataclasses.replace(d, **change) for change in ({"dtype": "int32"}, {"tiled": False}) if dataclasses.replace(d, **change) != d]
        if isinstance(d, Union):
            simpler_ones = [b for g in d.groups for b in g]
        for one in simpler_ones:
            yield dataclasses.replace(program, decls=(*program.decls[:k], one, *program.decls[k + 1 :]))
    dtypes = {d.dtype for d in program.decls if isinstance(d, Buffer)} - {"int32"}
    for dtype in sorted(dtypes):
        change = [dataclasses.replace(d, dtype="int32") if isinstance(d, Buffer) and d.dtype == dtype else d for d in program.decls]
        yield dataclasses.replace(program, decls=tuple(change))


def simpler(program: Program) -> Iterator[Program]:
    """With an expression replaced by a part of it, or by a constant."""
    for path, s in list(statements(program.body)):
        bare = dataclasses.replace(s, blocks=())
        for other in substitutes(bare):
            yield replaced(program, path, (dataclasses.replace(other, blocks=s.blocks),))


def substitutes(node: Any) -> Iterator[Any]:
    """The node with one expression in it made simpler."""
    if isinstance(node, Expr):
        yield from smaller_expressions(node)
    if dataclasses.is_dataclass(node):
        for field in dataclasses.fields(node):
            for inner in substitutes(getattr(node, field.name)):
                yield dataclasses.replace(node, **{field.name: inner})  # type: ignore[type-var]
    elif isinstance(node, tuple):
        for i, part in enumerate(node):
            for inner in substitutes(part):
                yield (*node[:i], inner, *node[i + 1 :])


def smaller_expressions(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Const):
        return
    if isinstance(e, Bin) and e.op not in ("<", "=="):
        yield e.a
        yield e.b
    if isinstance(e, (Cast, Transpose, Reduce)):
        yield e.a
    if isinstance(e, (Full, Spread, Reshape)):
        yield Iota(e.shape, 0)
    if not isinstance(e, (Iota, Full)) or (isinstance(e, Full) and e.a != Const(1)):
        yield Const(1)
    if isinstance(e, Full) and e.a != Const(1):
        yield Full(e.shape, Const(1))


SMALLER = (without_statements, without_pairs, flattened, simpler)
