"""`plgpu.inline_mgpu`, in the emulator."""

import pytest

from tests.suites.suite_inline_mgpu import *  # noqa: F403

pytestmark = pytest.mark.shared
