"""Loads and stores under masks, on the GPU."""

from tests.kernels.suite_masks import *  # noqa: F403
