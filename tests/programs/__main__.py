"""Random programs over memory, in the emulator: `python -m tests.programs --count 100 --seed 0`.

Prints each failure with its program, shrunk, as Python; at the end how many there were of each kind.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from collections.abc import Iterable

from tests import too_many
from tests.programs import generate
from tests.programs.emit import source
from tests.programs.regressions import REGRESSIONS
from tests.programs.run import SCHEDULES, Schedule, check, check_on_gpu
from tests.programs.shrink import shrink
from tests.programs.tree import Program


def schedules(text: str) -> tuple[Schedule, ...]:
    """"latest,earliest,3" """
    return tuple((word, 0) if word in ("latest", "earliest") else ("seeded", int(word)) for word in text.split(","))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first program's")
    parser.add_argument("--schedules", type=schedules, default=SCHEDULES, help="of the emulator: latest, earliest, seeds; by commas")
    parser.add_argument("--kinds", help=f"by commas, of {', '.join(sorted({*generate.KINDS, *generate.MORE_KINDS}))}; default: by seed")
    parser.add_argument("--show", action="store_true", help="print every program")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--shrink", type=int, default=10**9, help="how many failures of a kind are shrunk")
    parser.add_argument("--gpu", action="store_true", help="on GPU 0 instead, three times each")
    parser.add_argument("--skip", type=lambda text: {int(seed) for seed in text.split(",")}, default=set(), help="seeds, by commas")
    parser.add_argument("--named", nargs="+", metavar="NAME", help="programs of regressions.py instead of random ones")
    args = parser.parse_args()
    if args.kinds:
        unknown = set(args.kinds.split(",")) - {*generate.KINDS, *generate.MORE_KINDS}
        if unknown:
            parser.error(f"--kinds: there is no {', '.join(sorted(unknown))}")
    found: collections.Counter[str] = collections.Counter()
    shrunk: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    kinds = args.kinds.split(",") if args.kinds else None
    programs: Iterable[tuple[str, Program]] = ((name, REGRESSIONS[name]) for name in args.named or ())
    if not args.named:
        seeds = (seed for seed in range(args.seed, args.seed + args.count) if seed not in args.skip)
        programs = ((str(seed), generate.generate(seed, kinds[seed % len(kinds)] if kinds else None)) for seed in seeds)
    for name, program in programs:
        if args.gpu:
            print(f"program {name}", flush=True)  # for whoever stops this when it hangs
        if args.show:
            print(source(program))
        failure = check_on_gpu(program) if args.gpu else check(program, args.schedules)
        found[failure.kind if failure else "right"] += 1
        if failure is None:
            continue
        print(f"==== program {name}{' ' + args.kinds if args.kinds else ''}: {failure.signature}, {failure.where}", flush=True)
        if failure.kind in ("refused", "passed over"):
            print(failure.text)
            continue
        shrunk[failure.signature] += 1
        if not args.no_shrink and not args.gpu and shrunk[failure.signature] <= args.shrink:
            program, failure = shrink(program, failure, args.schedules)
        if not args.no_shrink or args.gpu:
            print(source(program).split("\n\n\n", 1)[1])
            print(failure.text, flush=True)
    print(f"{sum(found.values())} programs, {time.monotonic() - start:.0f} s: {dict(found)}")
    return int(bool(set(found) - {"right", "refused", "passed over"}) or too_many(found["refused"], sum(found.values())))


if __name__ == "__main__":
    sys.exit(main())
