"""A plugin for pytest: a library's own tests, as they are, by smalt or by JAX alone. What the environment says (`tokamax.py` sets it):

* SMALT_LIBRARIES_BY: smalt or stock
* SMALT_LIBRARIES_CHECK: what becomes of what the emulator's checker finds; empty: there is a GPU
* SMALT_LIBRARIES_DEVICE: the GPU that is emulated
* SMALT_LIBRARIES_OUT: a file for one line of JSON a test
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

STACK = contextlib.ExitStack()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """What the library leaves out for its length is run."""
    for item in items:
        for node in item.listchain():
            node.own_markers[:] = [m for m in node.own_markers if not (m.name == "skip" and "Too slow" in str(m.kwargs.get("reason")))]


def pytest_collection_finish() -> None:
    if os.environ["SMALT_LIBRARIES_BY"] == "stock":
        return
    import smalt

    smalt.enable()
    if check := os.environ.get("SMALT_LIBRARIES_CHECK"):
        STACK.enter_context(smalt.emulated(os.environ.get("SMALT_LIBRARIES_DEVICE", "H100"), check=check))


def pytest_unconfigure() -> None:
    STACK.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "teardown" or (report.when == "setup" and report.outcome == "passed"):
        return
    error = call.excinfo.value if call.excinfo else None
    name = item.nodeid.split("::", 1)[-1].removeprefix("::")
    line = {"test": name, "outcome": report.outcome, "error": type(error).__name__, "text": str(error)[:2000]}
    with open(os.environ["SMALT_LIBRARIES_OUT"], "a") as f:
        f.write(json.dumps(line) + "\n")
