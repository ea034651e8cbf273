"""Writes descriptors of random kernels to a folder, for `tests/passes`: nothing is compiled or run.

`python -m tests.passes.dump FOLDER --count 50 --first 0`, then
`SMALT_PASSES_FOLDER=FOLDER cargo test --features test-handlers --test passes folder`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

import smalt
from tests.oracles.functions import judge
from tests.oracles.functions.judge import x64
from tests.programs import functions, products
from tests.programs import scalars as random_programs
from tests.programs.arrays import emit as arrays_emit
from tests.programs.arrays import generate as arrays_generate
from tests.programs.arrays import run as arrays_run
from tests.programs.blocks import generate as blocks_generate
from tests.programs.memory import generate as programs_generate
from tests.programs.memory import run as programs_run

Descriptors = list[bytes]


def _of(f: Callable[..., Any], *args: Any) -> Descriptors:
    with smalt.emulated("H100"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [descriptor for _, descriptor, _ in smalt.descriptor(f, *args)]


def _kernels(seed: int) -> Descriptors:
    p = random_programs.Program.of(seed, by_warps=seed % 5 == 0)
    with x64(p.x64):
        return _of(p.run, *p.data())


def _arrays(seed: int) -> Descriptors:
    p = arrays_generate.generate(seed)
    with arrays_run.settings(p):
        return _of(arrays_emit.function(p), *arrays_run.arrays(p))


def _programs(seed: int) -> Descriptors:
    return [programs_run.described(programs_generate.generate(seed))[0]]


def _blocks(seed: int) -> Descriptors:
    call = blocks_generate.generate(seed)
    return _of(blocks_generate.build(call)(False), *blocks_generate.arguments(call))


def _functions(seed: int) -> Descriptors:
    if (case := functions.draw(seed)) is None:
        return []
    with x64(case.x64):
        arrays = case.arrays()
        return _of(judge.kernel_of(case, arrays), *arrays)


def _products(seed: int) -> Descriptors:
    p = products.Product.of(seed)
    with x64(p.x64):
        return _of(p.kernel(), *p.data())


GENERATORS: dict[str, Callable[[int], Descriptors]] = {
    "kernels": _kernels,
    "arrays": _arrays,
    "programs": _programs,
    "blocks": _blocks,
    "functions": _functions,
    "products": _products,
}


def dump(folder: Path, names: list[str], seeds: range) -> Iterator[tuple[str, str]]:
    """Writes the descriptors; what became of each seed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        for seed in seeds:
            try:
                descriptors = GENERATORS[name](seed)
            except Exception as e:  # what JAX or smalt refuses is no kernel
                yield name, type(e).__name__
                continue
            for i, descriptor in enumerate(descriptors):
                (folder / f"{name}_{seed}.{i}.pb").write_bytes(descriptor)
            yield name, "written"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.passes.dump", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--of", nargs="*", choices=sorted(GENERATORS), default=sorted(GENERATORS))
    args = parser.parse_args()
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    with contextlib.ExitStack() as stack:
        stack.enter_context(smalt.enabled(True))
        for what in dump(args.folder, args.of, range(args.first, args.first + args.count)):
            counts[what] += 1
    jax.clear_caches()
    for (name, what), n in sorted(counts.items()):
        print(f"{n:5} {name}: {what}")


if __name__ == "__main__":
    main()
