"""Random kernels whose loops carry sums, tiles or products in flight, are turned, or are fed through rings, on the GPU: equal to NumPy, and to the emulator where it is exact."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import smalt
from tests.kernels.drains import Drained
from tests.kernels.parked import Parked
from tests.kernels.rings import Late, Ring
from tests.kernels.running_products import Running
from tests.kernels.running_sums import Sums
from tests.kernels.staged import Staged
from tests.kernels.tile_loops import Tiles
from tests.kernels.turned_loops import Turned

PROGRAMS = {Sums: 120, Tiles: 80, Running: 60, Turned: 120, Parked: 120, Staged: 60, Ring: 80, Late: 60, Drained: 80}
BATCH = 20


@pytest.mark.parametrize(("kind", "first"), [(kind, first) for kind, n in PROGRAMS.items() for first in range(0, n, BATCH)])
def test_random_loops(kind: Any, first: int) -> None:
    for seed in range(first, first + BATCH):
        program = kind.of(seed)
        with smalt.enabled(True):
            got = jax.jit(program.function())(*program.inputs())
        program.check(jax.tree.leaves(got))
