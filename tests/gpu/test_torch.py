"""`plgpu.as_torch_kernel`, on the GPU."""

from tests.kernels.suite_torch import *  # noqa: F403
