"""Defects known today: which programs fail, and how (`Failure.kind`). A program that no longer fails does not belong here: the tests say so.

`python -m tests.programs.failing` runs them all and prints what this file should say.
"""

from __future__ import annotations

#: Of `regressions.REGRESSIONS`.
NAMED: dict[str, str] = {}

#: Of `generate.generate`.
SEEDS: dict[int, str] = {}


def main() -> None:
    from tests.programs.generate import PROGRAMS, generate
    from tests.programs.regressions import REGRESSIONS
    from tests.programs.run import check

    named = {name: failure.kind for name, program in REGRESSIONS.items() if (failure := check(program))}
    seeds = {seed: failure.kind for seed in range(PROGRAMS) if (failure := check(generate(seed))) and failure.kind != "passed over"}
    for title, found in (("NAMED: dict[str, str]", named), ("SEEDS: dict[int, str]", seeds)):
        print(f"{title} = {{")
        for key, kind in found.items():
            print(f'    {key if isinstance(key, int) else chr(34) + key + chr(34)}: "{kind}",')
        print("}")


if __name__ == "__main__":
    main()
