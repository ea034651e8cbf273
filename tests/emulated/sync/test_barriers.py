"""mbarriers that authors count, fences and ordered accesses, in the emulator."""

import pytest

from tests.suites.suite_barriers import *  # noqa: F403

pytestmark = pytest.mark.shared
