"""Warp regions, in the emulator."""

from tests.kernels.suite_warps import *  # noqa: F403
