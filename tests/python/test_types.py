"""Conversions of element types, in the emulator."""

from tests.kernels.suite_types import *  # noqa: F403
