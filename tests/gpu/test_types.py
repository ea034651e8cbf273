"""Conversions of element types, on the GPU."""

from tests.kernels.suite_types import *  # noqa: F403
