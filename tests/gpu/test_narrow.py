"""Narrow scalars, transposed allocations, elements of large arrays and locks, on the GPU."""

from tests.kernels.suite_narrow import *  # noqa: F403
