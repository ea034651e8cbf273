"""Kernels written for Pallas:Triton, in the emulator."""

import pytest
from smalt._primitives import ordered

from tests.machine import enabled
from tests.suites.suite_triton import *  # noqa: F403
from tests.suites.suite_triton import ONES, Update

pytestmark = pytest.mark.shared


def test_elements_that_are_far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of arrays of more than 2 GiB, computed for small ones."""
    monkeypatch.setattr(ordered, "NEAR", 1)
    with enabled():
        for seed in range(30):
            Update.of(seed, ONES).run()
