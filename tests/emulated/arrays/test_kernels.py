"""Random programs, conversions of layouts, and kernels that a toy would fail, in the emulator."""

import pytest

from tests.suites.suite import *  # noqa: F403

pytestmark = pytest.mark.shared
