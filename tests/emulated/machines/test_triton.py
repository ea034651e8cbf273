"""Kernels written for Pallas:Triton, before Hopper and after."""

import pytest

from tests.emulated.machines.fixture import on
from tests.suites.suite_triton import *  # noqa: F403

pytestmark = pytest.mark.shared

machine = on("sm_86", "sm_120a")
