"""Warp regions, on the GPU."""

from tests.kernels.suite_warps import *  # noqa: F403
