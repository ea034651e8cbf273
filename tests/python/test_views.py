"""Views without addresses and hints, in the emulator."""

import pytest

from tests.kernels.suite_views import *  # noqa: F403

pytestmark = pytest.mark.shared
