"""Warp regions, in the emulator."""

import pytest

from tests.kernels.suite_warps import *  # noqa: F403

pytestmark = pytest.mark.shared
