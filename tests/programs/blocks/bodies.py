"""Random bodies of kernels that can be differentiated: what they store is a smooth function of what they load.

A body is a list of statements over references, written twice: by Pallas, in a kernel, and step by step over arrays, which JAX
differentiates.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

from smalt import _versions
from tests.fuzz.grammar import Grammar

ROWS, COLUMNS = 8, 128
Expression = Callable[[Callable[[str], Any], Any], Any]


#: Blocks of an input along an axis of the grid: each step's own, shared by some steps, some that no step has.
_MAPS: dict[str, Callable[[Any, int], Any]] = {
    "step": lambda i, n: i,
    "turned": lambda i, n: n - 1 - i,
    "first": lambda i, n: 0,
    "half": lambda i, n: i // 2,
    "second": lambda i, n: 2 * i,
    "squared": lambda i, n: i * i % n,
}


class _InKernel:
    """Statements as Pallas has them."""

    def __init__(self, refs: dict[str, Any], step: Any) -> None:
        self.refs, self.step = refs, step

    def load(self, name: str, at: Any) -> Any:
        return self.refs[name][at, :]

    def store(self, name: str, at: Any, value: Any) -> None:
        self.refs[name][at, :] = value

    def loop(self, n: Any, body: Callable[[Any], None]) -> None:
        jax.lax.fori_loop(0, n, lambda i, _: body(i), None)

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        pl.when(condition)(body)


class _OverArrays(_InKernel):
    """The same, one after the other."""

    def store(self, name: str, at: Any, value: Any) -> None:
        self.refs[name] = self.refs[name].at[at].set(value)

    def loop(self, n: Any, body: Callable[[Any], None]) -> None:
        for i in range(n):
            body(i)

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        if condition:
            body()


class Program:
    """Inputs `x0`, …, of which some have one block for all steps; scratch `s0`, …; results `o0`, …"""

    def __init__(self, seed: int, static: bool = False) -> None:
        """`static`: the numbers of turns of its loops are numbers when it is traced."""
        rng = self._rng = random.Random(seed)
        self.seed, self.static = seed, static
        self.grid = rng.choice([(1, 1), (2, 1), (3, 1), (3, 1), (2, 2), (4, 1), (1, 3)])
        self.inputs = [f"x{i}" for i in range(rng.randint(1, 3))]
        self.maps = [(rng.choice(list(_MAPS)), rng.choice(["step", "first"])) for _ in self.inputs]
        self.outputs = [f"o{i}" for i in range(rng.randint(1, 2))]
        self.scratch = [f"s{i}" for i in range(rng.randint(0, 2))]
        # All of it is stored first.
        fills = [self._store(name, [*self.inputs]) for name in [*self.scratch, *self.outputs]]
        self.statements = [*fills, *(self._statement(2) for _ in range(rng.randint(1, 3)))]

    def __str__(self) -> str:
        return f"seed {self.seed}: grid {self.grid}, inputs {self.maps}, {len(self.outputs)} results, {len(self.scratch)} scratch"

    def _expression(self, known: list[str], depth: int) -> Expression:
        rng = self._rng
        if depth == 0:
            name, factor = rng.choice(known), rng.choice([0.5, 1.0, -1.5])
            return lambda load, step: load(name) * factor
        a, b = (self._expression(known, depth - 1) for _ in range(2))
        match rng.choice(["sin", "tanh", "mul", "add", "step", "where", "mean"]):
            case "sin":
                return lambda load, step: jnp.sin(a(load, step))
            case "tanh":
                return lambda load, step: jnp.tanh(a(load, step))
            case "mul":
                return lambda load, step: a(load, step) * jnp.cos(b(load, step))
            case "add":
                return lambda load, step: a(load, step) - b(load, step)
            case "step":
                return lambda load, step: a(load, step) * (jnp.asarray(step, jnp.float32) + 1)
            case "where":
                return lambda load, step: jnp.where(load(known[0]) > 0, a(load, step), b(load, step))
            case _:
                return lambda load, step: a(load, step) + jnp.mean(b(load, step), axis=-1, keepdims=True)

    def _store(self, name: str, known: list[str]) -> Callable[[_InKernel], None]:
        value = self._expression(known, self._rng.randint(1, 2))
        return lambda m: m.store(name, slice(None), value(lambda n: m.load(n, slice(None)), m.step))

    def _statement(self, depth: int) -> Callable[[_InKernel], None]:
        rng = self._rng
        everything = [*self.inputs, *self.scratch, *self.outputs]
        name = rng.choice([*self.scratch, *self.outputs])
        kind = rng.choice(["whole", "row", "when", "loop"] if depth else ["whole", "row"])
        if kind == "whole":
            return self._store(name, everything)
        if kind == "row":
            value, shift = self._expression(everything, 1), rng.randint(0, ROWS - 1)

            def rows(m: _InKernel) -> None:
                def row(i: Any) -> None:
                    at = (i + shift) % ROWS
                    m.store(name, i, jnp.sin(value(lambda n: m.load(n, at)[None, :], m.step))[0])

                m.loop(ROWS, row)

            return rows
        inner = self._statement(depth - 1)
        if kind == "when":
            which = rng.randint(0, 1)
            return lambda m: m.when(m.step % 2 == which, lambda: inner(m))
        is_static = rng.random() < 0.5 or self.static  # else a while loop
        return lambda m: m.loop(2 if is_static else m.step + 1, lambda i: inner(m))

    def _at(self, maps: tuple[str, str], i: Any, j: Any) -> tuple[Any, Any]:
        """The block of a step."""
        return tuple(_MAPS[kind](at, n) for kind, at, n in zip(maps, (i, j), self.grid))  # type: ignore[return-value]

    def _block(self, maps: tuple[str, str]) -> pl.BlockSpec:
        return pl.BlockSpec((ROWS, COLUMNS), lambda i, j: self._at(maps, i, j))

    def call(self) -> Callable[..., Any]:
        names = [*self.inputs, *self.outputs, *self.scratch]

        def body(*refs: Any) -> None:
            m = _InKernel(dict(zip(names, refs)), pl.program_id(0) * self.grid[1] + pl.program_id(1))
            for statement in self.statements:
                statement(m)

        return pl.pallas_call(
            body,
            out_shape=[jax.ShapeDtypeStruct((self.grid[0] * ROWS, self.grid[1] * COLUMNS), jnp.float32) for _ in self.outputs],
            grid=self.grid,
            in_specs=[self._block(maps) for maps in self.maps],
            out_specs=[self._block(("step", "step")) for _ in self.outputs],
            scratch_shapes=[plgpu.SMEM((ROWS, COLUMNS), jnp.float32) for _ in self.scratch],
        )

    def same(self, *arrays: Any) -> tuple[Any, ...]:
        """What the call computes, as a function of JAX's."""
        names = [*self.outputs, *self.scratch]
        rows = []
        for i in range(self.grid[0]):
            row = []
            for j in range(self.grid[1]):
                refs: dict[str, Any] = {name: jnp.zeros((ROWS, COLUMNS)) for name in names}
                for name, x, maps in zip(self.inputs, arrays, self.maps):
                    r, c = self._at(maps, i, j)
                    refs[name] = jnp.asarray(x)[r * ROWS :, c * COLUMNS :][:ROWS, :COLUMNS]
                m = _OverArrays(refs, i * self.grid[1] + j)
                for statement in self.statements:
                    statement(m)
                row.append([m.refs[name] for name in self.outputs])
            rows.append([jnp.concatenate(blocks, 1) for blocks in zip(*row)])
        return tuple(jnp.concatenate(blocks) for blocks in zip(*rows))

    def arguments(self) -> list[Any]:
        """As many blocks as the grid has, or twice as many rows."""
        rng = np.random.default_rng(self.seed)
        shape = (2 * self.grid[0] * ROWS, self.grid[1] * COLUMNS)
        return [rng.normal(size=shape if maps[0] == "second" else (shape[0] // 2, shape[1])).astype(np.float32) for maps in self.maps]

    def check(self, backwards: bool = False) -> None:
        """Results and tangents with respect to some operands, or cotangents of these, are what JAX computes in 64 bits."""
        rng, xs = random.Random(self.seed), self.arguments()
        numbers = np.random.default_rng(self.seed + 1)
        shape = (self.grid[0] * ROWS, self.grid[1] * COLUMNS)
        shapes = [shape] * len(self.outputs) if backwards else [x.shape for x in xs]
        directions = [numbers.normal(size=shape).astype(np.float32) for shape in shapes]
        wanted = [i for i in range(len(xs)) if rng.random() < 0.6] or [0]

        def derivative(f: Callable[..., Any], dtype: Any) -> Any:
            given = [x.astype(dtype) for x in xs]

            def of_some(*some: Any) -> Any:
                return tuple(f(*(dict(zip(wanted, some)).get(i, x) for i, x in enumerate(given))))

            primals = [given[i] for i in wanted]
            if not backwards:
                return jax.jvp(of_some, primals, [directions[i].astype(dtype) for i in wanted])
            results, pull = jax.vjp(of_some, *primals)
            return results, pull(tuple(d.astype(dtype) for d in directions))

        got = derivative(self.call(), np.float32)
        with jax.default_device(jax.devices("cpu")[0]), _versions.tracing_mode(wide=True):
            want = derivative(self.same, np.float64)
        with jax.default_device(jax.devices("cpu")[0]):
            rounded = derivative(self.same, np.float32)
        for one, other, r in zip(*map(jax.tree.leaves, (got, want, rounded)), strict=True):  # no further from the truth than JAX's arithmetic of 32 bits
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 + 20 * float(np.abs(r - other).max()), err_msg=str(self))


BODIES_FORWARDS = Grammar("bodies, forwards", Program, Program.check)
BODIES_BACKWARDS = Grammar("bodies, backwards", lambda seed: Program(seed, static=True), lambda program: program.check(backwards=True))
