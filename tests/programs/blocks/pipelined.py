"""Random programs as they are written for Triton: products of what a loop loads, against JAX's interpreter of `pallas_call`.

A program has rows of its own, by a block or by a slice of an array; a loop of any kind over tiles of others, masked or not; products of one or two
tiles with what came before, turned or not; vectors beside them, carried maxima and sums; one to three outputs, some of which all rows go into.
"""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar
from tests.machine import on_host

with warnings.catch_warnings():  # JAX is about to remove it
    warnings.simplefilter("ignore", DeprecationWarning)
    import jax.experimental.pallas.triton as plt

LOOPS = ("static", "dynamic", "from", "counted", "empty", "branch", "outer")
MASKS = ("none", "true", "columns", "rows")
KINDS = ("attention", "sums", "matmul", "turned", "two")


@dataclasses.dataclass(frozen=True)
class Pipelined:
    """One program, by a seed."""

    seed: int
    kind: str
    loop: str
    mask: str
    rows: int
    tile: int
    depth: int
    tiles: int
    blocks: int
    dtype: Any
    stages: int | None
    warps: int | None
    by_block: bool
    beside: bool  # a vector for each tile
    places: bool  # what depends on where rows and columns are
    totals: bool  # an output that all rows go into
    shifted: bool  # a masked vector from a place that only the run knows

    @classmethod
    def of(cls, seed: int) -> Pipelined:
        r = random.Random(seed)
        dtype = r.choice([jnp.float16, jnp.float16, jnp.bfloat16, jnp.float32, jnp.int8])
        kind = r.choice(KINDS)
        if dtype == jnp.int8:
            kind = r.choice(["sums", "matmul"])
        return cls(
            seed,
            kind,
            r.choice(LOOPS),
            r.choice(MASKS),
            r.choice([16, 32, 64, 64, 128, 128, 192, 256]),
            r.choice([16, 32, 64, 128]),
            r.choice([16, 32, 64, 128]),
            r.choice([1, 2, 3, 5]),
            r.choice([1, 2, 3]),
            dtype,
            r.choice([None, 1, 2, 3, 4]),
            r.choice([None, 4, 8]),
            r.random() < 0.5,
            r.random() < 0.4,
            r.random() < 0.4,
            r.random() < 0.2,
            r.random() < 0.3,
        )

    @property
    def is_integer(self) -> bool:
        return bool(np.dtype(self.dtype).kind == "i")

    def body(self, x_ref: Any, k_ref: Any, v_ref: Any, b_ref: Any, n_ref: Any, o_ref: Any, *more: Any) -> None:
        """`x` are the program's rows, `k` and `v` what the loop loads, `b` numbers of columns, `n` a number."""
        acc = jnp.int32 if self.is_integer else jnp.float32
        step, rows, tile, depth = pl.program_id(0), self.rows, self.tile, self.depth
        mine = pl.ds(step * rows, rows)
        x = x_ref[...] if self.by_block else x_ref[mine, :]
        wide = depth if self.kind != "matmul" else tile
        columns = jnp.arange(depth) < (depth if self.mask == "true" else depth - 3)

        def load(ref: Any, i: Any) -> Any:
            at = ref.at[pl.ds(i * tile, tile), :]
            if self.mask == "none":
                return at[...]
            if self.mask == "rows":
                here = (i * tile + jnp.arange(tile) < self.tiles * tile - 5)[:, None]
            else:
                here = columns[None, :]
            return plt.load(at, mask=jnp.broadcast_to(here, (tile, depth)), other=0)

        def dot(a: Any, b: Any) -> Any:
            precision = lax.Precision.HIGHEST if self.dtype == jnp.float32 else None
            return jnp.dot(a, b, preferred_element_type=acc, precision=precision)

        def turn(i: Any, carry: Any) -> Any:
            total, top, size = carry
            k = load(k_ref, i)
            s = dot(x, k.T)  # rows, tile
            if self.beside:
                s = s + b_ref[pl.ds(i * tile, tile)].astype(acc)[None, :]
            if self.places:
                row, column = step * rows + jnp.arange(rows), i * tile + jnp.arange(tile)
                s = jnp.where(row[:, None] >= column[None, :], s, jnp.zeros_like(s))
            if self.kind == "matmul":
                return total + s, top, size + s.sum(1)
            if self.kind == "attention":
                new = jnp.maximum(top, s.max(1))
                p, old = jnp.exp(s - new[:, None]), jnp.exp(top - new)
                v = load(v_ref, i)
                return old[:, None] * total + dot(p.astype(v.dtype), v), new, old * size + p.sum(1)
            if self.kind == "turned":  # sums over the program's own rows, for each tile: what `dk` is
                return total + dot(s.astype(x.dtype).T, x).sum(0)[None, :], top, size
            small = s if self.is_integer else s * 0.125
            p = small.astype(self.dtype)
            v = load(v_ref, i)
            if self.kind == "two":
                return total + dot(p, v) + dot(p, k), top, size + s.sum(1)
            return total + dot(p, v), top, size + s.sum(1)

        start = -1e30 if not self.is_integer else 0
        begin = (jnp.zeros((rows, wide), acc), jnp.full(rows, start, acc), jnp.zeros(rows, acc))
        n = self.tiles
        if self.loop == "static":
            end = lax.fori_loop(0, n, turn, begin)
        elif self.loop == "dynamic":
            end = lax.fori_loop(0, jnp.minimum(step + 1, n), turn, begin)
        elif self.loop == "from":
            end = lax.fori_loop(jnp.minimum(step, n), n, turn, begin)
        elif self.loop == "counted":
            end = lax.fori_loop(0, jnp.minimum(n_ref[0], n), turn, begin)
        elif self.loop == "empty":
            end = lax.fori_loop(0, n_ref[1], turn, begin)
        elif self.loop == "branch":
            end = lax.cond(step < n_ref[0], lambda: lax.fori_loop(0, n, turn, begin), lambda: begin)
        else:
            end = lax.fori_loop(0, 2, lambda _, c: lax.fori_loop(0, n, turn, c), begin)
        total, _, size = end
        if self.kind == "attention":
            total = total / jnp.where(size == 0, 1, size)[:, None]
        if self.shifted:
            size_of_b, at = self.tile * self.tiles, n_ref[0]
            numbers = plt.load(b_ref.at[pl.ds(at, size_of_b)], mask=jnp.arange(size_of_b) + at < size_of_b, other=0)
            total = total + (numbers.astype(acc) * (jnp.arange(size_of_b) + 1).astype(acc)).sum()
        o_ref[...] = total
        more[0][...] = size
        if self.totals:
            more[1][...] = total.sum(0)[None, :]

    def run(self, interpret: bool) -> Callable[..., Any]:
        acc = jnp.int32 if self.is_integer else jnp.float32
        wide = self.depth if self.kind != "matmul" else self.tile
        rows, all_rows = self.rows, self.rows * self.blocks
        out = [jax.ShapeDtypeStruct((all_rows, wide), acc), jax.ShapeDtypeStruct((all_rows,), acc)]
        specs = [pl.BlockSpec((rows, wide), lambda i: (i, 0)), pl.BlockSpec((rows,), lambda i: (i,))]
        if self.totals:
            out.append(jax.ShapeDtypeStruct((self.blocks, wide), acc))
            specs.append(pl.BlockSpec((1, wide), lambda i: (i, 0)))
        own = pl.BlockSpec((rows, self.depth), lambda i: (i, 0)) if self.by_block else pl.BlockSpec(memory_space=pl.ANY)
        whole = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            self.body,
            out_shape=out,
            grid=(self.blocks,),
            in_specs=[own, whole, whole, whole, whole],
            out_specs=specs,
            compiler_params=plt.CompilerParams(num_warps=self.warps, num_stages=self.stages),
            interpret=interpret,
        )

    def data(self) -> list[np.ndarray[Any, Any]]:
        rng = np.random.default_rng(self.seed)

        def normal(*shape: int) -> np.ndarray[Any, Any]:
            if self.is_integer:
                return rng.integers(-3, 4, shape).astype(np.int8)
            return np.asarray(jnp.asarray(rng.standard_normal(shape), self.dtype))

        n = self.tile * self.tiles
        count = np.array([rng.integers(0, self.tiles + 1), 0], np.int32)
        return [normal(self.rows * self.blocks, self.depth), normal(n, self.depth), normal(n, self.depth), normal(n), count]

    def check(self) -> None:
        """Largest differences beside the largest number of each result."""
        got = jax.jit(self.run(False))(*self.data())
        with on_host():
            want = self.run(True)(*self.data())
        exact = {jnp.float16: 4e-3, jnp.bfloat16: 3e-2, jnp.float32: 2e-5, jnp.int8: 0}[self.dtype]
        for a, b in zip(got, want, strict=True):
            a, b = keep(a).astype(np.float64), np.asarray(b, np.float64)
            assert np.isfinite(a).all(), self
            worst = np.abs(a - b).max() / max(np.abs(b).max(), 1)
            assert worst <= exact, (worst, self)


PIPELINED = Grammar("products of what a loop loads", Pipelined.of, Pipelined.check)
