"""Products of arrays on the GPU."""

from tests.suites.suite_products import *  # noqa: F403
