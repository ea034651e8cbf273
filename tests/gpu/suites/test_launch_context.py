"""The launch context of `plgpu.inline_mgpu`, on the GPU."""

from tests.suites.suite_launch_context import *  # noqa: F403
