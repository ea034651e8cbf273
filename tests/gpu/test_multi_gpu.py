"""Communicating kernels on two GPUs: right, and the bits of two emulated devices."""

from __future__ import annotations

import pytest

from smalt import _native
from tests.multi_gpu.supervise import line, supervise


def test_two_gpus_and_two_emulated_devices_agree() -> None:
    devices = _native.doctor()["devices"]
    assert isinstance(devices, list)
    if len(devices) < 2:
        pytest.skip(f"needs two GPUs; here: {len(devices)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAX_PLATFORMS", raising=False)
        real = {r["name"]: r for r in supervise("tests.multi_gpu", 2)}
        patch.setenv("JAX_PLATFORMS", "cpu")
        emulated = {r["name"]: r for r in supervise("tests.multi_gpu", 2)}
    wrong = [line(r) for r in real.values() if r["status"] not in ("right", "skipped")]
    assert not wrong, "\n".join(wrong)
    differ = [line(r) for name, r in real.items() if r.get("digest") != emulated[name].get("digest")]
    assert not differ, "\n".join(differ)
