"""Derivatives of random bodies on the GPU."""

from __future__ import annotations

import pytest

import smalt
from tests.blocks import bodies


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_bodies(first: int) -> None:
    with smalt.enabled(True):
        for seed in range(first, first + 50):
            bodies.Program(seed).check()
