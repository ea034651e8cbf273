"""`docs/TUTORIAL.md` runs as it stands, block after block."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "TUTORIAL.md"


def test_tutorial(tmp_path: pathlib.Path) -> None:
    text = PAGE.read_text()
    source, line = "", 1
    for block in re.finditer(r"```python\n(.*?)```", text, re.S):
        start = text[: block.start(1)].count("\n") + 1
        source += "\n" * (start - line) + block.group(1)  # lines are the page's
        line = start + block.group(1).count("\n")
    assert source.count("assert_") >= 6
    script = tmp_path / "tutorial.py"
    script.write_text(source)
    paths = [str(ROOT / "jax_plugin"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
