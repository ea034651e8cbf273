"""What kernels as TPUs have them do on a GPU."""

from tests.suites.suite_tpu_copies import *  # noqa: F403
