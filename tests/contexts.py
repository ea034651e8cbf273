"""MLIR contexts that several of a process's programs share.

JAX makes a context for each program that it lowers, and loads all dialects into it: 5 ms each, a twelfth of what the suite takes.
A context keeps every type and attribute that was ever made in it: after some programs there is another.
"""

from __future__ import annotations

import threading
from typing import Any

#: Programs of a context.
PROGRAMS = 64


class _Shared(threading.local):
    context: Any = None
    left = 0


def share() -> None:
    """From here on in this process."""
    from jax._src.interpreters import mlir

    make, shared = mlir.make_ir_context, _Shared()

    def context() -> Any:
        if shared.left == 0:
            shared.context, shared.left = make(), PROGRAMS
        shared.left -= 1
        return shared.context

    mlir.make_ir_context = context
