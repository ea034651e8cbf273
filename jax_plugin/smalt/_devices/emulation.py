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
    target: str  # the row of `src/target/machines.rs`
    shared_memory: int  # what one block may have at most, in bytes


def _device(kind: str, core_count: int, target: str, kib: int) -> Device:
    number = target.removeprefix("sm_").rstrip("a")
    return Device(kind, core_count, f"{number[:-1]}.{number[-1]}", target, kib << 10)


# Numbers of SMs: NVIDIA's data sheets, and XLA's descriptions of devices (of H100 and H200 the SXM parts, of A100 the one of 80 GB); of
# shared memory: CUDA C++ Programming Guide, "Compute Capabilities".
DEVICES = {
    "A100": _device("NVIDIA A100-SXM4-80GB", 108, "sm_80", 163),
    "A10": _device("NVIDIA A10", 72, "sm_86", 99),
    "RTX A6000": _device("NVIDIA RTX A6000", 84, "sm_86", 99),
    "RTX 3090": _device("NVIDIA GeForce RTX 3090", 82, "sm_86", 99),
    "L4": _device("NVIDIA L4", 58, "sm_89", 99),
    "L40S": _device("NVIDIA L40S", 142, "sm_89", 99),
    "RTX 4090": _device("NVIDIA GeForce RTX 4090", 128, "sm_89", 99),
    "H100": _device("NVIDIA H100 80GB HBM3", 132, "sm_90a", 227),
    "H200": _device("NVIDIA H200", 132, "sm_90a", 227),
    "B200": _device("NVIDIA B200", 148, "sm_100a", 227),
    "GB200": _device("NVIDIA GB200", 152, "sm_100a", 227),
    "GB300": _device("NVIDIA GB300", 152, "sm_103a", 227),
    "RTX 5090": _device("NVIDIA GeForce RTX 5090", 170, "sm_120a", 99),
    "RTX PRO 6000": _device("NVIDIA RTX PRO 6000 Blackwell Server Edition", 188, "sm_120a", 99),
}

#: What GPUs call themselves, and what one block may have of shared memory there: those above, and others of Hopper's.
KINDS = {d.kind: d.shared_memory for d in DEVICES.values()} | dict.fromkeys(
    ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H800", "NVIDIA H20", "NVIDIA GH200 480GB", "NVIDIA GH200 120GB"), 227 << 10
)

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
    """Within the scope, JAX's questions about the GPU are answered for `device`: "A100", "A10", "RTX A6000", "RTX 3090", "L4", "L40S",
    "RTX 4090", "H100", "H200", "B200", "GB200", "GB300", "RTX 5090" or "RTX PRO 6000". Kernels are compiled for it, with its limits: an instruction
    that it lacks is an error.

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
                shared_memory_per_block_optin=about(lambda d: d.shared_memory),
            )
    try:
        yield
    finally:
        with _LOCK:
            _DEPTH -= 1
            if _DEPTH == 0:
                _versions.stop_answering()
