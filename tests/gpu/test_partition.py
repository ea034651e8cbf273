"""`smalt.partition`, on GPUs."""

from tests.kernels.suite_partition import *  # noqa: F403
