"""`wgmma` in inline PTX and in functions of `inline_mgpu`, in the emulator."""

from tests.kernels.suite_inline_wgmma import *  # noqa: F403
