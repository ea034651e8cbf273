"""Tests that need a Hopper GPU. A machine without one skips them all, and says so.

With `SMALT_TARGET` they run what is compiled for another machine; a test of a part that this machine lacks is skipped, with the error's first line.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Generator

import pytest

# Not the user's: what a test keeps on disk, it keeps in a folder of its own.
os.environ["SMALT_CACHE_DIR"] = ""

HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    del config
    mine = [item for item in items if HERE in item.path.parents]
    if not mine:
        return
    from smalt import _native

    devices = _native.doctor()["devices"]
    if not isinstance(devices, list) or not devices or devices[0]["capability"] != [9, 0]:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU of capability 9.0; here: {devices}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    target = os.environ.get("SMALT_TARGET")
    if target is None or not report.failed or call.excinfo is None:
        return report
    refused = re.search(rf"smalt: not supported yet: .* on {re.escape(target)}$", str(call.excinfo.value), re.MULTILINE)
    if refused:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, refused[0])
    return report
