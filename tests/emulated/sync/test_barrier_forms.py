"""Barriers in every form that PTX has, in the emulator."""

import pytest

from tests.suites.suite_barrier_forms import *  # noqa: F403

pytestmark = pytest.mark.shared
