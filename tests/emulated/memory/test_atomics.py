"""Atomics of 16-bit floats, in the emulator."""

import pytest

from tests.suites.suite_atomics import *  # noqa: F403

pytestmark = pytest.mark.shared
