"""Atomics of 16-bit floats, in the emulator."""

from tests.kernels.suite_atomics import *  # noqa: F403
