"""Keeps results by function, and writes `docs/SUPPORT.md` from them. `python -m tests.oracles.functions.support` writes it again."""

from __future__ import annotations

import collections
import json
import pathlib
import re
from typing import Any

import smalt
from smalt import _native
from tests import ROOT
from tests.corpus import decode, golden
from tests.oracles.functions import shown
from tests.oracles.functions.reasons import REASONS

RESULTS = pathlib.Path(__file__).parent / "results"
DOCUMENT = ROOT / "docs" / "SUPPORT.md"

_MODULES = {
    "jnp": "jax.numpy",
    "array": "Indexing and `.at` of arrays",
    "linalg": "jax.numpy.linalg",
    "lax": "jax.lax",
    "lax.linalg": "jax.lax.linalg",
    "nn": "jax.nn",
    "special": "jax.scipy.special",
    "random": "jax.random",
}
_LEGEND = """\
*yes*: all its calls (shapes, element types) are right. *n of m*: so many are; what the others say follows. *no*: none is. A dash: not run.
"""

_PARAMETERS = """\
## Compiler parameters

| of `plgpu.CompilerParams` | |
|---|---|
| `profile_space`, `profile_dir`, `profile_trace_scope` | yes, on a GPU and in the emulator: [SEEING.md](SEEING.md) |
| `profile_bounds_check` | always: what finds no room is dropped and counted |
| the others | yes |
"""


def module_of(function: str) -> str:
    if function.startswith("array"):
        return "array"
    return "lax.linalg" if function.startswith("lax.linalg.") else function.split(".")[0]


def keep(platform: str, results: dict[str, Any]) -> None:
    """`results`: {"jax": …, "calls": {case: [status, message]}}; functions that were not run keep what they had."""
    from tests.oracles.functions.table import CASES

    path = RESULTS / f"{platform}.json"
    kept = json.loads(path.read_text())["functions"] if path.exists() else {}
    functions: dict[str, Any] = {}
    for name, (status, says) in results["calls"].items():
        entry = functions.setdefault(CASES[name].function, {"calls": 0, "right": 0, "others": {}})
        entry["calls"] += 1
        if status == "right":
            entry["right"] += 1
        else:
            entry["others"].setdefault(_brief(status, says), []).append(" ".join(name.split()[1:]))
    known = {case.function for case in CASES.values()}
    merged = {f: functions.get(f, kept.get(f)) for f in sorted(known) if f in functions or f in kept}
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps({"jax": results["jax"], "functions": merged}, indent=1) + "\n")
    DOCUMENT.write_text(document())


def _brief(status: str, says: str) -> str:
    """A message without what differs from call to call."""
    if status == "wrong":
        return "wrong"
    text = re.sub(r"^\w+: (smalt: )?", "", says)
    text = text.replace("not supported yet: ", "")
    if "captures non-scalar array constants" in text:
        return "JAX lets kernels close over scalars only; this one has a table of constants"
    text = re.sub(r"%v\d+ of op\d+.*", "an op", text)
    text = re.sub(r"^(\w+): `\1`", r"`\1`", text)
    return text[:140].replace("|", "\\|")


def _cell(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "–"
    if entry["right"] == entry["calls"]:
        return "yes"
    return "no" if not entry["right"] else f"{entry['right']} of {entry['calls']}"


def _why(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return ""
    parts = []
    for message, arguments in entry["others"].items():
        where = "" if not entry["right"] or len(arguments) > 3 else f" ({', '.join(arguments)})"
        parts.append(message + where.replace("|", "\\|"))
    return "; ".join(parts)


def document() -> str:
    """The page, as the results have it."""
    runs = {p: json.loads(path.read_text()) for p in ("emulator", "gpu") if (path := RESULTS / f"{p}.json").exists()}
    emulator = runs.get("emulator", {"functions": {}})["functions"]
    gpu = runs.get("gpu", {"functions": {}})["functions"]
    names = sorted({*emulator, *gpu})
    whole = sum(e["right"] == e["calls"] for e in emulator.values())
    calls, right = (sum(e[k] for e in emulator.values()) for k in ("calls", "right"))
    versions = ", ".join(f"{p}: jax {run['jax']}" for p, run in runs.items())
    lines = [
        "# What works inside of a kernel",
        "",
        f"Written by `python -m tests.oracles.functions --write` from `tests/oracles/functions/results/` ({versions}). In the emulator {whole} of"
        f" {len(emulator)} functions are right in every call, {right} of {calls} calls. How a call is judged: `tests/oracles/functions/judge.py`.",
        "",
        _LEGEND,
    ]
    by_module = collections.defaultdict(list)
    for name in names:
        by_module[module_of(name)].append(name)
    for module, title in _MODULES.items():
        lines += [f"## {title}", "", "| function | emulator | GPU | why not |", "|---|---|---|---|"]
        for name in by_module[module]:
            short = name.removeprefix(f"{module}.") if module != "array" else name
            why = _why(emulator.get(name)) or _why(gpu.get(name))
            lines.append(f"| `{short}` | {_cell(emulator.get(name))} | {_cell(gpu.get(name))} | {why} |")
        lines.append("")
    lines += ["## Functions without a call", "", "| function | why |", "|---|---|"]
    grouped = collections.defaultdict(list)
    for name, reason in REASONS.items():
        grouped[reason].append(f"`{name}`")
    lines += [f"| {' '.join(functions)} | {reason} |" for reason, functions in grouped.items()]
    lines += ["", *_primitives(), "", *shown.lines(), "", *_PARAMETERS.splitlines()]
    return "\n".join(lines) + "\n"


def _refusal(descriptor: bytes) -> str | None:
    """What the compiler says of a kernel that it does not take."""
    try:
        _native.compile(descriptor, b"", "sm_90a")
    except smalt.Error as e:
        return f"{e.what}: expected {e.expected}" if e.expected else str(e.what)
    return None


def _primitives() -> list[str]:
    """Primitives of Pallas in the committed descriptors: how many kernels have each, and how many of them compile with this library."""
    version = golden.versions()[-1]
    kernels: dict[str, set[str]] = collections.defaultdict(set)
    refused: dict[str, list[str]] = collections.defaultdict(list)

    def walk(region: dict[str, Any], key: str) -> None:
        for op in region.get("ops", ()):
            kernels[op["primitive"]].add(key)
            for inner in op.get("regions", ()):
                walk(inner, key)

    descriptors = golden.read(version)
    for key, descriptor in descriptors.items():
        walk(decode.decode("KernelDescriptor", descriptor)["body"], key)
        if why := _refusal(descriptor):
            refused[why].append(key)
    failing = {key for keys in refused.values() for key in keys}
    lines = [
        "## Primitives of Pallas",
        "",
        f"In the {len(descriptors)} committed descriptors of `tests/corpus/` (jax {version}), compiled for sm_90a when this page was written:",
        "kernels that have the primitive, and how many of them compile. A kernel fails as a whole, so the reasons stand below, once each.",
        "`python -m tests.corpus.run --small` runs the small ones.",
        "",
        "| primitive | kernels | compile |",
        "|---|---|---|",
    ]
    for name in sorted(kernels.keys() & _PALLAS):
        lines.append(f"| `{name}` | {len(kernels[name])} | {len(kernels[name] - failing)} |")
    lines += ["", "| error | kernels |", "|---|---|"]
    lines += [f"| {_brief('refused', why)} | {', '.join(f'`{key}`' for key in keys)} |" for why, keys in sorted(refused.items())]
    return lines


_PALLAS = frozenset("""
    run_scoped run_state get_global warp_map axis_index program_id num_programs multiple_of delay layout_cast print_layout debug_print check
    inline_mgpu load store swap addupdate masked_load masked_swap atomic_store copy_gmem_to_smem copy_smem_to_gmem wait_gmem_to_smem
    wait_smem_to_gmem commit_group commit_smem commit_tmem wait_load_tmem async_prefetch async_store_smem multimem_store
    multimem_load_reduce barrier_arrive barrier_wait barrier_arrive_and_wait barrier_test semaphore_signal semaphore_wait semaphore_read
    semaphore_signal_parallel semaphore_signal_multicast griddepcontrol_wait griddepcontrol_launch_dependents set_max_registers
    try_cluster_cancel query_cluster_cancel wgmma wgmma_wait wgmma_accumulator_deref wgmma_accumulator_store mma tcgen05_mma
    tcgen05_commit_arrive async_load_tmem async_store_tmem async_copy_smem_to_tmem async_copy_scales_to_tmem
    async_copy_sparse_metadata_to_tmem scan while cond
""".split())


if __name__ == "__main__":
    DOCUMENT.write_text(document())
