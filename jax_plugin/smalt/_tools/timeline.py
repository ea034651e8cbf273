"""`smalt.trace`: timelines of runs in the emulator."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from smalt import _native, _versions

_TRACING = threading.Lock()


@contextlib.contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Runs in the emulator within the scope, of all threads, are traced to a file for Perfetto or `chrome://tracing`.

        with smalt.trace("matmul.json"):
            f(a, b)

    docs/SEEING.md describes its contents. Nothing is compiled anew. At both ends of the scope, all that JAX has dispatched is waited for.
    Scopes do not nest. A run on a GPU leaves nothing in the file.

    Raises:
        CompileError: If the file cannot be written.
        RuntimeError: Within another such scope.
    """
    if not _TRACING.acquire(blocking=False):
        raise RuntimeError("smalt.trace within smalt.trace: one file at a time")
    try:
        _versions.wait_for_all()
        _native.set_trace(os.fspath(path))
        try:
            yield
        finally:
            _versions.wait_for_all()
            _native.set_trace(None)
    finally:
        _TRACING.release()
