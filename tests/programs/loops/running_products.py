"""Random kernels with several products in a round: what may run together, what must not, and what others are signalled when.

One warpgroup fills a ring of slots, the other multiplies what is in them, computes with the sums, stores some of it to shared memory
that it multiplies again, and releases each slot when it has read it: now and then with products in flight that read something else.
Each kernel has a NumPy reference that does one statement after the other. Numbers are small and whole, so sums are exact.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.corpus.case import kernel, like
from tests.corpus.case import load as load_whole
from tests.programs.loops.loops import Loops, grammar
from tests.programs.views import tiled

Array = np.ndarray[Any, Any]
Statement = tuple[Any, ...]

N = 64
SLOTS = 2
#: What is loaded in each round, and buffers that the kernel stores to.
LOADED, STORED = ("a", "b"), ("s", "t")
#: Arrays that go from round to round.
CARRIES = 2


@dataclasses.dataclass(frozen=True)
class Running(Loops):
    """`statements` of a round; `accumulators` of its own."""

    seed: int
    rounds: int
    accumulators: int
    statements: tuple[Statement, ...]

    @classmethod
    def of(cls, seed: int) -> Running:
        rng = np.random.default_rng([seed, 6])
        accumulators = int(rng.integers(2, 5))
        return cls(seed, int(rng.integers(2, 5)), accumulators, _draft(rng, accumulators))

    # ------------------------------------------------------------ as a kernel

    def function(self) -> Any:
        def load(refs: Any, bufs: Any, full: Any, empty: Any) -> None:
            def fill(i: Any, slot: Any, wait: bool) -> None:
                for name, ref in refs.items():
                    if wait:
                        plgpu.barrier_wait(empty[name].at[slot])
                    plgpu.copy_gmem_to_smem(ref.at[i], bufs[name].at[slot], full.at[slot])

            for i in range(min(SLOTS, self.rounds)):
                fill(i, i, False)

            @pl.loop(SLOTS, max(SLOTS, self.rounds))
            def _(i: Any) -> None:
                fill(i, lax.rem(i, SLOTS), True)

            @pl.loop(max(0, self.rounds - SLOTS), self.rounds)
            def _(i: Any) -> None:
                for name in refs:
                    plgpu.barrier_wait(empty[name].at[lax.rem(i, SLOTS)])

        def compute(bufs: Any, stored: Any, full: Any, empty: Any) -> Any:
            def step(i: Any, carries: Any) -> Any:
                slot = lax.rem(i, SLOTS)
                plgpu.barrier_wait(full.at[slot])

                def inside(*accs: Any) -> Any:
                    def operand(what: Any) -> Any:
                        return bufs[what].at[slot] if what in LOADED else stored[what]

                    arrays = list(carries)
                    for op, *of in self.statements:
                        if op == "multiply":
                            acc, left, right, flip = of
                            a = arrays[left].astype(jnp.float16) if isinstance(left, int) else operand(left)
                            b = operand(right)
                            plgpu.wgmma(accs[acc], a, plgpu.transpose_ref(b, (1, 0)) if flip else b)
                        elif op == "wait":
                            plgpu.wgmma_wait(of[0])
                        elif op == "read":
                            arrays.append(accs[of[0]][...])
                        elif op == "set":
                            accs[of[0]][...] = arrays[of[1]]
                        elif op == "mix":
                            arrays.append(_mix(jnp, arrays[of[0]], arrays[of[1]]))
                        elif op == "load":
                            row = load_whole(bufs["l"].at[slot], layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
                            arrays.append(arrays[of[0]] + lax.broadcast_in_dim(row, (N, N), (1,)))
                        elif op == "store":
                            stored[of[0]][...] = arrays[of[1]].astype(jnp.float16)
                            plgpu.commit_smem()
                        else:
                            plgpu.barrier_arrive(empty[of[0]].at[slot])
                    return tuple(arrays[-CARRIES:])

                return pl.run_scoped(inside, *[plgpu.ACC((N, N), jnp.float32)] * self.accumulators)

            zeros = plgpu.layout_cast(jnp.zeros((N, N), jnp.float32), plgpu.Layout.WGMMA)
            return lax.fori_loop(0, self.rounds, step, (zeros,) * CARRIES)

        def body(a: Any, b: Any, row: Any, *rest: Any) -> None:
            outs, (a_buf, b_buf, l_buf, s, t, full, *empties) = rest[:CARRIES], rest[CARRIES:]
            bufs = {"a": a_buf, "b": b_buf, "l": l_buf}
            empty = dict(zip(bufs, empties, strict=True))
            wg = lax.axis_index("wg")

            @pl.when(wg == 1)
            def _() -> None:
                load({"a": a, "b": b, "l": row}, bufs, full, empty)

            @pl.when(wg == 0)
            def _() -> None:
                stored = {"s": s, "t": t}
                for buf in stored.values():
                    buf[...] = jnp.ones((N, N), jnp.float16)
                plgpu.commit_smem()
                for out, carry in zip(outs, compute(bufs, stored, full, empty), strict=True):
                    out[...] = carry

        matrix = {"transforms": tiled(jnp.float16, 128)}
        ring = [plgpu.SMEM((SLOTS, N, N), jnp.float16, **matrix)] * 2 + [plgpu.SMEM((SLOTS, N), jnp.float32)]
        scratch = [*ring, *[plgpu.SMEM((N, N), jnp.float16, **matrix)] * 2, plgpu.Barrier(num_barriers=SLOTS, num_arrivals=3)]
        scratch += [plgpu.Barrier(num_barriers=SLOTS)] * 3
        return kernel(body, [like((N, N))] * CARRIES, *scratch, num_threads=2, thread_name="wg")

    def inputs(self) -> list[Array]:
        rng = np.random.default_rng([self.seed, 7])
        shapes = ((self.rounds, N, N), (self.rounds, N, N), (self.rounds, N))
        dtypes = (np.float16, np.float16, np.float32)
        return [rng.integers(-2, 3, shape).astype(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]

    # ------------------------------------------------------------ in NumPy

    def reference(self) -> list[Array]:
        a, b, row = self.inputs()
        buffers = {name: np.ones((N, N), np.float16) for name in STORED}
        carries = [np.zeros((N, N), np.float32)] * CARRIES
        for i in range(self.rounds):
            buffers |= {"a": a[i], "b": b[i]}
            accs = [np.zeros((N, N), np.float32)] * self.accumulators
            arrays = list(carries)
            for op, *of in self.statements:
                if op == "multiply":
                    acc, left, right, flip = of
                    x = arrays[left].astype(np.float16) if isinstance(left, int) else buffers[left]
                    y = buffers[right].T if flip else buffers[right]
                    accs[acc] = accs[acc] + x.astype(np.float32) @ y.astype(np.float32)
                elif op == "read":
                    arrays.append(accs[of[0]])
                elif op == "set":
                    accs[of[0]] = arrays[of[1]]
                elif op == "mix":
                    arrays.append(_mix(np, arrays[of[0]], arrays[of[1]]))
                elif op == "load":
                    arrays.append(arrays[of[0]] + row[i])
                elif op == "store":
                    buffers = {**buffers, of[0]: arrays[of[1]].astype(np.float16)}
            carries = arrays[-CARRIES:]
        return carries


def _mix(np_: Any, x: Any, y: Any) -> Any:
    """Small again."""
    return np_.clip(x - y * np.float32(2), np.float32(-3), np.float32(3))


def _draft(rng: np.random.Generator, accumulators: int) -> tuple[Statement, ...]:
    """Statements in a random order, with the waits that their author owes and some more."""
    out: list[Statement] = []
    arrays, running, held = CARRIES, set[str](), {"a", "b", "l"}
    small = set(range(CARRIES))
    pick = lambda of: of[int(rng.integers(len(of)))]  # noqa: E731

    def settle(buffer: str) -> None:
        if buffer in running:
            out.append(("wait", 0))
            running.clear()

    def release(name: str) -> None:
        settle(name)
        out.append(("release", name))
        held.discard(name)

    for _ in range(int(rng.integers(8, 20))):
        op = pick(["multiply"] * 5 + ["read"] * 3 + ["mix"] * 3 + ["load", "store", "wait", "set", "release"])
        sources = [name for name in (*LOADED, *STORED) if name in held or name in STORED]
        if op == "multiply":
            left = pick([*sources, *sources, pick(sorted(small))])
            right = pick(sources)
            out.append((op, int(rng.integers(accumulators)), left, right, bool(rng.integers(2))))
            # When a wgmma returns, no older one runs.
            running = {right, left} if isinstance(left, str) else {right}
        elif op == "read":
            out.append((op, int(rng.integers(accumulators))))
            running.clear()
            arrays += 1
        elif op == "mix":
            out.append((op, int(rng.integers(arrays)), int(rng.integers(arrays))))
            small.add(arrays)
            arrays += 1
        elif op == "load" and "l" in held:
            out.append((op, int(rng.integers(arrays))))
            arrays += 1
        elif op == "store":
            buffer = pick(STORED)
            settle(buffer)
            out.append((op, buffer, pick(sorted(small))))
        elif op == "wait":
            out.append((op, int(rng.integers(2))))
            running = running if out[-1][1] else set()
        elif op == "set":
            # Waits for what runs on the accumulator, nothing else.
            out.append((op, int(rng.integers(accumulators)), pick(sorted(small))))
        elif op == "release" and held and rng.integers(2):
            release(pick(sorted(held)))
    # What goes on to the next round is small.
    for acc in range(CARRIES):
        out.append(("read", acc))
        running.clear()
        arrays += 1
    left = sorted(held)
    rng.shuffle(left)
    for name in left:
        release(name)
    for i in range(CARRIES):
        out.append(("mix", arrays - CARRIES, arrays - CARRIES + 1 - i if i else int(rng.integers(arrays))))
        arrays += 1
    return tuple(out)


RUNNING_PRODUCTS = grammar("running products", Running.of)
