"""`python -m tests.oracles.functions [--select TEXT] [--json FILE] [--jobs N]`: runs the table and says what is not right.

`--write` keeps the results in `tests/oracles/functions/results/` (by the platform that ran them) and writes `docs/SUPPORT.md` anew.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import sys
import time

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracles.functions", description=__doc__)
    parser.add_argument("--select", default="", help="cases whose name has one of these texts (separated by commas)")
    parser.add_argument("--json", type=pathlib.Path, help="where to write the results")
    parser.add_argument("--write", action="store_true", help="keep the results, and write docs/SUPPORT.md")
    parser.add_argument("--jobs", type=int, default=0, help="processes; default: one a core, one on a GPU")
    parser.add_argument("--limit", type=float, default=0, help="seconds after which no further cases are started")
    parser.add_argument("--again", type=pathlib.Path, help="earlier results (--json): what was right there is not run again")
    parser.add_argument("--quiet", action="store_true", help="totals only")
    arguments = parser.parse_args()

    import jax

    from tests.oracles.functions import judge, support
    from tests.oracles.functions.table import CASES

    platform = "gpu" if jax.default_backend() in ("gpu", "cuda") else "emulator"
    words = [w for w in arguments.select.split(",") if w]
    names = [n for n in CASES if not words or any(w in n for w in words)]
    known = json.loads(arguments.again.read_text())["calls"] if arguments.again else {}
    known = {n: {"status": "right", "says": ""} for n in names if known.get(n, ("",))[0] == "right"}
    names = [n for n in names if n not in known]
    jobs = arguments.jobs or (1 if platform == "gpu" else os.cpu_count() or 1)
    start = time.perf_counter()
    if jobs == 1:
        outcomes = {n: judge.by_name(n) for n in names}
    else:
        outcomes = {}
        with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            for name, outcome in zip(names, pool.map(judge.by_name, names, chunksize=8)):
                outcomes[name] = outcome
                if arguments.limit and time.perf_counter() - start > arguments.limit:
                    pool.shutdown(cancel_futures=True)
                    break
    outcomes = {**known, **outcomes}
    for name, outcome in outcomes.items():
        if outcome["status"] != "right" and not arguments.quiet:
            print(f"{outcome['status']:<8} {name}: {outcome['says']}")
    counts = collections.Counter(o["status"] for o in outcomes.values())
    total = ", ".join(f"{n} {status}" for status, n in counts.most_common())
    print(f"{len(outcomes)} of {len(names) + len(known)} calls on {platform}, jax {jax.__version__}: {total}; {time.perf_counter() - start:.0f} s")
    results = {"jax": jax.__version__, "calls": {n: [o["status"], o["says"]] for n, o in outcomes.items()}}
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    if arguments.write:
        support.keep(platform, results)
    return int(counts["wrong"] + counts["error"] > 0)


if __name__ == "__main__":
    sys.exit(main())
