"""Pages of `docs/` whose programs run as they stand, block after block."""

from __future__ import annotations

import pathlib
import re

import pytest
from tests import ROOT
from tests.fresh import run_script

#: The pages, and how many checks of results they have at least.
PAGES = {"TUTORIAL.md": 6, "WARPS.md": 1}


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, tmp_path: pathlib.Path) -> None:
    text = (ROOT / "docs" / page).read_text()
    source, line = "", 1
    for block in re.finditer(r"```python\n(.*?)```", text, re.S):
        start = text[: block.start(1)].count("\n") + 1
        source += "\n" * (start - line) + block.group(1)  # lines are the page's
        line = start + block.group(1).count("\n")
    assert source.count("assert_") >= PAGES[page]
    script = tmp_path / "tutorial.py"
    script.write_text(source)
    done = run_script("import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')", str(script))
    assert done.returncode == 0, done.stdout + done.stderr
