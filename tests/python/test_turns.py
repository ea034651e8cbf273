"""Grids that run in turn as loops, and products with narrow weights."""

from tests.kernels.suite_turns import *  # noqa: F403
