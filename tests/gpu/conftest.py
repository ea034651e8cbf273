"""Tests that need a Hopper GPU. A machine without one skips them all, and says so."""

from __future__ import annotations

import os
import pathlib

import pytest

# Not the user's: what a test keeps on disk, it keeps in a folder of its own.
os.environ["SMALT_CACHE_DIR"] = ""

HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    del config
    mine = [item for item in items if HERE in item.path.parents]
    if not mine:
        return
    from smalt import _native

    devices = _native.doctor()["devices"]
    if not isinstance(devices, list) or not devices or devices[0]["capability"] != [9, 0]:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU of capability 9.0; here: {devices}"))
