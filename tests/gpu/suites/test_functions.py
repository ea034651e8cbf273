"""Random keys, complex numbers and linear algebra in kernels, on the GPU. The table itself: `python -m tests.oracles.functions`."""

from tests.suites.angles import *  # noqa: F403
from tests.suites.functions import *  # noqa: F403
