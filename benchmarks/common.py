"""What every benchmark shares: the machine's description, and timing against the peer in one process."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.mosaic.gpu import profiler

import smalt
from smalt import _native


def describe_machine() -> str:
    """GPU, driver, JAX: one line to print beside every number."""
    device = jax.devices()[0]
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        gpu = str(device.device_kind)
    return f"{gpu}, jax {jax.__version__}"


def interleaved(
    candidates: Sequence[Callable[..., Any]], args: Sequence[Any], rounds: int = 4, iterations: int = 6
) -> list[list[float]]:
    """Device times in microseconds of each candidate (CUPTI), measured in turn A B … B A … for `rounds` rounds."""
    times: list[list[float]] = [[] for _ in candidates]
    for r in range(rounds):
        order = range(len(candidates)) if r % 2 == 0 else reversed(range(len(candidates)))
        for i in order:
            _, measured = profiler.measure(candidates[i], iterations=iterations)(*args)
            if measured is None:
                raise RuntimeError("the profiler saw no kernel")
            times[i].extend(ms * 1e3 for ms in measured)
    return times


def standalone(f: Callable[..., Any], args: Sequence[Any]) -> tuple[_native.Artifact, list[np.ndarray[Any, Any]]]:
    """The one kernel of `f(*args)`, compiled, and the buffers to run it on without XLA: operands, zeroed results, scratch."""
    ((_, descriptor, debug),) = smalt.descriptor(f, *args)
    artifact = _native.compile(descriptor, debug, "sm_90a")
    outs = [np.zeros(o.shape, o.dtype) for o in jax.tree.leaves(jax.eval_shape(f, *args))]
    scratch = [np.zeros(n, np.uint8) for n in artifact.scratch_bytes]
    return artifact, [np.array(a) for a in args] + outs + scratch


def median(times: Sequence[float]) -> float:
    return statistics.median(times)


def geometric_mean(ratios: Sequence[float]) -> float:
    return statistics.geometric_mean(ratios)
