"""Pages of `docs/` whose programs run as they stand, block after block."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
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
    paths = [str(ROOT / "jax_plugin"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
