"""Runs corpus cases through smalt and holds them against their references.

    PYTHONPATH=jax_plugin:. python -m tests.corpus.run [NAME…] [--workers 4] [--timeout 120] [--json FILE]

Each case runs in a worker process, so that a kernel that hangs or crashes costs one case. On a machine with a GPU the cases run
there, else in the emulator. The table is last; the exit code counts failures, cases that smalt refuses with a clear
"not supported yet" apart.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from typing import Any


def run_one(name: str) -> dict[str, Any]:
    """Runs one case in this process."""
    import jax

    import smalt
    from tests.corpus import load_all

    case = load_all()[name]
    start = time.monotonic()
    try:
        with case.scope(), smalt.enabled(True):
            inputs = case.inputs()
            got = jax.block_until_ready(jax.jit(case.fn)(*inputs))
            case.check(got, inputs)
        outcome, detail = "ok", ""
    except AssertionError as e:
        outcome, detail = "wrong", str(e)
    except smalt.Unsupported as e:
        outcome, detail = "unsupported", str(e)
    except Exception as e:  # noqa: BLE001: everything else is a finding
        text = f"{type(e).__name__}: {e}"
        outcome, detail = ("unsupported" if "not supported yet" in text else "error"), text
    return {"name": name, "outcome": outcome, "detail": detail[:1500], "seconds": time.monotonic() - start}


def worker() -> None:
    from tests import contexts

    contexts.share()
    for line in sys.stdin:
        result = run_one(line.strip())
        print("RESULT " + json.dumps(result), flush=True)


class Worker:
    """A worker process that is replaced when it hangs or dies."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def run(self, name: str, timeout: float) -> dict[str, Any]:
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, "-m", "tests.corpus.run", "--worker"]
            # The worker finds what this process finds, however that was asked of it.
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        process = self.process
        assert process.stdin and process.stdout
        process.stdin.write(name + "\n")
        process.stdin.flush()
        killed = threading.Event()
        timer = threading.Timer(timeout, lambda: (killed.set(), process.kill()))
        timer.start()
        try:
            for line in process.stdout:
                if line.startswith("RESULT "):
                    return dict(json.loads(line[len("RESULT ") :]))
        finally:
            timer.cancel()
        process.wait()
        self.process = None
        outcome = "hang" if killed.is_set() else "crash"
        return {"name": name, "outcome": outcome, "detail": f"exit {process.returncode}", "seconds": timeout}


def run_all(names: list[str], workers: int, timeout: float) -> list[dict[str, Any]]:
    todo: queue.Queue[str] = queue.Queue()
    for name in names:
        todo.put(name)
    results: list[dict[str, Any]] = []

    def loop() -> None:
        own = Worker()
        while True:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                break
            results.append(own.run(name, timeout))
        if own.process is not None:
            own.process.kill()

    threads = [threading.Thread(target=loop) for _ in range(workers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sorted(results, key=lambda r: r["name"])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--target", default="hopper")
    parser.add_argument("--small", action="store_true", help="leave out what takes long in an interpreter")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.worker:
        worker()
        return 0
    from tests.corpus import load_all

    cases = load_all()
    names = options.names or [
        name
        for name, case in cases.items()
        if case.reference is not None and case.target == options.target and not (options.small and case.large)
    ]
    results = run_all(names, options.workers, options.timeout)
    if options.json:
        with open(options.json, "w") as f:
            json.dump(results, f, indent=1)
    counts: dict[str, int] = {}
    for r in results:
        counts[r["outcome"]] = counts.get(r["outcome"], 0) + 1
        if r["outcome"] != "ok":
            print(f"{r['outcome']:11} {r['name']}: {' | '.join(r['detail'].splitlines())[:300]}")
    print(f"\n{len(results)} cases: " + ", ".join(f"{n} {k}" for k, n in sorted(counts.items())))
    return sum(n for k, n in counts.items() if k not in ("ok", "unsupported"))


if __name__ == "__main__":
    sys.exit(main())
