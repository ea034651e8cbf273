"""Profiles, in the emulator."""

from tests.kernels.suite_profile import *  # noqa: F403
