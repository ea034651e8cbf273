"""Narrow scalars, transposed allocations, elements of large arrays and locks, on the GPU."""

from tests.suites.suite_narrow import *  # noqa: F403
