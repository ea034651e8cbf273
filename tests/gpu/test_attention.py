"""JAX's shipped attention on the GPU: no less exact than its author's roundings leave it."""

from __future__ import annotations

import jax
import pytest

import smalt
from tests.oracles.attention import CASES, Attention


@pytest.mark.parametrize("case", [*CASES, Attention("causal", 64, 128), Attention("causal", 128, 128)], ids=str)
def test_attention_rounds_where_its_author_does(case: Attention) -> None:
    with smalt.enabled(True):
        got = jax.jit(case.function())(*case.inputs())
    case.check(list(got))
