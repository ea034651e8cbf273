"""Runs cases (all, or those named) on JAX's default device; `--json`: what each has printed, as one JSON object."""

from __future__ import annotations

import json
import sys

from tests.suites.prints.cases import CASES, printed


def main() -> None:
    names = [name for name in sys.argv[1:] if not name.startswith("--")] or list(CASES)
    texts = {name: printed(CASES[name]) for name in names}
    if "--json" in sys.argv:
        print(json.dumps(texts))
        return
    for name, text in texts.items():
        right = "as expected" if text == CASES[name].expected else "NOT AS EXPECTED"
        print(f"---- {name}: {right}\n{text}", end="")


if __name__ == "__main__":
    main()
