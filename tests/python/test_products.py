"""Products of arrays in the emulator."""

from tests.kernels.products_suite import *  # noqa: F403
