"""`smalt.partition`, on emulated devices."""

from tests.kernels.suite_partition import *  # noqa: F403
