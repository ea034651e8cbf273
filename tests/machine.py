"""The machine that there is for suites that `tests/gpu` and the emulator's tests share."""

from __future__ import annotations

from typing import Any

import jax

import smalt

ON_GPU = jax.default_backend() == "gpu"


def enabled(on_gpu: bool = ON_GPU) -> Any:
    """smalt for kernels of this machine: a GPU, or the emulator."""
    return smalt.enabled(True, pallas_call=True) if on_gpu else smalt.emulated("H100")
