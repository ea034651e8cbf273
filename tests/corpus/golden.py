"""The committed descriptors.

`golden/<version>/KEY.pb` are the descriptors of one version of JAX; `golden/<version>/index.txt` has one line per kernel: key,
SHA-256, bytes. They decode for ever.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import warnings
from collections.abc import Iterable, Sequence

import jax

import smalt
from tests.corpus import load_all

ROOT = pathlib.Path(__file__).parent / "golden"


@dataclasses.dataclass(frozen=True)
class Golden:
    """One kernel of one case."""

    key: str  # the case's name, and the kernel's index where a case has several
    descriptor: bytes
    debug: bytes = b""

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.descriptor).hexdigest()


def serialize_all(names: Iterable[str] | None = None) -> list[Golden]:
    """Serialises every case (or those named), in order of name."""
    cases = load_all()
    out = []
    for name in sorted(cases if names is None else names):
        case = cases[name]
        with warnings.catch_warnings(), case.scope():
            warnings.simplefilter("ignore")
            kernels = smalt.descriptor(case.fn, *[arg.struct() for arg in case.args])
        if not kernels:
            raise AssertionError(f"{name}: no kernel")
        for i, (_, descriptor, debug) in enumerate(kernels):
            out.append(Golden(name if len(kernels) == 1 else f"{name}.{i}", descriptor, debug))
    return out


def version() -> str:
    return jax.__version__


def _index(kernels: Sequence[Golden]) -> str:
    return "".join(f"{k.key} {k.hash} {len(k.descriptor)}\n" for k in kernels)


def write(kernels: Sequence[Golden], root: str | None = None) -> None:
    target = (pathlib.Path(root) if root else ROOT) / version()
    target.mkdir(parents=True, exist_ok=True)
    keys = {f"{k.key}.pb" for k in kernels}
    for old in target.glob("*.pb"):
        if old.name not in keys:
            old.unlink()
    for kernel in kernels:
        (target / f"{kernel.key}.pb").write_bytes(kernel.descriptor)
    (target / "index.txt").write_text(_index(kernels))


def read(which: str | None = None) -> dict[str, bytes]:
    """The committed descriptors of a version, by key."""
    return {p.stem: p.read_bytes() for p in sorted((ROOT / (which or version())).glob("*.pb"))}


def versions() -> list[str]:
    return sorted(p.name for p in ROOT.iterdir() if p.is_dir())


def check(kernels: Sequence[Golden]) -> list[str]:
    """What differs from the committed descriptors."""
    wanted = read()
    problems = [f"{k.key}: not committed" for k in kernels if k.key not in wanted]
    problems += [f"{key}: committed, but no longer a kernel" for key in sorted(wanted.keys() - {k.key for k in kernels})]
    problems += [
        f"{k.key}: {len(k.descriptor)} bytes {k.hash[:12]}, committed {len(wanted[k.key])} bytes"
        for k in kernels
        if k.key in wanted and wanted[k.key] != k.descriptor
    ]
    return problems


def differences(a: str, b: str) -> list[str]:
    """Kernels that two versions write differently, the version's semantics flags aside, and where they part."""
    from tests.corpus.decode import show

    def text(data: bytes) -> list[str]:
        return [line for line in show(data).splitlines() if not line.startswith("  semantics:")]

    left, right = read(a), read(b)
    out = []
    for key in sorted(left.keys() & right.keys()):
        x, y = text(left[key]), text(right[key])
        if x != y:
            i = next((i for i, (p, q) in enumerate(zip(x, y)) if p != q), min(len(x), len(y)))
            first = [lines[i].strip() if i < len(lines) else "(end)" for lines in (x, y)]
            out.append(f"{key}: {first[0]}   |   {first[1]}")
    return out
