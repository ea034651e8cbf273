"""`examples/as_first_written.py` in the emulator."""

from __future__ import annotations

import importlib.util
import warnings

import pytest

from tests import ROOT

pytestmark = pytest.mark.shared

PATH = ROOT / "examples" / "as_first_written.py"
SPEC = importlib.util.spec_from_file_location("as_first_written", PATH)
assert SPEC is not None and SPEC.loader is not None
MODULE = importlib.util.module_from_spec(SPEC)
__import__("sys").modules["as_first_written"] = MODULE
SPEC.loader.exec_module(MODULE)


@pytest.mark.parametrize("name", MODULE.EXAMPLES)
def test_as_first_written(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        MODULE.check(name)
