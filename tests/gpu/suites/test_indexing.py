"""Arrays of indices and order, on the GPU."""

from tests.suites.suite_indexing import *  # noqa: F403
