"""Random programs, conversions of layouts, and kernels that a toy would fail, in the emulator."""

from tests.kernels.suite import *  # noqa: F403
