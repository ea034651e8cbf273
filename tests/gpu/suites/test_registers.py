"""`set_max_registers`, on the GPU."""

from tests.suites.suite_registers import *  # noqa: F403
