"""Grids that run in turn as loops, and products with narrow weights, on the GPU."""

from tests.suites.suite_turns import *  # noqa: F403
