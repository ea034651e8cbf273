"""Profiles, on the GPU."""

from tests.kernels.suite_profile import *  # noqa: F403
