"""Warp regions, on the GPU."""

from tests.suites.suite_warps import *  # noqa: F403
