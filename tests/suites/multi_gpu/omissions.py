"""Leaves out what the kernels of the suite synchronise with, one call at a time: `python -m tests.suites.multi_gpu.omissions --devices 4`.

Each call of a signal, a wait for a semaphore or a wait for bulk stores, where the kernel is traced, is left out once. Nearly always the
emulator must say so: a deadlock, a race, or what is left at the end. Where it does not the call and what became of the result are printed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu

from tests.suites.multi_gpu.suite import SUBJECTS, Subject, load_all
from tests.suites.multi_gpu.supervise import LIMIT, line, supervise
from tests.suites.multi_gpu.work import one

CALLS = (
    (pl, "semaphore_wait"), (pl, "semaphore_signal"), (plgpu, "wait_smem_to_gmem"), (plgpu, "semaphore_signal_parallel"),
    (plgpu, "semaphore_signal_multicast"),
)  # fmt: skip


@contextlib.contextmanager
def without(number: int | None) -> Iterator[list[str]]:
    """The calls of kernels traced in this scope, as text; that of this number is not made."""
    calls: list[str] = []

    def left_out(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            frame = traceback.extract_stack(limit=2)[0]
            calls.append(f"{name} at {frame.filename.rpartition('/')[2]}:{frame.lineno}")
            return None if len(calls) - 1 == number else call(*args, **kwargs)

        return instead

    kept = [(module, name, getattr(module, name)) for module, name in CALLS]
    try:
        for module, name, call in kept:
            setattr(module, name, left_out(name, call))
        yield calls
    finally:
        for module, name, call in kept:
            setattr(module, name, call)


def names(devices: int, only: Sequence[str]) -> list[str]:
    """One variant of each kernel that is one program."""
    load_all()
    first: dict[str, str] = {}
    for subject in SUBJECTS.values():
        if subject.devices(devices) and not subject.lacks and not subject.name.startswith(("random_program", "shipped_collective")):
            first.setdefault(subject.name.partition("[")[0], subject.name)
    return [name for name in first.values() if not only or any(o in name for o in only)]


def examine(subject: Subject, devices: int) -> dict[str, Any]:
    """How many omissions there were, how many were found, and the others."""
    with without(None) as calls:
        whole = one(subject, devices)
    if whole["status"] != "right":
        return whole
    names, missed, found = list(calls), [], 0
    for number, name in enumerate(names):
        with without(number):
            result = one(subject, devices)
        if result["status"] == "error" and "smalt: " in result["text"]:
            found += 1
        else:
            missed.append(f"{name}: {result['status']} {result['text'][:120]}")
    return {"name": subject.name, "status": "done", "text": "\n".join(missed), "seconds": whole["seconds"], "of": len(names), "found": found}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.multi_gpu.omissions", description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.list:
        print("\n".join(names(args.devices, args.only)))
        return 0
    if args.work:
        load_all()
        for name in sys.stdin.read().split("\n"):
            print(json.dumps(examine(SUBJECTS[name], args.devices)), flush=True)
        return 0
    counts: collections.Counter[str] = collections.Counter()
    for result in supervise("tests.suites.multi_gpu.omissions", args.devices, args.only, 4 * LIMIT):
        counts["calls left out"] += result.get("of", 0)
        counts["found"] += result.get("found", 0)
        if result["text"]:
            print(line(result))
    print(", ".join(f"{what}: {n}" for what, n in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
