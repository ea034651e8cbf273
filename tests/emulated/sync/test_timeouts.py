"""Kernels whose waits have a limit: in the emulator they do what they do without one, and their PTX ends in order."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import smalt

from tests.machine import enabled
from tests.suites import timeouts

FREE = smalt.CompilerParams(fp_contract=False)
LEAVES = ("smalt_leaves", "smalt_ends", "trap", "globaltimer")


def ptx(call: Any, case: timeouts.Case) -> str:
    with enabled():
        [report] = smalt.inspect(call, timeouts.go(True), case.x)
    return report.ptx


@pytest.mark.parametrize("name", timeouts.CASES)
def test_a_kernel_with_a_limit_is_right(name: str) -> None:
    case = timeouts.CASES[name]
    with enabled():
        timeouts.is_right(case, jax.jit(case.call()))


@pytest.mark.parametrize("name", timeouts.CASES)
def test_who_gives_up_is_told(name: str) -> None:
    case = timeouts.CASES[name]
    if name in ("polls", "endless"):
        pytest.skip("the emulator counts instructions of a loop: it would take minutes until the limit")
    with enabled():
        timeouts.gives_up(case, jax.jit(case.call()))


@pytest.mark.parametrize("name", timeouts.CASES)
def test_who_gives_up_leaves_without_a_trap(name: str) -> None:
    case = timeouts.CASES[name]
    free, bounded = ptx(case.call(FREE), case), ptx(case.call(), case)
    assert not any(word in free for word in LEAVES), free
    assert "trap;" not in bounded
    assert bounded.count("smalt_leaves:") == 1 and bounded.count("ret;") == 1
    # Nobody stands at a barrier of several warps and goes on without a look at the flag.
    lines = [line.strip() for line in bounded.split("\n")]
    begins = next(i for i, line in enumerate(lines) if "ld.relaxed.gpu.global.b64 T" in line)
    for i, line in enumerate(lines[begins:], begins):
        if line.startswith("bar.sync"):
            assert any("ld.volatile.shared.b32 V" in near for near in lines[i + 1 : i + 6]), lines[i : i + 8]


def test_barriers_in_texts_are_refused() -> None:
    def program(text: str, **how: Any) -> Any:
        def body(x: Any, o: Any) -> None:
            smalt.inline_ptx(text, **how)
            o[...] = x[...]

        return timeouts.kernel(body, timeouts.like((128,), np.int32), params=timeouts.PARAMS)

    x = np.zeros(128, np.int32)
    for text in ("bar.sync 5, 128;", "barrier.cluster.arrive.aligned; barrier.cluster.wait.acquire.aligned;"):
        with enabled(), pytest.raises(smalt.Unsupported, match="a barrier in a kernel whose waits have a limit") as error:
            jax.jit(program(text))(x)
        assert "remedy: use a plgpu.Barrier" in str(error.value)
