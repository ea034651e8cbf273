"""Random loops on the GPU, for tools that watch a process: `python -m tests.gpu.run_loops parked.Parked 0 8`, kind and seeds."""

from __future__ import annotations

import importlib
import sys

import jax

import smalt
from tests.kernels.loops import Loops


def main() -> None:
    kind, first, last = sys.argv[1:]
    module, name = kind.split(".")
    of = getattr(importlib.import_module(f"tests.kernels.{module}"), name).of
    for seed in range(int(first), int(last)):
        program: Loops = of(seed)
        with smalt.enabled(True):
            program.check(jax.tree.leaves(jax.jit(program.function())(*program.inputs())))
    print(f"{int(last) - int(first)} right")


if __name__ == "__main__":
    main()
