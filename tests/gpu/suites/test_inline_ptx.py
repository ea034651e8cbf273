"""Inline PTX, on the GPU."""

from tests.suites.suite_inline_ptx import *  # noqa: F403
