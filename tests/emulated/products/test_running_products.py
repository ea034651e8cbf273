"""Products that may run together, in the emulator, under every schedule."""

from tests.fuzz.seeds import seeds
from tests.programs.loops.running_products import RUNNING_PRODUCTS, Running

PROGRAMS = 60
BATCH = 10


@seeds(RUNNING_PRODUCTS, PROGRAMS, BATCH)
def test_products_in_flight_equal_numpy(programs: list[Running]) -> None: ...
