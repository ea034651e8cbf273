"""What a run finds, as smalt's exceptions.

XLA turns a handler's error into text and back: `jax.errors.JaxRuntimeError("FAILED_PRECONDITION: smalt: …")`, raised
from C++ wherever the result is waited for, with no frame of ours on the way. Python's `except` looks at an
exception's class alone. So the class is chosen where the exception is made: `JaxRuntimeError.__new__` queries the library
for the error behind the text, and makes an instance of a subclass of both. It stays a `JaxRuntimeError` for a program that
catches that; all other errors of XLA are made as before.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from smalt import _errors, _native, _versions


def install() -> None:
    """Makes the errors of smalt's kernels catchable as `smalt.Error`. Idempotent."""
    _versions.choose_runtime_errors(_find)


def _find(text: str) -> tuple[type[Exception], Mapping[str, Any]] | None:
    """The class for an error of XLA's, and its attributes; None for those that are not ours."""
    if not ("smalt: " in text or "CUDA_ERROR" in text) or not _native.is_loaded():
        return None
    report = _native.reported(text)
    if report is None:
        return None
    if report["fault"] == "Interrupted":
        _native.raise_kept()
    # What a kernel reported before it ended on a GPU is not in the driver's text.
    words = str(_errors.of_report(report)) if report.get("last_words") else ""
    return _class(report["fault"]), {"report": report, "last_words": words}


@functools.cache
def _class(fault: str) -> type[Exception]:
    own = _errors.CLASSES.get(fault, _errors.CompileError)
    # JAX's class first: its `__init__` and `__str__` are the ones that take what C++ passes.
    bases = (_versions.RuntimeError_, own)
    body = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__, "__reduce__": _reduce, "__str__": _text}
    return type(own.__name__, bases, body)


def _text(error: Any) -> str:
    own = str(super(type(error), error).__str__())
    return f"{error.last_words}\n  the driver: {own}" if error.last_words else own


def _reduce(error: _errors.Error) -> Any:
    """Pickled (to a parent process) as the plain error of the same report."""
    return _errors.of_report, (error.report,)
