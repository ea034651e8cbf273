"""Random kernels whose loops carry sums over lanes: scaled, counted, read meanwhile, started anywhere, never begun.

Each has a NumPy reference. Numbers are small and whole and factors are powers of two, so sums are exact in whatever order they are formed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.corpus.case import kernel, like, load
from tests.programs.loops.loops import Loops, grammar

Array = np.ndarray[Any, Any]

ROWS, STEPS = 64, 5
#: What a row's sum is of, and what it is multiplied by before.
TERMS = ("x", "square", "positive")
FACTORS = (None, None, 0.5, 2.0, "maximum", "loaded")


@dataclasses.dataclass(frozen=True)
class Update:
    """A carry's: `kind` is max, sum, count (of what is positive, an int32) or seen (adds up what sum `of` was before)."""

    kind: str
    of: int = 0
    term: str = "x"
    factor: float | str | None = None
    start: str = "zero"


@dataclasses.dataclass(frozen=True)
class Sums(Loops):
    seed: int
    columns: int
    axis: int
    fused: bool
    #: Iterations, known to the kernel or loaded by it.
    steps: int
    loaded: bool
    nested: bool
    updates: tuple[Update, ...]

    @classmethod
    def of(cls, seed: int) -> Sums:
        rng = np.random.default_rng([seed, 8])
        pick = lambda of: of[int(rng.integers(len(of)))]  # noqa: E731
        updates = [Update("max")]
        for _ in range(int(rng.integers(1, 4))):
            start = pick(("zero", "zero", "one", "loaded"))
            if pick((True, True, False)):
                updates.append(Update("sum", 0, pick(TERMS), pick(FACTORS), start))
            else:
                updates.append(Update("count", start=start))
        sums = [i for i, update in enumerate(updates) if update.kind == "sum"]
        if sums and pick((True, False, False, False)):
            updates.append(Update("seen", pick(sums)))
        # The first one is read by others.
        steps, loaded = int(rng.integers(0, STEPS + 1)), bool(rng.integers(2))
        fused, nested = bool(rng.integers(5)), not rng.integers(4)
        return cls(seed, pick((64, 128, 192)), pick((1,) * 5 + (0,)), fused, steps, loaded, nested, tuple(updates))

    @property
    def length(self) -> int:
        return self.columns if self.axis == 0 else ROWS

    # ------------------------------------------------------------ as a kernel

    def function(self) -> Any:
        reduced = plgpu.Layout.WGMMA.reduce(self.axis)

        def body(n: Any, x: Any, factors: Any, starts: Any, *outs: Any) -> None:
            rows = lambda ref: load(ref, layout=reduced, optimized=False)  # noqa: E731

            def start(update: Update) -> Any:
                dtype = jnp.int32 if update.kind == "count" else jnp.float32
                if update.start == "loaded":
                    return rows(starts).astype(dtype)
                return plgpu.layout_cast(jnp.full((self.length,), update.start == "one", dtype), reduced)

            def step(i: Any, carries: Any) -> Any:
                tile = load(x.at[i], layout=plgpu.Layout.WGMMA, optimized=False)
                return self.updated(jnp, carries, tile, lambda: rows(factors.at[i]))

            carries = tuple(start(update) for update in self.updates)
            steps = n[0] if self.loaded else self.steps
            if self.nested:
                carries = lax.fori_loop(0, 2, lambda _, c: lax.fori_loop(0, steps, step, c), carries)
            else:
                carries = lax.fori_loop(0, steps, step, carries)
            for out, carry in zip(outs, carries, strict=True):
                out[...] = carry

        dtypes = [jnp.int32 if update.kind == "count" else jnp.float32 for update in self.updates]
        outs = [like((self.length,), dtype) for dtype in dtypes]
        return kernel(body, outs, params=plgpu.CompilerParams(approx_math=self.fused))

    def updated(self, np_: Any, carries: Any, x: Any, factors: Any) -> Any:
        """The carries after an iteration, by JAX in the kernel or by NumPy."""
        maximum = np_.maximum(carries[0], x.max(axis=self.axis))
        out = [maximum]
        for update, old in list(zip(self.updates, carries, strict=True))[1:]:
            if update.kind == "count":
                out.append(old + (x > 0).astype(np_.int32).sum(axis=self.axis, dtype=np_.int32))
            elif update.kind == "seen":
                out.append(old + carries[update.of])
            else:
                term = {"x": lambda: x, "square": lambda: x * x, "positive": lambda: np_.maximum(x, np_.float32(0))}[update.term]()
                sums = term.sum(axis=self.axis)
                if update.factor is None:
                    out.append(old + sums)
                    continue
                if update.factor == "maximum":
                    factor = np_.exp2(carries[0] - maximum)
                else:
                    factor = factors() if update.factor == "loaded" else np_.float32(update.factor)
                out.append(old * factor + sums)
        return tuple(out)

    def inputs(self) -> list[Array]:
        rng = np.random.default_rng([self.seed, 9])
        return [
            np.array([self.steps], np.int32),
            rng.integers(-2, 3, (STEPS, ROWS, self.columns)).astype(np.float32),
            rng.choice(np.array([0.5, 1, 2], np.float32), (STEPS, self.length)),
            rng.integers(-3, 4, self.length).astype(np.float32),
        ]

    # ------------------------------------------------------------ in NumPy

    def reference(self) -> list[Array]:
        _, x, factors, starts = self.inputs()
        first = {"zero": np.zeros_like(starts), "one": np.ones_like(starts), "loaded": starts}
        carries = tuple(first[u.start].astype(np.int32 if u.kind == "count" else np.float32) for u in self.updates)
        for i in [*range(self.steps)] * (2 if self.nested else 1):
            carries = self.updated(np, carries, x[i], lambda: factors[i])
        return list(carries)


def shuffles_in_loops(ptx: str) -> int:
    """Shuffles between the target of a branch backwards and the branch."""
    lines = [line.strip() for line in ptx.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    inside = set[int]()
    for i, line in enumerate(lines):
        words = line.split(";")[0].split()
        if any(word.startswith("bra") for word in words) and labels.get(words[-1], i) < i:
            inside |= {*range(labels[words[-1]], i)}
    return sum("shfl.sync.bfly" in lines[i] for i in inside)


RUNNING_SUMS = grammar("running sums", Sums.of)
