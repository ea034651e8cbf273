"""Products that may run together, in the emulator, under every schedule."""

import pytest

from tests.kernels.running_products import Running

PROGRAMS = 60
BATCH = 10


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
@pytest.mark.shared
def test_products_in_flight_equal_numpy(first: int) -> None:
    for seed in range(first, first + BATCH):
        Running.of(seed).check_emulated()
