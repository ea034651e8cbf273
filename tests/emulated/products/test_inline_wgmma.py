"""`wgmma` in inline PTX and in functions of `inline_mgpu`, in the emulator."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import pytest
import smalt

from tests import ROOT
from tests.corpus.case import kernel
from tests.suites import suite_inline_wgmma as suite
from tests.suites.suite_inline_wgmma import *  # noqa: F403

pytestmark = pytest.mark.shared


class Caught(Exception):
    pass


ASSEMBLED: dict[str, Callable[[], None]] = {
    "accumulators that come in": lambda: suite.test_products("f16", 192),
    "halves": lambda: suite.test_products("f16 into f16", 64),
    "A in registers": lambda: suite.test_a_in_registers_and_b_transposed(128, np.float16),  # noqa: F405
    "a loop with one in flight": suite.test_a_loop_with_a_product_in_flight,
    "sparse": lambda: suite.test_sparse_products("f16", 96, True),
    "sparse bytes": lambda: suite.test_sparse_products("s8", 96, False),
    "a function": lambda: suite.test_functions(registers=True, acc=np.float16, n=128),  # noqa: F405
    "a function's loop": lambda: suite.test_a_function_with_a_loop(1),
}


@pytest.mark.parametrize("name", ASSEMBLED)
def test_products_are_not_serialised(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ptxas says nothing of C75xx, and nobody waits that the text does not."""
    reports: list[Any] = []

    def caught(body: Any, out: Any, *args: Any, scratch: Any = ()) -> None:
        with smalt.emulated("H100"):
            reports.extend(smalt.inspect(kernel(body, out, *scratch), *args))
        raise Caught

    monkeypatch.setattr(suite, "run", caught)
    with pytest.raises(Caught):
        ASSEMBLED[name]()
    (report,) = reports
    # JAX's idiom fences in front of the loop: ptxas adds a fence in it.
    warnings = [w for w in report.warnings if name != "a function's loop" or "C7519" not in w]
    assert not warnings and not report.spill_bytes
    # One behind another that is the same costs nothing.
    waits = len(re.findall(r"wgmma\.wait_group\S* (\d)[^\n]*(?:\n\s*wgmma\.wait_group\S* \1[^\n]*)*", report.ptx))
    assert waits == {"a loop with one in flight": 3, "a function's loop": 2}.get(name, 1)


def test_the_example_of_the_page() -> None:
    page = (ROOT / "docs" / "inline-ptx.md").read_text()
    example = re.search(r"```python\n(text = \"\"\"\n.*?)```", page, re.S)
    assert example is not None

    def body(x: Any, y: Any, o_ref: Any, a_smem: Any, b_smem: Any, barrier: Any) -> None:
        suite.load(barrier, (x, a_smem), (y, b_smem))
        exec(example[1], {"plgpu": plgpu, "jnp": jnp, "smalt": smalt, "o_ref": o_ref, "a_smem": a_smem, "b_smem": b_smem})  # noqa: F405

    x, y = (suite.random((64, 64), np.float16, seed) for seed in range(2))  # noqa: F405
    scratch = (*(suite.rows((64, 64), np.float16) for _ in range(2)), plgpu.Barrier(num_arrivals=2))  # noqa: F405
    got = suite.run(body, jax.ShapeDtypeStruct((64, 64), np.float32), x, y, scratch=scratch)  # noqa: F405
    suite.check(got, suite.wide(x[:, :16]) @ suite.wide(y[:, :16]).T, suite.KINDS["f16"])
