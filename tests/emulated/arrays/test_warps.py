"""Warp regions, in the emulator."""

import pytest

from tests.suites.suite_warps import *  # noqa: F403

pytestmark = pytest.mark.shared
