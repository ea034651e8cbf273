"""A sample of the table of array functions, in the emulator; and that table and `docs/SUPPORT.md` are whole.

`SMALT_FUNCTIONS=all` runs every case (minutes); `python -m tests.functions` does that in parallel and on a GPU.
"""

from __future__ import annotations

import inspect
import os
import types
import warnings
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.functions import shown, support
from tests.functions.judge import judge
from tests.functions.reasons import REASONS
from tests.functions.shown import ROOT
from tests.functions.table import CASES
from tests.kernels.angles import *  # noqa: F403

#: One case in so many, drawn by name.
EVERY = 1 if os.environ.get("SMALT_FUNCTIONS") == "all" else 60
SAMPLE = sorted(name for name in CASES if zlib.crc32(name.encode()) % EVERY == 0)


def test_a_sample_is_right_or_refused() -> None:
    outcomes = {name: judge(CASES[name]) for name in SAMPLE}
    bad = {n: o.says for n, o in outcomes.items() if o.status in ("wrong", "error")}
    assert not bad
    right = sum(o.status == "right" for o in outcomes.values())
    assert right >= 0.8 * len(SAMPLE), {n: o.says for n, o in outcomes.items() if o.status != "right"}


def test_the_table_is_large() -> None:
    assert len(CASES) >= 3000
    assert len({case.function for case in CASES.values()}) >= 600


MODULES = {
    "jnp": jnp,
    "linalg": jnp.linalg,
    "lax": jax.lax,
    "lax.linalg": jax.lax.linalg,
    "nn": jax.nn,
    "special": jax.scipy.special,
    "random": jax.random,
}


def public(module: Any) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        members = {name: getattr(module, name, None) for name in dir(module) if not name.startswith("_")}
    return [n for n, f in members.items() if callable(f) and not inspect.isclass(f) and not isinstance(f, types.ModuleType)]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_function_has_a_call_or_a_reason(module: str) -> None:
    called = {case.function for case in CASES.values()}
    missing = [f"{module}.{n}" for n in public(MODULES[module]) if f"{module}.{n}" not in called and f"{module}.{n}" not in REASONS]
    assert not missing


def test_what_the_page_names_is_there() -> None:
    for _, page, tests in shown.ROWS:
        assert (ROOT / "docs" / page).exists(), page
        for test in tests:
            file, name = test.split(": ")
            assert f"def test_{name}(" in (ROOT / file).read_text(), test


def test_the_page_is_what_the_results_say() -> None:
    assert support.DOCUMENT.read_text() == support.document()


# ------------------------------------------------------------------------------------------ what the table does not have

from tests.kernels.functions import *  # noqa: E402, F403
