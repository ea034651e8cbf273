"""Makes programs: statements at random over few buffers, and then just the synchronisation that their author owes.

A program is drafted with no thought of order (`Draft`), and run by the interpreter; where that finds something missing, the statement
that mends it is put there (`mend`), or the one that cannot be mended goes. So what stands between two statements that touch the same
bytes is no more than JAX asks for, and everything else is left to the compiler.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from tests.programs.memory.interpret import Invalid, check_statically, interpret
from tests.programs.memory.tree import (
    DTYPES,
    AccLoad,
    Accumulate,
    Arrive,
    At,
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
    Path,
    Pick,
    Program,
    Reduce,
    Scope,
    Shape,
    Spread,
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
    edited,
    inserted,
    replaced,
    statements,
)

#: Of the arrays that most of a program's statements are about.
SHAPES: tuple[Shape, ...] = ((128,), (256,), (64, 32), (32, 64), (64, 64), (16, 128), (8, 128))
NARROW = ("int8", "uint8", "int16", "float16", "bfloat16")
WIDE = ("int32", "int32", "int32", "uint32", "float32")
#: How many programs the tests take: in the emulator, on a GPU.
PROGRAMS, PROGRAMS_ON_GPU = 200, 500
MAX_DEPTH = 3
MENDS = 80
#: What programs are about; each seed's is `seed % len`.
KINDS = ("plain", "copies", "scopes", "warps", "products", "copies", "warpgroups", "plain", "cluster", "copies", "blocks", "warps")


def generate(seed: int, kind: str | None = None) -> Program:
    """The program of this seed: valid, the same in every process."""
    kind = kind or KINDS[seed % len(KINDS)]
    for attempt in range(50):
        rng = random.Random(f"{kind}.{seed}.{attempt}")
        if kind in ("warpgroups", "cluster", "blocks"):
            from tests.programs.memory import phased

            draft = phased.draft(rng, f"{seed}", kind)
        elif kind == "rings":
            from tests.programs.memory import rings

            draft = rings.draft(rng, f"{seed}")
        else:
            draft = Draft(rng, f"{seed}", kind).program()
        program = mend(rng, draft, has_waits=kind == "rings")
        if program is not None:
            return program
    raise AssertionError(f"no valid program of seed {seed}")


def mend(rng: random.Random, program: Program, has_waits: bool = False) -> Program | None:
    """With what its author owes; None: hopeless. `has_waits`: what comes before memory is written, or a load is over, goes."""
    for _ in range(MENDS):
        fault = find_fault(program)
        if fault is None:
            if has_waits:
                return program if {type(s) for _, s in statements(program.body)} >= {CopyIn, Wait, Store} else None
            return program if any(isinstance(s, (Store, CopyOut)) for s in program.body) or len(program.body) > 1 else None
        program = mended(rng, program, fault, has_waits)
    return None


def find_fault(program: Program) -> Invalid | None:
    """What is missing, whatever turns its agents take."""
    several = program.warpgroups * program.ctas * program.blocks > 1 or any(isinstance(s, Warps) for s in program.body)
    try:
        first = interpret(program)
        for seed in (1, 2) if several else ():
            other = interpret(program, seed=seed)
            if any(((a != b) & k).any() for a, b, k in zip(first.values, other.values, first.known)):
                return Invalid("depends on the schedule", (len(program.body) - 1,))
        check_statically(program)
    except Invalid as fault:
        return fault
    return None


def mended(rng: random.Random, program: Program, fault: Invalid, has_waits: bool) -> Program:
    path, need = fault.path, fault.need
    if has_waits and need is not None and isinstance(need[0], Wait):
        need = None
    if not has_waits and fault.unwritten is not None and rng.random() < 0.9:
        decl = next((d for d in program.decls if isinstance(d, Buffer) and d.name == fault.unwritten), None)
        if decl is not None:
            like = [b.name for b in program.of("in") if b.shape == decl.shape]
            first = Load(View(like[0])) if like and rng.random() < 0.7 else Iota(decl.shape, len(decl.shape) - 1)
            return inserted(program, (0,), (Store(View(decl.name), first),))
    if need is None:
        return replaced(program, path, ()) if exists(program, path) else replaced(program, (len(program.body) - 1,), ())
    op = fault.op
    if isinstance(need[0], Wait) and op is not None and (path[:-1] != op.path[:-1] or rng.random() < 0.15):
        # Somewhere else: right behind the copy.
        behind = (*op.path[:-1], op.path[-1] + 1)
        return inserted(program, behind, (Wait(op.bar, op.slot_as_written, polls=rng.random() < 0.1),))
    if isinstance(need[0], Wait) and op is not None:
        need = (Wait(op.bar, op.slot_as_written, polls=rng.random() < 0.1),)
    if isinstance(need[-1], WaitOut) and rng.random() < 0.2:
        last = need[-1]
        need = (*need[:-1], WaitOut(0 if rng.random() < 0.5 else last.n, last.read_only and rng.random() < 0.5))
    return inserted(program, path, need)


def exists(program: Program, path: Path) -> bool:
    found = []
    edited(program.body, path, lambda block, i: (found.append(i < len(block)), block)[1])  # type: ignore[func-returns-value]
    return found == [True]


class Draft:
    """Statements of one warpgroup."""

    def __init__(self, rng: random.Random, name: str, kind: str) -> None:
        self.rng = rng
        self.name = name
        self.kind = kind
        self.shape = rng.choice(SHAPES)
        self.fresh = 0
        self.buffers: list[Buffer] = []
        self.bars: list[Bar] = []
        self.accs: list[tuple[str, Shape]] = []
        self.values: list[tuple[str, Shape]] = []
        self.recent: list[str] = []
        self.depth = 0
        self.decls: list[Any] = []
        self.readonly: set[str] = set()
        self.lead: dict[str, Expr] = {}  # buffers of which only that slot is meant
        self.in_warp = False
        self.peers: set[str] = set()  # whose other block's part may be read

    # ---------------------------------------------------------------------------------------- the whole

    def program(self) -> Program:
        rng, shape = self.rng, self.shape
        if self.kind == "products":
            self.shape = shape = (64, 64)
        dtype = "float16" if self.kind == "products" else rng.choice(WIDE + (NARROW if shape != (8, 128) else ()))
        self.main = dtype
        other = rng.choice(WIDE)
        few = ("n", "in", (4,), "int32")
        decls: list[Any] = [Buffer("x", "in", shape, dtype), Buffer("xs", "in", (3, *shape), dtype), Buffer(*few)]
        decls += [Buffer("o", "out", shape, dtype), Buffer("os", "out", (3, *shape), dtype)]
        if rng.random() < 0.4:
            decls.append(Buffer("y", "out", shape, other))
        if rng.random() < 0.4:
            decls.append(Buffer("m", "mut", shape, dtype))
        if rng.random() < 0.4:
            decls.append(Buffer("k", rng.choice(("mut", "out")), (4,), "int32"))
        tiled = self.kind == "products" or (len(shape) == 2 and shape[1] * _size(dtype) % 128 == 0 and rng.random() < 0.3)
        decls += [Buffer("s", "smem", shape, dtype, tiled), Buffer("ss", "smem", (2, *shape), dtype, tiled)]
        if rng.random() < 0.5:
            decls.append(Buffer("t", "smem", shape, other if rng.random() < 0.5 else dtype))
        decls.append(Buffer("c", "smem", (4,), "int32"))
        if self.kind == "warp_arrays":
            decls += [Buffer("xw", "in", (4, *shape), dtype), Buffer("ow", "out", (4, *shape), dtype), Buffer("w", "smem", (4, *shape), dtype)]
        if rng.random() < 0.3:
            decls.append(self.union("u", shape, dtype))
        decls += [Bar("b"), Bar("bs", rng.choice((1, 1, 2)), 2)]
        self.declare(decls)
        body = [Store(View("c", (At(Const(i)),)), Const(i)) for i in range(4) if rng.random() < 0.9]
        body += [Store(View(b.name), self.expr(b.shape, 1)) for b in self.buffers if b.shape == shape and b.space != "in" and rng.random() < 0.6]
        rng.shuffle(body)
        body += self.block(rng.randint(5, 11))
        # What is where at the end shows.
        for b in self.buffers:
            if b.space == "smem" and b.shape == shape and rng.random() < 0.7:
                body.append(Store(View("o"), Bin("^", Load(View("o")), Load(View(b.name)))))
            elif b.space == "smem" and b.shape == (4,):
                body.append(Store(View("o"), Bin("+", Load(View("o")), Reduce("sum", Load(View(b.name))))))
        return Program(self.name, tuple(self.decls), tuple(body))

    def declare(self, decls: Sequence[Any]) -> None:
        for d in decls:
            self.decls.append(d)
            self.enter(d)

    def enter(self, d: Any) -> None:
        if isinstance(d, Buffer):
            self.buffers.append(d)
        elif isinstance(d, Union):
            self.buffers += [b for g in d.groups for b in g]
        else:
            self.bars.append(d)

    def union(self, name: str, shape: Shape, dtype: str) -> Union:
        def one(i: str) -> Buffer:
            s = shape if self.rng.random() < 0.7 else (2, *shape)
            return Buffer(f"{name}_{i}", "smem", s, dtype if self.rng.random() < 0.7 else self.rng.choice(WIDE))

        second = (one("1"), one("2")) if self.rng.random() < 0.4 else (one("1"),)
        return Union(name, ((one("0"),), second))

    def new(self, stem: str) -> str:
        self.fresh += 1
        return f"{stem}{self.fresh}"

    # ---------------------------------------------------------------------------------------- views

    def touch(self, b: Buffer) -> Buffer:
        self.recent = [b.name, *(r for r in self.recent if r != b.name)][:3]
        return b

    def pick(self, found: Sequence[Buffer]) -> Buffer | None:
        if not found:
            return None
        late = [b for b in found if b.name in self.recent[:2]]
        return self.touch(self.rng.choice(late if late and self.rng.random() < 0.6 else list(found)))

    def index(self, n: int) -> Expr:
        """A number below n."""
        rng = self.rng
        scalars = [v for v, s in self.values if s == ()]
        if n == 1 or rng.random() < 0.4:
            return Const(rng.randrange(n))
        if scalars and rng.random() < 0.5:
            return Bin("rem", Var(rng.choice(scalars[-2:])), Const(n)) if rng.random() < 0.8 else Const(0)
        tables = [b for b in self.buffers if b.shape == (4,) and b.dtype == "int32" and b.space != "out"]
        if not tables or rng.random() < 0.3:
            return Const(rng.randrange(n))
        load = Load(View(self.rng.choice(tables).name, (At(Const(rng.randrange(4))),)))
        if n & (n - 1) == 0:
            return Bin("&", load, Const(n - 1))
        return Bin("rem", Bin("&", load, Const(63)), Const(n))

    def view(self, shape: Shape, writes: bool, copies: str | None = None) -> View | None:
        """Of this shape; `copies`: the type, if a bulk copy is to take it."""
        rng = self.rng
        found = []
        for b in self.buffers:
            if writes and (b.space == "in" or b.name in self.readonly) or copies is not None and b.dtype != copies:
                continue
            if b.shape == shape or b.shape[1:] == shape or len(shape) == len(b.shape) and self.part_of(b, shape, copies is not None):
                found.append(b)
            elif shape == () and not copies and b.space != "in" and len(b.shape) <= 2 + (b.name in self.lead) and not b.tiled and b.dtype != "bfloat16":
                found.append(b)
        small = [b for b in found if len(b.shape) == 1 and b.shape[0] <= 8]
        b = self.pick(small if shape == () and small and rng.random() < 0.8 else found)
        if b is None:
            return None
        peer = not writes and copies is None and b.name in self.peers and rng.random() < 0.5
        if b.name in self.lead:
            if b.shape[1:] == shape:
                return View(b.name, (At(self.lead[b.name]),))
            return View(b.name, (At(self.lead[b.name]), *(At(self.index(n)) for n in b.shape[1:]))) if shape == () else None
        if b.shape == shape:
            return View(b.name, peer=peer)
        if shape == ():
            return View(b.name, tuple(At(self.index(n)) for n in b.shape), peer=peer)
        if b.shape[1:] == shape:
            return View(b.name, (At(self.index(b.shape[0])),), peer=peer)
        whole, part = b.shape[0], shape[0]
        # A copy's slice begins at a multiple of 128 bytes.
        step = 8 if len(shape) > 1 or not copies else 128 // _size(b.dtype)
        step = part if rng.random() < 0.5 and whole % part == 0 else step
        places = (whole - part) // step + 1
        at = self.index(places)
        start = Const(at.value * step) if isinstance(at, Const) else Bin("*", at, Const(step))
        return View(b.name, (Part(start, part),))

    def part_of(self, b: Buffer, shape: Shape, copied: bool) -> bool:
        return b.shape[1:] == shape[1:] and b.shape[0] > shape[0] and (b.shape[0] - shape[0]) % 8 == 0 and not (copied and len(shape) == 1 and shape[0] * _size(b.dtype) % 128)

    # ---------------------------------------------------------------------------------------- expressions

    def expr(self, shape: Shape, depth: int = 0) -> Expr:
        rng = self.rng
        if depth < 2 and rng.random() < 0.45:
            a = self.expr(shape, depth + 1)
            b = self.scalar(depth + 1) if shape == () or rng.random() < 0.5 else self.expr(shape, depth + 1)
            return Bin(rng.choice(("+", "+", "-", "*", "^", "max", "min")), a, b)
        if shape == ():
            return self.scalar(depth)
        choices = ["load"] * 8 + ["full", "iota", "value", "value"]
        if len(shape) == 2:
            choices += ["transpose", "transpose", "spread"]
        if len(shape) == 1:
            choices += ["reduce", "reduce"]
        choices += ["slots"]
        what = rng.choice(choices)
        if what == "value" and (named := [n for n, s in self.values if s == shape]):
            return Var(rng.choice(named))
        if what == "full":
            return Full(shape, self.scalar(depth + 1))
        if what == "iota":
            return Iota(shape, rng.randrange(len(shape)))
        if what == "transpose" and (v := self.view(shape[::-1], False)):
            if rng.random() < 0.4 and not v.peer and next(b for b in self.buffers if b.name == v.buffer).space == "smem":
                return self.cast(Load(dataclasses.replace(v, transposed=True)), shape)
            return self.cast(Transpose(self.cast(Load(v), shape[::-1])), shape)
        if what == "spread":
            dim = rng.randrange(2)
            return Spread(shape, self.expr((shape[dim],), depth + 1), dim)
        if what == "reduce":
            wide = [b for b in self.buffers if b.name not in self.lead and len(b.shape) == 2 and shape[0] in b.shape and b.shape[0] > 4]
            if b := self.pick(wide):
                axis = 1 - b.shape.index(shape[0])
                return Reduce(rng.choice(("sum", "max", "min")), self.cast(Load(View(b.name)), b.shape), axis)
        if what == "slots":
            stacks = [b for b in self.buffers if b.name not in self.lead and b.shape[1:] == shape and b.shape[0] <= 4]
            if b := self.pick(stacks):
                return Reduce(rng.choice(("sum", "max")), Load(View(b.name)), 0)
        v = self.view(shape, False)
        return self.cast(Load(v), shape) if v else Iota(shape, 0)

    def scalar(self, depth: int = 0) -> Expr:
        rng = self.rng
        scalars = [n for n, s in self.values if s == ()]
        r = rng.random()
        if scalars and r < 0.25:
            return Var(rng.choice(scalars))
        if r < 0.65 and (v := self.view((), False)):
            return Load(v)
        if r < 0.8 and depth < 2:
            whole = [b for b in self.buffers if b.name not in self.lead and 128 <= _count(b.shape) <= 4096]
            if b := self.pick(whole):
                return Reduce(rng.choice(("sum", "max", "min")), self.cast(Load(View(b.name)), b.shape))
        return Const(rng.randint(0, 9))

    def cast(self, e: Expr, shape: Shape) -> Expr:
        rng = self.rng
        if rng.random() < 0.6 or self.in_warp:
            return e
        found = []
        if len(shape) == 2 and shape[0] % 64 == 0 and shape[1] % 8 == 0:
            found += ["WGMMA", "WGMMA", "WGMMA_TRANSPOSED"]
        if len(shape) == 1 and shape[0] % 64 == 0:
            found.append("WGMMA.reduce(1)")
        if len(shape) == 1 and shape[0] % 8 == 0:
            found.append("WGMMA.reduce(0)")
        found += [f"WG_STRIDED({shape}, vec_size={v})" for v in (1, 2, 4) if _count(shape) % (128 * v) == 0]
        return Cast(rng.choice(found), e) if found else e

    def condition(self) -> Expr:
        a = self.scalar(1)
        return Bin(self.rng.choice(("<", "==", "<")), a, Const(self.rng.randint(0, 6)))

    # ---------------------------------------------------------------------------------------- statements

    def block(self, count: int) -> list[Stmt]:
        """Statements in a scope of names of their own."""
        values = list(self.values)
        out: list[Stmt] = []
        for _ in range(count):
            out += self.statement()
        self.values = values
        return out

    def statement(self) -> list[Stmt]:
        if self.in_warp:
            return self.warp_statement()
        rng = self.rng
        weights = {"store": 8, "scalar": 4, "let": 2, "rmw": 3}
        if self.depth < MAX_DEPTH:
            weights |= {"for": 3, "if": 3, "while": 1.5}
        if self.kind != "plain":
            weights |= {"in": 4, "out": 4, "wait": 0.5, "commit": 0.5, "back": 2, "arrive": 0.7}
        if self.kind == "scopes" and self.depth < MAX_DEPTH:
            weights |= {"scope": 6, "siblings": 2}
        if self.kind in ("warps", "warp_arrays"):
            weights |= {"warps": 6}
        if self.kind == "warpgroups" and self.depth < 2:
            weights |= {"warps": 1}
        if self.kind == "products":
            weights |= {"product": 7}
        what = rng.choices(list(weights), list(weights.values()))[0]
        made: list[Stmt] = getattr(self, f"make_{what}")()
        return made

    def make_store(self) -> list[Stmt]:
        shape = self.shape
        if self.rng.random() < 0.35:
            shape = self.smaller(shape)
        v = self.view(shape, True)
        return [Store(v, self.expr(shape))] if v else []

    def smaller(self, shape: Shape) -> Shape:
        """Some rows."""
        if len(shape) == 1:
            return (self.rng.choice([n for n in (32, 64, 96, 128) if n <= shape[0]]),)
        return (self.rng.choice([n for n in (8, 16, 32, 64) if n <= shape[0]]), shape[1])

    def make_scalar(self) -> list[Stmt]:
        v = self.view((), True)
        return [Store(v, self.expr((), 1))] if v else []

    def make_rmw(self) -> list[Stmt]:
        shape = () if self.rng.random() < 0.6 else self.shape
        v = self.view(shape, True)
        if v is None:
            return []
        b = self.scalar(2) if shape == () or self.rng.random() < 0.5 else self.expr(shape, 2)
        return [Store(v, Bin(self.rng.choice(("+", "*", "^")), self.cast(Load(v), shape) if shape else Load(v), b))]

    def make_let(self) -> list[Stmt]:
        shape = () if self.rng.random() < 0.4 else self.shape
        value = self.expr(shape)
        name = self.new("v")
        self.values.append((name, shape))
        return [Let(name, value)]

    def make_for(self) -> list[Stmt]:
        rng = self.rng
        count = Const(rng.choice((0, 1, 2, 2, 3, 3, 4)))
        n: Expr = count if rng.random() < 0.7 else Bin("&", self.scalar(2), Const(3))
        carries = []
        var = self.new("i")
        outer = list(self.values)
        for _ in range(rng.choice((0, 0, 1, 2))):
            shape = () if rng.random() < 0.5 else self.shape
            carries.append((self.new("v"), shape, self.expr(shape, 1), self.new("v")))
        self.values += [(var, ()), *((c[0], c[1]) for c in carries)]
        self.depth += 1
        inner = list(self.values)
        body = []
        for _ in range(rng.randint(1, 4)):
            body += self.statement()
        following = [self.expr(c[1], 1) for c in carries]
        self.depth -= 1
        del inner
        self.values = [*outer, *((c[3], c[1]) for c in carries)]
        carry = tuple(Carry(name, init, value, result) for (name, _, init, result), value in zip(carries, following))
        return [For(var, n, carry, blocks=(tuple(body),))]

    def make_while(self) -> list[Stmt]:
        """While a scalar of memory is small; the body makes it larger, somewhere."""
        rng = self.rng
        tables = [b for b in self.buffers if b.shape == (4,) and b.space != "in" and b.name not in self.readonly]
        b = self.pick(tables)
        if b is None:
            return []
        place = View(b.name, (At(Const(rng.randrange(4))),))
        self.depth += 1
        body = self.block(rng.randint(0, 2))
        self.depth -= 1
        body.insert(rng.randint(0, len(body)), Store(place, Bin("+", Load(place), Const(rng.choice((1, 2, 3))))))
        first = [Store(place, Const(rng.randrange(4)))] if rng.random() < 0.7 else []
        last: list[Stmt] = [Store(place, Const(7))] if rng.random() < 0.5 else []
        return [*first, While(Bin("<", Load(place), Const(rng.randint(1, 6))), blocks=(tuple(body),)), *last]

    def make_if(self) -> list[Stmt]:
        rng = self.rng
        condition = self.condition()
        outer = list(self.values)
        self.depth += 1
        arms, values = [], []
        picks = [() if rng.random() < 0.5 else self.shape for _ in range(rng.choice((0, 0, 1)))]
        for i in range(2):
            body = []
            if i == 0 or rng.random() < 0.5:
                for _ in range(rng.randint(1, 3)):
                    body += self.statement()
            values.append([self.expr(shape, 1) for shape in picks])
            arms.append(tuple(body))
            self.values = list(outer)
        self.depth -= 1
        chosen = []
        for k, shape in enumerate(picks):
            name = self.new("v")
            chosen.append(Pick(name, (values[0][k], values[1][k])))
            self.values.append((name, shape))
        return [If(condition, tuple(chosen), blocks=(arms[0], arms[1]))]

    # ---------------------------------------------------------------------------------------- copies

    def copy_view(self, smem: bool, shape: Shape, dtype: str, writes: bool) -> View | None:
        keep = self.buffers
        self.buffers = [b for b in keep if (b.space == "smem") == smem]
        v = self.view(shape, writes, dtype)
        self.buffers = keep
        return v

    def copied_shape(self) -> Shape:
        shape = self.shape
        if self.rng.random() < 0.3:
            smaller = self.smaller(shape)
            if _count(smaller) * _size(self.main) % 128 == 0:
                shape = smaller
        return shape

    def make_in(self) -> list[Stmt]:
        shape = self.copied_shape()
        src, dst = self.copy_view(False, shape, self.main, False), self.copy_view(True, shape, self.main, True)
        if src is None or dst is None:
            return []
        bar = self.rng.choice(self.bars)
        slot = self.index(bar.count)
        return [CopyIn(src, dst, bar.name, slot), *self.rest_of(bar, slot, shape)]

    def rest_of(self, bar: Bar, slot: Expr, shape: Shape) -> list[Stmt]:
        """What else arrives there."""
        if bar.arrivals == 1:
            return []
        if self.rng.random() < 0.5:
            return [Arrive(bar.name, slot)]
        src, dst = self.copy_view(False, shape, self.main, False), self.copy_view(True, shape, self.main, True)
        return [CopyIn(src, dst, bar.name, slot)] if src and dst else [Arrive(bar.name, slot)]

    def make_out(self) -> list[Stmt]:
        shape = self.copied_shape()
        src, dst = self.copy_view(True, shape, self.main, False), self.copy_view(False, shape, self.main, True)
        if src is None or dst is None:
            return []
        return [CopyOut(src, dst, commit=self.rng.random() < 0.8)]

    def make_back(self) -> list[Stmt]:
        """Out, and in again or read."""
        out = self.make_out()
        if not out:
            return []
        [copy] = out
        assert isinstance(copy, CopyOut)
        dst = self.copy_view(True, self.shape, self.main, True)
        place = next(b for b in self.buffers if b.name == copy.dst.buffer)
        if self.rng.random() < 0.5 and dst is not None and not copy.dst.index and place.shape == self.shape:
            bar = self.rng.choice([b for b in self.bars if b.arrivals == 1])
            return [copy, CopyIn(copy.dst, dst, bar.name, self.index(bar.count))]
        shape = self.shape if not copy.dst.index else None
        v = self.view(self.shape, True)
        return [copy, Store(v, self.cast(Load(copy.dst), self.shape))] if v and shape and place.shape == self.shape else [copy]

    def make_wait(self) -> list[Stmt]:
        return [self.rng.choice((WaitOut(0), WaitOut(1), WaitOut(0, True), WaitOut(1, True), CommitGroup()))]

    def make_commit(self) -> list[Stmt]:
        return [Commit()]

    def make_arrive(self) -> list[Stmt]:
        bar = self.rng.choice(self.bars)
        slot = self.index(bar.count)
        return [*([Arrive(bar.name, slot)] * bar.arrivals), Wait(bar.name, slot, polls=self.rng.random() < 0.3)]

    # ---------------------------------------------------------------------------------------- scopes, warps, products

    def make_scope(self) -> list[Stmt]:
        return [self.scope(self.rng.random() < 0.3 and not self.in_warp)]

    def scope(self, large: bool) -> Scope:
        rng = self.rng
        decls: list[Any] = [Buffer(self.new("s"), "smem", self.shape, self.main)]
        if large:
            # Two of these do not fit beside each other: they share memory.
            rows = 118 * 1024 // (_count(self.shape) * _size(self.main))
            decls = [Buffer(self.new("s"), "smem", (rows, *self.shape), self.main)]
        elif self.in_warp and _count(self.shape) * _size(self.main) > 8192:
            # Each warp has its own.
            decls = [Buffer(self.new("c"), "smem", (4,), "int32")]
        elif rng.random() < 0.3 and not self.in_warp:
            decls.append(self.union(self.new("u"), self.shape, self.main))
        if rng.random() < 0.5:
            decls.append(Buffer(self.new("c"), "smem", (4,), "int32"))
        if rng.random() < 0.4:
            decls.append(Bar(self.new("b")))
        buffers, bars, values = list(self.buffers), list(self.bars), list(self.values)
        mine: list[Buffer] = []
        for d in decls:
            self.enter(d)
        mine = self.buffers[len(buffers) :]
        self.depth += 1
        body: list[Stmt] = []
        for b in mine:
            self.touch(b)
            if b.shape == self.shape or b.shape == (4,):
                value = self.expr(b.shape, 1) if b.shape != (4,) else None
                body += [Store(View(b.name), value)] if value else [Store(View(b.name, (At(Const(i)),)), Const(i)) for i in range(4)]
            elif len(b.shape) == len(self.shape) + 1:
                row = rng.choice((0, 0, b.shape[0] - 1))
                body.append(Store(View(b.name, (At(Const(row)),)), self.expr(self.shape, 1)))
                if rng.random() < 0.7 and (v := self.view(self.shape, True)):
                    body.append(Store(v, self.cast(Load(View(b.name, (At(Const(row)),))), self.shape)))
        for _ in range(rng.randint(1, 4)):
            body += self.statement()
        self.depth -= 1
        self.buffers, self.bars, self.values = buffers, bars, values
        self.recent = [r for r in self.recent if r in {b.name for b in buffers}]
        return Scope(tuple(decls), blocks=(tuple(body),))

    def make_siblings(self) -> list[Stmt]:
        """Two large scopes, often in a loop."""
        self.depth += 1
        var = self.new("i")
        values = list(self.values)
        self.values.append((var, ()))
        pair = (self.scope(True), self.scope(True))
        self.values = values
        self.depth -= 1
        if self.rng.random() < 0.3:
            return [For(var, Const(1), blocks=(pair,))]
        return [For(var, Const(self.rng.choice((2, 3))), blocks=(pair,))]

    def make_warps(self) -> list[Stmt]:
        """A warp region: scalars, copies, waits; of `warp_arrays`, arrays and scopes too."""
        rng = self.rng
        values = [v for v in self.values if v[1] == ()]
        outer, self.values = self.values, values
        self.in_warp = True
        if self.kind == "warp_arrays" and rng.random() < 0.5:
            block = tuple(s for _ in range(rng.randint(1, 4)) for s in (self.own_row() if rng.random() < 0.5 else self.warp_statement()))
            self.values, self.in_warp = outer, False
            return [Warps((-1,), blocks=(block,))]
        which: tuple[int, ...] = tuple(rng.sample(range(4), rng.choice((1, 1, 2))))
        blocks = []
        for _ in which:
            blocks.append(tuple(s for _ in range(rng.randint(1, 3)) for s in self.warp_statement()))
        if rng.random() < 0.15:
            # Each warp its own.
            which = (-1,)
            tables = [b for b in self.buffers if b.shape == (4,) and b.space != "in" and b.name not in self.readonly]
            if b := self.pick(tables):
                v = View(b.name, (At(Var("warp")),))
                blocks = [(Store(v, Bin("+", Load(v), Const(1))),)]
            else:
                blocks = [()]
        self.values, self.in_warp = outer, False
        return [Warps(which, blocks=tuple(blocks))]

    def own_row(self) -> list[Stmt]:
        """A store to the warp's own row of a buffer, of what it makes of others' or its own."""
        rng = self.rng

        def row(b: str) -> View:
            return View(b, (At(Var("warp")),))

        value = Load(row(rng.choice(("xw", "w", "w"))))
        if rng.random() < 0.5:
            value = Bin(rng.choice(("+", "-", "^", "max")), value, self.expr(self.shape, 1))
        if rng.random() < 0.3 and len(self.shape) == 2 and self.shape[0] == self.shape[1]:
            value = Transpose(value)
        return [Store(row(rng.choice(("ow", "w", "w"))), value)]

    def warp_statement(self) -> list[Stmt]:
        rng = self.rng
        kinds = ["scalar", "scalar", "scalar", "in", "in", "out", "wait", "if", "for"]
        if self.kind == "warp_arrays":
            kinds += ["store", "store", "rmw", "rmw", "let", "commit", "back", "scope", "while"]
        what = rng.choice(kinds)
        if what in ("store", "rmw", "let", "commit", "back") or what in ("scope", "while") and self.depth < MAX_DEPTH:
            made: list[Stmt] = getattr(self, f"make_{what}")()
            return made
        if what == "scalar":
            v = self.view((), True)
            if v is None:
                return []
            return [Store(v, Bin("+", Load(v), self.warp_scalar()) if rng.random() < 0.6 else self.warp_scalar())]
        if what == "in":
            return [s for s in self.make_in() if isinstance(s, CopyIn)][:1]
        if what == "out":
            return self.make_out()
        if what == "wait":
            return [rng.choice((WaitOut(0), WaitOut(0, True)))]
        inner = tuple(s for _ in range(rng.randint(1, 2)) for s in self.warp_statement()) if self.depth < MAX_DEPTH else ()
        if what == "if":
            return [If(Bin("<", self.warp_scalar(), Const(rng.randint(0, 4))), blocks=(inner, ()))]
        return [For(self.new("i"), Const(rng.randint(1, 3)), blocks=(inner,))]

    def warp_scalar(self) -> Expr:
        scalars = [n for n, s in self.values if s == ()]
        if scalars and self.rng.random() < 0.3:
            return Var(self.rng.choice(scalars))
        v = self.view((), False) if self.rng.random() < 0.6 else None
        return Load(v) if v else Const(self.rng.randint(0, 9))

    def make_product(self) -> list[Stmt]:
        """An accumulator, some products, and between them what touches their operands."""
        rng = self.rng
        if self.accs:
            return self.more_product()
        acc, shape = self.new("acc"), (64, 64)
        self.accs.append((acc, shape))
        self.depth += 1
        values = list(self.values)
        body = self.more_product()
        for _ in range(rng.randint(1, 4)):
            body += self.more_product() if rng.random() < 0.5 else self.statement()
        if rng.random() < 0.3:
            inner = tuple(self.more_product() + self.statement())
            body.append(For(self.new("i"), Const(rng.randint(1, 3)), blocks=(inner,)))
        if v := self.view(self.shape, True):
            body.append(Store(v, AccLoad(acc)))
        self.values = values
        self.depth -= 1
        self.accs.pop()
        return [Accumulate(acc, shape, blocks=(tuple(body),))]

    def more_product(self) -> list[Stmt]:
        rng = self.rng
        if not self.accs:
            return self.make_product()
        acc, _ = self.accs[-1]
        tiles = [b for b in self.buffers if b.tiled and b.dtype == "float16"]

        def tile() -> View:
            b = self.touch(rng.choice(tiles))
            turned = rng.random() < 0.2
            return View(b.name, transposed=turned) if b.shape == (64, 64) else View(b.name, (At(self.index(2)),), transposed=turned)

        a: View | Expr = tile()
        if rng.random() < 0.35:
            a = Bin("&", self.expr((64, 64), 1), Const(3))
            if rng.random() < 0.4:
                a = self.cast(Load(tile()), (64, 64))
        out: list[Stmt] = [Mma(acc, a, tile())]
        if rng.random() < 0.3:
            out.append(MmaWait(rng.choice((0, 1))))
        if rng.random() < 0.2 and (v := self.view((64, 64), True)):
            out.append(Store(v, AccLoad(acc)))
        return out


def _size(dtype: str) -> int:
    return DTYPES[dtype].itemsize


def _count(shape: Shape) -> int:
    out = 1
    for n in shape:
        out *= n
    return out
