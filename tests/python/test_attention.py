"""JAX's shipped attention in the emulator: no less exact than its author's roundings leave it."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import smalt
from tests.numerics.attention import CASES, Attention


def check(case: Attention, **emulator: Any) -> None:
    with smalt.emulated("H100", **emulator):
        got = jax.jit(case.function())(*case.inputs())
    case.check(list(got))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_rounds_where_its_author_does(case: Attention) -> None:
    check(case)


def test_causal_attention_of_wide_blocks_ends_with_loads_in_flight(capfd: pytest.CaptureFixture[str]) -> None:
    """The shipped kernel's first rows need one block of 128 keys, and it loads two: nobody waits for the second one. Results are right."""
    case = Attention("causal", 64, 128)
    with pytest.raises(Exception, match="ends while a bulk load into its shared memory is in flight"):
        check(case)
    capfd.readouterr()
    check(case, check="warn")
    assert "ends while a bulk load into its shared memory is in flight" in capfd.readouterr().err
