"""Random programs, conversions of layouts, and kernels that a toy would fail, on the GPU."""

from tests.kernels.suite import *  # noqa: F403
