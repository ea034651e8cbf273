"""Random keys, complex numbers and linear algebra in kernels, on the GPU. The table itself: `python -m tests.functions`."""

from tests.kernels.angles import *  # noqa: F403
from tests.kernels.functions import *  # noqa: F403
