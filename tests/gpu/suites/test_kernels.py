"""Random programs, conversions of layouts, and kernels that a toy would fail, on the GPU."""

from tests.suites.suite import *  # noqa: F403
