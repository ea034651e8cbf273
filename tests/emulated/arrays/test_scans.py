"""Kernels in loops of XLA, in the emulator."""

import pytest

from tests.suites.suite_scans import *  # noqa: F403

pytestmark = pytest.mark.shared
