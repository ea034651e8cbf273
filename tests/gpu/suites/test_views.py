"""Views without addresses and hints, on the GPU."""

from tests.suites.suite_views import *  # noqa: F403
