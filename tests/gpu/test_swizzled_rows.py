"""Copies of parts of swizzled buffers, on the GPU."""

from tests.kernels.suite_swizzled_rows import *  # noqa: F403
