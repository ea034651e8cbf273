"""`plgpu.inline_mgpu`, on the GPU."""

from tests.suites.suite_inline_mgpu import *  # noqa: F403
