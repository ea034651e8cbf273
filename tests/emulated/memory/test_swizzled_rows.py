"""Copies of parts of swizzled buffers, in the emulator."""

from tests.suites.suite_swizzled_rows import *  # noqa: F403
