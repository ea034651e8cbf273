"""Inline PTX, in the emulator."""

from tests.kernels.suite_inline_ptx import *  # noqa: F403
