"""Arrays of indices and order, on the GPU."""

from tests.kernels.suite_indexing import *  # noqa: F403
