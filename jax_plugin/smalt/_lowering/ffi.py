"""Registers the custom call's handlers with XLA, when the first kernel is lowered for a platform."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable

import jax.ffi

from smalt import _devices, _native

TARGET_NAME = "smalt_kernel"
# The same, never recorded into a CUDA graph: what it prints, its profile, or whether a wait took too long is read by the host behind each launch.
UNCAPTURED_TARGET_NAME = "smalt_kernel_uncaptured"

# platform -> target -> stage -> number of the handler (src/ffi/handlers.rs, `smalt_xla_handler`)
_HANDLERS = {
    "cpu": {
        TARGET_NAME: {"instantiate": 0, "execute": 1},
        UNCAPTURED_TARGET_NAME: {"instantiate": 0, "execute": 1},
    },
    "cuda": {
        TARGET_NAME: {"instantiate": 2, "initialize": 3, "execute": 4},
        UNCAPTURED_TARGET_NAME: {"instantiate": 2, "initialize": 3, "execute": 5},
    },
}
# JAX's names and XLA's.
_PLATFORM_NAMES = {"cpu": "cpu", "cuda": "CUDA", "gpu": "CUDA", "CUDA": "CUDA"}

_registered: set[str] = set()
_lock = threading.Lock()


def register(platforms: Iterable[str] = ("cpu", "cuda")) -> None:
    """Registers the targets for these platforms, once. A process that only loads exported programs calls it too.

    May be called at any time and in any order: the handlers register their state's type by themselves.
    """
    for platform in platforms:
        name = _PLATFORM_NAMES.get(platform)
        if name is None:
            continue  # XLA reports that there is no such target
        with _lock:
            if name in _registered:
                continue
            for target, stages in _HANDLERS[name.lower()].items():
                bundle = {stage: jax.ffi.pycapsule(_as_pointer(number)) for stage, number in stages.items()}
                jax.ffi.register_ffi_target(target, bundle, platform=name, api_version=1)
            _native.set_directory(_devices.answer)
            _registered.add(name)


def _as_pointer(number: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(_native.xla_handler(number))
