"""Kernels in loops of XLA, on the GPU."""

from tests.suites.suite_scans import *  # noqa: F403
