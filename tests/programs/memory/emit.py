"""Writes a program as Python: a function of arrays around one Pallas kernel, as people write them."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from tests.programs.memory.tree import (
    AccLoad,
    Accumulate,
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
)

HEAD = '''\
import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from tests.corpus.case import kernel, like
from tests.programs.memory.prelude import tiled, warp_map


'''


def source(program: Program) -> str:
    """A module with the function `run`, of the `in` and `mut` buffers; its results are the `out` and `mut` ones."""
    return Writer(program).write()


def function(program: Program) -> tuple[Callable[..., Any], str]:
    """The function, and its text, which error messages can quote."""
    text = source(program)
    name = f"<program {program.name}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {}
    exec(compile(text, name, "exec"), names)  # noqa: S102
    return names["run"], text


class Writer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.lines: list[str] = []
        self.depth = 0
        self.fresh = 0
        self.in_warps = False
        self.buffers: dict[str, Buffer] = {}

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def new(self, stem: str) -> str:
        self.fresh += 1
        return f"{stem}_{self.fresh}"

    def write(self) -> str:
        p = self.program
        ins, outs, muts = p.of("in"), p.of("out"), p.of("mut")
        scratch = [d for d in p.decls if not isinstance(d, Buffer) or d.space == "smem"]
        arguments = [b.name for b in p.of("in", "mut")]
        for b in p.of("in", "out", "mut"):
            self.buffers[b.name] = b
        self.line(f"def run({', '.join(arguments)}):")
        self.depth += 1
        for b in muts:
            self.line(f"{b.name}_ref = jax.new_ref({b.name})")
        refs = [b.name for b in (*muts, *ins, *outs)] + [self.bound(d) for d in scratch]
        self.line(f"def body({', '.join(refs)}):")
        self.depth += 1
        for axis, there in (("wg", p.warpgroups > 1), ("cta", p.ctas > 1), ("block", p.blocks > 1)):
            if there:
                self.line(f'{axis} = lax.axis_index("{axis}")')
        if p.semaphore:
            self.line("sem = pl.get_global(plgpu.SemaphoreType.REGULAR)")
        for d in scratch:
            self.unpack(d)
        self.block(p.body)
        self.depth -= 1
        likes = ", ".join(f"like({b.shape}, jnp.{b.dtype})" for b in outs)
        more = [self.declared(d) for d in scratch]
        if p.warpgroups > 1:
            more += [f"num_threads={p.warpgroups}", 'thread_name="wg"']
        if p.ctas > 1:
            more += [f"cluster=({p.ctas},)", 'cluster_names=("cta",)']
        if p.blocks > 1:
            more += [f"grid=({p.blocks},)", 'grid_names=("block",)']
        given = ", ".join([f"{b.name}_ref" for b in muts] + [b.name for b in ins])
        self.line(f"outs = kernel({', '.join(['body', f'[{likes}]', *more])})({given})")
        self.line(f"return [*outs{''.join(f', {b.name}_ref[...]' for b in muts)}]")
        return HEAD + "\n".join(self.lines) + "\n"

    # ---------------------------------------------------------------------------------------- declarations

    def bound(self, d: Decl) -> str:
        return d.name

    def unpack(self, d: Decl) -> None:
        if isinstance(d, Union):
            groups = ["(" + ", ".join(b.name for b in g) + ",)" if len(g) > 1 else g[0].name for g in d.groups]
            self.line(f"{', '.join(groups)} = {d.name}")
            for group in d.groups:
                for b in group:
                    self.buffers[b.name] = b
        elif isinstance(d, Buffer):
            self.buffers[d.name] = d

    def declared(self, d: Decl) -> str:
        if isinstance(d, Buffer):
            tiles = f", transforms=tiled(jnp.{d.dtype})" if d.tiled else ""
            return f"plgpu.SMEM({d.shape}, jnp.{d.dtype}{tiles})"
        if isinstance(d, Bar):
            if d.cluster:
                return f'plgpu.ClusterBarrier(collective_axes=("cta",), num_arrivals={d.arrivals}, num_barriers={d.count})'
            return f"plgpu.Barrier(num_arrivals={d.arrivals}, num_barriers={d.count})"
        groups = []
        for group in d.groups:
            inner = ", ".join(self.declared(b) for b in group)
            groups.append(f"({inner})" if len(group) > 1 else inner)
        return f"plgpu.RefUnion({', '.join(groups)})"

    # ---------------------------------------------------------------------------------------- expressions

    def view(self, v: View) -> str:
        """The ref of the view."""
        text = v.buffer
        if v.peer:
            text = f'plgpu.cluster_ref({text}, {{"cta": 1 - cta}})'
        if v.index:
            text += f".at[{self.index(v)}]"
        if v.transposed:
            text += ".T"
        return text

    def index(self, v: View) -> str:
        dims = []
        for dim in v.index:
            if isinstance(dim, At):
                dims.append(self.plain(dim.at))
            else:
                start = self.plain(dim.start)
                dims.append(f"{start}:{int(start) + dim.size}" if start.isdigit() else f"pl.ds({start}, {dim.size})")
        return ", ".join(dims)

    def place(self, v: View) -> str:
        """As the target of an assignment, or loaded."""
        if v.transposed or v.peer:
            return f"{self.view(v)}[...]"
        return f"{v.buffer}[{self.index(v) if v.index else '...'}]"

    def plain(self, e: Expr) -> str:
        """As an index or an operand: constants are Python's."""
        return str(e.value) if isinstance(e, Const) else self.expr(e)

    def expr(self, e: Expr) -> str:
        if isinstance(e, Const):
            return f"jnp.int32({e.value})"
        if isinstance(e, Var):
            return e.name
        if isinstance(e, Load):
            convert = "" if self.buffers[e.view.buffer].dtype == "int32" else ".astype(jnp.int32)"
            return self.place(e.view) + convert
        if isinstance(e, AccLoad):
            return f"{e.acc}[...].astype(jnp.int32)"
        if isinstance(e, Bin):
            a, b = self.plain(e.a), self.plain(e.b)
            if isinstance(e.a, Const) and isinstance(e.b, Const):
                a = self.expr(e.a)
            if e.op in ("max", "min"):
                return f"jnp.{e.op}imum({a}, {b})"
            if e.op == "rem":
                return f"lax.rem({self.expr(e.a)}, {self.expr(e.b)})"
            return f"({a} {e.op} {b})"
        if isinstance(e, Reduce):
            return f"jnp.{e.op}({self.expr(e.a)}{'' if e.axis is None else f', axis={e.axis}'})"
        if isinstance(e, Full):
            if isinstance(e.a, Const):
                return f"jnp.full({e.shape}, {e.a.value}, jnp.int32)"
            return f"lax.broadcast_in_dim({self.expr(e.a)}, {e.shape}, ())"
        if isinstance(e, Spread):
            return f"lax.broadcast_in_dim({self.expr(e.a)}, {e.shape}, ({e.dim},))"
        if isinstance(e, Iota):
            return f"lax.broadcasted_iota(jnp.int32, {e.shape}, {e.dim})"
        if isinstance(e, Transpose):
            return f"{self.expr(e.a)}.T"
        if isinstance(e, Reshape):
            return f"{self.expr(e.a)}.reshape({e.shape})"
        if isinstance(e, Cast):
            return f"plgpu.layout_cast({self.expr(e.a)}, plgpu.Layout.{e.layout})"
        raise TypeError(e)

    def as_loaded(self, e: Expr) -> str | None:
        """An operand as it lies in memory, in f16, if that is all that it is."""
        if isinstance(e, Load) and self.buffers[e.view.buffer].dtype == "float16":
            return self.place(e.view)
        if isinstance(e, Cast) and (inner := self.as_loaded(e.a)):
            return f"plgpu.layout_cast({inner}, plgpu.Layout.{e.layout})"
        if isinstance(e, Transpose) and (inner := self.as_loaded(e.a)):
            return f"{inner}.T"
        return None

    # ---------------------------------------------------------------------------------------- statements

    def block(self, body: Body) -> None:
        if not body:
            self.line("pass")
        for s in body:
            self.statement(s)

    def nested(self, head: str, body: Body, *tail: str) -> None:
        self.line(head)
        self.depth += 1
        self.block(body)
        for text in tail:
            self.line(text)
        self.depth -= 1

    def bar(self, name: str, slot: Expr) -> str:
        return f"{name}.at[{self.plain(slot)}]"

    def statement(self, s: Stmt) -> None:
        if isinstance(s, Store):
            dtype = self.buffers[s.dst.buffer].dtype
            value = self.expr(s.value)
            if "float" in dtype:
                value = f"({value} & 63).astype(jnp.{dtype})"
            elif dtype != "int32":
                value = f"{value}.astype(jnp.{dtype})"
            self.line(f"{self.place(s.dst)} = {value}")
        elif isinstance(s, Let):
            self.line(f"{s.name} = {self.expr(s.value)}")
        elif isinstance(s, CopyIn):
            more = ', collective_axes="cta"' if s.multicast else ""
            self.line(f"plgpu.copy_gmem_to_smem({self.view(s.src)}, {self.view(s.dst)}, {self.bar(s.bar, s.slot)}{more})")
        elif isinstance(s, CopyOut):
            more = "" if s.commit else ", commit_group=False"
            self.line(f"plgpu.copy_smem_to_gmem({self.view(s.src)}, {self.view(s.dst)}{more})")
        elif isinstance(s, CommitGroup):
            self.line("plgpu.commit_smem_to_gmem_group()")
        elif isinstance(s, WaitOut):
            self.line(f"plgpu.wait_smem_to_gmem({s.n}{', wait_read_only=True' if s.read_only else ''})")
        elif isinstance(s, Arrive):
            self.line(f"plgpu.barrier_arrive({self.bar(s.bar, s.slot)})")
        elif isinstance(s, Wait):
            if s.polls:
                self.line(f"lax.while_loop(lambda done: ~done, lambda _: plgpu.barrier_test({self.bar(s.bar, s.slot)}), False)")
            else:
                self.line(f"plgpu.barrier_wait({self.bar(s.bar, s.slot)})")
        elif isinstance(s, Commit):
            self.line("plgpu.commit_smem()")
        elif isinstance(s, For):
            self.for_(s)
        elif isinstance(s, While):
            name = self.new("step")
            self.nested(f"def {name}(_):", s.blocks[0], "return jnp.int32(0)")
            self.line(f"lax.while_loop(lambda _: {self.expr(s.condition)}, {name}, jnp.int32(0))")
        elif isinstance(s, If):
            self.if_(s)
        elif isinstance(s, Warps):
            self.line("@warp_map")
            self.line(f"def {self.new('region')}(warp):")
            self.depth += 1
            self.in_warps = True
            for which, body in zip(s.which, s.blocks):
                if which < 0:
                    self.block(body)
                else:
                    self.line(f"@pl.when(warp == {which})")
                    self.nested(f"def {self.new('arm')}():", body)
            self.in_warps = False
            self.depth -= 1
        elif isinstance(s, Roles):
            for which, body in zip(s.which, s.blocks):
                self.line(f"@pl.when(wg == {which})")
                self.nested(f"def {self.new('role')}():", body)
        elif isinstance(s, Scope):
            name = self.new("scope")
            self.line(f"def {name}({', '.join(self.bound(d) for d in s.decls)}):")
            self.depth += 1
            for d in s.decls:
                self.unpack(d)
            self.block(s.blocks[0])
            self.depth -= 1
            axes = ', collective_axes="wg"' if self.program.warpgroups > 1 and not self.in_warps else ""
            self.line(f"pl.run_scoped({', '.join([name, *(self.declared(d) for d in s.decls)])}{axes})")
        elif isinstance(s, Accumulate):
            name = self.new("product")
            self.nested(f"def {name}({s.acc}):", s.blocks[0])
            self.line(f"pl.run_scoped({name}, plgpu.ACC({s.shape}, jnp.float32))")
        elif isinstance(s, Mma):
            a = self.view(s.a) if isinstance(s.a, View) else self.as_loaded(s.a) or f"({self.expr(s.a)} & 63).astype(jnp.float16)"
            self.line(f"plgpu.wgmma({s.acc}, {a}, {self.view(s.b)})")
        elif isinstance(s, MmaWait):
            self.line(f"plgpu.wgmma_wait({s.n})")
        elif isinstance(s, Signal):
            self.line(f"pl.semaphore_signal(sem, {s.inc})")
        elif isinstance(s, Await):
            if s.polls:
                self.line(f"lax.while_loop(lambda n: n < {self.plain(s.value)}, lambda _: pl.semaphore_read(sem), jnp.int32(0))")
            else:
                self.line(f"pl.semaphore_wait(sem, {self.plain(s.value)}, decrement=False)")
        else:
            raise TypeError(s)

    def for_(self, s: For) -> None:
        name = self.new("step")
        names = "".join(f"{c.name}, " for c in s.carry)
        self.line(f"def {name}({s.var}, carry):")
        self.depth += 1
        if s.carry:
            self.line(f"({names}) = carry")
        self.block(s.blocks[0])
        self.line(f"return ({''.join(self.expr(c.next) + ', ' for c in s.carry)})")
        self.depth -= 1
        results = f"({''.join(f'{c.result}, ' for c in s.carry)}) = " if s.carry else ""
        init = "".join(self.expr(c.init) + ", " for c in s.carry)
        self.line(f"{results}lax.fori_loop(0, {self.plain(s.count)}, {name}, ({init}))")

    def if_(self, s: If) -> None:
        if not s.picks and not s.blocks[1]:
            self.line(f"@pl.when({self.expr(s.condition)})")
            self.nested(f"def {self.new('then')}():", s.blocks[0])
            return
        names = [self.new("then"), self.new("otherwise")]
        for i, name in enumerate(names):
            self.nested(f"def {name}():", s.blocks[i], f"return ({''.join(self.expr(p.values[i]) + ', ' for p in s.picks)})")
        results = f"({''.join(f'{p.result}, ' for p in s.picks)}) = " if s.picks else ""
        self.line(f"{results}lax.cond({self.expr(s.condition)}, {names[0]}, {names[1]})")
