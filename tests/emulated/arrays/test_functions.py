"""A sample of the table of array functions, in the emulator; and that table and `docs/SUPPORT.md` are whole.

`SMALT_FUNCTIONS=all` runs every case (minutes); `python -m tests.oracles.functions` does that in parallel and on a GPU.
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
import numpy as np
import pytest

from tests import ROOT
from tests.fuzz.seeds import VERSION
from tests.oracles.functions import shown, support
from tests.oracles.functions.case import Case
from tests.oracles.functions.judge import in_kernel, judge, outside
from tests.oracles.functions.reasons import REASONS
from tests.oracles.functions.table import CASES
from tests.suites.angles import *  # noqa: F403

#: One case in so many, drawn by name; each version of JAX has others.
EVERY = 1 if os.environ.get("SMALT_FUNCTIONS") == "all" else 60
SAMPLE = sorted(name for name in CASES if zlib.crc32(name.encode()) % EVERY == VERSION % EVERY)


def test_a_sample_is_right_or_refused() -> None:
    outcomes = {name: judge(CASES[name]) for name in SAMPLE}
    bad = {n: o.says for n, o in outcomes.items() if o.status in ("wrong", "error")}
    assert not bad
    right = sum(o.status == "right" for o in outcomes.values())
    assert right >= 0.8 * len(SAMPLE), {n: o.says for n, o in outcomes.items() if o.status != "right"}


#: Words in the names of cases that the plugin makes of other operations.
EXPRESSED = {
    "complex numbers": ("c64", "lax.complex"),
    "convolutions": ("lax.conv", "jnp.convolve"),
    "windows": ("reduce_window", "lax.cum", "jnp.cum"),
    "linear algebra": ("lax.linalg.", "linalg.solve"),
    "gathers and scatters": ("lax.gather", "lax.scatter", "array.at", "jnp.take"),
}


@pytest.mark.shared
@pytest.mark.parametrize("kind", EXPRESSED)
def test_what_is_made_of_other_operations(kind: str) -> None:
    """The last case of each function that is not large."""
    cases: dict[str, str] = {}
    for name, case in CASES.items():
        if any(word in name for word in EXPRESSED[kind]) and "[33,33]" not in name and "[64" not in name:
            cases[case.function] = name
    outcomes = {name: judge(CASES[name]) for name in cases.values()}
    assert not {n: o.says for n, o in outcomes.items() if o.status in ("wrong", "error")}
    assert sum(o.status == "right" for o in outcomes.values()) >= 2


def _windows(init: Any, op: Any, strides: tuple[int, int]) -> Any:
    return lambda x: jax.lax.reduce_window(x, x.dtype.type(init), op, (2, 3), strides, ((0, 1), (1, 1)))


_ROWS = np.arange(-40, 40, dtype=np.int32).reshape(8, 10) * 7 % 61 - 50
#: What random data hardly meet: a call, its arrays.
CORNERS: dict[str, tuple[Any, list[Any]]] = {
    "windows of negative integers": (_windows(np.iinfo(np.int32).min, jax.lax.max, (1, 1)), [_ROWS]),
    "windows apart": (_windows(np.iinfo(np.int32).max, jax.lax.min, (3, 2)), [_ROWS]),
    "running maximum of negative integers": (lambda x: jax.lax.cummax(x), [_ROWS[:, :1].reshape(8) - 100]),
    "unsigned elements from outside": (lambda x, i: x.at[i].get(mode="fill"), [np.arange(10, dtype=np.uint8), np.array([3, 12, 9, 10], np.int32)]),
    "integers from outside": (lambda x, i: x.at[i].get(mode="fill"), [np.arange(10, dtype=np.int16), np.array([3, 12, 9, 10], np.int32)]),
    "a matrix that is not positive definite": (jnp.linalg.cholesky, [np.diag([4, 0, 1]).astype(np.float32)]),
    "a negative matrix": (jnp.linalg.cholesky, [np.diag([4, -1, 1]).astype(np.float32)]),
    "pivots on the diagonal": (lambda x: jax.lax.linalg.lu(x)[2], [np.diag([5, 4, 3]).astype(np.float32) + 1]),
    "exp of a large real number": (jnp.exp, [np.array([1000, 0, -1000], np.complex64)]),
    "a quotient by both parts": (lambda x, y: x / y, [np.array([4 + 2j, 6 - 2j, 5j], np.complex64), np.array([1 + 1j, 1 - 1j, 2j], np.complex64)]),
    "strided convolution to the last element": (
        lambda x, k: jax.lax.conv_general_dilated(x, k, (3,), ((0, 0),)),
        [np.arange(13, dtype=np.float32).reshape(1, 1, 13), np.array([1, 2], np.float32).reshape(1, 1, 2)],
    ),
}


@pytest.mark.shared
@pytest.mark.parametrize("name", CORNERS)
def test_corners(name: str) -> None:
    call, arrays = CORNERS[name]
    case = Case("", call, (), "bits", 0)
    for got, want in zip(in_kernel(case, arrays), outside(case, arrays), strict=True):
        np.testing.assert_array_equal(got, want)


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

from tests.suites.functions import *  # noqa: E402, F403
