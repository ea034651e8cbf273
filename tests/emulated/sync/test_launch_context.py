"""The launch context of `plgpu.inline_mgpu`, in the emulator."""

import pytest

from tests.suites.suite_launch_context import *  # noqa: F403

pytestmark = pytest.mark.shared
