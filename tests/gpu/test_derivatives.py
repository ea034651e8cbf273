"""Derivatives of random bodies on the GPU, forwards and backwards."""

from __future__ import annotations

import pytest

import smalt
from tests.blocks import bodies


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_bodies(first: int, backwards: bool) -> None:
    with smalt.enabled(True):
        for seed in range(first, first + 50):
            bodies.Program(seed, static=backwards).check(backwards)
