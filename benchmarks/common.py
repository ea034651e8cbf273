"""What every benchmark shares: the machine's description, and timing against the peer in one process."""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Launch:
    """Kernels that JAX does not launch: a function of no arguments, what waits for them, and what makes a NumPy array of a result."""

    launch: Callable[[], Any]
    wait: Callable[[], Any]
    to_numpy: Callable[[Any], Any]

    def __call__(self, *_: Any) -> Any:
        out = self.launch()
        self.wait()
        return tuple(map(self.to_numpy, out)) if isinstance(out, tuple) else self.to_numpy(out)

    def times(self, iterations: int) -> list[float]:
        """Device times of launches in microseconds, by CUPTI, which sees the kernels of the whole process."""
        self.launch()
        self.wait()
        cupti = profiler.mosaic_gpu_lib._mosaic_gpu_ext  # what `profiler.measure` calls
        cupti._cupti_init()
        try:
            for _ in range(iterations):
                self.launch()
            self.wait()
        finally:
            found = cupti._cupti_get_timings(True)
        if not found or len(found) % iterations:
            raise RuntimeError(f"the profiler saw {len(found or ())} kernels of {iterations} launches")
        each = len(found) // iterations
        return [sum(ms for _, ms in found[i : i + each]) * 1e3 for i in range(0, len(found), each)]


def device_times(f: Callable[..., Any], args: Sequence[Any], iterations: int) -> list[float]:
    """Device times of one candidate in microseconds (CUPTI)."""
    if isinstance(f, Launch):
        return f.times(iterations)
    _, measured = profiler.measure(f, iterations=iterations)(*args)
    if measured is None:
        raise RuntimeError("the profiler saw no kernel")
    return [ms * 1e3 for ms in (measured if isinstance(measured, list) else [measured])]


def interleaved(
    candidates: Sequence[Callable[..., Any]], args: Sequence[Any], rounds: int = 4, iterations: int = 6
) -> list[list[float]]:
    """Device times in microseconds of each candidate (CUPTI), measured in turn A B … B A … for `rounds` rounds."""
    times: list[list[float]] = [[] for _ in candidates]
    for r in range(rounds):
        order = range(len(candidates)) if r % 2 == 0 else reversed(range(len(candidates)))
        for i in order:
            times[i].extend(device_times(candidates[i], args, iterations))
    return times


def standalone(f: Callable[..., Any], args: Sequence[Any]) -> tuple[_native.Artifact, list[np.ndarray[Any, Any]]]:
    """The one kernel of `f(*args)`, compiled, and the buffers to run it on without XLA: operands, zeroed results, scratch."""
    ((_, descriptor, debug),) = smalt.descriptor(f, *args)
    artifact = _native.compile(descriptor, debug, "sm_90a")
    outs = [np.zeros(o.shape, o.dtype) for o in jax.tree.leaves(jax.eval_shape(f, *args))]
    scratch = [np.zeros(n, np.uint8) for n in artifact.extra_operands.scratch]
    return artifact, [np.array(a) for a in args] + outs + scratch


def median(times: Sequence[float]) -> float:
    return statistics.median(times)


def medians(candidates: dict[str, Callable[..., Any]], args: Sequence[Any], rounds: int = 8, iterations: int = 8) -> dict[str, float]:
    """The median device time of each candidate, measured in turn."""
    times = interleaved(list(candidates.values()), args, rounds, iterations)
    return {name: median(t) for name, t in zip(candidates, times)}


def compiled(functions: dict[str, Callable[..., Any]], args: Sequence[Any]) -> dict[str, Callable[..., Any]]:
    """The functions as smalt compiles them."""
    with smalt.enabled():
        return {name: jax.jit(f).lower(*args).compile() for name, f in functions.items()}


def xla_dot(a: jax.Array, b: jax.Array) -> Callable[..., Any]:
    """A matmul by XLA (cuBLAS), in the operands' type."""
    return jax.jit(lambda a, b: jax.numpy.dot(a, b, preferred_element_type=a.dtype)).lower(a, b).compile()


def normal_f16(*shapes: tuple[int, ...]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jax.numpy.asarray(rng.standard_normal(shape), jax.numpy.float16) for shape in shapes]


def geometric_mean(ratios: Sequence[float]) -> float:
    return statistics.geometric_mean(ratios)
