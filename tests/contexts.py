"""MLIR contexts that several of a process's programs share.

JAX makes a context for each program that it lowers, and loads all dialects into it: 5 ms each, a twelfth of what the suite takes.
A context keeps every type and attribute that was ever made in it: after some programs there is another.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

#: Programs of a context.
PROGRAMS = 64


class _Shared(threading.local):
    context: Any = None
    left = 0


_own: list[Any] = []  # JAX's function, once contexts are shared


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Within the scope each program has a context of its own. What XLA lowers while it compiles (`custom_partitioning`) must not be made in
    the context of the program that it compiles: JAX 0.10 crashes."""
    from jax._src.interpreters import mlir

    before = mlir.make_ir_context
    mlir.make_ir_context = _own[0] if _own else before
    try:
        yield
    finally:
        mlir.make_ir_context = before


def share() -> None:
    """From here on in this process, by whichever tests are collected first."""
    if _own:
        return
    from jax._src.interpreters import mlir

    make, shared = mlir.make_ir_context, _Shared()
    _own.append(make)

    def context() -> Any:
        if shared.left == 0:
            shared.context, shared.left = make(), PROGRAMS
        shared.left -= 1
        return shared.context

    mlir.make_ir_context = context
