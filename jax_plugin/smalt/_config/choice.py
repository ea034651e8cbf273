"""Who compiles Pallas:MGPU kernels: a state of JAX's, so that it is part of every cache key.

Environment variables are read here and nowhere else in the package:

| variable | meaning |
|---|---|
| `SMALT_ENABLE` | 1: as if `smalt.enable()` had been called at import |
| `SMALT_PALLAS_CALL` | 0: the default of `enable(pallas_call=…)` is False |
| `SMALT_TRITON` | 0: the default of `enable(triton=…)` is False |
| `SMALT_TARGET` | what kernels without a `target` of their own are compiled for, e.g. `sm_80` |
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator
from typing import Any

from smalt import _versions
from smalt._config import takeover
from smalt._errors import InvalidArgument

DEFAULT_TARGET = "sm_90a"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `enable`, `enabled` and `emulated` choose."""

    enabled: bool = False
    pallas_call: bool = True  # whether pl.pallas_call(compiler_params=None) is taken
    triton: bool = True  # whether pl.pallas_call with Triton's parameters is taken
    device: str | None = None  # the emulated device
    check: str | None = None  # what becomes of what the emulator's checker finds; None: by SMALT_CHECK


def _from_environment() -> Settings:
    return Settings(
        enabled=_switch("SMALT_ENABLE", False),
        pallas_call=_switch("SMALT_PALLAS_CALL", True),
        triton=_switch("SMALT_TRITON", True),
    )


def _switch(name: str, default: bool) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value in ("", "0", "1", "true", "false", "on", "off"):
        return value in ("1", "true", "on") if value else default
    raise InvalidArgument(
        f"smalt: the environment variable {name}\n  expected: 0 or 1\n  got: {value!r}"
        f"\n  remedy: {name}=1, or {name}=0"
    )


_DEFAULT = _from_environment()
_STATE = _versions.make_state(dataclasses.replace(_DEFAULT, enabled=False))
_LOCK = threading.Lock()


def settings() -> Settings:
    """The settings in force in this thread."""
    return _STATE.value  # type: ignore[no-any-return]


def enable(*, pallas_call: bool | None = None, triton: bool | None = None) -> None:
    """From here on, in every thread, smalt compiles Pallas's GPU kernels: the same ones on a CPU (in the emulator) and on a GPU.

    These are `plgpu.kernel`, and `pl.pallas_call` with `plgpu.CompilerParams`, with `smalt.CompilerParams`, with Triton's
    `plt.CompilerParams`, with a TPU's `pltpu.CompilerParams`, or with no compiler parameters.

    Args:
        pallas_call: Whether `pl.pallas_call` with no parameters is taken. In stock JAX such a call means Triton on CUDA, and nothing on a
            CPU. False leaves it to JAX on both; None: by `SMALT_PALLAS_CALL`, else True. On CUDA, a taken one that needs what smalt
            lacks goes to the compiler that JAX has for it, with a warning; one that is wrong is an error.
        triton: The same of `pl.pallas_call` with the parameters of `jax.experimental.pallas.triton`; None: by `SMALT_TRITON`, else True.
    """
    calls = _DEFAULT.pallas_call if pallas_call is None else pallas_call
    _choose_for_all(Settings(True, calls, _DEFAULT.triton if triton is None else triton))


def disable() -> None:
    """From here on, Pallas's GPU kernels are JAX's own business again."""
    _choose_for_all(dataclasses.replace(_DEFAULT, enabled=False))


def _choose_for_all(value: Settings) -> None:
    with _LOCK:
        was = _versions.global_value(_STATE).enabled
        if value.enabled:
            takeover.hold()
        _versions.set_global(_STATE, value)
        if was:
            takeover.release()


def begin() -> None:
    """Makes the choice of the environment."""
    if _DEFAULT.enabled:
        enable()


@contextlib.contextmanager
def scoped(value: Settings) -> Iterator[None]:
    if not value.enabled:
        with _STATE(value):
            yield
        return
    takeover.hold()
    try:
        with _STATE(value):
            yield
    finally:
        takeover.release()


@contextlib.contextmanager
def enabled(value: bool = True, *, pallas_call: bool | None = None, triton: bool | None = None) -> Iterator[None]:
    """`with smalt.enabled(True):` makes the choice of `enable` or `disable` for this thread and this scope."""
    now = settings() if value else dataclasses.replace(settings(), pallas_call=_DEFAULT.pallas_call, triton=_DEFAULT.triton)
    calls = now.pallas_call if pallas_call is None or not value else pallas_call
    ours = now.triton if triton is None or not value else triton
    with scoped(dataclasses.replace(now, enabled=value, pallas_call=calls, triton=ours)):
        yield


def is_enabled(compiler_params: Any = None) -> bool:
    """Whether smalt compiles a kernel with these parameters."""
    choice = getattr(compiler_params, "enabled", None)
    return settings().enabled if choice is None else bool(choice)


def target_of(compiler_params: Any) -> str | None:
    """What a kernel is to be compiled for, if that is not the machine that runs it: by its parameters, else by the environment."""
    return getattr(compiler_params, "target", None) or os.environ.get("SMALT_TARGET") or None
