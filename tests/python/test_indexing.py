"""Arrays of indices and order, in the emulator."""

from tests.kernels.suite_indexing import *  # noqa: F403
