"""`plgpu.inline_mgpu`, on the GPU."""

from tests.kernels.suite_inline_mgpu import *  # noqa: F403
