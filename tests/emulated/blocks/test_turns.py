"""Grids that run in turn as loops, and products with narrow weights."""

from tests.suites.suite_turns import *  # noqa: F403
