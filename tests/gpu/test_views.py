"""Views without addresses and hints, on the GPU."""

from tests.kernels.suite_views import *  # noqa: F403
