"""What a program computes, statement after statement; and whether its author wrote what authors must.

Warpgroups, and warps within a warp region, are agents that take turns; each statement is one step. The interpreter keeps, for every
element of memory, who wrote and who read it, in clocks of agents (vector clocks) and of asynchronous operations (one each), and
raises `Invalid` where the result would hang on timing. What an author must write (JAX's documentation of Pallas:MGPU; stock's lowering):

* a wait for a bulk load's barrier before its destination is touched, or its source overwritten;
* `wait_smem_to_gmem` before the source of a bulk store is overwritten (`wait_read_only` suffices), and, in full, before its destination is touched;
* `commit_smem` between stores to shared memory and what uses it asynchronously: bulk stores, wgmma, and (`COMMITS_BEFORE_LOADS`) bulk loads;
* nothing between one wgmma and the next (the next waits for what is older), a wait before an operand is overwritten;
* barriers, cluster barriers or semaphores between agents; one phase of a barrier ends before arrivals of the next begin, and who waits sees every phase.

The rest is the compiler's: between the lanes of a warpgroup everything happens in the order of the program, GMEM and the proxies' fences there
included, at the borders of warp regions too, and in memory that scopes or members of a union share. Reading what nobody wrote is invalid;
writing a member of a union undoes the members of its other groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np

from tests.programs.memory.tree import (
    BINARY,
    AccLoad,
    Accumulate,
    Array,
    Arrive,
    At,
    Await,
    Bar,
    Bin,
    Body,
    Buffer,
    Cast,
    Commit,
    CommitGroup,
    Const,
    CopyIn,
    CopyOut,
    Decl,
    Expr,
    For,
    Full,
    If,
    Iota,
    Let,
    Load,
    Mma,
    MmaWait,
    Path,
    Program,
    Reduce,
    Reshape,
    Roles,
    Scope,
    Signal,
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
    parts,
    stored,
)

#: Whether authors commit stores to shared memory before a bulk load overwrites them: the PTX memory model asks for that
#: fence, JAX's documentation asks authors for it before *reads* only, so that it is the compiler's.
COMMITS_BEFORE_LOADS = False
#: What a block's allocations may sum up to: Hopper's 227 KiB, less scratch.
MAX_SMEM = 208 * 1024
MAX_STEPS = 3000
MAX_WHILE = 12
I32 = np.int32
#: What a blocked agent yields: what it waits for.
Turns = Generator[Callable[[], bool], None, None]


class Invalid(Exception):
    """The program is not one that JAX gives a meaning.

    Attributes:
        need: Statements which, before `path`, would mend it.
        op: The operation in flight that is in the way.
        unwritten: The buffer that is read and has not been written.
    """

    def __init__(self, reason: str, path: Path = (), need: Body | None = None, op: Async | None = None, unwritten: str | None = None) -> None:
        super().__init__(f"{reason}, at {path}")
        self.reason, self.path, self.need, self.op, self.unwritten = reason, path, need, op, unwritten


class Clock:
    """What an agent knows of others: a number for each."""

    def __init__(self, values: Array | None = None) -> None:
        self.values = np.zeros(64, I32) if values is None else values

    def copy(self) -> Clock:
        return Clock(self.values.copy())

    def reserve(self, ids: int) -> None:
        while len(self.values) < ids:
            self.values = np.concatenate([self.values, np.zeros_like(self.values)])

    def __getitem__(self, who: int) -> int:
        return int(self.values[who]) if who < len(self.values) else 0

    def know(self, who: int, when: int) -> None:
        self.reserve(who + 1)
        self.values[who] = max(self.values[who], when)

    def merge(self, other: Clock) -> None:
        self.reserve(len(other.values))
        n = len(other.values)
        np.maximum(self.values[:n], other.values, out=self.values[:n])

    def covers(self, other: Clock) -> bool:
        self.reserve(len(other.values))
        return bool((self.values[: len(other.values)] >= other.values).all())


class Storage:
    """The elements of one buffer, in one block, during one life of its scope."""

    def __init__(self, decl: Buffer) -> None:
        n = int(np.prod(decl.shape))
        self.decl = decl
        self.ids = np.arange(n).reshape(decl.shape)
        self.value = np.zeros(n, I32)
        self.known = np.zeros(n, bool)
        # The last write: whose, when; generic or not; who made it visible to the async proxy, and when.
        self.writer, self.when = np.zeros(n, I32), np.zeros(n, I32)
        self.generic = np.zeros(n, bool)
        self.fencer, self.fenced = np.full(n, -1, I32), np.zeros(n, I32)
        self.reads: dict[int, Array] = {}
        self.async_reads: list[tuple[Async, Array]] = []
        self.others: list[Storage] = []  # of other groups of its union
        self.gone_in: int | None = None  # the block of the cluster that has ended


@dataclasses.dataclass(eq=False)
class Async:
    """An operation in flight. Who knows `id` in a clock knows that it is over; `read_id`: that its reads are."""

    kind: str
    id: int
    read_id: int
    path: Path
    bar: str = ""
    slot: Expr = Const(0)
    slot_as_written: Expr = Const(0)


class Barrier:
    def __init__(self, decl: Bar, arrivals: int) -> None:
        self.decl, self.arrivals = decl, arrivals
        self.count = self.missing = 0  # arrivals and parts of multicast copies in this phase
        self.clock = Clock()
        self.phases: list[Clock] = []
        self.seen: dict[int, int] = {}
        self.waits: dict[int, list[tuple[int, int]]] = {}  # phase: who saw it when


@dataclasses.dataclass(eq=False)
class Agent:
    name: str
    id: int
    clock: Clock
    block: int
    cta: int
    wg: int
    warp: int = -1
    groups: list[list[Async]] = dataclasses.field(default_factory=list)  # committed bulk stores
    open: list[Async] = dataclasses.field(default_factory=list)
    products: list[Async] = dataclasses.field(default_factory=list)
    warps: dict[int, Agent] = dataclasses.field(default_factory=dict)
    parent: Agent | None = None

    @property
    def now(self) -> int:
        return self.clock[self.id]

    def tick(self) -> None:
        self.clock.know(self.id, self.now + 1)


@dataclasses.dataclass
class Scopes:
    """What names mean to an agent."""

    values: dict[str, Array]
    memory: dict[str, Storage]
    bars: dict[str, list[Barrier]]
    accs: dict[str, Array]

    def inner(self) -> Scopes:
        return Scopes(dict(self.values), dict(self.memory), dict(self.bars), dict(self.accs))


@dataclasses.dataclass(frozen=True)
class Result:
    """Buffers of `out` and `mut`, and which of their elements have a value; `steps`: statements taken."""

    values: list[Array]
    known: list[Array]
    steps: int
    covered: frozenset[Path]


def interpret(program: Program, inputs: list[Array] | None = None, seed: int = 0) -> Result:
    """Runs the program with agents taking turns as `seed` says. Raises `Invalid`."""
    return Machine(program, program.inputs() if inputs is None else inputs, seed).run()


def check_statically(program: Program) -> None:
    """Every name is bound where it is used, on ways that are not taken too, and shared memory suffices. Raises `Invalid`."""
    names = {"wg"} if program.warpgroups > 1 else set()
    names |= {"cta"} if program.ctas > 1 else set()
    names |= {"block"} if program.blocks > 1 else set()
    _check_block(program.body, names | {name for d in program.decls for name in _declared(d)}, ())
    _check_size(program.body, sum(_smem_bytes(d) for d in program.decls), ())


def _smem_bytes(d: Decl) -> int:
    if isinstance(d, Bar):
        return 8 * d.count
    if isinstance(d, Union):
        return max(sum(_smem_bytes(b) for b in g) for g in d.groups)
    return -(-d.nbytes // 1024) * 1024 if d.space == "smem" else 0


def _check_size(body: Body, size: int, path: Path) -> None:
    if size > MAX_SMEM:
        raise Invalid("too much shared memory", path[:-1])
    for i, s in enumerate(body):
        more = sum(_smem_bytes(d) for d in s.decls) if isinstance(s, Scope) else 0
        for k, block in enumerate(s.blocks):
            _check_size(block, size + more, (*path, i, k))


def _declared(d: Decl) -> list[str]:
    return [b.name for g in d.groups for b in g] if isinstance(d, Union) else [d.name]


def _used(node: Any) -> set[str]:
    """Names in expressions, views and barriers of a node, its blocks apart."""
    out = set()
    for part in parts(node):
        if isinstance(part, Var):
            out.add(part.name)
        elif isinstance(part, View):
            out.add(part.buffer)
        elif isinstance(part, AccLoad):
            out.add(part.acc)
    return out


def _check_block(body: Body, names: set[str], path: Path) -> set[str]:
    names = set(names)
    for i, s in enumerate(body):
        here = (*path, i)
        inner = set(names)
        used: set[str] = set()
        if isinstance(s, For):
            used = _used(s.count) | {n for c in s.carry for n in _used(c.init)}
            inner |= {s.var, *(c.name for c in s.carry)}
        elif isinstance(s, If):
            used = _used(s.condition)
        elif isinstance(s, Scope):
            inner |= {n for d in s.decls for n in _declared(d)}
        elif isinstance(s, Accumulate):
            inner.add(s.acc)
        elif isinstance(s, Warps):
            inner.add("warp")
        else:
            used = _used(dataclasses.replace(s, blocks=()))
            if isinstance(s, (Wait, Arrive, CopyIn)):
                used.add(s.bar)
            if isinstance(s, Mma):
                used.add(s.acc)
        if not used <= names:
            raise Invalid(f"{sorted(used - names)} unbound", here)
        for k, block in enumerate(s.blocks):
            behind = _check_block(block, inner, (*here, k))
            late = set()
            if isinstance(s, For):
                late = {n for c in s.carry for n in _used(c.next)}
            elif isinstance(s, If):
                late = {n for p in s.picks for n in _used(p.values[k])}
            if not late <= behind:
                raise Invalid(f"{sorted(late - behind)} unbound", here)
        if isinstance(s, For):
            names |= {c.result for c in s.carry}
        elif isinstance(s, If):
            names |= {p.result for p in s.picks}
        elif isinstance(s, Let):
            names.add(s.name)
    return names


class Machine:
    def __init__(self, program: Program, inputs: list[Array], seed: int) -> None:
        self.program = program
        self.rng = np.random.default_rng(seed)
        self.ids = 1  # 0 wrote what nobody wrote
        self.steps = 0
        self.covered: set[Path] = set()
        self.gmem = {b.name: Storage(b) for b in program.of("in", "out", "mut")}
        for b, x in zip(program.of("in", "mut"), inputs, strict=True):
            self.gmem[b.name].value[:] = stored(x.ravel(), b.dtype)
            self.gmem[b.name].known[:] = True
        self.semaphore = 0
        self.signals = Clock()
        self.blocks: dict[tuple[int, int], Scopes] = {}
        self.barriers: list[Barrier] = []
        self.started: list[Async] = []
        self.issuer: dict[int, Agent] = {}
        self.block_of: dict[int, int] = {}
        self.inner_scopes: dict[int, list[Scopes]] = {}
        self.last: Path = ()

    def new_id(self) -> int:
        self.ids += 1
        return self.ids - 1

    # ---------------------------------------------------------------------------------------- the whole

    def run(self) -> Result:
        p = self.program
        runs = []
        at = [(b, c) for b in range(p.blocks) for c in range(p.ctas)]
        for block, cta in at:
            scopes = Scopes({}, dict(self.gmem), {}, {})
            self.blocks[block, cta] = scopes
            self.declare(scopes, [d for d in p.decls if not isinstance(d, Buffer) or d.space == "smem"])
        for block, cta in at:
            for wg in range(p.warpgroups):
                agent = self.agent(f"block {block}.{cta} warpgroup {wg}", block, cta, wg)
                runs.append((agent, self.agent_body(agent, self.blocks[block, cta].inner())))
        self.schedule(runs)
        for bar in self.barriers:
            if bar.count or bar.missing:
                raise Invalid(f"{bar.decl.name} ends short of a phase", (len(p.body),))
        outs = [self.gmem[b.name] for b in p.of("out", "mut")]
        return Result(
            [s.value.reshape(s.decl.shape) for s in outs], [s.known.reshape(s.decl.shape) for s in outs], self.steps, frozenset(self.covered)
        )

    def agent(self, name: str, block: int, cta: int, wg: int) -> Agent:
        agent = Agent(name, self.new_id(), Clock(), block, cta, wg)
        self.block_of[agent.id] = cta
        agent.clock.know(agent.id, 1)
        return agent

    def schedule(self, runs: list[tuple[Agent, Turns]]) -> None:
        """Takes turns until all are through."""
        waiting: list[tuple[Agent, Turns, Callable[[], bool]]] = [(a, t, lambda: True) for a, t in runs]
        while waiting:
            ready = [i for i, (_, _, goes) in enumerate(waiting) if goes()]
            if not ready:
                raise Invalid(f"deadlock: {', '.join(a.name for a, _, _ in waiting)}", self.last)
            i = int(self.rng.choice(ready)) if len(ready) > 1 else ready[0]
            agent, turns, _ = waiting.pop(i)
            try:
                waiting.append((agent, turns, next(turns)))
            except StopIteration:
                pass

    def agent_body(self, agent: Agent, scopes: Scopes) -> Turns:
        scopes.values.update(wg=I32(agent.wg), cta=I32(agent.cta), block=I32(agent.block))
        end = (len(self.program.body),)
        yield from self.run_block(agent, scopes, self.program.body, ())
        mine = list(self.blocks[agent.block, agent.cta].memory.values())
        self.at_the_end(agent, mine, end)
        if self.program.ctas > 1:
            for storage in mine:
                storage.gone_in = agent.cta
                for who, clocks in storage.reads.items():
                    if clocks.max() > agent.clock[who] and self.block_of[who] != agent.cta:
                        raise Invalid("a block ends before its peer has read", end)

    def at_the_end(self, agent: Agent, memory: Iterable[Storage], path: Path) -> None:
        """No asynchronous operation of this agent may still use the memory of a scope that ends."""
        for storage in memory:
            if storage.decl.space != "smem":
                continue
            for op, _ in storage.async_reads:
                if op.kind == "store" and agent.clock[op.read_id] < 1 and self.issued_by(agent, op):
                    raise Invalid("a scope ends under a bulk store", path, self.wait_for(agent, op, True), op)
                if op.kind == "mma" and agent.clock[op.id] < 1 and self.issued_by(agent, op):
                    raise Invalid("a scope ends under a product", path, self.wait_for(agent, op, True), op)
            for op in self.started:
                if op.kind == "load" and agent.clock[op.id] < 1 and (storage.writer == op.id).any() and self.issued_by(agent, op):
                    raise Invalid("a scope ends under a bulk load", path, (Wait(op.bar, op.slot),), op)

    def issued_by(self, agent: Agent, op: Async) -> bool:
        who = self.issuer[op.id]
        return who is agent or who.parent is agent

    # ---------------------------------------------------------------------------------------- declarations

    def declare(self, scopes: Scopes, decls: Iterable[Decl]) -> None:
        for d in decls:
            if isinstance(d, Buffer):
                scopes.memory[d.name] = Storage(d)
            elif isinstance(d, Union):
                groups = [[Storage(b) for b in group] for group in d.groups]
                starts = []
                for group in groups:
                    at = 0
                    for s in group:
                        starts.append((s, at, at + s.decl.nbytes))
                        at += -(-s.decl.nbytes // 1024) * 1024
                        scopes.memory[s.decl.name] = s
                for a, a0, a1 in starts:
                    mine = next(g for g in groups if a in g)
                    a.others = [b for b, b0, b1 in starts if b not in mine and a0 < b1 and b0 < a1]
            else:
                arrivals = d.arrivals * (self.program.ctas if d.cluster else 1)
                scopes.bars[d.name] = [Barrier(d, arrivals) for _ in range(d.count)]
                self.barriers += scopes.bars[d.name]

    # ---------------------------------------------------------------------------------------- memory

    def view(self, agent: Agent, scopes: Scopes, view: View) -> tuple[Storage, Array]:
        """The storage, and the numbers of the view's elements in its shape."""
        if view.peer:
            # Scratch of the whole kernel only: that the peer has too.
            storage = self.blocks[agent.block, 1 - agent.cta].memory[view.buffer]
        else:
            if view.buffer not in scopes.memory:
                raise Invalid(f"{view.buffer} is not there", self.last)
            storage = scopes.memory[view.buffer]
        index: list[Any] = []
        if len(view.index) > len(storage.decl.shape):
            raise Invalid("too many indices", self.last)
        for n, dim in zip(storage.decl.shape, view.index):
            if isinstance(dim, At):
                i = int(self.scalar(agent, scopes, dim.at))
                if not 0 <= i < n:
                    raise Invalid("an index out of bounds", self.last)
                index.append(i)
            else:
                start = int(self.scalar(agent, scopes, dim.start))
                if not 0 <= start <= start + dim.size <= n:
                    raise Invalid("a slice out of bounds", self.last)
                index.append(slice(start, start + dim.size))
        ids = storage.ids[tuple(index)]
        return storage, (ids.T if view.transposed else ids)

    def wait_for(self, agent: Agent, op: Async, reads: bool) -> Body | None:
        """What makes `agent` know that `op` is over, with as many others in flight as can be."""
        if op.kind == "load":
            return (Wait(op.bar, op.slot),)
        if op.kind == "mma":
            after = len(agent.products) - 1 - agent.products.index(op) if op in agent.products else 0
            return (MmaWait(after),)
        who = self.issuer[op.id]
        if who is not agent and who.parent is not agent:
            return None
        if op in who.open:
            return (CommitGroup(), WaitOut(0, reads))
        after = next((len(who.groups) - 1 - i for i, g in enumerate(who.groups) if op in g), 0)
        return (WaitOut(after, reads),)

    def after_writes(self, agent: Agent, s: Storage, ids: Array) -> None:
        """The last writes of these elements are over, and known."""
        agent.clock.reserve(self.ids + 1)
        late = s.when[ids] > agent.clock.values[s.writer[ids]]
        if late.any():
            who = int(s.writer[ids][late].flat[0])
            op = next((o for o in self.started if o.id == who), None)
            if op is None:
                raise Invalid(f"a race with a write to {s.decl.name}", self.last)
            raise Invalid(f"{s.decl.name}: a bulk {op.kind} in flight writes it", self.last, self.wait_for(agent, op, False), op)

    def after_reads(self, agent: Agent, s: Storage, ids: Array) -> None:
        for who, clocks in s.reads.items():
            if who != agent.id and (clocks[ids] > agent.clock[who]).any():
                raise Invalid(f"a race with a read of {s.decl.name}", self.last)
        for op, read in s.async_reads:
            if agent.clock[op.read_id] < 1 and np.isin(ids, read).any():
                raise Invalid(f"{s.decl.name}: a {op.kind} in flight reads it", self.last, self.wait_for(agent, op, True), op)
        if len(s.async_reads) > 64:
            s.async_reads = [(op, read) for op, read in s.async_reads if agent.clock[op.read_id] < 1]

    def before_read(self, agent: Agent, s: Storage, ids: Array, through_async: bool = False) -> None:
        self.is_there(agent, s)
        if not s.known[ids].all():
            raise Invalid(f"{s.decl.name} is read where nobody wrote it", self.last, unwritten=s.decl.name)
        self.after_writes(agent, s, ids)
        if through_async:
            self.committed(agent, s, ids)
            if s.decl.space != "smem" and (s.generic[ids] & (s.writer[ids] != agent.id) & (s.writer[ids] != (agent.parent or agent).id)).any():
                raise Invalid(f"{s.decl.name}: the async proxy reads what another agent stored", self.last)

    def committed(self, agent: Agent, s: Storage, ids: Array) -> None:
        agent.clock.reserve(self.ids + 1)
        if s.decl.space == "smem":
            fenced = ~s.generic[ids] | ((s.fencer[ids] >= 0) & (s.fenced[ids] <= agent.clock.values[s.fencer[ids]]))
            if not fenced.all():
                raise Invalid(f"{s.decl.name}: no commit_smem", self.last, (Commit(),))

    def is_there(self, agent: Agent, s: Storage) -> None:
        if s.gone_in not in (None, agent.cta):
            raise Invalid("shared memory of a block that has ended", self.last)

    def before_write(self, agent: Agent, s: Storage, ids: Array, through_async: bool = False) -> None:
        self.is_there(agent, s)
        if through_async and COMMITS_BEFORE_LOADS:
            for one, at in [(s, ids), *((o, o.ids) for o in s.others)]:
                self.committed(agent, one, at)
        if s.decl.space == "in":
            raise Invalid(f"{s.decl.name} is an input", self.last)
        self.after_writes(agent, s, ids)
        self.after_reads(agent, s, ids)
        for other in s.others:
            self.after_writes(agent, other, other.ids)
            self.after_reads(agent, other, other.ids)

    def write(self, agent: Agent, s: Storage, ids: Array, value: Array, by: int, when: int, generic: bool) -> None:
        s.value[ids] = value
        s.known[ids] = True
        for one, at in [(s, ids), *((o, o.ids) for o in s.others)]:
            one.writer[at], one.when[at], one.generic[at], one.fencer[at] = by, when, generic, -1
        for other in s.others:
            other.known[:] = False

    def read(self, agent: Agent, s: Storage, ids: Array) -> Array:
        self.before_read(agent, s, ids)
        s.reads.setdefault(agent.id, np.zeros(s.ids.size, I32))[ids] = agent.now
        return s.value[ids]

    # ---------------------------------------------------------------------------------------- expressions

    def scalar(self, agent: Agent, scopes: Scopes, e: Expr) -> Any:
        value = self.expr(agent, scopes, e)
        if np.shape(value) != ():
            raise Invalid("an array where a scalar should be", self.last)
        return value

    def expr(self, agent: Agent, scopes: Scopes, e: Expr) -> Any:
        def go(inner: Expr) -> Any:
            return self.expr(agent, scopes, inner)

        if isinstance(e, Const):
            return I32(e.value)
        if isinstance(e, Var):
            if e.name not in scopes.values:
                raise Invalid(f"{e.name} is not there", self.last)
            return scopes.values[e.name]
        if isinstance(e, Load):
            return self.read(agent, *self.view(agent, scopes, e.view))
        if isinstance(e, AccLoad):
            if e.acc not in scopes.accs:
                raise Invalid(f"{e.acc} is not there", self.last)
            self.settle(agent, 0)
            return scopes.accs[e.acc].copy()
        if isinstance(e, Bin):
            a, b = go(e.a), go(e.b)
            if np.shape(a) != np.shape(b) and () not in (np.shape(a), np.shape(b)):
                raise Invalid("unequal shapes", self.last)
            if e.op == "rem" and (np.asarray(b) <= 0).any():
                raise Invalid("a remainder by nothing positive", self.last)
            with np.errstate(over="ignore"):
                return BINARY[e.op](a, b)
        if isinstance(e, Reduce):
            a = go(e.a)
            if a.ndim <= (e.axis or 0):
                raise Invalid("a reduction of a scalar", self.last)
            if e.op == "sum":
                return np.sum(a, axis=e.axis, dtype=I32)
            return (np.max if e.op == "max" else np.min)(a, axis=e.axis)
        if isinstance(e, Full):
            return np.full(e.shape, self.scalar(agent, scopes, e.a), I32)
        if isinstance(e, Spread):
            shape = [1] * len(e.shape)
            shape[e.dim] = e.shape[e.dim]
            a = go(e.a)
            if a.shape != (e.shape[e.dim],):
                raise Invalid("a vector of another length", self.last)
            return np.broadcast_to(a.reshape(shape), e.shape)
        if isinstance(e, Iota):
            return np.indices(e.shape, I32)[e.dim]
        if isinstance(e, Transpose):
            a = go(e.a)
            if a.ndim != 2:
                raise Invalid("a transpose of what has not two dimensions", self.last)
            return a.T
        if isinstance(e, Reshape):
            a = go(e.a)
            if a.size != np.prod(e.shape):
                raise Invalid("a reshape to another size", self.last)
            return a.reshape(e.shape)
        if isinstance(e, Cast):
            a = go(e.a)
            if a.ndim != (1 if "reduce" in e.layout else 2) and "STRIDED" not in e.layout or "STRIDED" in e.layout and f"({a.shape}," not in e.layout:
                raise Invalid("a layout of another shape", self.last)
            return a
        raise TypeError(e)

    # ---------------------------------------------------------------------------------------- statements

    def run_block(self, agent: Agent, scopes: Scopes, body: Body, path: Path) -> Turns:
        for i, s in enumerate(body):
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise Invalid("too many steps", (*path, i))
            self.last = (*path, i)
            self.covered.add(self.last)
            yield from self.statement(agent, scopes, s, self.last)
            if self.several:
                yield lambda: True

    @property
    def several(self) -> bool:
        p = self.program
        return p.warpgroups * p.ctas * p.blocks > 1

    def statement(self, agent: Agent, scopes: Scopes, s: Stmt, path: Path) -> Turns:
        if isinstance(s, Store):
            value = self.expr(agent, scopes, s.value)
            storage, ids = self.view(agent, scopes, s.dst)
            if np.shape(value) != ids.shape:
                raise Invalid(f"a store of {np.shape(value)} to {ids.shape}", path)
            self.before_write(agent, storage, ids)
            self.write(agent, storage, ids, stored(np.asarray(value), storage.decl.dtype), agent.id, agent.now, True)
        elif isinstance(s, Let):
            scopes.values[s.name] = self.expr(agent, scopes, s.value)
        elif isinstance(s, CopyIn):
            self.copy_in(agent, scopes, s, path)
        elif isinstance(s, CopyOut):
            self.copy_out(agent, scopes, s, path)
        elif isinstance(s, CommitGroup):
            agent.groups.append(agent.open)
            agent.open = []
        elif isinstance(s, WaitOut):
            self.wait_out(agent, s)
        elif isinstance(s, Arrive):
            if agent.warp >= 0:
                raise Invalid("an arrival of a warp", path)
            self.each_arrives(agent, scopes, s)
        elif isinstance(s, Wait):
            yield from self.wait(agent, self.bar(agent, scopes, s.bar, s.slot), path)
        elif isinstance(s, Commit):
            self.commit(agent)
        elif isinstance(s, For):
            yield from self.for_(agent, scopes, s, path)
        elif isinstance(s, While):
            for times in range(MAX_WHILE + 1):
                self.last = path
                if not self.scalar(agent, scopes, s.condition):
                    break
                if times == MAX_WHILE:
                    raise Invalid("a loop does not end", path)
                yield from self.run_block(agent, scopes.inner(), s.blocks[0], (*path, 0))
        elif isinstance(s, If):
            arm = 0 if self.scalar(agent, scopes, s.condition) else 1
            inner = scopes.inner()
            yield from self.run_block(agent, inner, s.blocks[arm], (*path, arm))
            self.last = path
            for pick in s.picks:
                scopes.values[pick.result] = self.expr(agent, inner, pick.values[arm])
        elif isinstance(s, Warps):
            yield from self.warps(agent, scopes, s, path)
        elif isinstance(s, Roles):
            for k, block in enumerate(s.blocks):
                if s.which[k] == agent.wg:
                    yield from self.run_block(agent, scopes.inner(), block, (*path, k))
        elif isinstance(s, Scope):
            inner = scopes.inner()
            if self.program.warpgroups > 1 and agent.warp < 0:
                raise Invalid("a scope of several warpgroups", path)
            self.declare(inner, s.decls)
            self.inner_scopes.setdefault(agent.id, []).append(inner)
            yield from self.run_block(agent, inner, s.blocks[0], (*path, 0))
            self.inner_scopes[agent.id].pop()
            end = (*path, 0, len(s.blocks[0]))
            self.at_the_end(agent, [m for n, m in inner.memory.items() if scopes.memory.get(n) is not m], end)
            for d in s.decls:
                for bar in inner.bars[d.name] if isinstance(d, Bar) else ():
                    if bar.count or max(bar.seen.values(), default=0) < len(bar.phases):
                        raise Invalid("a barrier's phase that nobody saw", end)
        elif isinstance(s, Accumulate):
            inner = scopes.inner()
            inner.accs[s.acc] = np.zeros(s.shape, I32)
            yield from self.run_block(agent, inner, s.blocks[0], (*path, 0))
        elif isinstance(s, Mma):
            self.mma(agent, scopes, s, path)
        elif isinstance(s, MmaWait):
            self.settle(agent, s.n)
        elif isinstance(s, Signal):
            self.semaphore += s.inc
            self.signals.merge(agent.clock)
            agent.tick()
        elif isinstance(s, Await):
            value = int(self.scalar(agent, scopes, s.value))
            while self.semaphore < value:
                yield lambda: self.semaphore >= value
            agent.clock.merge(self.signals)
        else:
            raise TypeError(s)

    def for_(self, agent: Agent, scopes: Scopes, s: For, path: Path) -> Turns:
        count = int(self.scalar(agent, scopes, s.count))
        if count > MAX_WHILE:
            raise Invalid("too many iterations", path)
        carried = [self.expr(agent, scopes, c.init) for c in s.carry]
        for i in range(count):
            inner = scopes.inner()
            inner.values[s.var] = I32(i)
            inner.values.update((c.name, v) for c, v in zip(s.carry, carried))
            yield from self.run_block(agent, inner, s.blocks[0], (*path, 0))
            self.last = path
            next_ones = [self.expr(agent, inner, c.next) for c in s.carry]
            if any(np.shape(a) != np.shape(b) for a, b in zip(carried, next_ones)):
                raise Invalid("a carry changes its shape", path)
            carried = next_ones
        scopes.values.update((c.result, v) for c, v in zip(s.carry, carried))

    def warps(self, agent: Agent, scopes: Scopes, s: Warps, path: Path) -> Turns:
        if agent.warp >= 0:
            raise Invalid("a warp region in another", path)
        agent.tick()
        runs = []
        for w in range(4):
            if w not in agent.warps:
                agent.warps[w] = Agent(f"{agent.name} warp {w}", self.new_id(), Clock(), agent.block, agent.cta, agent.wg, w, parent=agent)
            one = agent.warps[w]
            mine = one.now
            one.clock = agent.clock.copy()
            one.clock.know(one.id, mine + 1)
            runs.append((one, self.warp(one, scopes, s, path)))
        self.schedule(runs)
        yield lambda: True
        for one in agent.warps.values():
            agent.clock.merge(one.clock)
        agent.tick()

    def warp(self, agent: Agent, scopes: Scopes, s: Warps, path: Path) -> Turns:
        for k, block in enumerate(s.blocks):
            if s.which[k] in (agent.warp, -1):
                inner = scopes.inner()
                inner.values["warp"] = I32(agent.warp)
                yield from self.run_block(agent, inner, block, (*path, k))

    # ---------------------------------------------------------------------------------------- asynchronous operations

    def start(self, agent: Agent, op: Async) -> None:
        self.started.append(op)
        self.issuer[op.id] = agent

    def copy_in(self, agent: Agent, scopes: Scopes, s: CopyIn, path: Path) -> None:
        src, from_ = self.view(agent, scopes, s.src)
        dst, to = self.view(agent, scopes, s.dst)
        if from_.shape != to.shape or src.decl.dtype != dst.decl.dtype or dst.decl.space != "smem" or src.decl.space == "smem":
            raise Invalid("a copy of unequal things", path)
        bar = self.bar(agent, scopes, s.bar, s.slot)
        if bar.decl.cluster:
            raise Invalid("a copy to a cluster's barrier", path)
        slot = Const(int(self.scalar(agent, scopes, s.slot)))
        places = [(dst, bar)]
        if s.multicast:
            if agent.warp >= 0 or self.program.ctas == 1 or to.ndim == 1 or to.shape[0] % 2:
                raise Invalid("a multicast from there", path)
            half = to.shape[0] // 2
            from_, to = (x[agent.cta * half : (agent.cta + 1) * half] for x in (from_, to))
            peer = self.blocks[agent.block, 1 - agent.cta]
            places.append((peer.memory[s.dst.buffer], peer.bars[s.bar][int(self.scalar(agent, scopes, s.slot))]))
        self.before_read(agent, src, from_, through_async=True)
        for storage, _ in places:
            self.before_write(agent, storage, to, through_async=True)
        # Who waits in one block knows of what arrived there.
        for i, (storage, b) in enumerate(places):
            one = self.new_id()
            op = Async("load", one, one, path, s.bar, slot, s.slot)
            self.start(agent, op)
            agent.clock.reserve(self.ids + 1)
            src.async_reads.append((op, from_.ravel()))
            self.write(agent, storage, to, src.value[from_], one, 1, False)
            self.arrive(agent, b, path, op, counts=i == 0, parts=(2 if i == 0 else 0) * s.multicast, brings=int(s.multicast))

    def copy_out(self, agent: Agent, scopes: Scopes, s: CopyOut, path: Path) -> None:
        src, from_ = self.view(agent, scopes, s.src)
        dst, to = self.view(agent, scopes, s.dst)
        if from_.shape != to.shape or src.decl.dtype != dst.decl.dtype or src.decl.space != "smem" or dst.decl.space == "smem":
            raise Invalid("a copy of unequal things", path)
        self.before_read(agent, src, from_, through_async=True)
        self.before_write(agent, dst, to)
        op = Async("store", self.new_id(), self.new_id(), path)
        self.start(agent, op)
        agent.clock.reserve(self.ids + 1)
        src.async_reads.append((op, from_.ravel()))
        self.write(agent, dst, to, src.value[from_], op.id, 1, False)
        agent.open.append(op)
        if s.commit:
            agent.groups.append(agent.open)
            agent.open = []

    def wait_out(self, agent: Agent, s: WaitOut) -> None:
        """Of its own groups; a warpgroup's wait is one of each of its warps, each of which has its own."""
        for one in [agent, *agent.warps.values()]:
            for group in one.groups[: len(one.groups) - s.n]:
                for op in group:
                    agent.clock.know(op.read_id, 1)
                    if not s.read_only:
                        agent.clock.know(op.id, 1)

    def mma(self, agent: Agent, scopes: Scopes, s: Mma, path: Path) -> None:
        if s.acc not in scopes.accs or agent.warp >= 0:
            raise Invalid(f"{s.acc} is not there", path)
        one = self.new_id()
        op = Async("mma", one, one, path)
        operands = []
        for x in (s.a, s.b):
            if isinstance(x, View):
                storage, ids = self.view(agent, scopes, x)
                self.before_read(agent, storage, ids, through_async=True)
                storage.async_reads.append((op, ids.ravel()))
                operands.append(storage.value[ids])
            else:
                operands.append(stored(np.asarray(self.expr(agent, scopes, x), I32), "float16"))
        a, b = operands
        acc = scopes.accs[s.acc]
        if a.ndim != 2 or b.ndim != 2 or (*a.shape[:1], b.shape[1]) != acc.shape or a.shape[1] != b.shape[0]:
            raise Invalid("a product of unequal shapes", path)
        acc += a @ b
        if np.abs(acc).max() >= 1 << 23:
            raise Invalid("an accumulator that rounds", path)
        self.settle(agent, 0)  # when a wgmma returns, no older one runs
        self.start(agent, op)
        agent.clock.reserve(self.ids + 1)
        agent.products.append(op)

    def settle(self, agent: Agent, n: int) -> None:
        done = len(agent.products) - n
        for op in agent.products[: max(done, 0)]:
            agent.clock.know(op.id, 1)

    # ---------------------------------------------------------------------------------------- between agents

    def bar(self, agent: Agent, scopes: Scopes, name: str, slot: Expr) -> Barrier:
        if name not in scopes.bars:
            raise Invalid(f"{name} is not there", self.last)
        i = int(self.scalar(agent, scopes, slot))
        if not 0 <= i < len(scopes.bars[name]):
            raise Invalid("a barrier out of bounds", self.last)
        return scopes.bars[name][i]

    def each_arrives(self, agent: Agent, scopes: Scopes, s: Arrive) -> None:
        bar = self.bar(agent, scopes, s.bar, s.slot)
        slot = int(self.scalar(agent, scopes, s.slot))
        every = [self.blocks[agent.block, c].bars[s.bar][slot] for c in range(self.program.ctas)] if bar.decl.cluster else [bar]
        for b in every:
            self.arrive(agent, b, self.last)
        agent.tick()

    def arrive(self, agent: Agent, bar: Barrier, path: Path, op: Async | None = None, counts: bool = True, parts: int = 0, brings: int = 0) -> None:
        """`parts`: how many parts of a multicast this arrival expects; `brings`: how many it brings."""
        if bar.phases and not agent.clock.covers(bar.phases[-1]):
            need = None
            if op is not None or agent.id in bar.seen:
                need = (Wait(bar.decl.name, op.slot_as_written if op is not None else Const(0)),)
            raise Invalid("an arrival before the last phase is known to be over", path, need)
        if counts:
            bar.count += 1
            bar.clock.merge(agent.clock)
        if op is not None:
            bar.clock.know(op.id, 1)
        bar.missing += parts - brings
        if bar.count < bar.arrivals or bar.missing:
            return
        phase = len(bar.phases)
        for who, when in bar.waits.get(phase - 1, []):
            if bar.clock[who] < when:
                raise Invalid("a phase ends that a thread may have yet to see", path)
        for who, seen in bar.seen.items():
            if seen < phase:
                raise Invalid("a phase ends before every thread saw the last", path)
        bar.phases.append(bar.clock)
        bar.clock = Clock()
        bar.count = 0

    def wait(self, agent: Agent, bar: Barrier, path: Path) -> Turns:
        warps = {w.id for w in (agent.parent or agent).warps.values()}
        if any((who in warps) != (agent.id in warps) or who in warps and who != agent.id for who in bar.seen if who in warps or who == (agent.parent or agent).id):
            raise Invalid("a barrier for which a warpgroup waits, and one of its warps", path)
        phase = bar.seen.get(agent.id, 0)
        if len(bar.phases) > phase + 1:
            raise Invalid("a wait for a phase that is long past", path)
        if bar.decl.cluster and agent.warp >= 0:
            raise Invalid("a warp that waits for the cluster", path)
        while len(bar.phases) <= phase:
            self.last = path
            yield lambda: len(bar.phases) > phase
        self.last = path
        bar.seen[agent.id] = phase + 1
        agent.clock.merge(bar.phases[phase])
        agent.tick()
        bar.waits.setdefault(phase, []).append((agent.id, agent.now))

    def commit(self, agent: Agent) -> None:
        """What this agent knows of is visible to the async proxy, for those who come after."""
        for scopes in self.alive(agent):
            for s in scopes.memory.values():
                if s.decl.space == "smem":
                    agent.clock.reserve(self.ids + 1)
                    mine = s.generic & (s.when <= agent.clock.values[s.writer]) & (s.fencer < 0)
                    s.fencer[mine], s.fenced[mine] = agent.id, agent.now

    def alive(self, agent: Agent) -> list[Scopes]:
        around = self.inner_scopes.get(agent.parent.id, []) if agent.parent else []
        return [self.blocks[agent.block, agent.cta], *around, *self.inner_scopes.get(agent.id, [])]
