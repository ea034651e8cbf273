"""`plgpu.as_torch_kernel`, in the emulator; skipped without PyTorch."""

from tests.suites.suite_torch import *  # noqa: F403
