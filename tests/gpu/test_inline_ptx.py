"""Inline PTX, on the GPU."""

from tests.kernels.suite_inline_ptx import *  # noqa: F403
