"""`set_max_registers`, on the GPU."""

from tests.kernels.suite_registers import *  # noqa: F403
