"""What smalt raises: while a kernel is lowered, and when it runs.

Every error has the fields `fault`, `what`, `where`, `expected`, `got`, `remedy` and `frames`. What a run finds reaches
Python through XLA, as a `jax.errors.JaxRuntimeError`; it is one of these classes too (`_lowering/runtime_errors.py`).
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import sys
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Frame:
    """One place in the user's source."""

    file: str
    function: str
    line: int
    column: int


class Error(Exception):
    """Base of smalt's errors.

    Attributes:
        report: The library's report, if the error is its: the fields below, as a dictionary.
    """

    report: Mapping[str, Any] | None = None

    @property
    def fault(self) -> str:
        """Whose fault it is: Unsupported, InvalidKernel, InvalidArgument, InvalidDescriptor, Environment, Execution, Timeout, Interrupted
        or Internal."""
        return str(self._field("fault") or _FAULTS.get(_public(type(self)), "InvalidKernel"))

    @property
    def what(self) -> str:
        return str(self._field("what") or "")

    @property
    def where(self) -> str | None:
        """The user's `file:line`: the innermost frame outside of installed packages, if one is; None where no line is at fault."""
        frames = self.frames
        frame = next((f for f in frames if not is_installed(f.file)), frames[0] if frames else None)
        return None if frame is None else f"{frame.file}:{frame.line}"

    @property
    def expected(self) -> str | None:
        return self._field("expected")

    @property
    def got(self) -> str | None:
        return self._field("got")

    @property
    def remedy(self) -> str | None:
        return self._field("remedy")

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The user's line, helpers, callers: innermost first."""
        reported = () if self.report is None else tuple(Frame(f["file"], f["function"], f["line"], f["column"]) for f in self.report["frames"])
        text = self._text() if self.report is None else str(self.report["message"])
        in_text = tuple(Frame(file, function, int(line), 0) for file, line, function in _FRAME.findall(text))
        return reported + in_text[len(reported) :]  # callers are in the message only

    def _text(self) -> str:
        return str(self.args[0]) if self.args else ""

    def _field(self, name: str) -> str | None:
        if self.report is not None:
            return self.report.get(name)
        return _parse(self._text()).get(name)


def is_installed(file: str) -> bool:
    """Whether a file is no source of the user's: of a package, of JAX (from wherever it was imported), or smalt's."""
    parts = pathlib.PurePath(file).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    packages = (sys.modules.get(name) for name in ("jax", "smalt"))
    folders = [os.path.dirname(p.__file__) + os.sep for p in packages if p is not None and p.__file__]
    return file.startswith(tuple(folders))


# A message is `smalt: what`, then lines that begin with these words, then frames.
_PART = re.compile(r"^  (expected|got|remedy|at|in|called from):? ", re.M)
_FRAME = re.compile(r"^  (?:at|in|called from) (.+):(\d+) \((.*)\)$", re.M)


def _parse(text: str) -> dict[str, str]:
    """The parts of a message that Python wrote."""
    parts = _PART.split(text)
    what = parts[0].strip().removeprefix("smalt: ")
    return {"what": what} | {name: body.rstrip("\n") for name, body in zip(parts[1::2], parts[2::2])}


class Unsupported(Error, NotImplementedError):
    """The kernel needs something that smalt lacks."""


class InvalidKernel(Error, ValueError):
    """The kernel is wrong for any compiler."""


class Internal(Error, RuntimeError):
    """A defect of smalt. Please report it, with the dumped descriptor."""


class CompileError(Error):
    """What came to the compiler is no kernel, or the machine lacks what compiling or running takes."""


class NotInstalled(CompileError, ImportError):
    """What smalt needs is not there, or is another version's: JAX, or the native library."""


class InvalidArgument(Error, ValueError):
    """An argument of one of smalt's functions, or an environment variable, has a value without a meaning."""


class ExecutionError(Error, RuntimeError):
    """A kernel failed while it ran: out of bounds, a missing wait, a driver's error."""


class Timeout(ExecutionError):
    """A kernel did not end: a deadlock, or more time than was allowed (`SMALT_TIMEOUT`, `wait_timeout_ns`)."""


class Interrupted(Error, RuntimeError):
    """The user stopped the emulator, and the thread that waited was not the main one (there it is a KeyboardInterrupt)."""


# The library's names of faults.
CLASSES: dict[str, type[Error]] = {
    "Unsupported": Unsupported,
    "InvalidKernel": InvalidKernel,
    "InvalidDescriptor": CompileError,
    "Environment": CompileError,
    "Execution": ExecutionError,
    "Timeout": Timeout,
    "Interrupted": Interrupted,
    "Internal": Internal,
}
_FAULTS = {"Unsupported": "Unsupported", "Internal": "Internal", "CompileError": "Environment"}
_FAULTS |= {"ExecutionError": "Execution", "Timeout": "Timeout", "Interrupted": "Interrupted", "InvalidArgument": "InvalidArgument"}


def _public(cls: type) -> str:
    return next(c.__name__ for c in cls.__mro__ if c in (*CLASSES.values(), InvalidArgument, Error))


def of_report(report: Mapping[str, Any]) -> Error:
    """The library's report as an exception."""
    error = CLASSES.get(report["fault"], CompileError)(report["message"])
    error.report = report
    return error
