"""Kernels written for Pallas:Triton, on the GPU."""

from tests.kernels.suite_triton import *  # noqa: F403
