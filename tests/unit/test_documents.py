"""The pages: links that resolve, lines that a screen holds, README's example, the chart."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from benchmarks import chart

from tests import ROOT
from tests.fuzz.registry import GRAMMARS

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
#: Pages that programs write, of long rows.
GENERATED = {"SUPPORT.md", "INSTRUCTIONS.md"}


def prose(page: pathlib.Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.S | re.M)


def anchors(page: pathlib.Path) -> set[str]:
    """Where links can lead within a page, as GitHub names its headings."""
    names: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", prose(page), re.M):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        names.add(next(n for n in itertools.chain([name], (f"{name}-{i}" for i in itertools.count(1))) if n not in names))
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: pathlib.Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), f"{page.name}: {link}: {sorted(anchors(target))}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in GENERATED], ids=lambda page: page.name)
def test_lines_are_short(page: pathlib.Path) -> None:
    long = [f"{page.name}:{i}: {len(line)}" for i, line in enumerate(page.read_text().splitlines(), 1) if len(line) > 160]
    assert not long


def test_every_page_is_linked() -> None:
    """From README, over pages that it links to."""
    found, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page not in found:
            found.add(page)
            links = re.findall(r"\]\(([^)#\s]+\.md)", page.read_text())
            todo += [(page.parent / link).resolve() for link in links if ":" not in link]
    assert not set(PAGES) - found


def test_readme_is_one_screen_or_two() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_readme_example_runs(tmp_path: pathlib.Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (printed,) = re.findall(r"It prints ([0-9.]+)", (ROOT / "README.md").read_text())
    script = tmp_path / "example.py"
    script.write_text(example)
    paths = os.pathsep.join([str(ROOT / "jax_plugin"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, script], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == printed


def test_the_chart_is_drawn_from_its_data() -> None:
    assert chart.CHART.read_text() == chart.draw(json.loads(chart.RESULTS.read_text()))


def test_the_chart_and_the_page_have_the_same_figures() -> None:
    """PERFORMANCE.md states kernels, worst ratio and mean of each family; both round to three places, from rounded ratios."""
    page = (ROOT / "docs" / "PERFORMANCE.md").read_text()
    section = page[page.index("| family | kernels | worst | geometric mean |") :]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in section.split("\n\n")[0].splitlines()[2:]]
    ratios = chart.families(json.loads(chart.RESULTS.read_text())["kernels"])
    assert len(rows) == len(ratios)
    for (label, count, worst, mean), values in zip(rows, ratios.values(), strict=True):
        assert int(count) == len(values), label
        assert not worst or float(worst.split()[0]) == max(values), label
        assert float(mean) == pytest.approx(chart.mean(values), abs=1e-3), label


def test_commands_name_files_that_exist() -> None:
    """`python -m module`, `python file.py` in every page; `test_x`, `gpu/test_x` in VERIFICATION.md."""
    for page in PAGES:
        text = page.read_text()
        for module in re.findall(r"python -m ((?:tests|benchmarks|examples)[\w.]*)", text):
            path = ROOT / module.rstrip(".").replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page.name}: {module}"
        for file in re.findall(r"python ((?:tests|benchmarks|examples|scripts)/[\w/]+\.py)", text):
            assert (ROOT / file).exists(), f"{page.name}: {file}"
    named = re.findall(r"`(gpu/)?(test_\w+)(?: -k [^`]*)?`", (ROOT / "docs" / "VERIFICATION.md").read_text())
    assert len(named) > 50
    rooms = {"gpu/": ["gpu"], "": ["unit", "emulated"]}
    for gpu, name in named:
        assert name == "test_x" or any(path for room in rooms[gpu] for path in (ROOT / "tests" / room).rglob(f"{name}.py")), gpu + name


def test_generators_that_pages_name_are_there() -> None:
    named = set(re.findall(r"`fuzz '([^'…]+)'", (ROOT / "docs" / "VERIFICATION.md").read_text()))
    assert len(named) > 8 and named <= set(GRAMMARS), named - set(GRAMMARS)
