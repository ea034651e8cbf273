"""What finds a missing barrier: `python -m tests.programs.missing --count 100 --seed 0`.

Of each random program every barrier that smalt places is left out, one at a time. `verify_order` should say so of the
compiled kernel, and the emulator of a run that comes to where the barrier was, by a diagnosis or a wrong number under some schedule.
Who says nothing is told, with the line before which the barrier stood.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax

import smalt
from smalt import _errors, _native
from tests.programs import generate
from tests.programs.emit import function
from tests.programs.run import SCHEDULES, Schedule, compare, prepare, results
from tests.programs.tree import DTYPES, Program


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


def omissions(program: Program, schedules: tuple[Schedule, ...] = SCHEDULES, emulate: bool = True) -> Iterator[Omission]:
    """Leaves out each barrier of a program that compiles."""
    run, _ = function(program)
    structs = [jax.ShapeDtypeStruct(b.shape, DTYPES[b.dtype]) for b in program.of("in", "mut")]
    with smalt.emulated("H100"):
        [(_, descriptor, debug)] = smalt.descriptor(run, *structs)
    whole = _native.compile(descriptor, debug, "sm_90a")
    steps = run_once(program, whole, schedules[0])[1] if emulate else None
    for number, barrier in enumerate(whole.report()["barriers"]):
        artifact = _native.compile(descriptor, debug, "sm_90a", {"omit_barrier": number})
        ordered = artifact.report()["out_of_order"]
        if not emulate:
            yield Omission(number, str(barrier), ordered, False, None)
            continue
        ran, executed = run_once(program, artifact, schedules[0])
        for schedule in schedules[1:]:
            ran = ran or run_once(program, artifact, schedule)[0]
        yield Omission(number, str(barrier), ordered, ran is not None or executed != steps, ran)


def run_once(program: Program, artifact: _native.Artifact, schedule: Schedule) -> tuple[str | None, int | None]:
    """How a run fails, if it does; the instructions of warps that it executed."""
    reports: list[dict[str, Any]] = []
    try:
        got = results(program, artifact, lambda buffers: reports.append(artifact.emulate(buffers, *schedule)))
    except _errors.Error as error:
        return str(error), None
    return compare(program, got), reports[0]["warp_instructions"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs.missing", description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first program's")
    parser.add_argument("--no-emulator", action="store_true")
    args = parser.parse_args()
    found: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    for seed in range(args.seed, args.seed + args.count):
        program = generate.generate(seed)
        if prepare(program):
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
