"""Conversions of element types, in the emulator."""

from tests.suites.suite_types import *  # noqa: F403
