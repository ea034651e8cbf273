"""mbarriers that authors count, fences and ordered accesses, in the emulator."""

from tests.kernels.suite_barriers import *  # noqa: F403
