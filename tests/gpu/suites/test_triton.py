"""Kernels written for Pallas:Triton, on the GPU."""

from tests.suites.suite_triton import *  # noqa: F403
