"""What finds a missing barrier: `python -m tests.programs.missing --count 100 --seed 0`.

Of each random program every barrier that smalt places is left out, one at a time. `verify_order` should say so of the
compiled kernel, and the emulator of a run, by a diagnosis or a wrong number under some schedule. Who says nothing is told, with the
line before which the barrier stood.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
import time
from collections.abc import Iterator

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
        ran: How the emulator fails; None: right under every schedule.
    """

    number: int
    at: str
    ordered: list[str]
    ran: str | None


def omissions(program: Program, schedules: tuple[Schedule, ...] = SCHEDULES, emulate: bool = True) -> Iterator[Omission]:
    """Leaves out each barrier of a program that compiles."""
    run, _ = function(program)
    structs = [jax.ShapeDtypeStruct(b.shape, DTYPES[b.dtype]) for b in program.of("in", "mut")]
    with smalt.emulated("H100"):
        [(_, descriptor, debug)] = smalt.descriptor(run, *structs)
    barriers = _native.compile(descriptor, debug, "sm_90a").report()["barriers"]
    for number, barrier in enumerate(barriers):
        artifact = _native.compile(descriptor, debug, "sm_90a", {"omit_barrier": number})
        ran = next((f for s in schedules if (f := fails(program, artifact, s))), None) if emulate else None
        yield Omission(number, str(barrier), artifact.report()["out_of_order"], ran)


def fails(program: Program, artifact: _native.Artifact, schedule: Schedule) -> str | None:
    try:
        got = results(program, artifact, lambda buffers: artifact.emulate(buffers, *schedule))
    except _errors.Error as error:
        return str(error)
    return compare(program, got)


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
            found["emulator"] += o.ran is not None
            silent = [who for who, says in (("verify_order", o.ordered), ("emulator", o.ran)) if not says]
            if silent:
                print(f"program {seed}, barrier {o.number} {o.at}: not {' nor '.join(silent)}; {o.ordered[:1]}", flush=True)
    every = max(found["all"], 1)
    rates = ", ".join(f"{who} {found[who]} ({100 * found[who] / every:.1f} %)" for who in ("verify_order", "emulator"))
    print(f"{found['all']} barriers left out, {time.monotonic() - start:.0f} s: found by {rates}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
