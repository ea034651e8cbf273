"""Defects known today: which programs fail, and how (`Failure.kind`). A program that no longer fails does not belong here: the tests say so.

`python -m tests.programs.failing` runs them all and prints what this file should say.
"""

from __future__ import annotations

#: Of `regressions.REGRESSIONS`.
NAMED: dict[str, str] = {
    "left operand loaded in WG_STRIDED": "wrong number",
    "left operand loaded in WG_STRIDED by four": "wrong number",
    "left operand loaded in WGMMA_TRANSPOSED": "wrong number",
    "left operand constant": "internal error",
    "left operand from a scalar": "internal error",
    "warp region counts": "race",
    "warp region counts in a loop": "race",
    "warp region with a loop": "deadlock",
    "warp region with two arms": "race",
    "warp region after warp region": "race",
    "warp region in device memory": "deadlock",
    "warp region with a while": "deadlock",
    "warp region signals": "deadlock",
    "warp region copies and waits": "internal error",
    "warp region copies and waits for nobody": "internal error",
    "warp region waits for another's copy": "internal error",
    "while: the last condition is read before the store behind it": "race",
    "while: in a loop": "race",
    "scopes share memory in a loop": "race",
    "scopes share memory in nested loops": "race",
    "scopes share memory, stores in flight": "race",
    "a wait for all bulk stores but one": "race",
    "read what a bulk store wrote": "wrong number",
    "read what a bulk store wrote, in place": "wrong number",
    "overwrite what a bulk store wrote": "wrong number",
    "read what a bulk store wrote, one group in flight": "wrong number",
    "a bulk store over what lanes wrote": "wrong number",
    "a bulk store over what lanes read": "wrong number",
    "a warp's bulk store, then a bulk load": "race",
    "a warp's bulk store, then a read of what it wrote": "wrong number",
    "load in bulk what lanes stored": "wrong number",
    "store what is loaded in bulk, when it is there": "wrong number",
    "poll a semaphore": "wrong number",
    "poll a semaphore twice": "wrong number",
    "left operand that a loop changes": "internal error",
    "left operand that a loop loads": "internal error",
    "two products, a barrier, a store over an operand": "race",
    "two products, a wait for one, a store over an operand": "race",
    "two products, a barrier, a bulk load over an operand": "race",
}

#: Of `generate.generate`.
SEEDS: dict[int, str] = {
    3: "race",
    9: "wrong number",
    11: "wrong number",
    13: "wrong number",
    16: "wrong number",
    20: "wrong number",
    23: "deadlock",
    29: "wrong number",
    35: "internal error",
    38: "wrong number",
    40: "wrong number",
    47: "internal error",
    52: "race",
    64: "race",
    71: "deadlock",
    75: "internal error",
    82: "wrong number",
    83: "race",
    85: "wrong number",
    87: "race",
    99: "race",
    100: "internal error",
    104: "race",
    117: "wrong number",
    118: "wrong number",
    119: "wrong number",
    122: "wrong number",
    123: "internal error",
    131: "wrong number",
    135: "deadlock",
    141: "wrong number",
    145: "wrong number",
    167: "wrong number",
    171: "race",
    174: "deadlock",
    179: "race",
    186: "race",
    198: "wrong number",
}


def main() -> None:
    from tests.programs.generate import PROGRAMS, generate
    from tests.programs.regressions import REGRESSIONS
    from tests.programs.run import check

    named = {name: failure.kind for name, program in REGRESSIONS.items() if (failure := check(program))}
    seeds = {seed: failure.kind for seed in range(PROGRAMS) if (failure := check(generate(seed))) and failure.kind != "refused"}
    for title, found in (("NAMED: dict[str, str]", named), ("SEEDS: dict[int, str]", seeds)):
        print(f"{title} = {{")
        for key, kind in found.items():
            print(f'    {key if isinstance(key, int) else chr(34) + key + chr(34)}: "{kind}",')
        print("}")


if __name__ == "__main__":
    main()
