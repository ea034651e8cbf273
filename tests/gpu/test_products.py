"""Products of arrays on the GPU."""

from tests.kernels.products_suite import *  # noqa: F403
