"""Conversions of element types, on the GPU."""

from tests.suites.suite_types import *  # noqa: F403
