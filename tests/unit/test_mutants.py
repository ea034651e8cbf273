"""The changes of `tests/mutants` fit the sources, so that `make mutants` can make them."""

from __future__ import annotations


import pytest

from tests import ROOT
from tests.mutants.table import MUTANTS, Mutant, file_named


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.file)
def test_a_change_fits(mutant: Mutant) -> None:
    text = (ROOT / ("jax_plugin/smalt" if mutant.is_python else "src") / mutant.file).read_text()
    assert mutant.applied(text, "condition") != text
    assert all(file_named(name) for name in mutant.first)


def test_there_are_sixty() -> None:
    assert len(MUTANTS) >= 60
    assert len({mutant.file for mutant in MUTANTS}) >= 30
