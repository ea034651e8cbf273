"""Functions of several kernels on PyTorch's tensors, in the emulator; skipped without PyTorch."""

from tests.suites.suite_torch_programs import *  # noqa: F403
