"""The library's queries of a job of several processes: kernels of their GPUs find each other by JAX's coordination service."""

from __future__ import annotations

from typing import Any

import jax

from smalt import _versions
from smalt._devices import hosts


def answer(request: dict[str, Any]) -> Any:
    """`{"job": true}`, `{"put": {"key": k, "value": v}}`, `{"list": prefix}`; see src/runtime/directory.rs."""
    if "job" in request:
        return {
            "process": jax.process_index("cuda"),
            "processes": jax.process_count("cuda"),
            "local_devices": jax.local_device_count("cuda"),
        }
    store = _versions.coordination_service()
    if store is None:
        raise RuntimeError("this process has no coordination service")
    if "put" in request:
        store.key_value_set(_of_group(request["put"]["key"]), request["put"]["value"], allow_overwrite=True)
        return None
    return dict(store.key_value_dir_get(_of_group(request["list"])))


def _of_group(key: str) -> str:
    """A key of a mesh's, `smalt/<its number>/…`, for the group of it that this process is part of."""
    first, _, rest = key.partition("/")
    number, _, rest = rest.partition("/")
    try:
        group = hosts.GROUPS.get(int(number, 16))
    except ValueError:
        group = None
    return key if first != "smalt" or group is None else f"{first}/{number}.{group}/{rest}"
