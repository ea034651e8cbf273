"""Copies of parts of swizzled buffers, on the GPU."""

from tests.suites.suite_swizzled_rows import *  # noqa: F403
