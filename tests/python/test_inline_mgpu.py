"""`plgpu.inline_mgpu`, in the emulator."""

from tests.kernels.suite_inline_mgpu import *  # noqa: F403
