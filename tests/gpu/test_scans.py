"""Kernels in loops of XLA, on the GPU."""

from tests.kernels.suite_scans import *  # noqa: F403
