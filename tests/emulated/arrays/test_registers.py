"""`set_max_registers`, in the emulator."""

import pytest

from tests.suites.suite_registers import *  # noqa: F403

pytestmark = pytest.mark.shared
