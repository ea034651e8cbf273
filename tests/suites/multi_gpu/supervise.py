"""Kernels run in a process of their own: it has N devices from the start, and where it hangs or dies another one goes on behind."""

from __future__ import annotations

import collections
import concurrent.futures
import importlib
import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests import ROOT
from tests.suites.multi_gpu.processes import free_port

#: Seconds for one kernel, compiled and run.
LIMIT = 300.0

#: What JAX has and smalt has not.
REFUSED: frozenset[str] = frozenset()

Result = dict[str, Any]


def environment(devices: int) -> dict[str, str]:
    """N emulated devices where JAX runs on the CPU. Its thread pool must have room for all of them (JAX 0.10 and 0.11 hang otherwise)."""
    env = dict(os.environ)
    flags = [f for f in env.get("XLA_FLAGS", "").split() if "xla_force_host_platform_device_count" not in f]
    env["XLA_FLAGS"] = " ".join([*flags, f"--xla_force_host_platform_device_count={devices}"])
    env["PJRT_NPROC"] = str(max(2 * devices, 4))
    env.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    paths = [str(ROOT / "jax_plugin"), str(ROOT), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return env


def supervise(
    module: str,
    devices: int,
    only: Sequence[str] = (),
    limit: float = LIMIT,
    more: Sequence[str] = (),
    tell: Callable[[str], None] = lambda text: None,
    processes: int = 1,
    part: str = "0/1",
) -> list[Result]:
    """What becomes of each kernel of a module that has `names` and knows `--devices` and `--work` (names on stdin, JSON lines out).

    `part`: of these kernels; "1/3" is the second third.
    """
    command = [sys.executable, "-m", module, "--devices", str(devices)]
    left = names(module, devices, only, part)
    results: list[Result] = []
    while left:
        for result in _processes([*command, "--work", *more], left, environment(devices // processes), limit, processes):
            results.append(result)
            left = left[1:]
            tell(line(result))
    counts = collections.Counter(r["status"] for r in results)
    tell(f"{devices} devices: {len(results)} kernels: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return results


def names(module: str, devices: int, only: Sequence[str], part: str = "0/1") -> list[str]:
    """Those of the kernels that `python -m module` has. They are listed in this process: another one would import JAX for it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    is_package = spec.submodule_search_locations is not None
    found: list[str] = importlib.import_module(f"{module}.__main__" if is_package else module).names(devices, only)
    first, of = map(int, part.split("/"))
    return found[first::of]


def as_it_must_be(result: Result) -> bool:
    """Right; or skipped, for want of something in JAX; or known to be refused."""
    return result["status"] in ("right", "skipped") if result["name"] not in REFUSED else result["status"] == "refused"


def line(result: Result) -> str:
    text = result.get("text", "").strip().replace("\n", "\n    ")
    told = f"{result['status']:8} {result['name']:44} {result['seconds']:6.2f} s  {result.get('digest', '')}"
    return told + (f"\n    {text}" if text else "")


def _processes(command: Sequence[str], names: Sequence[str], env: dict[str, str], limit: float, count: int) -> Iterator[Result]:
    """What processes that share the devices say of these kernels, up to the first of which they do not say the same."""
    if count == 1:
        yield from _process(command, names, env, limit)
        return
    with tempfile.TemporaryDirectory() as share:
        common = [*command, "--processes", str(count), "--port", str(free_port()), "--share", share, "--process"]
        several = [_process([*common, str(i)], names, env, limit) for i in range(count)]
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            try:
                while True:
                    results = [r for r in pool.map(lambda one: next(one, None), several) if r is not None]
                    if len(results) < count:
                        return
                    ill = [r for r in results if r["status"] != results[0]["status"] or r.get("digest") != results[0].get("digest")]
                    if not ill:
                        yield results[0]
                        if results[0]["status"] not in ("right", "skipped", "refused"):
                            return  # they may have come to different points
                        continue
                    texts = (f"process {i}: {r['status']} {r.get('digest', '')} {r.get('text', '')}" for i, r in enumerate(results))
                    yield {**results[0], "status": "wrong", "text": "\n".join(texts)}
                    return
            finally:
                for one in several:
                    one.close()


def _process(command: Sequence[str], names: Sequence[str], env: dict[str, str], limit: float) -> Iterator[Result]:
    """What one process says of these kernels, up to the one at which it hangs or dies."""
    worker = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdin is not None
    worker.stdin.write("\n".join(names))
    worker.stdin.close()
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(worker, said), daemon=True).start()
    try:
        for name in names:
            begun = time.monotonic()
            try:
                result = said.get(timeout=limit)
            except queue.Empty:
                yield {"name": name, "status": "hangs", "text": f"no result within {limit:g} s", "seconds": limit}
                return
            if not result:
                seconds = round(time.monotonic() - begun, 3)
                yield {"name": name, "status": "dies", "text": f"its process ended with {worker.wait()}", "seconds": seconds}
                return
            yield json.loads(result)
    finally:
        worker.kill()
        worker.wait()


def _listen(worker: subprocess.Popen[str], said: queue.SimpleQueue[str]) -> None:
    """Hands on the results, a line each; an empty one at the end."""
    assert worker.stdout is not None
    with worker.stdout:
        for text in worker.stdout:
            if text.startswith('{"name"'):
                said.put(text)
    said.put("")
