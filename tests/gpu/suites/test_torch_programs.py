"""Functions of several kernels on PyTorch's tensors, on the GPU."""

from tests.suites.suite_torch_programs import *  # noqa: F403
