"""The machine that there is for suites that `tests/gpu` and the emulator's tests share: a GPU or the emulator, and what kernels are compiled for.

`SMALT_TARGET` says for which machine. Emulated is a GPU that is this machine, or one that takes its PTX; `SMALT_TESTS_DEVICE` names another one.
"""

from __future__ import annotations

import os
from typing import Any

import jax

import smalt
from smalt import _native
from smalt._devices import emulation

ON_GPU = jax.default_backend() == "gpu"
HOPPER = "sm_90a"

#: A GPU that is a machine.
GPUS = {d.target: name for name, d in reversed(emulation.DEVICES.items())}


def target() -> str:
    """What kernels are compiled for that are compiled by name."""
    return os.environ.get("SMALT_TARGET") or HOPPER


def device() -> str:
    """The GPU that is emulated."""
    return os.environ.get("SMALT_TESTS_DEVICE") or GPUS.get(target()) or GPUS.get(f"{target()}a") or "H100"


def host() -> str:
    """The machine that runs kernels, on a GPU or emulated: what they are compiled for is in their descriptors."""
    if not ON_GPU:
        return emulation.DEVICES[device()].target
    major, minor = jax.devices()[0].compute_capability.split(".")
    return _native.target_of((int(major), int(minor)))


def has_memory() -> bool:
    """Whether a block may have as much shared memory as on a Hopper."""
    return _row().shared_memory >= _native.machines()[HOPPER].shared_memory


def _row() -> _native.Machine:
    machines = _native.machines()
    return machines.get(target()) or machines[HOPPER]


def has(feature: str) -> bool:
    """Whether what kernels are compiled for has this part."""
    return feature in _row().features


def has_producers() -> bool:
    return _row().producers


def on_host() -> Any:
    """A scope for what kernels are held against: XLA's programs for GPUs are no reference (of int4 they are wrong)."""
    return jax.default_device(jax.local_devices(backend="cpu")[0])


def emulated(check: str | None = None) -> Any:
    return smalt.emulated(device(), check=check)


def enabled(on_gpu: bool = ON_GPU) -> Any:
    """smalt for kernels of this machine: a GPU, or the emulator."""
    return smalt.enabled(True, pallas_call=True) if on_gpu else emulated()
