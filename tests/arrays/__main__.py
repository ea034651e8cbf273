"""python -m tests.arrays [--count N] [--seed S] [--jobs J] [--show SEED] [--shrink] [--how H] [--schedule S]: random programs against JAX's interpreter.

To hold a GPU to the emulator's bits, on a machine without one, then on the GPU's:

    python -m tests.arrays --count 1000 --write arrays.npz
    XLA_PYTHON_CLIENT_PREALLOCATE=false python -m tests.arrays --count 1000 --compare arrays.npz --jobs 12
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import time

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def main() -> int:
    from tests.arrays.apart import APART, apart

    parser = argparse.ArgumentParser(prog="python -m tests.arrays", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", help="these alone, separated by commas")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=120, help="seconds for one program, after which it is called hanging")
    parser.add_argument("--show", type=int, help="prints the program of a seed")
    parser.add_argument("--shrink", action="store_true", help="makes failing programs small, and prints them")
    parser.add_argument("--how", choices=sorted(APART), help="by 2 or 3 warpgroups that hand on their results, or by the warps of warp regions")
    parser.add_argument("--schedule", help="the emulator's: latest, earliest, or a seed; otherwise as the environment says")
    parser.add_argument("--write", help="keeps the digests of all outputs")
    parser.add_argument("--compare", help="holds the digests to kept ones, bit for bit, instead of results to JAX")
    parser.add_argument("--slow", type=float, default=5, help="tells of programs that take longer (seconds)")
    parser.add_argument("--log", help="a file for the results, one a line, as JSON")
    args = parser.parse_args()
    if args.schedule:
        # Read by the processes that run programs.
        os.environ.pop("SMALT_SCHEDULE", None)
        os.environ.pop("SMALT_SEED", None)
        os.environ["SMALT_SEED" if args.schedule.isdigit() else "SMALT_SCHEDULE"] = args.schedule

    from tests import too_many
    from tests.arrays import kept
    from tests.arrays.program import Program
    from tests.arrays.generate import generate
    from tests.arrays.pool import results

    def program(seed: int) -> Program:
        p = generate(seed)
        return apart(p, args.how) or p

    if args.show is not None:
        print(program(args.show))
        return 0
    known = kept.read(args.compare) if args.compare else {}
    seeds = [int(s) for s in args.seeds.split(",")] if args.seeds else list(range(args.seed, args.seed + args.count))
    counts: collections.Counter[str] = collections.Counter()
    found = {}
    start = time.perf_counter()
    for result in results(seeds, args.jobs, args.limit, judged=not args.compare, how=args.how):
        if args.compare and result.kind == "right":
            result = kept.held(result, known)
        found[result.seed] = result
        counts[result.kind] += 1
        if result.kind not in ("right", "invalid", "refused", "passed over") or result.seconds > args.slow:
            print(f"{result.seed}: {result.kind}, {result.seconds:.1f} s: {result.text[:1500]}", flush=True)
        elif result.kind not in ("right", "passed over"):
            print(f"{result.seed}: {result.kind}: {' / '.join(line.strip() for line in result.text.splitlines()[:3])[:300]}", flush=True)
        if args.log:
            kept.log(args.log, result)
    if args.write:
        kept.write(args.write, found)
    said = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
    took = sorted(r.seconds for r in found.values())
    second = sorted(r.seed for r in found.values() if r.second)
    if second:
        print(f"right only as JAX has it without XLA's simplifier: {len(second)} ({', '.join(map(str, second[:40]))})")
    print(f"{said} of {len(seeds)}; {time.perf_counter() - start:.0f} s; kernels: median {took[len(took) // 2]:.2f} s, most {took[-1]:.1f} s")
    bad = [r for r in found.values() if r.kind in ("wrong", "race", "error", "hangs")]
    if args.shrink:
        import smalt
        from tests.arrays.shrink import shrink

        smalt.enable()
        for r in bad:
            small, again = shrink(program(r.seed), r)
            print(f"\n{again.kind}: {again.text[:1500]}\n{small}\n{small!r}", flush=True)
    return int(bool(bad) or too_many(counts["refused"], len(seeds)))


if __name__ == "__main__":
    sys.exit(main())
