"""What every committed descriptor compiles to, as hashes: whether a change of the compiler changes its PTX.

    python -m tests.corpus.ptx --write FILE [FOLDER...]      notes the PTX of the library in use
    python -m tests.corpus.ptx --against FILE [FOLDER...]    lists kernels whose PTX, or error, is another now

FOLDERs have more descriptors (`*.pb`), as `python -m tests.passes.dump` writes them. `SMALT_LIBRARY` chooses the library. Lines of `.loc` and
comments do not count. The last line has the time that compiling took.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import re
import sys
import time
from collections.abc import Iterable, Iterator

from smalt import _native
from tests.corpus import golden

TARGET = "sm_90a"


def descriptors(folders: Iterable[pathlib.Path]) -> Iterator[tuple[str, bytes]]:
    for path in sorted(golden.ROOT.glob("*/*.pb")):
        yield f"{path.parent.name}/{path.stem}", path.read_bytes()
    for folder in folders:
        for path in sorted(folder.glob("*.pb")):
            yield path.stem, path.read_bytes()


def compiled(descriptor: bytes) -> str:
    """The hash of the PTX, or the error."""
    try:
        ptx = _native.compile(descriptor, b"", TARGET).ptx
    except Exception as e:  # a refusal is an answer, too
        return f"{type(e).__name__}: {e}".splitlines()[0]
    lines = (re.sub(r"//.*", "", line).strip() for line in ptx.splitlines())
    text = "\n".join(line for line in lines if line and not line.startswith((".loc", ".file")))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", type=pathlib.Path, metavar="FILE")
    mode.add_argument("--against", type=pathlib.Path, metavar="FILE")
    parser.add_argument("folders", nargs="*", type=pathlib.Path, metavar="FOLDER")
    args = parser.parse_args()
    if args.against and not args.against.is_file():
        parser.error(f"--against {args.against}: no such file; `--write {args.against}` with the library to compare with makes it")
    begin = time.process_time()
    answers = {key: compiled(descriptor) for key, descriptor in descriptors(args.folders)}
    seconds = time.process_time() - begin
    refused = sum(": " in answer for answer in answers.values())
    summary = f"{len(answers)} descriptors, {refused} of them refused, {seconds:.1f} s"
    if args.write:
        args.write.write_text(json.dumps(answers, indent=1))
        print(summary)
        return 0
    before = json.loads(args.against.read_text())
    others = [key for key in sorted(before.keys() | answers.keys()) if before.get(key) != answers.get(key)]
    for key in others:
        print(f"{key}: {before.get(key, 'none')} before, {answers.get(key, 'none')} now")
    print(f"{summary}; {len(others)} differ")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
