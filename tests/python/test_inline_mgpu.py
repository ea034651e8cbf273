"""`plgpu.inline_mgpu`, in the emulator."""

import pytest

from tests.kernels.suite_inline_mgpu import *  # noqa: F403

pytestmark = pytest.mark.shared
