"""What a call of a kernel with PyTorch's tensors costs on the host: smalt's `plgpu.as_torch_kernel` against stock's, in one process on one GPU.

    PYTHONPATH=jax_plugin:. python benchmarks/torch_calls.py

The kernel is small: the time of many calls, one behind the other, is the host's. Medians of rounds, both in turn.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

import smalt
from benchmarks.common import describe_machine
from tests.corpus.case import kernel

CALLS, ROUNDS = 500, 15


def main() -> None:
    import torch

    def add(x: Any, y: Any, o: Any) -> None:
        o[...] = x[...] + y[...]

    call = plgpu.as_torch_kernel(kernel(add, jax.ShapeDtypeStruct((4096,), jnp.float32)))
    x, y = (torch.randn(4096, device="cuda") for _ in range(2))
    times: dict[bool, list[float]] = {True: [], False: []}
    for r in range(ROUNDS):
        for ours in (True, False) if r % 2 else (False, True):
            with smalt.enabled(ours):
                assert torch.equal(call(x, y), x + y)
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(CALLS):
                    call(x, y)
                torch.cuda.synchronize()
                times[ours].append((time.perf_counter() - start) / CALLS * 1e6)
    ours, theirs = statistics.median(times[True]), statistics.median(times[False])
    print(describe_machine(), f"torch {torch.__version__}")
    print(f"a call: smalt {ours:.1f} us, stock {theirs:.1f} us, ratio {ours / theirs:.3f}")


if __name__ == "__main__":
    main()
