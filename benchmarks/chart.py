"""Draws `docs/shipped.svg`, the chart of the README, from `benchmarks/results/shipped.json`: `python -m benchmarks.chart`.

One row for each family of kernels: a dot for each kernel, a bar from stock's time to the family's geometric mean. Colours follow
the reader's light or dark mode. `benchmarks/shipped.py --full --json benchmarks/results/shipped.json` measures anew.
"""

from __future__ import annotations

import json
import pathlib
import statistics
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "shipped.json"
CHART = ROOT / "docs" / "shipped.svg"

#: Families in the order of rows, and how they are called there.
FAMILIES = {
    "attention forward": "attention, forward",
    "attention backward": "attention, backward",
    "emitter": "attention, emit_pipeline",
    "ragged": "ragged dot",
    "transposed ragged": "transposed ragged dot",
    "mixed": "mixed int8 × bf16 matmul",
    "matmul": "matmul, 5 other shapes",
}

_STYLE = """\
text { font: 13px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 15px } .mean { font-weight: 600 } .faint { fill: #59636e; font-size: 12px }
.page { fill: #ffffff } .grid { stroke: #d1d9e0 } .stock { stroke: #59636e; stroke-width: 1.5 }
.bar { fill: #2da44e; fill-opacity: .3 } .dot { fill: #1a7f37; fill-opacity: .75 } .tick { stroke: #1a7f37; stroke-width: 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .faint { fill: #9198a1 } .page { fill: #0d1117 } .grid { stroke: #3d444d } .stock { stroke: #9198a1 }
  .bar { fill: #3fb950 } .dot { fill: #3fb950 } .tick { stroke: #56d364 }
}"""

_LEFT, _WIDTH, _TOP, _LINE = 245, 820, 60, 30
_LOW, _HIGH = 0.55, 1.05


def _x(ratio: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - 75) * (ratio - _LOW) / (_HIGH - _LOW)


def families(kernels: list[dict[str, Any]]) -> dict[str, list[float]]:
    """The ratios of each family's kernels, and those of all."""
    ratios: dict[str, list[float]] = {family: [] for family in FAMILIES}
    for kernel in kernels:
        ratios[kernel["family"]].append(kernel["ratio"])
    return ratios | {"all": [kernel["ratio"] for kernel in kernels]}


def mean(ratios: list[float]) -> float:
    return statistics.geometric_mean(ratios)


def draw(results: dict[str, Any]) -> str:
    """The chart as SVG. Kernels that were refused have no ratio and are left out."""
    ratios = families([kernel for kernel in results["kernels"] if "ratio" in kernel])
    if any(not _LOW <= ratio <= _HIGH for ratio in ratios["all"]):
        raise ValueError(f"a ratio outside of the axis, {_LOW} to {_HIGH}: {min(ratios['all'])} to {max(ratios['all'])}")
    rows = [family for family in ratios if ratios[family]]
    bottom = _TOP + _LINE * len(rows) + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 46}" width="{_WIDTH}" role="img">',
        "<title>Time of smalt over time of stock Mosaic GPU, by family of kernels</title>",
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="page" width="{_WIDTH}" height="{bottom + 46}" rx="6"/>',
        '<text class="title" x="16" y="26">Kernels that JAX ships for Hopper: time with smalt / time with stock Mosaic GPU</text>',
        '<text class="faint" x="16" y="45">less is faster; a dot is a kernel, a bar ends at the geometric mean</text>',
    ]
    for tenth in range(6, 11):
        x, kind = _x(tenth / 10), "stock" if tenth == 10 else "grid"
        out.append(f'<path class="{kind}" d="M{x:.1f} {_TOP - 6}V{bottom}"/>')
        label = "1.0 (stock)" if tenth == 10 else f"{tenth / 10:.1f}"
        out.append(f'<text class="faint" x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{label}</text>')
    for i, family in enumerate(rows):
        y, middle = _TOP + _LINE * i + _LINE / 2, mean(ratios[family])
        label = f"{FAMILIES.get(family, 'all')} ({len(ratios[family])})"
        start, end = sorted((_x(middle), _x(1.0)))
        bold = ' class="mean"' if family == "all" else ""
        out.append(f'<text{bold} x="{_LEFT - 10}" y="{y + 4.5}" text-anchor="end">{label}</text>')
        out.append(f'<rect class="bar" x="{start:.1f}" y="{y - 9}" width="{end - start:.1f}" height="18"/>')
        if family != "all":
            out += [f'<circle class="dot" cx="{_x(ratio):.1f}" cy="{y}" r="3"/>' for ratio in sorted(ratios[family])]
        out.append(f'<path class="tick" d="M{_x(middle):.1f} {y - 9}v18"/>')
        out.append(f'<text class="mean" x="{_WIDTH - 16}" y="{y + 4.5}" text-anchor="end">{middle:.2f}</text>')
    out.append(f'<text class="faint" x="16" y="{bottom + 36}">{results["machine"]}; medians in one process</text>')
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    CHART.write_text(draw(json.loads(RESULTS.read_text())))
