"""Derivatives of random bodies on the GPU, forwards and backwards."""

from __future__ import annotations

from typing import Any

from tests.fuzz.seeds import seeds
from tests.programs.blocks.bodies import BODIES_BACKWARDS, BODIES_FORWARDS


@seeds({"False": BODIES_FORWARDS, "True": BODIES_BACKWARDS}, 200, 50)
def test_random_bodies(programs: list[Any]) -> None: ...
