"""Loads and stores under masks, on the GPU."""

from tests.suites.suite_masks import *  # noqa: F403
