"""`smalt.emulated`: a machine with no GPU answers JAX's questions about the device as that GPU would."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

from smalt import _config, _versions
from smalt._errors import InvalidArgument


@dataclasses.dataclass(frozen=True)
class Device:
    """What kernels, and libraries of kernels, query of a GPU at trace time."""

    kind: str
    core_count: int  # streaming multiprocessors
    compute_capability: str
    target: str


#: What one block may have at most: 227 KiB since Hopper (CUDA C++ Programming Guide, "Compute Capabilities").
SHARED_MEMORY = 227 << 10

# Numbers of SMs: NVIDIA's data sheets of the SXM parts.
DEVICES = {
    "H100": Device("NVIDIA H100 80GB HBM3", 132, "9.0", "sm_90a"),
    "H200": Device("NVIDIA H200", 132, "9.0", "sm_90a"),
    "B200": Device("NVIDIA B200", 148, "10.0", "sm_100a"),
}

#: What Hopper GPUs call themselves.
KINDS = (
    *(d.kind for d in DEVICES.values() if d.target == "sm_90a"),
    "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H800", "NVIDIA H20", "NVIDIA GH200 480GB", "NVIDIA GH200 120GB",
)  # fmt: skip

# What becomes of what the checker finds, as in the custom call's `flags`; 0: by SMALT_CHECK.
CHECKS = {"error": 1, "warn": 2, "off": 3}

_LOCK = threading.Lock()
_DEPTH = 0


def emulated_device() -> Device | None:
    """The device emulated in this thread."""
    name = _config.settings().device
    return None if name is None else DEVICES[name]


def emulation_flags() -> int:
    """The custom call's `flags` in this scope."""
    check = _config.settings().check
    return 0 if check is None else CHECKS[check]


@contextlib.contextmanager
def emulated(device: str = "H100", *, check: str | None = None) -> Iterator[None]:
    """Within the scope, JAX's questions about the GPU are answered for `device` ("H100", "H200", "B200").

    Kernels that query a GPU at trace time (the number of SMs, the architecture or the CUDA version), the shipped ones
    among them, then trace on a machine with no GPU, and smalt (enabled within the scope) runs them in its emulator. So do libraries
    that choose their kernels by `device.platform`, `device_kind`, `compute_capability`, `core_count` or
    `shared_memory_per_block_optin`, of `jax.devices()` or of an array. JAX itself sees the CPU, and runs on it whatever is no kernel.

    What the emulator's checker finds (races, missing waits) is an error with `check="error"`, reported on stderr once per
    line with "warn", and not looked for with "off"; None: as in the enclosing scope, else by `SMALT_CHECK`, else an error.
    """
    _check_choice("device", device, DEVICES)
    if check is not None:
        _check_choice("check", check, CHECKS)
    about, now = DEVICES[device], _config.settings()
    settings = dataclasses.replace(now, enabled=True, device=device, check=check or now.check)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_config.scoped(settings))
        stack.enter_context(_versions.abstract_device_scope(about.kind, about.core_count, about.compute_capability))
        stack.enter_context(_device_attributes())
        yield


def _check_choice(name: str, value: object, known: Collection[str]) -> None:
    if value in known:
        return
    choices = ", ".join(map(repr, known))
    nearest = [*difflib.get_close_matches(str(value), known, 1), *known][0]
    raise InvalidArgument(f"smalt.emulated: `{name}`\n  expected: one of {choices}\n  got: {value!r}\n  remedy: {name}={nearest!r}")


@contextlib.contextmanager
def _device_attributes() -> Iterator[None]:
    """CPU devices answer like the emulated one while some thread is in an `emulated` scope, in that thread."""
    global _DEPTH

    def about(answer: Callable[[Device], Any]) -> Callable[[], Any]:
        return lambda: (device := emulated_device()) and answer(device)

    with _LOCK:
        _DEPTH += 1
        if _DEPTH == 1:
            _versions.answer_for_cpu_devices(
                platform=about(lambda d: "gpu"),
                device_kind=about(lambda d: d.kind),
                core_count=about(lambda d: d.core_count),
                compute_capability=about(lambda d: d.compute_capability),
                shared_memory_per_block_optin=about(lambda d: SHARED_MEMORY),
            )
    try:
        yield
    finally:
        with _LOCK:
            _DEPTH -= 1
            if _DEPTH == 0:
                _versions.stop_answering()
