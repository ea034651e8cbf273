"""States in the keys of JAX's caches, and how programs are called: errors, signals, exports."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax._src import pjit as _pjit
from jax._src.export import _export
from jax._src.interpreters import pxla as _pxla
from jax.interpreters import mlir

from smalt._versions.lowering import platforms


def make_state(default: Any) -> Any:
    """A state that is part of the keys of JAX's jit, trace and lowering caches.

    Not one of `jax.config`: those are absl flags and environment variables too, which only hold text.
    """
    return jax.make_user_context(default)


def global_value(state: Any) -> Any:
    """A state's value outside all scopes."""
    return state.get_global()


def set_global(state: Any, value: Any) -> None:
    state.set_global(value)


RuntimeError_: Any = jax.errors.JaxRuntimeError
"""What JAX raises when a custom call fails."""


def choose_runtime_errors(find: Callable[[str], tuple[type[Exception], Any] | None]) -> None:
    """For an error of XLA whose text `find` finds, an instance of its class, with its attributes, is raised.

    C++ makes the exception by calling the class with text and code, as usual.
    """
    own = RuntimeError_.__new__
    if getattr(own, "_smalt", False):
        return

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is RuntimeError_ and args and isinstance(args[0], str) and (found := find(args[0])) is not None:
            error = own(found[0], *args, **kwargs)
            vars(error).update(found[1])
            return error
        return own(cls, *args, **kwargs)

    new._smalt = True  # type: ignore[attr-defined]
    RuntimeError_.__new__ = new


# What a program keeps alive that Python shall call.
_FROM_PYTHON = object()


def call_from_python(ctx: Any) -> None:
    """The program that a rule is part of will be called by JAX's Python each time.

    From the second call on JAX's C++ would call it, which makes a plain ValueError of an error that is there when the call returns.
    """
    module = ctx.module_context
    if not module.lowering_parameters.for_export:  # JAX exports nothing that keeps something alive
        module.add_keepalive(_FROM_PYTHON)


def heed_calls_from_python(is_exported: Callable[[bytes], bool], waiting: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Makes JAX heed `call_from_python`; `is_exported`: whether it stands for a program that was exported.

    On the main thread a call returns when its results are there, and waits for them in the interpreter, in the context that `waiting`
    makes: handlers of signals are called there, and not while a thread is in XLA.
    """
    data, aot, exported = _pjit._get_fastpath_data, _pxla.MeshExecutable.create_cpp_call, _export._call_exported_lowering
    if getattr(data, "_smalt", False):
        return

    execute = _pxla.ExecuteReplicated.__call__

    def keeps_mark(call: Any) -> bool:
        return any(kept is _FROM_PYTHON for kept in getattr(call, "keepalive", None) or ())

    def is_marked(executable: Any) -> bool:
        return keeps_mark(getattr(executable, "unsafe_call", None))

    def execute_and_wait(call: Any, *args: Any) -> Any:
        results = execute(call, *args)
        if keeps_mark(call) and threading.current_thread() is threading.main_thread():
            unready = [result for result in results if hasattr(result, "is_ready")]
            pause = 1e-5
            with waiting():
                while not all(result.is_ready() for result in unready):
                    time.sleep(pause)
                    pause = min(2 * pause, 5e-3)
        return results

    def fastpath_data(executable: Any, *args: Any, **kwargs: Any) -> Any:
        return None if is_marked(executable) else data(executable, *args, **kwargs)

    def create_cpp_call(executable: Any, *args: Any, **kwargs: Any) -> Any:
        return None if is_marked(executable) else aot(executable, *args, **kwargs)

    def call_exported(ctx: Any, *args: Any, **params: Any) -> Any:
        if "cpu" in platforms(ctx) and is_exported(params["exported"].mlir_module_serialized):
            call_from_python(ctx)
        return exported(ctx, *args, **params)

    fastpath_data._smalt = True  # type: ignore[attr-defined]
    _pjit._get_fastpath_data = fastpath_data
    _pxla.MeshExecutable.create_cpp_call = create_cpp_call
    _pxla.ExecuteReplicated.__call__ = execute_and_wait
    mlir.register_lowering(_export.call_exported_p, call_exported)


def promise_stable(targets: Iterable[str]) -> None:
    """Lets `jax.export` export these custom calls: a process that loads the program later supports them.

    JAX keeps the list; it has no public way to it but a flag at each call of `jax.export.export`.
    """
    _export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE.update(targets)


def wait_for_all() -> None:
    """All that was dispatched is done, or has failed: that is reported where a result is read."""
    for array in jax.live_arrays():
        try:
            array.block_until_ready()
        except Exception:  # not ours to raise, or deleted meanwhile
            pass
