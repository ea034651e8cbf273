"""Atomics of 16-bit floats, on the GPU."""

from tests.suites.suite_atomics import *  # noqa: F403
