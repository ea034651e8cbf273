"""`smalt.partition`, on GPUs."""

from tests.suites.suite_partition import *  # noqa: F403
