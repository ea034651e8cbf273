"""What every committed descriptor becomes for each machine that smalt compiles for, assembled.

    python -m tests.corpus.machines [--jobs 16] [--target sm_80 …] [--every 3] [FOLDER...]

A line for each machine: how many kernels the assembler takes, how many are refused for a part that the machine lacks, or for want of shared
memory; then what should not be: another error, a text that the assembler refuses, spills of kernels that have none on a Hopper. The table at the
end has all of it. FOLDERs have more descriptors (`*.pb`), as `python -m tests.passes.dump` writes them; `--only-folders` leaves out the committed
ones. `SMALT_LIBRARY` chooses the library.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import multiprocessing
import os
import pathlib
import re
import sys

from smalt import _native
from tests.corpus import ptx
from tests.machine import HOPPER


@dataclasses.dataclass(frozen=True)
class Made:
    """What becomes of a kernel: `what` is "assembled", "lacks", "shared memory" or "error".

    Attributes:
        of: What the machine lacks, or the error.
        spills: Bytes that are stored and loaded again, if it is assembled.
        registers: Of a thread.
    """

    what: str
    of: str = ""
    spills: int = 0
    registers: int = 0


def made(target: str, key_and_descriptor: tuple[str, bytes]) -> tuple[str, Made]:
    key, descriptor = key_and_descriptor
    try:
        artifact = _native.compile(descriptor, b"", target)
    except Exception as e:  # a refusal is an answer, too
        first = str(e).splitlines()[0]
        lacks = re.match(r"smalt: not supported yet: (.*) on " + target, first)
        if lacks is not None:
            return key, Made("lacks", lacks[1])
        return key, Made("shared memory") if first == "smalt: shared memory" else Made("error", first)
    try:
        artifact.assemble()
    except Exception as e:
        return key, Made("error", " ".join(str(e).split())[:200])
    about = artifact.report()["assembled"]["log"]
    return key, Made("assembled", "", about["spill_store_bytes"] + about["spill_load_bytes"], about["registers"])


@dataclasses.dataclass
class Machine:
    """All kernels on one machine, beside a Hopper."""

    target: str
    found: dict[str, Made]
    on_hopper: dict[str, Made]

    def count(self, what: str) -> int:
        return sum(made.what == what for made in self.found.values())

    @property
    def lacks(self) -> collections.Counter[str]:
        return collections.Counter(made.of for made in self.found.values() if made.what == "lacks")

    @property
    def spills(self) -> dict[str, int]:
        """Bytes of those that spill here, and not on a Hopper."""
        spilled = {key: made.spills for key, made in self.found.items() if made.spills}
        return {key: spills for key, spills in spilled.items() if not self.on_hopper[key].spills}

    @property
    def errors(self) -> dict[str, str]:
        return {key: made.of for key, made in self.found.items() if made.what == "error"}

    def row(self) -> list[str]:
        lacks = ", ".join(f"{n} {what}" for what, n in self.lacks.most_common())
        spills = sum(made.spills > 0 for made in self.found.values())
        figures = (len(self.found), self.count("assembled"), self.count("lacks"), self.count("shared memory"), spills, len(self.spills), len(self.errors))
        return [self.target, *map(str, figures), lacks]


COLUMNS = ["machine", "kernels", "assembled", "lacks", "memory", "spills", "only here", "errors", "what it lacks"]


def table(machines: list[Machine]) -> str:
    rows = [COLUMNS, *(machine.row() for machine in machines)]
    wide = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(w) if i in (0, len(wide) - 1) else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, wide))) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--target", action="append", choices=list(_native.machines()), metavar="TARGET")
    parser.add_argument("--every", type=int, default=1, help="take every so manieth descriptor; by default all")
    parser.add_argument("--only-folders", action="store_true", help="take those of folders, and no committed ones")
    parser.add_argument("folders", nargs="*", type=pathlib.Path, metavar="FOLDER")
    args = parser.parse_args()
    every = [(key, d) for key, d in ptx.descriptors(args.folders) if not key.startswith(("0.10", "0.12"))]
    if args.only_folders:
        every = [(key, d) for key, d in every if "/" not in key]
    machines = list[Machine]()
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        on_hopper = dict(pool.imap_unordered(functools.partial(made, HOPPER), every[:: args.every], chunksize=4))
        kernels = [(key, d) for key, d in every[:: args.every] if on_hopper[key].what != "error"]
        print(f"{len(kernels)} kernels that {HOPPER} has; {sum(x.spills > 0 for x in on_hopper.values())} of them spill there", flush=True)
        for target in args.target or _native.machines():
            found = dict(pool.imap_unordered(functools.partial(made, target), kernels, chunksize=4)) if target != HOPPER else {}
            machines.append(machine := Machine(target, found or {key: on_hopper[key] for key, _ in kernels}, on_hopper))
            print(f"{target}: {machine.count('assembled')} assembled, {machine.count('lacks') + machine.count('shared memory')} refused", flush=True)
            for key, error in machine.errors.items():
                print(f"  {key}: {error}", flush=True)
            for key, bytes in machine.spills.items():
                print(f"  {key}: spills {bytes} bytes, with {machine.found[key].registers} registers; on {HOPPER} {on_hopper[key].registers}", flush=True)
    print(table(machines))
    return 1 if any(machine.errors or machine.spills for machine in machines) else 0


if __name__ == "__main__":
    sys.exit(main())
