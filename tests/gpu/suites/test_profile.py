"""Profiles, on the GPU."""

from tests.suites.suite_profile import *  # noqa: F403
