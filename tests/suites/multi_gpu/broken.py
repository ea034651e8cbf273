"""Kernels between devices whose author forgot something, each with its right twin: `python -m tests.suites.multi_gpu.broken --devices 4`.

Each kernel is a function of `flaw`: None for the right one, else the name of the mistake. What the emulator says of a mistake must
name a line of this file that has one of the twin's marks (`# <mark>`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import linecache
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.suites.multi_gpu.suite import (
    REGULAR, SMEM, Barrier, Program, Subject, data, everyone, handshake, i32, kernel, like, line, me, over, right, signal_all, tiled,
)  # fmt: skip
from tests.suites.multi_gpu.supervise import LIMIT, supervise
from tests.suites.multi_gpu.work import one


@dataclasses.dataclass(frozen=True)
class Broken:
    """A kernel with a mistake.

    Attributes:
        make: The program for a number of devices, with the mistake; `right()` is the one without.
        kind: What must be said: a race (two accesses that nothing orders), a deadlock, what is left at the end (a signal nobody
            waited for, an access to a device whose kernel may have ended), or what is invalid by itself.
        marks: The diagnosis names a line with one of these.
    """

    name: str
    of: Callable[..., Program]
    flaw: str
    kind: str
    marks: tuple[str, ...]

    def make(self, n: int) -> Program:
        return self.of(n, self.flaw)

    def subject(self) -> Subject:
        return Subject(self.name, self.make, lambda n: n > 2)

    def fault(self, text: str) -> str | None:
        """What is wrong about a diagnosis; None if nothing is."""
        words = "|".join(WORDS[kind] for kind in self.kind.split(" or "))
        if not re.search(words, text):
            return f"expected words of a {self.kind} ({words})"
        named = [linecache.getline(__file__, int(number)) for number in re.findall(r"broken\.py:(\d+)", text)]
        if not any(re.search(rf"# (.*, )?{re.escape(mark)}\b", text) for mark in self.marks for text in named):
            return f"expected a line marked {' or '.join(self.marks)}; named: {[text.strip() for text in named]}"
        return None


#: Decisive words.
WORDS = {
    "race": "nothing orders the two|is not waited for|not been waited for|in flight",
    "deadlock": "deadlock|took longer|waits for ever",
    "left": "ended|ends|at the end",
    "invalid": "device id|mesh|position|input",
}
RIGHT: dict[str, Callable[..., Program]] = {}
BROKEN: dict[str, Broken] = {}


def right_one(f: Callable[..., Program]) -> Callable[..., Program]:
    RIGHT[f.__name__] = f
    return f


def broken(of: Callable[..., Program], flaw: str, kind: str, *marks: str) -> None:
    assert WORDS.keys() >= set(kind.split(" or "))
    name = f"{of.__name__}: {flaw}"
    assert name not in BROKEN
    BROKEN[name] = Broken(name, of, flaw, kind, marks)


# ------------------------------------------------------------------------------------------ one message


@right_one
def message(n: int, flaw: str | None = None) -> Program:
    """A row to the right, a signal, a wait, a use."""

    def local(x):
        def body(x, o, inbox, sem):
            to = right(n)
            if flaw == "device id beyond the mesh":
                to = me() + 1
            if flaw == "signals before it stores":
                pl.semaphore_signal(sem, 1, device_id=to)
            if flaw == "waits before it signals":
                pl.semaphore_wait(sem, 1)  # early wait
            plgpu.remote_ref(inbox, to)[...] = x[0]  # store
            if flaw == "signals the wrong peer":
                pl.semaphore_signal(sem, 1, device_id=right(n, 2))
            elif flaw == "one device does not signal":

                @pl.when(me() != 2)
                def _():
                    pl.semaphore_signal(sem, 1, device_id=to)

            elif flaw not in ("no signal", "signals before it stores"):
                pl.semaphore_signal(sem, 1, device_id=to)  # signal
            if flaw == "an extra signal":
                pl.semaphore_signal(sem, 1, device_id=to)  # extra
            if flaw == "reads before it waits":
                o[0] = inbox[...] + 1  # use
            if flaw not in ("no wait", "waits before it signals"):
                pl.semaphore_wait(sem, 2 if flaw == "waits for too much" else 1)  # wait
            if flaw != "reads before it waits":
                o[0] = inbox[...] + 1  # use

        return kernel(body, [like((1, 128)), like((128,))], REGULAR)(x)[0]

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0) + 1])


broken(message, "no signal", "deadlock", "wait")
broken(message, "one device does not signal", "deadlock", "wait")
broken(message, "waits for too much", "deadlock", "wait")
broken(message, "waits before it signals", "deadlock", "early wait")
broken(message, "signals before it stores", "race", "store", "use")
broken(message, "signals the wrong peer", "race", "store", "use")
broken(message, "reads before it waits", "race", "store", "use")
broken(message, "no wait", "race or left", "store", "use", "signal")
broken(message, "an extra signal", "left", "extra", "signal")
broken(message, "device id beyond the mesh", "invalid", "store", "signal")


# ------------------------------------------------------------------------------------------ bulk copies


@right_one
def bulk(n: int, flaw: str | None = None) -> Program:
    """A bulk store to the right, which is complete before the signal; then a bulk load of what came."""

    def local(x):
        def body(x, o, inbox, buf, bar, sem):
            to = right(n)
            buf[...] = x[0]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(inbox, to))  # bulk store
            if flaw == "waits for the reads only":
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            elif flaw != "signals before the bulk store is complete":
                plgpu.wait_smem_to_gmem(0)
            pl.semaphore_signal(sem, 1, device_id=to)
            plgpu.wait_smem_to_gmem(0)
            if flaw != "loads before it waits":
                pl.semaphore_wait(sem, 1)
            plgpu.copy_gmem_to_smem(inbox, buf, bar)  # bulk load
            plgpu.barrier_wait(bar)
            o[0] = buf[...] * 2
            if flaw == "loads before it waits":
                pl.semaphore_wait(sem, 1)

        return kernel(body, [like((1, 128)), like((128,))], SMEM((128,), jnp.float32), Barrier(), REGULAR)(x)[0]

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0) * 2])


broken(bulk, "signals before the bulk store is complete", "race", "bulk store", "bulk load")
broken(bulk, "waits for the reads only", "race", "bulk store", "bulk load")
broken(bulk, "loads before it waits", "race", "bulk store", "bulk load")


@right_one
def bulk_pull(n: int, flaw: str | None = None) -> Program:
    """What the right neighbour has computed is loaded from there, after it said so; it stays until it is signalled."""

    def local(x):
        def body(x, o, made, buf, bar, sems):
            to, back = right(n), right(n, n - 1)
            made[...] = x[0] * 3  # made
            if flaw != "does not wait for its peer":
                pl.semaphore_signal(sems.at[0], 1, device_id=back)
                pl.semaphore_wait(sems.at[0], 1)
            plgpu.copy_gmem_to_smem(plgpu.remote_ref(made, to), buf, bar)  # pull
            plgpu.barrier_wait(bar)
            o[0] = buf[...]
            if flaw != "no handshake at the end":
                handshake(sems.at[1], to)

        return kernel(body, [like((1, 128)), like((128,))], SMEM((128,), jnp.float32), Barrier(), REGULAR((2,)))(x)[0]

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x * 3, -1, 0)])


broken(bulk_pull, "does not wait for its peer", "race", "made", "pull")
broken(bulk_pull, "no handshake at the end", "left", "pull")


# ------------------------------------------------------------------------------------------ ends


@right_one
def push(n: int, flaw: str | None = None) -> Program:
    """Into the output of the device to the right, which ends when it has been signalled."""

    def local(x):
        def body(x, o, sem):
            to = right(n)
            plgpu.remote_ref(o, to)[...] = x[...]  # push
            if flaw != "nobody waits":
                handshake(sem, to)

        return kernel(body, like((1, 128)), REGULAR)(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0)])


broken(push, "nobody waits", "left", "push")


@right_one
def pull(n: int, flaw: str | None = None) -> Program:
    """From the input of the device to the right, which may go once it has been signalled."""

    def local(x):
        def body(x, o, sem):
            of = right(n)
            if flaw == "signals before it loads":
                handshake(sem, of)
            o[...] = plgpu.remote_ref(x, of)[...]  # load
            if flaw is None:
                handshake(sem, of)

        return kernel(body, like((1, 128)), REGULAR)(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, -1, 0)])


broken(pull, "no handshake at the end", "left", "load")
broken(pull, "signals before it loads", "left", "load")


# ------------------------------------------------------------------------------------------ rounds


@right_one
def rounds(n: int, flaw: str | None = None) -> Program:
    """Everybody sends to everybody, in rounds, with two sets of boxes and two semaphores in turn."""
    count = 4

    def local(x):
        def body(x, o, boxes, sems):
            o[...] = x[...]
            for r in range(count):
                slot = r % 2
                place = 0 if flaw == "one set of boxes" else slot
                for peer in range(n):
                    plgpu.remote_ref(boxes, i32(peer))[place, me()] = o[0]  # box
                signal_all(sems.at[slot], n)
                wanted = n - 1 if flaw == "waits for one too few" else n
                pl.semaphore_wait(sems.at[slot], wanted, decrement=flaw != "decrement forgotten")
                total = boxes[place, 0]  # sum
                for peer in range(1, n):
                    total += boxes[place, peer]  # sum
                o[0] = total * 0.5

        return kernel(body, [like((1, 128)), like((2, n, 128))], REGULAR((2,)))(x)[0]

    x = data((n, 128))
    now = x
    for _ in range(count):
        total = now[0]
        for part in now[1:]:
            total = total + part
        now = np.stack([total * np.float32(0.5)] * n)
    return Program(over(local, line(n)), [x], [now])


broken(rounds, "one set of boxes", "race", "box", "sum")
broken(rounds, "waits for one too few", "race", "box", "sum")
broken(rounds, "decrement forgotten", "race", "box", "sum")


@right_one
def credits(n: int, flaw: str | None = None) -> Program:
    """Even devices produce for odd ones: a ring of two slots, with credits."""
    items, slots = 6, 2

    def local(x):
        def body(x, o, ring, full, credit):
            peer = lax.bitwise_xor(me(), i32(1))

            @pl.when(lax.rem(me(), i32(2)) == 0)
            def _():
                @pl.loop(i32(0), i32(items))
                def _(i):
                    if flaw != "the producer does not wait for credit":

                        @pl.when(i >= slots)
                        def _():
                            pl.semaphore_wait(credit, 1)

                    plgpu.remote_ref(ring, peer)[lax.rem(i, i32(slots))] = x[0, i]  # produce
                    pl.semaphore_signal(full, 1, device_id=peer)
                    o[0, i] = x[0, i]

            @pl.when(lax.rem(me(), i32(2)) == 1)
            def _():
                @pl.loop(i32(0), i32(items))
                def _(i):
                    pl.semaphore_wait(full, 1)
                    if flaw == "credit before the slot is read":

                        @pl.when(i < items - slots)
                        def _():
                            pl.semaphore_signal(credit, 1, device_id=peer)

                    o[0, i] = ring[lax.rem(i, i32(slots))]  # consume
                    if flaw is None or flaw == "credits for the last items too":
                        limit = items if flaw else items - slots

                        @pl.when(i < limit)
                        def _():
                            pl.semaphore_signal(credit, 1, device_id=peer)  # credit

        return kernel(body, [like((1, items, 128)), like((slots, 128))], REGULAR, REGULAR)(x)[0]

    x = data((n, items, 128))
    out = x.copy()
    out[1::2] = x[::2]
    return Program(over(local, line(n)), [x], [out])


broken(credits, "the producer does not wait for credit", "race", "produce", "consume")
broken(credits, "credit before the slot is read", "race", "produce", "consume")
broken(credits, "credits for the last items too", "left", "credit")


# ------------------------------------------------------------------------------------------ atomics, warpgroups, blocks


@right_one
def counters(n: int, flaw: str | None = None) -> Program:
    """Zeros, then everybody adds to everybody, then everybody looks."""

    def local(x):
        def body(x, o, count, sems):
            count[...] = jnp.zeros((128,), jnp.int32)  # zero
            if flaw != "zeros fall upon what peers added":
                everyone(sems.at[0], n)
            for peer in range(n):
                plgpu.atomic_add(plgpu.remote_ref(count, i32(peer)), x[0])  # add
            if flaw != "looks before all have added":
                everyone(sems.at[1], n)
            o[0] = count[...]  # look
            if flaw == "looks before all have added":
                everyone(sems.at[1], n)

        return kernel(body, [like((1, 128), jnp.int32), like((128,), jnp.int32)], REGULAR((2,)))(x)[0]

    x = data((n, 128), jnp.int32, low=1, high=9)
    return Program(over(local, line(n)), [x], [np.stack([x.sum(0, dtype=np.int32)] * n)])


broken(counters, "zeros fall upon what peers added", "race", "zero", "add")
broken(counters, "looks before all have added", "race", "add", "look")


@right_one
def warpgroups(n: int, flaw: str | None = None) -> Program:
    """Two warpgroups store to the right; each signals what it stored itself."""

    def local(x):
        def body(x, o, inbox, sem):
            to, wg = right(n), lax.axis_index("wg")
            plgpu.remote_ref(inbox, to)[wg] = x[0, wg]  # half
            if flaw == "one signals for both":

                @pl.when(wg == 0)
                def _():
                    pl.semaphore_signal(sem, 2, device_id=to)

            else:
                pl.semaphore_signal(sem, 1, device_id=to)

            @pl.when(wg == 0)
            def _():
                pl.semaphore_wait(sem, 2)
                o[0] = inbox[0] + inbox[1]  # both

        return kernel(body, [like((1, 128)), like((2, 128))], REGULAR, num_threads=2, thread_name="wg")(x)[0]

    x = data((n, 2, 128))
    return Program(over(local, line(n)), [x], [np.roll(x[:, 0] + x[:, 1], 1, 0)])


broken(warpgroups, "one signals for both", "race", "half", "both")


@right_one
def blocks(n: int, flaw: str | None = None) -> Program:
    """Blocks store to the right; the first adds up what all blocks of the left stored."""
    count = 3

    def local(x):
        def body(x, o, inbox):
            sem = pl.get_global(REGULAR)
            to, b = right(n), lax.axis_index("b")
            plgpu.remote_ref(inbox, to)[b] = x[0, b]  # part
            if flaw == "the first block signals for all":

                @pl.when(b == 0)
                def _():
                    pl.semaphore_signal(sem, count, device_id=to)

            else:
                pl.semaphore_signal(sem, 1, device_id=to)

            @pl.when(b == 0)
            def _():
                pl.semaphore_wait(sem, count)
                o[0] = inbox[0] + inbox[1] + inbox[2]  # parts

        return kernel(body, [like((1, 128)), like((count, 128))], grid=(count,), grid_names=("b",))(x)[0]

    x = data((n, count, 128))
    return Program(over(local, line(n)), [x], [np.roll(x[:, 0] + x[:, 1] + x[:, 2], 1, 0)])


broken(blocks, "the first block signals for all", "race", "part", "parts")


# ------------------------------------------------------------------------------------------ rings, ghosts, multicast


@right_one
def ring(n: int, flaw: str | None = None) -> Program:
    """An all-gather: every step hands on what came in the step before."""

    def local(x):
        def body(x, o, sems):
            to = right(n)
            o[0, me()] = x[0]
            for step in range(n - 1):
                row = lax.rem(me() + i32(n - step), i32(n))
                plgpu.remote_ref(o, to)[0, row] = o[0, row]  # hand on
                pl.semaphore_signal(sems.at[step], 1, device_id=to)
                if flaw != "waits at the end only":
                    pl.semaphore_wait(sems.at[step], 1)
            if flaw == "waits at the end only":
                for step in range(n - 1):
                    pl.semaphore_wait(sems.at[step], 1)

        return kernel(body, like((1, n, 128)), REGULAR((n - 1,)))(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.stack([x] * n)])


broken(ring, "waits at the end only", "race", "hand on")


@right_one
def ghosts(n: int, flaw: str | None = None) -> Program:
    """A stencil's borders go to the right, into one of two ghost cells."""
    steps = 4

    def local(x):
        def body(x, o, cells, sems):
            o[...] = x[...]
            for t in range(steps):
                slot = 0 if flaw == "one set of ghosts" else t % 2
                plgpu.remote_ref(cells, right(n))[slot] = o[0]  # border
                plgpu.remote_ref(cells, right(n, n - 1))[2 + slot] = o[0]  # border
                pl.semaphore_signal(sems.at[t % 2], 1, device_id=right(n))
                pl.semaphore_signal(sems.at[2 + t % 2], 1, device_id=right(n, n - 1))
                pl.semaphore_wait(sems.at[t % 2], 1)
                if flaw != "waits for one side only":
                    pl.semaphore_wait(sems.at[2 + t % 2], 1)
                o[0] = cells[slot] * 0.5 + cells[2 + slot] * 0.25  # ghost
                if flaw == "waits for one side only":
                    pl.semaphore_wait(sems.at[2 + t % 2], 1)

        return kernel(body, [like((1, 128)), like((4, 128))], REGULAR((4,)))(x)[0]

    x = data((n, 128))
    now = x
    for _ in range(steps):
        now = np.roll(now, 1, 0) * np.float32(0.5) + np.roll(now, -1, 0) * np.float32(0.25)
    return Program(over(local, line(n)), [x], [now])


broken(ghosts, "one set of ghosts", "race", "border", "ghost")
broken(ghosts, "waits for one side only", "race", "border", "ghost")


@right_one
def multicast(n: int, flaw: str | None = None) -> Program:
    """Everybody stores to all and adds up what all have stored."""

    def local(x):
        def body(x, o, inbox, sems):
            v = plgpu.layout_cast(x[0], plgpu.Layout.WG_STRIDED((128,), vec_size=1))
            plgpu.multimem_store(v, inbox.at[me()], collective_axes="x")  # store to all
            if flaw != "no wait for the others":
                plgpu.semaphore_signal_multicast(sems.at[0], 1, collective_axes="x")
                pl.semaphore_wait(sems.at[0], n)
            total = inbox[0]  # read all
            for peer in range(1, n):
                total += inbox[peer]  # read all
            o[0] = total
            if flaw == "no wait for the others":
                everyone(sems.at[1], n)

        return kernel(body, [like((1, 128)), like((n, 128))], REGULAR((2,)))(x)[0]

    x = data((n, 128))
    total = x[0]
    for part in x[1:]:
        total = total + part
    return Program(over(local, line(n)), [x], [np.stack([total] * n)])


broken(multicast, "no wait for the others", "race", "store to all", "read all")


@right_one
def tiles(n: int, flaw: str | None = None) -> Program:
    """A tile goes to the right by TMA, comes from there by TMA."""

    def local(x):
        def body(x, o, inbox, buf, bar, sem):
            to = right(n)
            plgpu.copy_gmem_to_smem(x.at[0], buf, bar)
            plgpu.barrier_wait(bar)
            plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(inbox, to).at[pl.ds(0, 16), pl.ds(32, 32)])  # tile out
            if flaw != "signals before the tile is there":
                plgpu.wait_smem_to_gmem(0)
            pl.semaphore_signal(sem, 1, device_id=to)
            plgpu.wait_smem_to_gmem(0)
            if flaw != "fetches before it waits":
                pl.semaphore_wait(sem, 1)
            plgpu.copy_gmem_to_smem(inbox.at[pl.ds(0, 16), pl.ds(32, 32)], buf, bar)  # tile in
            plgpu.barrier_wait(bar)
            o[0] = buf[...] + 1
            if flaw == "fetches before it waits":
                pl.semaphore_wait(sem, 1)

        scratch = (SMEM((16, 32), jnp.float32, transforms=tiled(jnp.float32)), Barrier(), REGULAR)
        return kernel(body, [like((1, 16, 32)), like((16, 64))], *scratch)(x)[0]

    x = data((n, 16, 32))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0) + 1])


broken(tiles, "signals before the tile is there", "race", "tile out", "tile in")
broken(tiles, "fetches before it waits", "race", "tile out", "tile in")


# ------------------------------------------------------------------------------------------ running them


def outcome(twin: Broken, n: int) -> tuple[str, str]:
    """found (as it must be), badly reported, or missed; and what was said."""
    with twin.subject().scope():
        try:
            program = twin.make(n)
            got = program.run()
        except Exception as e:  # noqa: BLE001  (it is reported)
            text = str(e)
            fault = twin.fault(text)
            return ("badly reported", f"{fault}\n{text}") if fault else ("found", text)
        wrong = program.fault(got)
        return "missed", f"no diagnosis; the result is {'wrong: ' + wrong if wrong else 'right'}"


def names(devices: int, only: Sequence[str]) -> list[str]:
    """On any number of devices."""
    del devices
    return [name for name in (*(f"right: {name}" for name in RIGHT), *BROKEN) if not only or any(o in name for o in only)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.multi_gpu.broken", description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--limit", type=float, default=LIMIT)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.list:
        print("\n".join(names(args.devices, args.only)))
        return 0
    if args.work:
        for name in sys.stdin.read().split("\n"):
            print(json.dumps(_work(name, args.devices)), flush=True)
        return 0
    results = supervise("tests.suites.multi_gpu.broken", args.devices, args.only, args.limit, tell=print)
    return 0 if {r["status"] for r in results} <= {"found", "right"} else 1


def _work(name: str, devices: int) -> dict[str, Any]:
    if name not in BROKEN:
        return one(Subject(name, RIGHT[name.removeprefix("right: ")], lambda n: True), devices)
    start = time.perf_counter()
    status, text = outcome(BROKEN[name], devices)
    return {"name": name, "status": status, "text": text, "seconds": round(time.perf_counter() - start, 3)}


if __name__ == "__main__":
    sys.exit(main())
