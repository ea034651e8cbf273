"""tokamax's own tests of its Hopper kernels, unmodified, by smalt: `python -m tests.suites.libraries.tokamax [--gpu] [--stock FILE]`.

Without `--gpu` they run in the emulator. tokamax is installed from PyPI into `build/tokamax` (Python 3.12 or newer), or taken as it is
with `--installed`. `--by stock --gpu` runs them by JAX alone; with what that wrote (`--stock FILE`) a test is held against it: what
stock passes has to pass. The last lines say what did not pass, and whose fault it is.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

from tests import ROOT
from tests.suites.libraries import ampere

VERSION = "0.0.17"
FILES = [
    "attention/pallas_mosaic_gpu_test.py",
    "ragged_dot/pallas_mosaic_gpu_test.py",
    "ragged_dot/pallas_mosaic_gpu_common_test.py",
    "gated_linear_unit/pallas_mosaic_gpu_test.py",
]

#: Whose fault a failure is, by words of its error: the first that fits.
FAULTS = [
    (r"leaves 'd[qkv]'", "tokamax's tolerance: gradients in bf16 are held to less than half of its last place (docs/FOUND.md)"),
    (r"rtol=1e-06, atol=0\b", "tokamax's tolerance: sums of f32 in another order than the reference's, which a CPU computed (docs/FOUND.md)"),
    (r"Timeout", "the time that a test has"),
    (r"in dimension 0 of barriers", "tokamax: a loop that begins in front of its bound (docs/FOUND.md)"),
    (r"an index outside of its dimension", "tokamax: it loads behind its arrays, and does not use that (docs/FOUND.md)"),
    (r"nothing orders the two|not known to be complete", "tokamax: warpgroups share memory without a wait (docs/FOUND.md)"),
    (r"^smalt: not supported", "smalt lacks it"),
]


def install() -> str:
    """The Python that has tokamax."""
    folder = ROOT / "build" / "tokamax"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        wanted = [f"tokamax[test]=={VERSION}", "pytest-timeout"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
    return str(python)


def run(python: str, out: pathlib.Path, options: argparse.Namespace) -> None:
    out.unlink(missing_ok=True)
    where = subprocess.run(
        [python, "-c", "import importlib.util as u; print(u.find_spec('tokamax').submodule_search_locations[0])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "jax_plugin"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "SMALT_LIBRARIES_BY": options.by,
        "SMALT_LIBRARIES_CHECK": "" if options.gpu else options.check,
        "SMALT_LIBRARIES_DEVICE": options.device,
        "SMALT_LIBRARIES_OUT": str(out),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "OPENBLAS_NUM_THREADS": "1",
        **({} if options.gpu else {"JAX_PLATFORMS": "cpu"}),
    }
    files = [str(pathlib.Path(where) / "_src" / "ops" / name) for name in FILES]
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(out.parent)]
    command += ["-p", "tests.suites.libraries.plugin", "-W", "ignore", "--timeout", "600", "-n", str(options.jobs), *files]
    command += ["-k", options.k] if options.k else []
    subprocess.run(command, cwd=out.parent, env=environment, stdout=subprocess.DEVNULL, check=False)


def read(file: pathlib.Path) -> dict[str, dict[str, str]]:
    """The worst of what became of each test, subtests included."""
    found: dict[str, dict[str, str]] = {}
    for line in file.read_text().splitlines():
        it = json.loads(line)
        if it["outcome"] == "failed" or it["test"] not in found:
            found[it["test"]] = it
    return found


#: Whose fault a wrong number, or a copy that is not waited for, is where a test's name has these words, on GPUs before Hopper.
BEFORE_HOPPER = [(r"FlashAttention", "tokamax: attention of two stages does not wait for its last copies (docs/FOUND.md)")]


def fault(it: dict[str, str], device: str) -> str:
    text = it["error"] + " " + it["text"]
    if device in ampere.GPUS and re.search(r"differ|a copy by threads", text):
        for words, why in BEFORE_HOPPER:
            if re.search(words, it["test"]):
                return why
    return next((why for words, why in FAULTS if re.search(words, text)), "not known")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="on the GPU that there is")
    parser.add_argument("--by", choices=["smalt", "stock"], default="smalt")
    parser.add_argument("--check", choices=["error", "warn", "off"], default="warn", help="the emulator's checker")
    parser.add_argument("--device", default="H100", help="the GPU that is emulated")
    parser.add_argument("--installed", action="store_true", help="tokamax is there already")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "tokamax.jsonl")
    parser.add_argument("--stock", type=pathlib.Path, help="what `--by stock --gpu` wrote")
    parser.add_argument("-k", help="only these tests")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    run(sys.executable if options.installed else install(), options.out, options)

    found = read(options.out)
    stock = read(options.stock) if options.stock else {}
    worse = []
    for name, it in sorted(found.items()):
        if it["outcome"] != "failed":
            continue
        by_stock = stock.get(name, {}).get("outcome", "not run")
        if by_stock == "passed":
            worse.append(name)
        print(f"{name}: {fault(it, options.device)}" + (f"; by stock: {by_stock}" if stock else ""))
    counts = collections.Counter(it["outcome"] for it in found.values())
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} left out by tokamax")
    if stock:
        passed = [name for name, it in stock.items() if it["outcome"] == "passed" and name in found]
        both = sum(found[name]["outcome"] == "passed" for name in passed)
        print(f"of {len(passed)} that stock passes {both} pass; stock passes, and smalt does not: {', '.join(worse) or 'none'}")
    return 1 if worse or (not stock and counts["failed"]) else 0


if __name__ == "__main__":
    sys.exit(main())
