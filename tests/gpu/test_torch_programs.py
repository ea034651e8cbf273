"""Functions of several kernels on PyTorch's tensors, on the GPU."""

from tests.kernels.suite_torch_programs import *  # noqa: F403
