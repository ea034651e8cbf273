"""Random `pallas_call`s as they are written for a TPU: grids whose last axis walks along what is summed, against JAX's interpreter.

Sums, maxima and more are kept in scratch or in an output's block; the first step begins them, and the last one ends them, in the ways that people write
that. Operands are narrow, converted, scaled, turned, the same at each step, or walked backwards; steps are skipped.
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
from jax.experimental.pallas import tpu as pltpu

from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar
from tests.machine import on_host

with warnings.catch_warnings():  # JAX is about to remove it
    warnings.simplefilter("ignore", DeprecationWarning)
    import jax.experimental.pallas.triton as plt

KINDS = ("matmul", "matmul", "attention", "gated", "totals")
WEIGHTS = ("same", "int8", "int4", "e4m3", "scaled int4", "scaled int8", "scaled rows", "square scales")
BEGINS = ("when", "cond", "where", "first differs", "never")
ENDS = ("when", "captured", "each step", "output")
#: Weights that are computed, so that a thread multiplies them from registers: scales of groups along what is summed, of all columns, of the block.
COMPUTED = (
    "int8", "int4", "e4m3", "e2m1", "scaled int8", "scaled int4", "scaled e2m1", "groups int4", "groups int8", "groups e2m1", "shifted int4", "gated same",
)  # fmt: skip
GROUP = 32
SKIPS = ("none", "none", "none", "causal", "even", "middle")
PARAMETERS = ("tpu", "none", "triton")


@dataclasses.dataclass(frozen=True)
class Turned:
    """One call, by a seed."""

    seed: int
    kind: str
    weights: str
    begin: str
    end: str
    skip: str
    parameters: str
    rows: int
    columns: int
    depth: int
    steps: int
    grid: tuple[int, int]
    dtype: Any
    turned: bool  # the right operand's block lies the other way
    backwards: bool  # the axis is walked from its end
    biased: bool  # an operand that only the last step reads
    counted: bool  # the step's number goes into what is summed
    beside: bool  # a second output, of another shape
    batched: bool  # an axis in front that blocks have none of

    @classmethod
    def of(cls, seed: int) -> Turned:
        r = random.Random(seed)
        kind = r.choice(KINDS)
        dtype = r.choice([jnp.float16, jnp.bfloat16, jnp.bfloat16, jnp.float32])
        weights = "same" if kind != "matmul" else r.choice(WEIGHTS)
        depth = r.choice([128] if weights in ("scaled rows", "square scales") else [32, 64, 128])
        return cls(
            seed,
            kind,
            weights,
            r.choice(BEGINS[:4]) if kind != "attention" else r.choice(BEGINS[:2]),
            r.choice(ENDS),
            r.choice(SKIPS),
            r.choice(PARAMETERS),
            rows := r.choice([8, 16, 32, 64, 64, 128, 128, 192, 256]),
            r.choice([128] if weights == "square scales" or rows > 128 else [32, 64, 128, 256]),
            depth,
            r.choice([1, 2, 3, 4, 7]),
            (r.choice([1, 2]), r.choice([1, 2])),
            dtype,
            r.random() < 0.4,
            r.random() < 0.2,
            r.random() < 0.3,
            r.random() < 0.2,
            r.random() < 0.3,
            r.random() < 0.2,
        )

    @classmethod
    def computed(cls, seed: int) -> Turned:
        """A product by weights that each step computes, and nothing but their sum."""
        r = random.Random(~seed)
        return dataclasses.replace(
            cls.of(seed),
            kind="matmul",
            weights=(weights := r.choice(COMPUTED)),
            end=r.choice(("when", "captured", "output")),
            begin=r.choice(BEGINS[:2]),
            skip="none",
            rows=(rows := r.choice([8, 16, 24, 64, 128, 128, 200, 256])),
            columns=r.choice([128, 256, 256] if rows <= 128 else [128]) if "e2m1" in weights else r.choice([64, 128, 192, 256] if rows <= 128 else [64, 128]),
            depth=r.choice([32, 64, 64, 128] if rows > 32 else [128, 256]),
            steps=r.choice([2, 3, 4, 7]),
            grid=(r.choice([1, 2]), 1),
            dtype=r.choice([jnp.float16, jnp.bfloat16]),
            turned=r.random() < 0.15,
            counted=False,
            beside=r.random() < 0.15,
        )

    # -------------------------------------------------------------------------------- the body

    def _weights(self, w: Any, scales: Any) -> Any:
        """What a step multiplies by, (depth, columns) or turned."""
        if self.weights in ("same", "scaled rows", "square scales"):
            return w
        w = w.astype(self.dtype)
        if self.weights.startswith("gated"):
            return w * jax.nn.sigmoid(w)
        if self.weights.startswith("shifted"):
            return (w - 3) * 0.25
        if self.weights.startswith("groups"):
            return w * jnp.repeat(scales.astype(self.dtype), GROUP, axis=0) if not self.turned else w * scales.T.astype(self.dtype)[:, :1]
        if self.weights.startswith("scaled"):
            s = scales.astype(self.dtype)
            return w * (s.T if self.turned else s)
        return w

    def _dot(self, a: Any, b: Any, turned: bool) -> Any:
        precision = lax.Precision.HIGHEST if self.dtype == jnp.float32 else None
        dims = (((1,), (1 if turned else 0,)), ((), ()))
        return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32, precision=precision)

    def body(self, x_ref: Any, w_ref: Any, s_ref: Any, b_ref: Any, *refs: Any) -> None:
        outs, (acc_ref, top_ref, size_ref) = refs[:-3], refs[-3:]
        o_ref = outs[0]
        if self.end == "output":
            acc_ref = o_ref
        k, steps = pl.program_id(2), pl.num_programs(2)
        first, last = k == 0, k == steps - 1

        def zeros() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)
            if self.kind == "attention":
                top_ref[...] = jnp.full_like(top_ref, -1e30)
            size_ref[...] = jnp.zeros_like(size_ref)

        if self.begin in ("when", "where"):
            pl.when(first)(zeros)
        elif self.begin == "cond":
            lax.cond(first, zeros, lambda: None)
        else:
            pl.when(first)(zeros)

        def work() -> None:
            x, w = x_ref[...], w_ref[...]
            if self.kind == "attention":
                q, keys = x, w
                s = self._dot(q, keys, True) * 0.125  # rows, depth
                if self.counted:
                    column = k * self.depth + lax.broadcasted_iota(jnp.int32, s.shape, 1)
                    s = jnp.where(column % 5 != 0, s, -1e30)
                new = jnp.maximum(top_ref[...], s.max(1, keepdims=True))
                p, old = jnp.exp(s - new), jnp.exp(top_ref[...] - new)
                size_ref[...] = old * size_ref[...] + p.sum(1, keepdims=True)
                acc_ref[...] = old * acc_ref[...] + self._dot(p.astype(self.dtype), s_ref[...], False)
                top_ref[...] = new
                return
            product = self._dot(x, self._weights(w, s_ref[...]), self.turned)
            if self.weights == "scaled rows":
                product = product * s_ref[...].astype(jnp.float32)
            if self.weights == "square scales":
                product = product * s_ref[0, 0].astype(jnp.float32)
            if self.kind == "gated":
                product = product * jax.nn.sigmoid(product)
            if self.counted:
                product = product * (k + 1).astype(jnp.float32)
            if self.kind == "totals":
                size_ref[...] += product.sum(1, keepdims=True)
            acc_ref[...] += product

        if self.skip == "none":
            work()
        elif self.skip == "causal":
            pl.when(k <= pl.program_id(0) + 1)(work)
        elif self.skip == "even":
            pl.when(k % 2 == 0)(work)
        else:
            pl.when((k > 0) | (pl.program_id(1) == 0))(work)

        def result(acc: Any) -> Any:
            if self.kind == "attention":
                acc = acc / jnp.where(size_ref[...] == 0, 1, size_ref[...])
            return (acc + b_ref[...].astype(jnp.float32) if self.biased else acc).astype(o_ref.dtype)

        if self.end == "when":

            @pl.when(last)
            def _() -> None:
                o_ref[...] = result(acc_ref[...])

        elif self.end == "captured":
            acc = acc_ref[...]

            @pl.when(last)
            def _() -> None:
                o_ref[...] = result(acc)

        elif self.end == "each step":
            o_ref[...] = result(acc_ref[...])
        elif self.biased:  # "output"

            @pl.when(last)
            def _() -> None:
                o_ref[...] = result(acc_ref[...])

        if self.beside:

            @pl.when(last)
            def _() -> None:
                outs[1][...] = size_ref[...]

    # -------------------------------------------------------------------------------- the call

    @property
    def n(self) -> tuple[int, int, int]:
        return self.rows * self.grid[0], self.columns * self.grid[1], self.depth * self.steps

    def run(self, interpret: bool) -> Callable[..., Any]:
        (m, n, _), rows, columns, depth, steps = self.n, self.rows, self.columns, self.depth, self.steps
        at = (lambda k: steps - 1 - k) if self.backwards else (lambda k: k)
        lead = (None,) if self.batched else ()
        front = (0,) if self.batched else ()

        def spec(shape: tuple[int, ...], index: Callable[..., Any]) -> pl.BlockSpec:
            return pl.BlockSpec((*lead, *shape), lambda i, j, k: (*front, *index(i, j, at(k))))

        if self.kind == "attention":  # queries, keys, values
            ins = [
                spec((rows, depth), lambda i, j, k: (i, 0)),
                spec((depth, depth), lambda i, j, k: (k, 0)),
                spec((depth, columns), lambda i, j, k: (k, j)),
            ]
        else:
            weights = spec((columns, depth), lambda i, j, k: (j, k)) if self.turned else spec((depth, columns), lambda i, j, k: (k, j))
            scales = spec((depth // GROUP if self.weights.startswith("groups") else 1, columns), lambda i, j, k: (k, j))
            if self.weights == "scaled rows":
                scales = spec((rows, 1), lambda i, j, k: (i, 0))
            if self.weights == "square scales":
                scales = spec((1, 1), lambda i, j, k: (k, j))
            ins = [spec((rows, depth), lambda i, j, k: (i, k)), weights, scales]
        ins.append(spec((1, columns), lambda i, j, k: (0, j)))
        outs = [spec((rows, columns), lambda i, j, k: (i, j))]
        result = jnp.float32 if self.end == "output" else self.dtype
        one = (1,) if self.batched else ()
        shapes = [jax.ShapeDtypeStruct((*one, m, n), result)]
        if self.beside:
            outs.append(spec((rows, 1), lambda i, j, k: (i, j)))
            shapes.append(jax.ShapeDtypeStruct((*one, m, self.grid[1]), jnp.float32))
        params: Any = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")) if self.parameters == "tpu" else None
        if self.parameters == "triton":
            params = plt.CompilerParams(num_warps=4, num_stages=2)
        return pl.pallas_call(
            self.body,
            out_shape=shapes,
            grid=(*self.grid, steps),
            in_specs=ins,
            out_specs=outs,
            scratch_shapes=[pltpu.VMEM((rows, columns), jnp.float32), pltpu.VMEM((rows, 1), jnp.float32), pltpu.VMEM((rows, 1), jnp.float32)],
            compiler_params=params,
            interpret=interpret,
        )

    def data(self) -> list[np.ndarray[Any, Any]]:
        rng = np.random.default_rng(self.seed)
        m, n, k = self.n
        one = (1,) if self.batched else ()

        def normal(*shape: int, dtype: Any = self.dtype) -> np.ndarray[Any, Any]:
            return np.asarray(jnp.asarray(rng.standard_normal((*one, *shape)), dtype))

        def integers(kind: Any, *shape: int) -> np.ndarray[Any, Any]:
            low = -8 if kind == jnp.int4 else -100
            return np.asarray(jnp.asarray(rng.integers(low, -low, (*one, *shape)), kind))

        bias = normal(1, n)
        if self.kind == "attention":
            return [normal(m, self.depth), normal(k, self.depth), normal(k, n), bias]
        shape = (n, k) if self.turned else (k, n)
        kind = self.weights.split()[-1]
        floats = {"e4m3": jnp.float8_e4m3fn, "e2m1": jnp.float4_e2m1fn}
        weights = integers(getattr(jnp, kind), *shape) if kind in ("int8", "int4") else normal(*shape, dtype=floats.get(kind, self.dtype))
        steps = k // GROUP if self.weights.startswith("groups") else self.steps
        scales = normal(m, 1) if self.weights == "scaled rows" else normal(self.steps, self.grid[1]) if self.weights == "square scales" else normal(steps, n)
        return [normal(m, k), weights, scales, bias]

    def check(self) -> None:
        """Largest differences beside the largest number of each result."""
        got = jax.jit(self.run(False))(*self.data())
        with on_host():
            want = self.run(True)(*self.data())
        exact = {jnp.float16: 6e-3, jnp.bfloat16: 4e-2, jnp.float32: 1e-4}[self.dtype]
        for a, b in zip(got, want, strict=True):
            a, b = keep(a).astype(np.float64), np.asarray(b, np.float64)
            assert np.isfinite(a).all(), self
            worst = np.abs(a - b).max() / max(np.abs(b).max(), 1)
            assert worst <= exact, (worst, self)


TURNS = Grammar("grids that run in turn", Turned.of, Turned.check)
COMPUTED_WEIGHTS = Grammar("weights that are computed", Turned.computed, Turned.check)
