"""Atomics of 16-bit floats, on the GPU."""

from tests.kernels.suite_atomics import *  # noqa: F403
