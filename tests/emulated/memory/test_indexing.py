"""Arrays of indices and order, in the emulator."""

import pytest

from tests.suites.suite_indexing import *  # noqa: F403

pytestmark = pytest.mark.shared
