"""Views without addresses and hints, in the emulator."""

import pytest

from tests.suites.suite_views import *  # noqa: F403

pytestmark = pytest.mark.shared
