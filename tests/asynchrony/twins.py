"""Runs the right kernels once on a GPU, with no JAX there: for compute-sanitizer.

    PYTHONPATH=jax_plugin:. compute-sanitizer --tool racecheck python -m tests.asynchrony.twins [NAME...]
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tests.asynchrony.subject import load_all  # noqa: E402


def main(names: list[str]) -> int:
    wrong = 0
    for name, subject in load_all()[0].items():
        if names and name not in names:
            continue
        right = subject.is_right(subject.on_gpu())
        wrong += not right
        print(f"{'right' if right else 'WRONG'}  {name}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
