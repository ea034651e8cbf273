"""JAX's shipped attention in the emulator: no less exact than its author's roundings leave it."""

from __future__ import annotations

import pytest

from tests.oracles.attention import CASES, Attention

pytestmark = pytest.mark.shared


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_rounds_where_its_author_does(case: Attention) -> None:
    case.check(case.emulate())


def test_causal_attention_of_wide_blocks_ends_with_loads_in_flight(capfd: pytest.CaptureFixture[str]) -> None:
    """The shipped kernel's first rows need one block of 128 keys, and it loads two: nobody waits for the second one. Results are right."""
    case = Attention("causal", 64, 128)
    with pytest.raises(Exception, match="ends while a bulk load into its shared memory is in flight"):
        case.emulate()
    capfd.readouterr()
    case.check(case.emulate(check="warn"))
    assert "ends while a bulk load into its shared memory is in flight" in capfd.readouterr().err
