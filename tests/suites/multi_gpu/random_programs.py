"""Random conversations against NumPy: phases of transfers between all devices, each phase ended by a barrier.

`python -m tests.suites.multi_gpu --only random` runs the first 40; `python -m tests.fuzz --generator 'several devices'` others, on 2 to 4 devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import numpy as np
from jax import lax

from tests.fuzz.grammar import Grammar
from tests.fuzz.outcome import Outcome
from tests.suites.multi_gpu.suite import (
    REGULAR, SMEM, Barrier, P, Program, data, i32, kernel, like, line, me, over, subject, tiled,
)  # fmt: skip

#: Every transfer moves tiles of this shape.
TILE = (8, 64)
EXACT_SUMS = ("float32", "int32")
DTYPES = (*EXACT_SUMS, "bfloat16", "float16", "int8", "uint8")
KINDS = ("store", "load", "relay", "bulk store", "bulk load", "bulk relay", "tma store", "tma load", "tma relay", "multicast", "copy here")
SUMS = ("atomic", "reducing", "reduce all")
MAPS: dict[str, Callable[[Any], Any]] = {
    "same": lambda x: x,
    "next": lambda x: x + x.dtype.type(1),
    "negative": lambda x: x.dtype.type(0) - x,  # No -0.0, of which NumPy makes 0.0 in sums.
    "double": lambda x: x + x,
}


@dataclasses.dataclass(frozen=True)
class Peer:
    """A permutation of the devices: ("right", k), ("xor", mask), ("mirror", 0) or ("table", row)."""

    kind: str
    number: int

    def of(self, n: int, table: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        d = np.arange(n)
        if self.kind == "table":
            return table[self.number]  # type: ignore[no-any-return]
        return {"right": (d + self.number) % n, "xor": d ^ self.number, "mirror": n - 1 - d}[self.kind]

    def here(self, n: int, table: Any) -> Any:
        match self.kind:
            case "right":
                return lax.rem(me() + i32(self.number), i32(n))
            case "xor":
                return lax.bitwise_xor(me(), i32(self.number))
            case "mirror":
                return i32(n - 1) - me()
            case _:
                return table[self.number, me()]


@dataclasses.dataclass(frozen=True)
class Step:
    """One transfer: tile `source` of buffer `a` to tile `target` of buffer `b`, which have one type."""

    kind: str
    a: int
    b: int
    source: int
    target: int
    map: str
    to: Peer
    of: Peer


@dataclasses.dataclass(frozen=True)
class Conversation:
    """Phases of transfers, `times` times over; the warpgroups of a block share out the transfers of a phase.

    Attributes:
        barrier: How the devices meet: signals in a loop, in parallel, by multicast, or a semaphore for each sender that only rises.
    """

    devices: int
    blocks: int
    threads: int
    times: int
    barrier: str
    dtypes: tuple[str, ...]
    tiles: int
    table: np.ndarray[Any, Any]
    phases: tuple[tuple[Step, ...], ...]


def generate(seed: int, n: int) -> Conversation:
    rng = np.random.default_rng([seed, n])
    pick = lambda options: options[int(rng.integers(len(options)))]  # noqa: E731
    blocks, threads, times = int(pick((1, 1, 2, 3))), int(pick((1, 1, 2))), int(pick((1, 1, 3)))
    barrier = str(pick(("loop", "parallel", "multicast", "rising")))
    dtypes = tuple(pick(DTYPES) for _ in range(int(rng.integers(1, 4))))
    tiles = n + 4
    table = np.stack([rng.permutation(n) for _ in range(2)]).astype(np.int32)

    def peer() -> Peer:
        kinds = ["right", "right", "mirror", "table"] + (["xor"] if n & (n - 1) == 0 else [])
        kind = pick(kinds)
        return Peer(kind, {"right": int(rng.integers(n)), "xor": int(rng.integers(n)), "mirror": 0, "table": int(rng.integers(2))}[kind])

    phases = []
    for _ in range(int(rng.integers(2, 6))):
        written: set[tuple[int, int]] = set()
        read: set[tuple[int, int]] = set()
        steps = []
        for _ in range(int(rng.integers(1, 6))):
            a = int(rng.integers(len(dtypes)))
            b = pick([i for i, t in enumerate(dtypes) if t == dtypes[a]])
            kind = pick(KINDS + SUMS * 2 if dtypes[a] in EXACT_SUMS else KINDS)
            source, target = int(rng.integers(tiles)), int(rng.integers(tiles))
            if kind == "multicast":
                target = int(rng.integers(tiles - n + 1))
            targets = {(b, target + i) for i in range(n if kind == "multicast" else 1)}
            # In a phase no step reads what another writes, and none writes what another writes.
            if (a, source) in written or (a, source) in targets or targets & (written | read):
                continue
            written |= targets
            read.add((a, source))
            steps.append(Step(kind, a, b, source, target, pick(list(MAPS)), peer(), peer()))
        phases.append(tuple(steps))
    return Conversation(n, blocks, threads, times, barrier, dtypes, tiles, table, tuple(phases))


def reference(c: Conversation, xs: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Buffers are [device, block, tile, …]."""
    now = [x.copy() for x in xs]
    with np.errstate(over="ignore"):
        for phase in c.phases * c.times:
            old = [x.copy() for x in now]
            for s in phase:
                f, to, of = MAPS[s.map], s.to.of(c.devices, c.table), s.of.of(c.devices, c.table)
                source = old[s.a][:, :, s.source]
                match s.kind:
                    case "store" | "bulk store" | "tma store":
                        now[s.b][to, :, s.target] = f(source)
                    case "load" | "bulk load" | "tma load":
                        now[s.b][:, :, s.target] = f(source[of])
                    case "relay" | "bulk relay" | "tma relay":
                        now[s.b][to, :, s.target] = source[of] if s.kind != "relay" else f(source[of])
                    case "copy here":
                        now[s.b][:, :, s.target] = f(source)
                    case "multicast":
                        for d in range(c.devices):
                            now[s.b][:, :, s.target + d] = f(source[d])
                    case "atomic" | "reducing":
                        np.add.at(now[s.b], (to, slice(None), s.target), f(source))
                        now[s.b][0, :, s.target] += f(source).sum(0, dtype=source.dtype)
                    case "reduce all":
                        now[s.b][:, :, s.target] = source.sum(0, dtype=source.dtype)
    return now


def _step(c: Conversation, s: Step, bufs: list[Any], table: Any, smem: dict[Any, Any], bar: Any, block: Any) -> None:
    """One transfer, in the kernel; it is complete when the next barrier's signal is sent."""
    n, f = c.devices, MAPS[s.map]
    to, of = s.to.here(n, table), s.of.here(n, table)
    source, target = bufs[s.a].at[0, block, s.source], bufs[s.b].at[0, block, s.target]
    plain, swizzled = smem[c.dtypes[s.a]]
    buf = swizzled if s.kind.startswith("tma") else plain

    def fetch(ref: Any) -> None:
        plgpu.copy_gmem_to_smem(ref, buf, bar)
        plgpu.barrier_wait(bar)

    def send(ref: Any, **kwargs: Any) -> None:
        plgpu.copy_smem_to_gmem(buf, ref, **kwargs)
        plgpu.wait_smem_to_gmem(0)

    match s.kind:
        case "store":
            plgpu.remote_ref(target, to)[...] = f(source[...])
        case "load":
            target[...] = f(plgpu.remote_ref(source, of)[...])
        case "relay":
            plgpu.remote_ref(target, to)[...] = f(plgpu.remote_ref(source, of)[...])
        case "copy here":
            target[...] = f(source[...])
        case "bulk store" | "tma store":
            buf[...] = f(source[...])
            plgpu.commit_smem()
            send(plgpu.remote_ref(target, to))
        case "bulk load" | "tma load":
            fetch(plgpu.remote_ref(source, of))
            target[...] = f(buf[...])
        case "bulk relay" | "tma relay":
            fetch(plgpu.remote_ref(source, of))
            send(plgpu.remote_ref(target, to))
        case "multicast":
            v = plgpu.layout_cast(f(source[...]), plgpu.Layout.WG_STRIDED(TILE, vec_size=1))
            plgpu.multimem_store(v, bufs[s.b].at[0, block, s.target + me()], collective_axes="x")
        case "atomic":
            v = f(source[...])
            plgpu.atomic_add(plgpu.remote_ref(target, to), v)
            plgpu.atomic_add(plgpu.remote_ref(target, 0), v)
        case "reducing":
            buf[...] = f(source[...])
            plgpu.commit_smem()
            send(plgpu.remote_ref(target, to), reduction_op="add")
            send(plgpu.remote_ref(target, 0), reduction_op="add")
        case "reduce all":
            v = plgpu.multimem_load_reduce(source, collective_axes="x", reduction_op="add")
            target[...] = plgpu.layout_cast(v, plgpu.Layout.WG_STRIDED(TILE, vec_size=1))


def _meet(c: Conversation, sems: Any, wg: Any, number: Any) -> None:
    """No warpgroup of any device goes on before all are here; the rounds are counted from 0."""
    mine, parity, threads = sems.at[wg], lax.rem(number, i32(2)), range(c.threads)
    peers = [i32(peer) for peer in range(c.devices)]
    match c.barrier:
        case "loop":
            for peer in peers:
                for t in threads:
                    pl.semaphore_signal(sems.at[t, parity, 0], 1, device_id=peer)
        case "parallel":
            signals = [plgpu.SemaphoreSignal(sems.at[t, parity, 0], device_id=peer) for peer in peers for t in threads]
            plgpu.semaphore_signal_parallel(*signals)
        case "multicast":
            for t in threads:
                plgpu.semaphore_signal_multicast(sems.at[t, parity, 0], 1, collective_axes="x")
        case _:
            for peer in peers:
                for t in threads:
                    pl.semaphore_signal(sems.at[t, 0, me() * c.threads + wg], 1, device_id=peer)

            @pl.loop(i32(0), i32(c.devices * c.threads))
            def _(sender: Any) -> None:  # One for each warpgroup: of two that share one, a fast one might count for both.
                pl.semaphore_wait(mine.at[0, sender], number + 1, decrement=False)

            return
    pl.semaphore_wait(mine.at[parity, 0], c.devices * c.threads)


def program(c: Conversation) -> Program:
    shapes = [like((1, c.blocks, c.tiles, *TILE), t) for t in c.dtypes]
    kinds = sorted(set(c.dtypes))

    def local(table: Any, *xs: Any) -> Any:
        def body(*refs: Any) -> None:
            count = len(c.dtypes)
            table, ins, bufs = refs[0], refs[1 : 1 + count], list(refs[1 + count : 1 + 2 * count])
            *places, bar, sems = refs[1 + 2 * count :]
            block, wg = lax.axis_index("b"), lax.axis_index("wg")
            smem = {t: [place.at[wg] for place in places[2 * i : 2 * i + 2]] for i, t in enumerate(kinds)}

            def share(number: int, do: Callable[[], None]) -> None:
                pl.when(wg == number % c.threads)(do)

            for i, (x, o) in enumerate(zip(ins, bufs)):

                def begin(x: Any = x, o: Any = o) -> None:
                    o[0, block] = x[0, block]

                share(i, begin)
            _meet(c, sems, wg, i32(0))

            @pl.loop(i32(0), i32(c.times))
            def _(time: Any) -> None:
                for number, phase in enumerate(c.phases):
                    for i, s in enumerate(phase):
                        share(i, lambda s=s: _step(c, s, bufs, table, smem, bar.at[wg], block))
                    _meet(c, sems, wg, time * len(c.phases) + (number + 1))

        scratch = [place for t in kinds for place in (SMEM((c.threads, *TILE), t), SMEM((c.threads, *TILE), t, transforms=tiled(t, 64)))]
        sems = REGULAR((c.threads, 2, c.devices * c.threads))
        call = kernel(
            body, shapes, *scratch, Barrier(num_barriers=c.threads), sems, grid=(c.blocks,), grid_names=("b",),
            num_threads=c.threads, thread_name="wg",
        )  # fmt: skip
        return call(table, *xs)

    xs = [data((c.devices, c.blocks, c.tiles, *TILE), t, seed=str(i), low=0, high=7) for i, t in enumerate(c.dtypes)]
    return Program(over(local, line(c.devices), (P(), *[P("x")] * len(xs))), [c.table, *xs], reference(c, xs))


def random_program(n: int, seed: int) -> Program:
    return program(generate(seed, n))


def check(c: Conversation) -> Outcome | None:
    if len(jax.devices()) < c.devices:
        return Outcome("no program", f"{len(jax.devices())} devices")
    p = program(c)
    fault = p.fault(p.run())
    assert not fault, fault
    return None


def shown(c: Conversation) -> str:
    lines = [f"{c.devices} devices, {c.blocks} blocks of {c.threads} warpgroups, {c.times} times, barrier {c.barrier}, table {c.table.tolist()}"]
    lines.append(f"buffers of {', '.join(c.dtypes)}")
    for phase in c.phases:
        lines += [*(f"  {s}" for s in phase), "  barrier"]
    return "\n".join(lines)


SEVERAL_DEVICES = Grammar("several devices", lambda seed: generate(seed, 2 + seed % 3), check, show=shown)

subject(*range(40))(random_program)
