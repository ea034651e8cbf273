"""mbarriers that authors count, fences and ordered accesses, on the GPU."""

from tests.suites.suite_barriers import *  # noqa: F403
