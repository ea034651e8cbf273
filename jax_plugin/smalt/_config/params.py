"""`smalt.CompilerParams`."""

from __future__ import annotations

import dataclasses
import numbers

import jax.experimental.pallas.mosaic_gpu as plgpu
import numpy as np

from smalt._config import takeover
from smalt._errors import InvalidArgument

#: Mosaic GPU's and ours, as far as this JAX has them; True: None leaves it open.
_SWITCHES = {
    "enabled": True, "fp_contract": True, "precise_division": False, "accumulate_products": False, "approx_math": False,
    "unsafe_no_auto_barriers": False, "profile_bounds_check": False, "skip_device_barrier": False, "is_multi_process": False,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompilerParams(plgpu.CompilerParams):  # type: ignore[misc]
    """Mosaic GPU's compiler parameters, all of them honoured, and smalt's own.

    Attributes:
        enabled: Whether smalt compiles this kernel; None: by `smalt.enable()` and `smalt.enabled()`.
        approx_math: Mosaic GPU's: functions may be less exact, and floats may be added in another order. Default: False.
        accumulate_products: In `acc + x @ y` the products go into `acc` one by one, as in XLA's matmuls and Triton's, which saves registers
            and the sum, and loses what is small beside `acc`. A `pl.pallas_call` with Triton's parameters, a TPU's or none is
            compiled so. `approx_math` implies it. Default: False.
        fp_contract: Whether `x * y + z` may become one `fma`; None: yes. With False, and `precise_division`, f32 arithmetic
            equals NumPy's.
        precise_division: Whether quotients of f32 are correctly rounded, as NumPy's. Otherwise they are what XLA computes
            outside of kernels: within 2 units in the last place, and faster.
        target: The machine to compile for, e.g. "sm_80": one whose PTX the device takes. None: the device's.
        wait_timeout_ns: A wait that takes longer ends the kernel with a `smalt.Timeout`; 0: waits have no limit. On a GPU each call
            waits for its kernel's end then. In the emulator an instruction of every warp counts as a nanosecond.
    """

    enabled: bool | None = None
    fp_contract: bool | None = None
    precise_division: bool = False
    accumulate_products: bool = False
    target: str | None = None
    wait_timeout_ns: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, may_be_none in _SWITCHES.items():
            value = getattr(self, name, False)
            if not isinstance(value, (bool, np.bool_)) and not (value is None and may_be_none):
                expected = "True, False or None" if may_be_none else "True or False"
                raise _wrong(name, expected, value, f"{name}=True, or leave it out")
        if not isinstance(self.wait_timeout_ns, numbers.Integral) or self.wait_timeout_ns < 0:
            raise _wrong("wait_timeout_ns", "a number of nanoseconds >= 0", self.wait_timeout_ns, "0, for waits that never end")
        if self.target is not None and not str(self.target).startswith("sm_"):
            raise _wrong("target", "an architecture like 'sm_90a'", self.target, "target='sm_90a' for Hopper, 'sm_100a' for Blackwell")
        if self.enabled:
            takeover.hold_permanently()


def _wrong(name: str, expected: str, got: object, remedy: str) -> InvalidArgument:
    return InvalidArgument(f"smalt.CompilerParams: `{name}`\n  expected: {expected}\n  got: {got!r}\n  remedy: {remedy}")
