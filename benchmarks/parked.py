"""Loops that carry more accumulators than there are registers: as `SMALT_PARK=auto` decides, over all parked and all spilled.

    PYTHONPATH=jax_plugin:. python benchmarks/parked.py [--first 1000] [--count 150] [--json out.json]

Random loops (`tests/programs/loops/parked.py`), those of the seeds that park at all. One process for each way, one after the other on the same GPU;
CUPTI medians. The kernels' numbers are checked by `tests/gpu/test_running.py`. The table is last.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

WAYS = ("auto", "always", "never")
PASS = "park_accumulators"


def of_seed(seed: int) -> tuple[Any, list[Any], str] | None:
    """The compiled loop, its arguments, and what became of its accumulators; None: they fit."""
    import jax

    import smalt
    from tests.programs.loops.parked import Parked

    program = dataclasses.replace(Parked.of(seed), dynamic=False, tiles=0, is_inside=False, trips=400)
    inputs = program.inputs()
    f = jax.jit(program.function())
    (report,) = smalt.inspect(f, *inputs)
    became = [note.what for note in report.notes if note.by == PASS]
    if not became:
        return None
    args = [jax.device_put(x) for x in inputs]
    return f.lower(*args).compile(), args, became[0]


def measure(seeds: range, out: pathlib.Path) -> None:
    """Seed -> (µs, what became of its accumulators), into a file."""
    import smalt
    from benchmarks.common import device_times, median

    smalt.enable()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        built = list(pool.map(of_seed, seeds))
    times = {seed: (median(device_times(x[0], x[1], 9)), x[2]) for seed, x in zip(seeds, built, strict=True) if x is not None}
    out.write_text(json.dumps(times))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.count)
    if arguments.way is not None:
        measure(seeds, arguments.json)
        return 0
    from benchmarks.common import describe_machine, geometric_mean

    found: dict[str, dict[str, tuple[float, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            file = pathlib.Path(folder, way)
            command = [sys.executable, __file__, "--first", str(seeds.start), "--count", str(len(seeds)), "--way", way, "--json", str(file)]
            subprocess.run(command, check=True, env={**os.environ, "SMALT_PARK": way, "SMALT_CACHE_DIR": ""})
            found[way] = json.loads(file.read_text())
    auto, always, never = (found[way] for way in WAYS)
    rows = sorted((auto[s][0] / never[s][0], auto[s][0] / always[s][0], s, auto[s][1], *(found[way][s][0] for way in WAYS)) for s in auto)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))
    print(f"{describe_machine()}; µs and ratios")
    print(f"{'seed':>8} {'decided':>8} {'auto':>9} {'parked':>9} {'spilled':>9} {'auto/spilled':>13} {'auto/parked':>12}")
    for over_never, over_always, seed, became, *times in rows:
        print(f"{seed:>8} {became:>8} " + " ".join(f"{t:9.1f}" for t in times) + f" {over_never:13.3f} {over_always:12.3f}")
    for name, ratios in (
        ("auto/spilled", [row[0] for row in rows]),
        ("auto/parked", [row[1] for row in rows]),
        ("parked/spilled", [always[s][0] / never[s][0] for s in auto]),
    ):
        slower = sum(ratio > 1.05 for ratio in ratios)
        print(f"{name:>15}: {geometric_mean(ratios):.3f} of {len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f}, {slower} over 1.05")
    return 0


if __name__ == "__main__":
    sys.exit(main())
