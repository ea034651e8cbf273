"""`wgmma` in inline PTX and in functions of `inline_mgpu`, on the GPU."""

from tests.suites.suite_inline_wgmma import *  # noqa: F403
