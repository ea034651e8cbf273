"""python -m tests.blocks [--kind blocks|dependent|values|jvp|vjp] [--count N] [--seed S] [--jobs J]: random calls."""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import multiprocessing

import smalt
from tests import too_many
from tests.blocks.run import KINDS, Result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.blocks")
    parser.add_argument("--kind", choices=KINDS, default="blocks")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    seeds = range(args.seed, args.seed + args.count)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.jobs, context, initializer=smalt.enable) as pool:
        for result in pool.map(KINDS[args.kind], seeds, chunksize=10):
            counts[result.kind] += 1
            _tell(result)
    print(", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())), f"of {args.count}")
    return int(counts["wrong"] + counts["error"] > 0 or too_many(counts["refused"], args.count))


def _tell(result: Result) -> None:
    if result.kind != "right":
        print(f"{result.seed}: {result.kind}: {result.text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
