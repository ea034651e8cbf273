"""What every committed descriptor becomes for each machine that smalt compiles for, assembled.

    python -m tests.corpus.machines [--jobs 16] [--target sm_80 …] [FOLDER...]

A line for each machine: how many kernels the assembler takes, how many are refused for a part that the machine lacks, or for want of shared
memory; then what should not be: another error, a text that the assembler refuses, spills of kernels that have none on a Hopper. FOLDERs have more
descriptors (`*.pb`), as `python -m tests.passes.dump` writes them. `SMALT_LIBRARY` chooses the library.
"""

from __future__ import annotations

import argparse
import collections
import functools
import multiprocessing
import os
import pathlib
import re
import sys

from smalt import _native
from tests.corpus import ptx

HOPPER = "sm_90a"


def made(target: str, key_and_descriptor: tuple[str, bytes]) -> tuple[str, str]:
    """What becomes of one: "assembled", "spills N", "lacks …", "shared memory", or an error."""
    key, descriptor = key_and_descriptor
    try:
        artifact = _native.compile(descriptor, b"", target)
    except Exception as e:  # a refusal is an answer, too
        first = str(e).splitlines()[0]
        lacks = re.match(r"smalt: not supported yet: (.*) on " + target, first)
        if lacks is not None:
            return key, f"lacks {lacks[1]}"
        return key, "shared memory" if first == "smalt: shared memory" else f"error: {first}"
    try:
        artifact.assemble()
    except Exception as e:
        return key, f"error: {' '.join(str(e).split())[:200]}"
    about = artifact.report()["assembled"]["log"]
    spills = about["spill_store_bytes"] + about["spill_load_bytes"]
    return key, f"spills {spills} bytes" if spills else "assembled"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--target", action="append", choices=list(_native.machines()), metavar="TARGET")
    parser.add_argument("--every", type=int, default=1, help="take every so manieth descriptor")
    parser.add_argument("folders", nargs="*", type=pathlib.Path, metavar="FOLDER")
    args = parser.parse_args()
    all_of_them = [(key, d) for key, d in ptx.descriptors(args.folders) if not key.startswith(("0.10", "0.12"))][:: args.every]
    wrong = 0
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        on_hopper = dict(pool.imap_unordered(functools.partial(made, HOPPER), all_of_them, chunksize=4))
        kernels = [(key, d) for key, d in all_of_them if not on_hopper[key].startswith("error")]
        print(f"{len(kernels)} kernels that {HOPPER} has; {sum(x.startswith('spills') for x in on_hopper.values())} of them spill there", flush=True)
        for target in args.target or _native.machines():
            found = dict(pool.imap_unordered(functools.partial(made, target), kernels, chunksize=4)) if target != HOPPER else on_hopper
            counts = collections.Counter(re.sub(r"[\d.]+ bytes", "", what) for key, what in found.items() if not what.startswith("error"))
            print(f"{target}: " + ", ".join(f"{n} {what.strip()}" for what, n in counts.most_common()), flush=True)
            for key, what in found.items():
                if what.startswith("error") and target != HOPPER or what.startswith("spills") and on_hopper[key] == "assembled":
                    wrong += 1
                    print(f"  {key}: {what}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
