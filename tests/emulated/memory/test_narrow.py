"""Narrow scalars, transposed allocations, elements of large arrays and locks, in the emulator."""

import pytest

from tests.suites.suite_narrow import *  # noqa: F403

pytestmark = pytest.mark.shared
