"""mbarriers that authors count, fences and ordered accesses, on the GPU."""

from tests.kernels.suite_barriers import *  # noqa: F403
