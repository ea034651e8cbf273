"""`python -m tests.suites.multi_gpu --devices N`: every communicating kernel on N devices, emulated or real."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from tests.suites.multi_gpu.processes import add_arguments, join
from tests.suites.multi_gpu.supervise import LIMIT, as_it_must_be, supervise
from tests.suites.multi_gpu.supervise import names as listed


def names(devices: int, only: Sequence[str]) -> list[str]:
    from tests.suites.multi_gpu import work

    return work.names(devices, only)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.multi_gpu", description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--only", action="append", default=[], help="kernels whose name contains this")
    parser.add_argument("--json", metavar="PATH", help="what became of each, with a hash of its results")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for a kernel; after that it hangs")
    parser.add_argument("--trace", action="store_true", help="trace and serialise only")
    parser.add_argument("--part", default="0/1", help="of these kernels: 1/3 is the second third")
    parser.add_argument("--schedule", action="append", default=[], help="one more run of each, for the same bits: earliest, latest or a seed")
    parser.add_argument("--list", action="store_true", help="names, and nothing else")
    add_arguments(parser)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work and args.processes > 1:
        join(args)
    if args.list:
        print("\n".join(listed("tests.suites.multi_gpu", args.devices, args.only, args.part)))
        return 0
    if args.work:
        from tests import contexts
        from tests.suites.multi_gpu import work

        contexts.share()
        for name in sys.stdin.read().split("\n"):
            print(json.dumps(work.one(work.SUBJECTS[name], args.devices, args.trace, args.schedule)), flush=True)
        return 0
    more = [*(["--trace"] if args.trace else []), *(["--share-gpus"] if args.share_gpus else []), *(f"--schedule={s}" for s in args.schedule)]
    results = supervise("tests.suites.multi_gpu", args.devices, args.only, args.limit, more, print, args.processes, args.part)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)
    return 0 if all(map(as_it_must_be, results)) else 1


if __name__ == "__main__":
    sys.exit(main())
