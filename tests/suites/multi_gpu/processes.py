"""The devices of the suite as several processes', each with GPUs of its own (or all with the same): arrays whose parts lie in different processes."""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import pathlib
import pickle
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

#: Seconds that a process waits for another's part of an array.
PATIENCE = 60.0

_SHARE: list[pathlib.Path] = []
_FETCHED = [0]
_SHARE_GPUS = [False]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of a command that can be several processes. Who starts them gives each its `--process`."""
    parser.add_argument("--processes", type=int, default=1, help="that many processes, each with its part of the GPUs")
    parser.add_argument("--share-gpus", action="store_true", help="all of them with the same GPUs")
    parser.add_argument("--process", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--share", help=argparse.SUPPRESS)


def join(args: argparse.Namespace) -> None:
    """Makes this process one of `args.processes`. Where they share GPUs, JAX must not take all memory (`supervise.environment`)."""
    each = getattr(args, "devices", args.processes) // args.processes
    first = 0 if args.share_gpus else args.process * each
    gpus = list(range(first, first + each))
    jax.distributed.initialize(f"localhost:{args.port}", args.processes, args.process, local_device_ids=gpus)
    _SHARE.append(pathlib.Path(args.share))
    _SHARE_GPUS[0] = args.share_gpus


def share_gpus() -> bool:
    """Whether this is one of several processes with the same GPUs."""
    return _SHARE_GPUS[0]


def run(main: Callable[[], int]) -> NoReturn:
    """Runs the process to its end. One of several waits for the others' ends: they die with the first that JAX misses.

    But not as long as JAX would wait itself, if they have failed.
    """
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    if not _SHARE:
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    (_SHARE[0] / f"ended.{jax.process_index()}").touch()
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not all((_SHARE[0] / f"ended.{i}").exists() for i in range(jax.process_count())):
        time.sleep(0.01)
    os._exit(code)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def together(command: Sequence[str], count: int, share_gpus: bool = False, limit: float = 300.0) -> tuple[int, str]:
    """Runs `count` processes of a command that takes `add_arguments`: the first exit code that is not 0, and what they all said."""
    with tempfile.TemporaryDirectory() as share:
        common = [*command, "--processes", str(count), "--port", str(free_port()), "--share", share, *(["--share-gpus"] if share_gpus else [])]
        several = [
            subprocess.Popen([*common, "--process", str(i)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1)
            for i in range(count)
        ]
        try:
            with concurrent.futures.ThreadPoolExecutor(count) as pool:
                said = list(pool.map(lambda one: one.communicate(timeout=limit)[0], several))
        finally:
            for one in several:
                one.kill()
                one.wait()
    codes = [one.returncode for one in several]
    return next(filter(None, codes), 0), "".join(f"[{i}] {line}\n" for i, text in enumerate(said) for line in text.splitlines())


def place(x: Any, mesh: Any, spec: Any) -> Any:
    """An array on the devices of a mesh; every process has the whole of `x`."""
    sharding = jax.sharding.NamedSharding(mesh, spec)
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def fetch(x: Any) -> np.ndarray[Any, Any]:
    """The whole of an array. Processes call it in the same order."""
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
        return np.asarray(x)
    number = _FETCHED[0]
    _FETCHED[0] += 1
    parts = [(shard.index, np.asarray(shard.data)) for shard in x.addressable_shards]
    own = _SHARE[0] / f"{number}.{jax.process_index()}"
    draft = own.with_name(own.name + ".draft")
    draft.write_bytes(pickle.dumps(parts))
    os.replace(draft, own)
    whole = np.zeros(x.shape, x.dtype)
    for process in range(jax.process_count()):
        for index, part in _read(_SHARE[0] / f"{number}.{process}"):
            whole[index] = part
    return whole


def _read(path: pathlib.Path) -> Sequence[tuple[Any, np.ndarray[Any, Any]]]:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"no {path.name}: another process did not come to it")
        time.sleep(0.002)
    parts: Sequence[tuple[Any, np.ndarray[Any, Any]]] = pickle.loads(path.read_bytes())
    return parts
