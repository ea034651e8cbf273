"""Programs by name: what once went wrong, as small as it gets, with variations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.programs.memory.tree import (
    AccLoad,
    Accumulate,
    Arrive,
    At,
    Await,
    Bar,
    Bin,
    Buffer,
    Carry,
    Cast,
    Commit,
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
    Load,
    Mma,
    MmaWait,
    Part,
    Program,
    Reduce,
    Roles,
    Scope,
    Signal,
    Stmt,
    Store,
    Transpose,
    Union,
    Var,
    View,
    Wait,
    WaitOut,
    Warps,
    While,
)

ROW = (128,)
LARGE = (240, 128)  # of i32: two of these do not fit beside each other
TILE = (64, 64)


def program(name: str, decls: Sequence[Any], *body: Stmt, **more: Any) -> Program:
    return Program(name, tuple(decls), tuple(body), **more)


def at(buffer: str, *index: int | Expr, **more: Any) -> View:
    return View(buffer, tuple(At(Const(i) if isinstance(i, int) else i) for i in index), **more)


def load(buffer: str, *index: int | Expr) -> Load:
    return Load(at(buffer, *index))


def plus(a: Expr, b: int | Expr) -> Bin:
    return Bin("+", a, Const(b) if isinstance(b, int) else b)


def put(buffer: str, value: Expr | int, *index: int | Expr) -> Store:
    return Store(at(buffer, *index), Const(value) if isinstance(value, int) else value)


def bump(buffer: str, *index: int | Expr, by: int = 1) -> Store:
    return put(buffer, plus(load(buffer, *index), by), *index)


def loop(count: int, *body: Stmt, var: str = "i", carry: tuple[Carry, ...] = ()) -> For:
    return For(var, Const(count), carry, blocks=(body,))


def region(warp: int, *body: Stmt) -> Warps:
    return Warps((warp,), blocks=(body,))


def product(acc: str, *body: Stmt) -> Accumulate:
    return Accumulate(acc, TILE, blocks=(body,))


X = Buffer("x", "in", ROW)
XS = Buffer("xs", "in", (4, 128))
O = Buffer("o", "out", ROW)  # noqa: E741
OS = Buffer("os", "out", (4, 128))
S = Buffer("s", "smem", ROW)
SS = Buffer("ss", "smem", (2, 128))
C = Buffer("c", "smem", (4,))
B = Bar("b")
BS = Bar("bs", 1, 2)
A16 = Buffer("a", "in", TILE, "float16")
B16 = Buffer("bb", "in", TILE, "float16")
TA = Buffer("ta", "smem", TILE, "float16", tiled=True)
TB = Buffer("tb", "smem", TILE, "float16", tiled=True)
OUT = Buffer("o", "out", TILE)
OUT2 = Buffer("p", "out", TILE)
TS = Buffer("ts", "smem", (2, *TILE), "float16")


def other_lanes(buffer: str, *index: int | Expr) -> Expr:
    """A vector of an element that every lane loads, whoever stored it."""
    return Full(ROW, load(buffer, *index, 77))


def large(name: str) -> Buffer:
    return Buffer(name, "smem", LARGE)


def scope(*body: Stmt, decls: tuple[Any, ...]) -> Scope:
    return Scope(decls, blocks=(body,))


# ------------------------------------------------------------------------------------------ the left operand in registers


def _rs(name: str, a: Expr) -> Program:
    """The product of what `a` is and a tile."""
    return program(
        name, [A16, B16, OUT, TB],
        put("tb", Load(View("bb"))), Commit(), product("acc", Mma("acc", a, View("tb")), put("o", AccLoad("acc"))),
    )


LEFT = Bin("&", Load(View("a")), Const(7))
LEFT_OPERANDS = [
    _rs("left operand in WG_STRIDED", Cast("WG_STRIDED((64, 64), vec_size=2)", LEFT)),
    _rs("left operand in WG_STRIDED by one", Cast("WG_STRIDED((64, 64), vec_size=1)", LEFT)),
    _rs("left operand in WGMMA_TRANSPOSED", Cast("WGMMA_TRANSPOSED", LEFT)),
    _rs("left operand in WGMMA", Cast("WGMMA", LEFT)),
    _rs("left operand loaded in WG_STRIDED", Cast("WG_STRIDED((64, 64), vec_size=2)", Load(View("a")))),
    _rs("left operand loaded in WG_STRIDED by four", Cast("WG_STRIDED((64, 64), vec_size=4)", Load(View("a")))),
    _rs("left operand loaded in WGMMA_TRANSPOSED", Cast("WGMMA_TRANSPOSED", Load(View("a")))),
    _rs("left operand loaded and transposed", Transpose(Load(View("a")))),
    _rs("left operand constant", Full(TILE, Const(2))),
    _rs("left operand transposed", Bin("&", Transpose(Load(View("a"))), Const(7))),
    _rs("left operand from a scalar", Full(TILE, Reduce("max", Load(View("a"))))),
]

# ------------------------------------------------------------------------------------------ warp regions

WARP_REGIONS = [
    program("warp region counts", [X, O, C], put("c", 0, 0), region(0, bump("c", 0)), put("o", plus(Load(View("x")), load("c", 0)))),
    program("warp region counts in a loop", [X, O, C], put("c", 0, 0), loop(3, region(2, bump("c", 0)), bump("c", 0)), put("o", plus(Load(View("x")), load("c", 0)))),
    program("warp region with a loop", [X, O, C], put("c", 1, 0), region(1, loop(3, bump("c", 0), bump("c", 0, by=3))), put("o", plus(Load(View("x")), load("c", 0)))),
    program("warp region with two arms", [X, O, C],
            put("c", 1, 0), put("c", 2, 1), Warps((0, 3), blocks=((bump("c", 0), bump("c", 0)), (bump("c", 1), put("c", load("c", 1), 2)))),
            put("o", plus(Load(View("x")), plus(load("c", 0), plus(load("c", 1), load("c", 2)))))),
    program("warp region after warp region", [X, O, C], put("c", 1, 0), region(0, bump("c", 0)), region(3, bump("c", 0)), put("o", plus(Load(View("x")), load("c", 0)))),
    program("warp region in device memory", [X, O, Buffer("k", "out", (4,))], put("k", 1, 0), region(1, bump("k", 0)), put("o", plus(Load(View("x")), load("k", 0)))),
    program("warp region with a while", [X, O, C], put("c", 0, 0), region(3, While(Bin("<", load("c", 0), Const(3)), blocks=((bump("c", 0),),))), put("o", plus(Load(View("x")), load("c", 0)))),
    program("warp region signals", [X, O, C], put("c", 0, 0), region(3, bump("c", 0), Signal()), put("o", plus(Load(View("x")), load("c", 0))), semaphore=True),
    program("warp region copies and waits", [XS, O, SS, B], region(3, CopyIn(at("xs", 1), at("ss", 0), "b"), Wait("b")), put("o", load("ss", 0))),
    program("warp region copies and waits for nobody", [XS, O, SS, B], region(3, CopyIn(at("xs", 1), at("ss", 0), "b"), Wait("b"))),
    program("warp region waits for another's copy", [XS, O, SS, B], CopyIn(at("xs", 1), at("ss", 0), "b"), region(2, Wait("b")), put("o", load("ss", 0))),
]

# ------------------------------------------------------------------------------------------ loops that look at memory

WHILES = [
    program("while: the last condition is read before the store behind it", [O, C],
            put("c", 0, 0), Commit(), While(Bin("<", load("c", 0), Const(5)), blocks=((bump("c", 0), Commit()),)), put("c", 7, 0), put("o", Full(ROW, load("c", 0)))),
    program("while: in a loop", [O, C], loop(
        3, put("c", 0, 0), Commit(), While(Bin("<", load("c", 0), Const(2)), blocks=((bump("c", 0), Commit()),)), put("c", 7, 0)), put("o", Full(ROW, load("c", 0)))),
    program("while: an array's condition", [X, O, S],
            put("s", Full(ROW, Const(0))), Commit(),
            While(Bin("<", Reduce("max", Load(View("s"))), Const(3)), blocks=((put("s", plus(other_lanes("s"), 1)), Commit()),)),
            put("s", Full(ROW, Const(9))), put("o", Load(View("s")))),
    program("while: of device memory", [O, Buffer("k", "out", (4,))],
            put("k", 0, 0), While(Bin("<", load("k", 0), Const(3)), blocks=((bump("k", 0),),)), put("k", 7, 0), put("o", Full(ROW, load("k", 0)))),
    program("while: waits, then copies", [XS, O, C, S, B],
            put("c", 0, 0),
            While(Bin("<", load("c", 0), Const(3)), blocks=((CopyIn(at("xs", load("c", 0)), View("s"), "b"), Wait("b"), bump("c", 0)),)),
            put("o", Load(View("s")))),
]

# ------------------------------------------------------------------------------------------ scopes that share memory


def _use(buffer: str, row: int, out: View) -> tuple[Stmt, ...]:
    return (put(buffer, plus(Load(View("x")), row), row), Store(out, other_lanes(buffer, row)))


I: Expr = Bin("&", Var("i"), Const(3))
SIBLINGS = (scope(*_use("p", 0, at("os", I)), decls=(large("p"),)), scope(*_use("q", 0, View("o")), decls=(large("q"),)))
SCOPES = [
    program("scopes share memory", [X, O, OS], *(SIBLINGS[1], SIBLINGS[1])),
    program("scopes share memory in a loop", [X, O, OS], loop(3, *SIBLINGS)),
    program("scopes share memory in nested loops", [X, O, OS], loop(2, loop(2, *SIBLINGS, var="i"), var="j")),
    program("scopes share memory in a while", [X, O, OS, C], put("c", 0, 0), While(Bin("<", load("c", 0), Const(3)), blocks=((Let("i", load("c", 0)), *SIBLINGS, bump("c", 0)),))),
    program("scopes share memory in arms", [X, O, OS], loop(4, If(Bin("==", Bin("&", Var("i"), Const(1)), Const(0)), blocks=((SIBLINGS[0],), (SIBLINGS[1],))))),
    program("scopes share memory, stores in flight", [X, O, OS], loop(
        3,
        scope(put("p", Iota(LARGE, 1)), Commit(), CopyOut(at("p", 0), at("os", I)), WaitOut(0, True), decls=(large("p"),)),
        scope(put("q", Iota(LARGE, 0)), put("o", other_lanes("q", 0)), decls=(large("q"),)),
    ), WaitOut(0)),
    program("scopes share memory, an open group elsewhere", [X, XS, O, OS, S, SS, B],
            put("s", Load(View("x"))), Commit(), CopyOut(View("s"), at("os", 0), commit=False), *(SIBLINGS[1], SIBLINGS[1]),
            CopyIn(at("xs", 0), at("ss", 0), "b"), Wait("b"), CommitGroup(), WaitOut(0, True), put("s", Full(ROW, Const(5)))),
    program("union members", [X, O, OS, Union("u", ((Buffer("u0", "smem", ROW),), (Buffer("u1", "smem", (2, 128)),)))], loop(
        2, put("u0", Load(View("x"))), put("o", other_lanes("u0")), put("u1", plus(Load(View("x")), 3), 0), Store(at("os", I), other_lanes("u1", 0)))),
]

# ------------------------------------------------------------------------------------------ bulk stores

BULK_STORES = [
    program("a wait for all bulk stores but one", [X, O, OS, SS],
            put("ss", Load(View("x")), 0), put("ss", plus(Load(View("x")), 1), 1), Commit(), CopyOut(at("ss", 0), at("os", 0)), CopyOut(at("ss", 1), at("os", 1)),
            WaitOut(1, True), put("ss", plus(Load(View("x")), 2), 0), Commit(), WaitOut(0, True), put("ss", plus(Load(View("x")), 3), 1)),
    program("a wait for all bulk stores but one, in a loop", [XS, O, OS, SS], loop(
        4, WaitOut(1, True), put("ss", load("xs", I), Bin("&", Var("i"), Const(1))), Commit(), CopyOut(at("ss", Bin("&", Var("i"), Const(1))), at("os", I))), WaitOut(0)),
    program("a bulk load behind a wait for all bulk stores but one", [XS, O, OS, SS, B],
            put("ss", load("xs", 0), 0), put("ss", load("xs", 1), 1), Commit(), CopyOut(at("ss", 0), at("os", 0)), CopyOut(at("ss", 1), at("os", 1)),
            WaitOut(1, True), CopyIn(at("xs", 2), at("ss", 0), "b"), WaitOut(0, True), Wait("b"), put("ss", load("ss", 0), 1), put("o", load("ss", 1))),
    program("read what a bulk store wrote", [X, O, OS, S], put("s", Load(View("x"))), Commit(), CopyOut(View("s"), at("os", 1)), WaitOut(0), put("o", load("os", 1))),
    program("read what a bulk store wrote, in place", [X, O, S], put("s", Load(View("x"))), Commit(), CopyOut(View("s"), View("o")), WaitOut(0), put("o", plus(Load(View("o")), 1))),
    program("overwrite what a bulk store wrote", [X, O, S], put("s", Load(View("x"))), Commit(), CopyOut(View("s"), View("o")), WaitOut(0), put("o", Iota(ROW, 0))),
    program("read a scalar that a bulk store wrote", [X, O, OS, S], put("s", Load(View("x"))), Commit(), CopyOut(View("s"), at("os", 1)), WaitOut(0), put("o", Full(ROW, load("os", 1, 77)))),
    program("read what a bulk store wrote, one group in flight", [X, O, OS, S],
            put("s", Load(View("x"))), Commit(), CopyOut(View("s"), at("os", 1)), CopyOut(View("s"), at("os", 2)), WaitOut(1), put("o", load("os", 1)), WaitOut(0)),
    program("load in bulk what a bulk store wrote", [X, O, OS, S, SS, B],
            put("s", Load(View("x"))), Commit(), CopyOut(View("s"), at("os", 1)), WaitOut(0), CopyIn(at("os", 1), at("ss", 0), "b"), Wait("b"), put("o", load("ss", 0))),
    program("a bulk store over what lanes wrote", [X, O, S],
            put("s", Load(View("x"))), Commit(), put("o", Iota(ROW, 0)), CopyOut(View("s"), View("o")), WaitOut(0)),
    program("a bulk store over what lanes read", [X, OS, O, S],
            put("s", Load(View("x"))), put("os", Iota((4, 128), 1)), Commit(), put("o", load("os", 1)), CopyOut(View("s"), at("os", 1)), WaitOut(0)),
    program("a warp's bulk store, then a bulk load", [XS, O, OS, S, B],
            put("s", load("xs", 0)), Commit(), region(2, CopyOut(View("s"), at("os", 0)), WaitOut(0, True)), CopyIn(at("xs", 1), View("s"), "b"), Wait("b"), put("o", Load(View("s")))),
    program("a warp's bulk store, then a store", [XS, O, OS, S],
            put("s", load("xs", 0)), Commit(), region(2, CopyOut(View("s"), at("os", 0)), WaitOut(0, True)), put("s", load("xs", 1)), put("o", other_lanes("s"))),
    program("a warp's bulk store, then a read of what it wrote", [XS, O, OS, S],
            put("s", load("xs", 0)), Commit(), region(1, CopyOut(View("s"), at("os", 0)), WaitOut(0)), put("o", load("os", 0))),
    program("a warp's bulk store, another's bulk load", [XS, O, OS, S, B],
            put("s", load("xs", 0)), Commit(), region(2, CopyOut(View("s"), at("os", 0)), WaitOut(0, True)), region(3, CopyIn(at("xs", 1), View("s"), "b")), Wait("b"), put("o", Load(View("s")))),
]

# ------------------------------------------------------------------------------------------ bulk loads

BULK_LOADS = [
    program("a warp region that ends no group of the warpgroup's bulk stores", [OUT, Buffer("os", "out", (3, *TILE)), Buffer("s", "smem", TILE), Buffer("ss", "smem", (2, *TILE))],
            put("ss", Iota((2, *TILE), 2)), put("o", Iota(TILE, 1)),
            loop(2, If(Bin("==", Reduce("sum", Load(View("o"))), Const(6)), blocks=(
                (CopyOut(View("s", (Part(Const(1), 8),)), View("o", (Part(Const(1), 8),)), commit=False),),
                (region(0, Commit(), WaitOut(0), CopyOut(at("ss", 1), at("os", 0))),)))),
            WaitOut(0), put("os", Load(View("o")), 0)),

    program("load in bulk what lanes stored", [X, O, OS, S, B], put("os", plus(Load(View("x")), 1), 2), CopyIn(at("os", 2), View("s"), "b"), Wait("b"), put("o", Load(View("s")))),
    program("load in bulk what lanes stored, in a loop", [X, O, OS, S, B], loop(
        3, put("os", plus(Load(View("x")), Var("i")), 2), CopyIn(at("os", 2), View("s"), "b"), Wait("b"), put("o", Load(View("s"))))),
    program("load in bulk what one scalar store changed", [X, O, OS, S, B],
            put("os", Load(View("x")), 2), put("os", 5, 2, 99), CopyIn(at("os", 2), View("s"), "b"), Wait("b"), put("o", Load(View("s")))),
    program("a warp loads in bulk what lanes stored", [X, O, OS, S, B], put("os", plus(Load(View("x")), 1), 2), region(1, CopyIn(at("os", 2), View("s"), "b")), Wait("b"), put("o", Load(View("s")))),
    program("store what is loaded in bulk, when it is there", [X, O, OS, S, B],
            put("os", plus(Load(View("x")), 1), 2), CopyIn(at("os", 2), View("s"), "b"), Wait("b"), put("os", Iota(ROW, 0), 2), put("o", Load(View("s")))),
    program("load in bulk over what lanes read", [XS, O, OS, S, B],
            put("s", load("xs", 0)), Commit(), put("o", other_lanes("s")), CopyIn(at("xs", 1), View("s"), "b"), Wait("b"), put("os", Load(View("s")), 1)),
]

# ------------------------------------------------------------------------------------------ waits by polling

TURN = Bin("==", Var("block"), Const(0))
POLLS = [
    program("poll a semaphore", [X, O, OS], If(TURN, blocks=((put("os", plus(Load(View("x")), 1), 1), Signal()), (Await(Const(1), polls=True), put("o", load("os", 1))))), blocks=2, semaphore=True),
    program("poll a semaphore twice", [X, O, OS],
            If(TURN, blocks=((put("os", plus(Load(View("x")), 1), 1), Signal(), Await(Const(2), polls=True), put("os", load("os", 2), 3)),
                             (Await(Const(1), polls=True), put("os", load("os", 1), 2), Signal()))), blocks=2, semaphore=True),
    program("wait for a semaphore", [X, O, OS], If(TURN, blocks=((put("os", plus(Load(View("x")), 1), 1), Signal()), (Await(Const(1)), put("o", load("os", 1))))), blocks=2, semaphore=True),
    program("poll a barrier", [XS, O, S, B], CopyIn(at("xs", 1), View("s"), "b"), Wait("b", polls=True), put("o", Load(View("s")))),
    program("poll a barrier for the other warpgroup", [X, O, S, B],
            Roles((0, 1), blocks=((put("s", Load(View("x"))), Arrive("b")), (Wait("b", polls=True), put("o", Load(View("s")))))), warpgroups=2),
]

# ------------------------------------------------------------------------------------------ products in flight


def _tiles(*body: Stmt, more: Sequence[Any] = ()) -> tuple[Any, ...]:
    return ([A16, B16, OUT, OUT2, TA, TB, C, B, *more], put("ta", Load(View("a"))), put("tb", Load(View("bb"))), put("c", 0, 0), Commit(), *body)


MMA = Mma("acc", View("ta"), View("tb"))
PRODUCTS = [
    program("left operand that a loop changes", *_tiles(
        product("acc", loop(3, Mma("acc", Var("v"), View("tb")), carry=(Carry("v", LEFT, Bin("+", Var("v"), Const(1)), "w"),)), put("o", AccLoad("acc"))))),
    program("left operand that a loop loads", *_tiles(product("acc", loop(2, Mma("acc", Load(View("ta")), View("tb"))), put("o", AccLoad("acc"))))),
    program("left operand that a loop loads, with a wait", *_tiles(product("acc", loop(2, Mma("acc", Load(View("ta")), View("tb")), MmaWait(0)), put("o", AccLoad("acc"))))),
    program("two products, a barrier, a store over an operand", *_tiles(
        product("acc", MMA, MMA, bump("c", 0), put("o", AccLoad("acc"))), put("tb", Iota(TILE, 0)), put("p", Load(View("tb"))))),
    program("two products, a wait for one, a store over an operand", *_tiles(
        product("acc", MMA, MMA, MmaWait(1), bump("c", 0), put("o", AccLoad("acc"))), put("tb", Iota(TILE, 0)), put("p", Load(View("tb"))))),
    program("two products, a barrier, a bulk load over an operand", *_tiles(
        product("acc", MMA, MMA, bump("c", 0), put("o", AccLoad("acc"))), CopyIn(View("a"), View("tb"), "b"), Wait("b"), put("p", Load(View("tb"))))),
    program("products in a loop, refilled in bulk", *_tiles(loop(
        2, product("acc", loop(3, MMA, Commit(), var="j"), put("o", AccLoad("acc"))), CopyIn(View("a"), View("tb"), "b"), Wait("b")))),
    program("products of nested loops, refilled in bulk", *_tiles(product("acc", loop(
        2, loop(3, MMA, Commit(), var="j"), MmaWait(0), CopyIn(View("a"), View("tb"), "b"), Wait("b")), put("o", AccLoad("acc"))))),
    program("the next product ends the last", *_tiles(
        product("acc", MMA, Mma("acc", View("tb"), View("tb")), put("ta", Iota(TILE, 1)), put("o", AccLoad("acc"))), put("p", Load(View("ta"))))),
    program("a store beside what a product reads, as an index has it", [Buffer("n", "in", (4,)), TS, TA, OUT], put("ts", Iota((2, *TILE), 2)), put("ta", Iota(TILE, 0)), Commit(),
            product("acc", Mma("acc", at("ts", 0), at("ts", Bin("&", load("n", 1), Const(1)))), put("ts", load("ts", 1), 1), Mma("acc", View("ta"), View("ta")), MmaWait(0), put("o", AccLoad("acc"))),
            indices=0),
    program("left operand overwritten behind its wait", *_tiles(
        product("acc", MMA, MmaWait(0), put("ta", Transpose(Load(View("ta")))), Commit(), MMA, put("o", AccLoad("acc"))))),
]

# ------------------------------------------------------------------------------------------ rings

SLOT = (64, 32)
RING = Buffer("r", "smem", (2, *SLOT))
RING_DECLS = [Buffer("xs", "in", (4, *SLOT)), Buffer("o", "out", (4, *SLOT)), Buffer("p", "out", (4, *SLOT)), RING, Bar("full", 1, 2), Bar("go", 1, 2), Bar("free", 1, 2)]
I = Var("i")  # noqa: E741
S_I = Bin("&", I, Const(1))


def by_columns(e: Expr) -> Expr:
    return Cast("WGMMA", e)


def by_rows(e: Expr) -> Expr:
    return Cast(f"WG_STRIDED({SLOT}, vec_size=1)", e)


COLUMN: Expr = by_columns(Bin("+", Iota(SLOT, 1), I))


def ring(name: str, *worker: Stmt, rounds: int = 2, informer: int = 0, more: tuple[Stmt, ...] = ()) -> Program:
    """Warpgroup 0 fills slots; it, or warpgroup 2, signals the worker, 1, that a load is over."""
    tells = (Wait("full", S_I), Arrive("go", S_I))
    fill = (If(Bin("<", Const(1), I), blocks=((Wait("free", S_I),), ())), CopyIn(at("xs", I), at("r", S_I), "full", S_I))
    waits = tuple(Wait("free", Const(i % 2)) for i in range(rounds - 2, rounds))
    frees = (*worker, Arrive("free", S_I))
    loader, decls = (loop(rounds, *fill, *(tells if informer == 0 else ())), *waits), list(RING_DECLS)
    roles = [loader, (loop(rounds, *frees), *more)]
    if informer:
        roles.append((loop(rounds, *tells, Arrive("free", S_I)),))
        decls[-1] = Bar("free", 2, 2)
    return program(name, decls, Roles(tuple(range(len(roles))), blocks=tuple(roles)), warpgroups=len(roles))


RINGS = [
    ring("store, a late wait, read", Wait("go", S_I), put("r", COLUMN, S_I), Wait("full", S_I), put("o", by_rows(load("r", S_I)), I)),
    ring("read, a late wait, store", Wait("go", S_I), put("o", by_rows(load("r", S_I)), I), Wait("full", S_I), put("r", COLUMN, S_I)),
    ring("a late wait in later phases", Wait("go", S_I), put("r", COLUMN, S_I), Wait("full", S_I), put("o", by_rows(load("r", S_I)), I), rounds=4),
    ring("told by another warpgroup before a late wait", Wait("go", S_I), put("r", COLUMN, S_I), Wait("full", S_I), put("o", by_rows(load("r", S_I)), I), rounds=4, informer=2),
    ring("a wait in time, then told", Wait("full", S_I), put("r", COLUMN, S_I), Wait("go", S_I), put("o", by_rows(load("r", S_I)), I), rounds=4),
    ring("a late wait for another slot", Wait("go", S_I), Wait("full", S_I), put("o", by_columns(load("r", S_I)), I), put("r", by_rows(Iota(SLOT, 0)), S_I),
         put("p", by_columns(load("r", 0)), I)),
]

EVERY: list[Program] = [*LEFT_OPERANDS, *WARP_REGIONS, *WHILES, *SCOPES, *BULK_STORES, *BULK_LOADS, *POLLS, *PRODUCTS, *RINGS]
REGRESSIONS: dict[str, Program] = {p.name: p for p in EVERY}
assert len(REGRESSIONS) == len(EVERY)
