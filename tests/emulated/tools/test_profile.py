"""Profiles, in the emulator."""

from tests.suites.suite_profile import *  # noqa: F403
