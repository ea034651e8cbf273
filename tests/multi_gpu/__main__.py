"""`python -m tests.multi_gpu --devices N`: every communicating kernel on N devices, emulated or real."""

from __future__ import annotations

import argparse
import collections
import json
import os
import selectors
import subprocess
import sys
import time
from typing import Any

#: Seconds for one kernel (compiled and run), and for a process to begin.
LIMIT = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.multi_gpu", description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--only", action="append", default=[], help="kernels whose name contains this")
    parser.add_argument("--json", metavar="PATH", help="what became of each, with a hash of its results; '-': as lines")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for a kernel; after that it hangs")
    parser.add_argument("--trace", action="store_true", help="trace and serialise only")
    parser.add_argument("--list", action="store_true", help="names, and nothing else")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.list or args.work:
        from tests.multi_gpu import work

        names = work.names(args.devices, args.only)
        if args.list:
            print("\n".join(names))
            return 0
        return work.run(args.devices, sys.stdin.read().split("\n"), args.trace)
    results = run_all(args.devices, args.only, args.limit, args.trace, show=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)
    counts = collections.Counter(r["status"] for r in results)
    print(f"{args.devices} devices: {len(results)} kernels: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return 0 if set(counts) <= {"right", "skipped"} else 1


def environment(devices: int) -> dict[str, str]:
    """N emulated devices where JAX runs on the CPU. Its thread pool must have room for all of them (JAX 0.10 and 0.11 hang otherwise)."""
    env = dict(os.environ)
    flags = [f for f in env.get("XLA_FLAGS", "").split() if "xla_force_host_platform_device_count" not in f]
    env["XLA_FLAGS"] = " ".join([*flags, f"--xla_force_host_platform_device_count={devices}"])
    env["PJRT_NPROC"] = str(max(2 * devices, 4))
    env.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return env


def run_all(devices: int, only: list[str], limit: float = LIMIT, trace: bool = False, show: bool = False) -> list[dict[str, Any]]:
    """Runs kernels in a process of their own, and in another one from where it hung or died."""
    command = [sys.executable, "-m", "tests.multi_gpu", "--devices", str(devices)] + [f"--only={o}" for o in only]
    listed = subprocess.run([*command, "--list"], env=environment(devices), capture_output=True, text=True)
    if listed.returncode:
        raise RuntimeError(listed.stderr)
    left = listed.stdout.split("\n")[:-1]
    results: list[dict[str, Any]] = []
    while left:
        for result in _process([*command, "--work", *(["--trace"] if trace else [])], left, environment(devices), limit):
            results.append(result)
            left = left[1:]
            if show:
                print(_text(result), flush=True)
    return results


def _process(command: list[str], names: list[str], env: dict[str, str], limit: float) -> Any:
    """What one process says of these kernels, up to the one at which it hangs or dies."""
    worker = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write("\n".join(names))
    worker.stdin.close()
    lines = selectors.DefaultSelector()
    lines.register(worker.stdout, selectors.EVENT_READ)
    begun = time.monotonic()
    try:
        for name in names:
            while lines.select(timeout=max(0.0, begun + limit - time.monotonic())):
                line = worker.stdout.readline()
                if not line.startswith("{") and line:
                    continue
                break
            else:
                yield {"name": name, "status": "hangs", "text": f"no result within {limit:g} s", "seconds": limit}
                return
            if not line:
                yield {"name": name, "status": "dies", "text": f"the process ended: {worker.wait()}", "seconds": time.monotonic() - begun}
                return
            yield json.loads(line)
            begun = time.monotonic()
    finally:
        worker.kill()
        worker.wait()


def _text(result: dict[str, Any]) -> str:
    text = result.get("text", "").strip()
    return f"{result['status']:8} {result['name']:44} {result['seconds']:6.2f} s  {result.get('digest', '')}" + (f"\n    {text}" if text else "")


if __name__ == "__main__":
    sys.exit(main())
