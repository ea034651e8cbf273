"""Kernels written for Pallas:Triton, in the emulator."""

import pytest

from tests.kernels.suite_triton import *  # noqa: F403

pytestmark = pytest.mark.shared
