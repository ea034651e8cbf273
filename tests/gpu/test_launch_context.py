"""The launch context of `plgpu.inline_mgpu`, on the GPU."""

from tests.kernels.suite_launch_context import *  # noqa: F403
