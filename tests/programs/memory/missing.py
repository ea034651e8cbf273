"""What finds a missing barrier: `python -m tests.programs.memory.missing --count 100 --seed 0`.

Of each random program every barrier that smalt places is left out, one at a time. `verify_order` should say so of the
compiled kernel, and the emulator of a run that comes to where the barrier was, by a diagnosis or a wrong number under some schedule,
for the program's own numbers or with the same index everywhere, so that what may meet does.
Which of the two reports nothing is printed, with the line before which the barrier stood.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
import time
from collections.abc import Iterator
from typing import Any

from smalt import _errors, _native
from tests import machine
from tests.programs.memory import generate
from tests.programs.memory.run import SCHEDULES, Schedule, compare, compiled, described, lacking, results
from tests.programs.memory.tree import Buffer, Const, Full, Load, Program, Store, parts, replaced, statements


@dataclasses.dataclass(frozen=True)
class Omission:
    """A barrier that was left out.

    Attributes:
        number: Which.
        at: The op before which it stood.
        ordered: What `verify_order` says; empty: nothing.
        reached: Whether a run comes there: it executes another number of instructions than with the barrier.
        ran: How the emulator fails; None: right under every schedule.
    """

    number: int
    at: str
    ordered: list[str]
    reached: bool
    ran: str | None


def compiles(program: Program) -> bool:
    """Whether there are barriers to leave out, however the program runs."""
    if lacking(program):
        return False
    try:
        compiled(program)
    except Exception:  # noqa: BLE001: JAX's front end raises whatever it likes
        return False
    return True


def omissions(program: Program, schedules: tuple[Schedule, ...] = SCHEDULES, emulate: bool = True) -> Iterator[Omission]:
    """Leaves out each barrier of a program that compiles."""
    traced = described(program)
    whole = _native.compile(*traced, machine.host())
    barriers = whole.report()["barriers"]
    # What runs, its descriptor, and the instructions that it executes with all barriers.
    variants: list[tuple[Program, tuple[bytes, bytes], int | None]] = []
    for variant in with_indices(program) if emulate else ():
        kernel = traced if variant.body == program.body else described(variant)
        complete = _native.compile(*kernel, machine.host())
        if len(complete.report()["barriers"]) == len(barriers):
            variants.append((variant, kernel, run_once(variant, complete, schedules[0])[1]))
    for number, barrier in enumerate(barriers):
        ordered = _native.compile(*traced, machine.host(), {"omit_barrier": number}).report()["out_of_order"]
        if not emulate:
            yield Omission(number, str(barrier), ordered, False, None)
            continue
        reached, ran = False, None
        for variant, kernel, expected in variants:
            artifact = _native.compile(*kernel, machine.host(), {"omit_barrier": number})
            ran, executed = run_once(variant, artifact, schedules[0])
            for schedule in schedules[1:] if reached or executed != expected else ():
                ran = ran or run_once(variant, artifact, schedule)[0]
            reached |= ran is not None or executed != expected
            if ran is not None:
                break
        yield Omission(number, str(barrier), ordered, reached, ran)


def with_indices(program: Program) -> Iterator[Program]:
    """The program, and where they are valid those that differ in the numbers that its short vectors hold: the same everywhere."""
    yield program
    short = {d.name for d in program.decls if isinstance(d, Buffer) and d.shape == (4,)}
    for number in range(4):
        variant = dataclasses.replace(program, indices=number)
        for path, s in list(statements(program.body)):
            if isinstance(s, Store) and s.dst.buffer in short and not any(isinstance(e, Load) for e in parts(s.value)):
                value = Full((4,), Const(number)) if s.dst.index == () else Const(number)
                variant = replaced(variant, path, (dataclasses.replace(s, value=value),))
        if generate.find_fault(variant) is None:
            yield variant


def run_once(program: Program, artifact: _native.Artifact, schedule: Schedule) -> tuple[str | None, int | None]:
    """How a run fails, if it does; the instructions of warps that it executed."""
    reports: list[dict[str, Any]] = []
    try:
        got = results(program, artifact, lambda buffers: reports.append(artifact.emulate(buffers, *schedule)))
    except _errors.Error as error:
        return str(error), None
    return compare(program, got), reports[0]["warp_instructions"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs.memory.missing", description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first program's")
    parser.add_argument("--no-emulator", action="store_true")
    args = parser.parse_args()
    found: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    for seed in range(args.seed, args.seed + args.count):
        program = generate.generate(seed)
        if not compiles(program):
            continue
        for o in omissions(program, emulate=not args.no_emulator):
            found["all"] += 1
            found["verify_order"] += bool(o.ordered)
            found["reached"] += o.reached
            found["emulator"] += o.ran is not None
            silent = [who for who, says in (("verify_order", o.ordered), ("emulator", o.ran or not o.reached)) if not says]
            if silent:
                print(f"program {seed}, barrier {o.number} {o.at}: not {' nor '.join(silent)}; {o.ordered[:1]}", flush=True)
    share = lambda who, of: f"{found[who]} ({100 * found[who] / max(found[of], 1):.1f} %)"  # noqa: E731
    print(f"{found['all']} barriers left out, {time.monotonic() - start:.0f} s: verify_order finds {share('verify_order', 'all')}")
    if not args.no_emulator:
        print(f"{found['reached']} of them on the way of a run: the emulator finds {share('emulator', 'reached')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
