"""Tests on machines of several kinds, each with such a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import smalt
from tests.machine import GPUS


def on(*targets: str) -> Any:
    """A fixture of a module: each of its tests runs with kernels compiled for each of these, on a GPU that is such a machine."""

    @pytest.fixture(autouse=True, params=targets)
    def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("SMALT_TARGET", request.param)
        with smalt.emulated(GPUS[request.param]):
            yield

    return machine
