"""A kernel, its broken twin, and running either with no XLA around it."""

from __future__ import annotations

import dataclasses
import functools
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

import smalt
from smalt import _native
from tests.corpus.case import Arg

Arrays = list[np.ndarray[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Edit:
    """One change of PTX text.

    Attributes:
        pattern: A regular expression of what is changed.
        into: What it becomes; nothing: it is removed.
        which: Which of the matches, from 0.
        of: How many there are: if the compiler changes, the edit must be looked at again.
    """

    pattern: str
    into: str = ""
    which: int = 0
    of: int = 1

    def apply(self, ptx: str) -> str:
        found = list(re.finditer(self.pattern, ptx, re.MULTILINE))
        assert len(found) == self.of, f"{self.pattern!r}: expected {self.of} places, found {len(found)}"
        match = found[self.which]
        changed = ptx[: match.start()] + match.expand(self.into) + ptx[match.end() :]
        assert changed != ptx
        return changed


@dataclasses.dataclass(frozen=True)
class Subject:
    """A right kernel and what it computes.

    Attributes:
        fn: The function of arrays around one Pallas kernel.
        reference: What it computes, of NumPy arrays.
        tolerance: Largest error; 0: bit for bit.
    """

    name: str
    fn: Callable[..., Any]
    args: tuple[Arg, ...]
    reference: Callable[..., Any]
    tolerance: float = 0.0

    @functools.cached_property
    def artifact(self) -> _native.Artifact:
        return _native.compile(*self.descriptor, "sm_90a")

    @functools.cached_property
    def descriptor(self) -> tuple[bytes, bytes]:
        return describe(self.fn, self.args)

    @functools.cached_property
    def inputs(self) -> Arrays:
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        return [arg.make(rng) for arg in self.args]

    @functools.cached_property
    def expected(self) -> Arrays:
        out = self.reference(*self.inputs)
        return [np.asarray(o) for o in (out if isinstance(out, tuple) else (out,))]

    def is_right(self, got: Arrays) -> bool:
        return len(got) == len(self.expected) and all(
            a.tobytes() == b.tobytes() if self.tolerance == 0 else close(a, b, self.tolerance)
            for a, b in zip(got, self.expected)
        )

    def emulate(self, artifact: _native.Artifact | None = None, **how: Any) -> Arrays:
        """The outputs under a schedule of the emulator (`Artifact.emulate`)."""
        return self._run(artifact or self.artifact, lambda a, buffers: a.emulate(buffers, **how))

    def on_gpu(self, device: int = 0) -> Arrays:
        return self._run(self.artifact, lambda a, buffers: a.run(buffers, device))

    def _run(self, artifact: _native.Artifact, run: Callable[[_native.Artifact, Arrays], Any]) -> Arrays:
        specs = artifact.report()["buffers"]
        operands = iter(self.inputs)
        results = iter(self.expected)
        buffers, outputs = [], []
        for spec in specs:
            if spec["role"] == "scratch":
                buffers.append(np.zeros(spec["bytes"], np.uint8))
            elif spec["role"] == "output":
                like = next(results)
                # What a NaN in every type is: nobody mistakes it for a result.
                buffers.append(np.full(like.nbytes, 0xFF, np.uint8).view(like.dtype).reshape(like.shape))
                outputs.append(buffers[-1])
            else:
                buffers.append(next(operands).copy())
        run(artifact, buffers)
        return outputs


@dataclasses.dataclass(frozen=True)
class Broken:
    """A twin of a subject with one piece of synchronisation missing or moved, and how that shows.

    Attributes:
        change: Another function, with the author's mistake; or edits of the PTX of the right one.
        shows: Decisive words of the diagnosis (all of them appear in it); None: the number is wrong.
        line: A piece of the user's line at which the diagnosis points.
    """

    name: str
    subject: Subject
    change: Callable[..., Any] | tuple[Edit, ...]
    shows: tuple[str, ...] | None
    line: str = ""

    @functools.cached_property
    def artifact(self) -> _native.Artifact:
        if not isinstance(self.change, tuple):
            return _native.compile(*describe(self.change, self.subject.args), "sm_90a")
        right = self.subject.artifact
        ptx = right.ptx
        for edit in self.change:
            ptx = edit.apply(ptx)
        report = right.report()
        launch = report["launch"]
        return _native.from_ptx(launch["entry"], ptx, launch, report["buffers"], "sm_90a", self.subject.descriptor[1])

    def emulate(self, **how: Any) -> Arrays:
        return self.subject.emulate(self.artifact, **how)


def describe(fn: Callable[..., Any], args: tuple[Arg, ...]) -> tuple[bytes, bytes]:
    """The descriptor and the debug table of a function's one kernel."""
    with smalt.emulated("H100"):
        kernels = smalt.descriptor(fn, *[arg.struct() for arg in args])
    [(_, descriptor, debug)] = kernels
    return descriptor, debug


def close(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], tolerance: float) -> bool:
    x, y = a.astype(np.float64), b.astype(np.float64)
    return bool((np.abs(x - y) <= tolerance * np.maximum(1, np.abs(y))).all())  # False for NaN


SUBJECTS: dict[str, Subject] = {}
BROKEN: dict[str, Broken] = {}
#: Right all the same.
SPARED: dict[str, Broken] = {}


def subject(*args: Arg, reference: Callable[..., Any], tolerance: float = 0.0) -> Callable[[Callable[..., Any]], Subject]:
    """Registers a function as a right kernel."""

    def register(fn: Callable[..., Any]) -> Subject:
        made = Subject(fn.__name__, fn, args, reference, tolerance)
        assert made.name not in SUBJECTS
        SUBJECTS[made.name] = made
        return made

    return register


def broken(name: str, of: Subject, *change: Any, shows: tuple[str, ...] | None, line: str = "") -> None:
    """Registers a broken twin: a function, or edits."""
    assert name not in BROKEN
    what = change if isinstance(change[0], Edit) else change[0]
    BROKEN[name] = Broken(name, of, what, shows, line)


def spared(name: str, of: Subject, *edits: Edit) -> None:
    """Registers a twin without something that nobody needs."""
    assert name not in SPARED
    SPARED[name] = Broken(name, of, edits, None)


def load_all() -> tuple[dict[str, Subject], dict[str, Broken]]:
    import tests.suites.asynchrony.blocks  # noqa: F401
    import tests.suites.asynchrony.kernels  # noqa: F401
    import tests.suites.asynchrony.ptx  # noqa: F401
    import tests.suites.asynchrony.waits  # noqa: F401

    return SUBJECTS, BROKEN
