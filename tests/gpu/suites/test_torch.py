"""`plgpu.as_torch_kernel`, on the GPU."""

from tests.suites.suite_torch import *  # noqa: F403
