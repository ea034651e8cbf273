"""`smalt.emulated`: a machine with no GPU answers JAX's questions about the device as that GPU would."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

from smalt import _config, _versions


@dataclasses.dataclass(frozen=True)
class Device:
    """What kernels ask about a GPU at trace time."""

    kind: str
    core_count: int  # streaming multiprocessors
    compute_capability: str
    target: str


# Numbers of SMs: NVIDIA's data sheets of the SXM parts.
DEVICES = {
    "H100": Device("NVIDIA H100 80GB HBM3", 132, "9.0", "sm_90a"),
    "H200": Device("NVIDIA H200", 132, "9.0", "sm_90a"),
    "B200": Device("NVIDIA B200", 148, "10.0", "sm_100a"),
}

# What becomes of what the checker finds, as the custom call's `flags` say it; 0: as SMALT_CHECK says.
CHECKS = {"error": 1, "warn": 2, "off": 3}

_LOCK = threading.Lock()
_DEPTH = 0


def current() -> Device | None:
    """The device emulated in this thread."""
    name = _config.settings().device
    return None if name is None else DEVICES[name]


def flags() -> int:
    """The custom call's `flags` in this scope."""
    check = _config.settings().check
    return 0 if check is None else CHECKS[check]


@contextlib.contextmanager
def emulated(device: str = "H100", *, check: str | None = None) -> Iterator[None]:
    """Within the scope, JAX's questions about the GPU are answered for `device` ("H100", "H200", "B200").

    Kernels that ask at trace time (for the number of SMs, the architecture or the CUDA version), the shipped ones
    among them, then trace on a machine with no GPU, and smalt (enabled within the scope) runs them in its emulator.

    What the emulator's checker finds (races, missing waits) is an error with `check="error"`, told on stderr once per
    line with "warn", and not looked for with "off"; None: as the scope around says, else `SMALT_CHECK`, else an error.
    """
    if device not in DEVICES:
        raise ValueError(f"device: expected one of {', '.join(DEVICES)}, got {device!r}")
    if check is not None and check not in CHECKS:
        raise ValueError(f"check: expected one of {', '.join(CHECKS)}, got {check!r}")
    about, now = DEVICES[device], _config.settings()
    settings = dataclasses.replace(now, enabled=True, device=device, check=check or now.check)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_config.scoped(settings))
        stack.enter_context(_versions.abstract_device_scope(about.kind, about.core_count, about.compute_capability))
        stack.enter_context(_device_attributes())
        yield


@contextlib.contextmanager
def _device_attributes() -> Iterator[None]:
    """CPU devices have a `core_count` and a `compute_capability` while some thread is in an `emulated` scope."""
    global _DEPTH
    with _LOCK:
        _DEPTH += 1
        if _DEPTH == 1:
            _versions.answer_for_cpu_devices(
                core_count=lambda: (d := current()) and d.core_count,
                compute_capability=lambda: (d := current()) and d.compute_capability,
            )
    try:
        yield
    finally:
        with _LOCK:
            _DEPTH -= 1
            if _DEPTH == 0:
                _versions.stop_answering()
