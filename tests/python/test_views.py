"""Views without addresses and hints, in the emulator."""

from tests.kernels.suite_views import *  # noqa: F403
