"""Inline PTX, in the emulator."""

from tests.suites.suite_inline_ptx import *  # noqa: F403
