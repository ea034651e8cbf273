"""Who compiles Pallas:MGPU kernels: a state of JAX's, so that it is part of every cache key.

Environment variables are read here and nowhere else in the package:

| variable | meaning |
|---|---|
| `SMALT_ENABLE` | 1: as if `smalt.enable()` had been called at import |
| `SMALT_TARGET` | the target of kernels for which nothing else says one, e.g. `sm_90a` |
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from smalt import _versions

DEFAULT_TARGET = "sm_90a"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `enable`, `enabled` and `emulated` choose."""

    enabled: bool = False
    pallas_call: bool = False  # take over pl.pallas_call(compiler_params=None) on CUDA
    device: str | None = None  # the emulated device
    check: str | None = None  # what becomes of what the emulator's checker finds; None: as SMALT_CHECK says


def _from_environment() -> Settings:
    value = os.environ.get("SMALT_ENABLE", "").strip().lower()
    if value not in ("", "0", "1", "true", "false", "on", "off"):
        raise ValueError(f"SMALT_ENABLE: expected 0 or 1, got {value!r}")
    return Settings(enabled=value in ("1", "true", "on"))


_STATE = _versions.make_state(_from_environment())


def settings() -> Settings:
    """The settings in force in this thread."""
    return _STATE.value  # type: ignore[no-any-return]


def enable(*, pallas_call: bool = False) -> None:
    """From here on, Pallas:MGPU kernels are compiled by smalt, in every thread.

    With `pallas_call`, also `pl.pallas_call(compiler_params=None)` on CUDA, which otherwise means Triton (on CPU
    it is always taken).
    """
    _update(dataclasses.replace(_global(), enabled=True, pallas_call=pallas_call))


def disable() -> None:
    """From here on, Pallas:MGPU kernels are JAX's own business again."""
    _update(dataclasses.replace(_global(), enabled=False, pallas_call=False))


def _global() -> Settings:
    return _versions.global_value(_STATE)  # type: ignore[no-any-return]


def _update(value: Settings) -> None:
    _versions.set_global(_STATE, value)


@contextlib.contextmanager
def scoped(value: Settings) -> Iterator[None]:
    with _STATE(value):
        yield


@contextlib.contextmanager
def enabled(value: bool = True, *, pallas_call: bool | None = None) -> Iterator[None]:
    """`with smalt.enabled(True):` makes the choice for this thread and this scope."""
    now = settings()
    calls = now.pallas_call if pallas_call is None else pallas_call
    with scoped(dataclasses.replace(now, enabled=value, pallas_call=calls and value)):
        yield


def is_enabled(compiler_params: Any = None) -> bool:
    """Whether smalt compiles a kernel with these parameters."""
    choice = getattr(compiler_params, "enabled", None)
    return settings().enabled if choice is None else bool(choice)


def environment_target() -> str | None:
    return os.environ.get("SMALT_TARGET") or None
