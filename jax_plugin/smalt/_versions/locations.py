"""Where things are in the user's files, and what they are called there."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import source_info_util
from jax._src.lib import xla_client

from smalt._versions.jaxprs import inner_jaxprs, open_jaxpr

# The kernels and helpers that JAX ships are users' code to us: their lines are worth reporting.
_JAX_DIR = os.path.dirname(jax.__file__) + os.sep

_SHIPPED = (
    os.path.join(_JAX_DIR, "experimental", "pallas", "ops") + os.sep,
    os.path.join(_JAX_DIR, "_src", "pallas", "mosaic_gpu", "pipeline.py"),
    os.path.join(_JAX_DIR, "_src", "pallas", "mosaic_gpu", "helpers.py"),
)
_OWN_DIR = os.path.dirname(os.path.dirname(__file__)) + os.sep


@functools.cache
def _is_reported(filename: str) -> bool:
    if filename.startswith(_OWN_DIR):
        return False
    return bool(source_info_util.is_user_filename(filename)) or filename.startswith(_SHIPPED)


@functools.lru_cache(maxsize=1 << 16)
def _position(code: Any, lasti: int) -> tuple[str, str, int, int]:
    line, column, *_ = xla_client.Traceback.code_addr2location(code, lasti)
    return code.co_filename, code.co_qualname, max(line, 0), max(column, 0)


def frames(traceback: Any) -> Iterator[tuple[str, str, int, int]]:
    """(file, function, line, column) of the frames that are not JAX's own, innermost first."""
    if traceback is None:
        return
    codes, lastis = traceback.raw_frames()
    for code, lasti in zip(codes, lastis):
        if _is_reported(code.co_filename):
            yield _position(code, lasti)


def traced_function(jaxpr: Any) -> tuple[str, str, int, int] | None:
    """Where the function begins that a jaxpr was traced from; None if it is not the user's, or not known."""
    found = re.fullmatch(r"(.+) at (.+):(\d+)", str(jaxpr.debug_info.func_src_info))
    if found is None or not _is_reported(found[2]):
        return None
    return found[2], found[1], int(found[3]), 0


class _Stack:
    """The user's frames on the Python stack, as a traceback."""

    #: Those that a report shows.
    _LIMIT = 8

    def __init__(self, frame: Any) -> None:
        self._found: list[tuple[Any, int]] = []
        while frame is not None and len(self._found) < self._LIMIT:
            if _is_reported(frame.f_code.co_filename):
                self._found.append((frame.f_code, frame.f_lasti))
                if frame.f_code.co_name == "<module>":
                    break
            frame = frame.f_back

    def raw_frames(self) -> tuple[list[Any], list[int]]:
        return [code for code, _ in self._found], [at for _, at in self._found]


def lowering_tracebacks() -> list[Any]:
    """Tracebacks of the equations that are being lowered, innermost first; outside of any function that is traced, the caller's.

    JAX cuts an equation's traceback at the jaxpr that holds it, and gives a lowering rule nothing of the equations around
    it; they are on the Python stack. Only reports depend on it.
    """
    out = []
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "jaxpr_subcomp":
            eqn = frame.f_locals.get("eqn")
            traceback = getattr(getattr(eqn, "source_info", None), "traceback", None)
            if traceback is not None:
                out.append(traceback)
        frame = frame.f_back  # type: ignore[assignment]
    if not any(True for traceback in out for _ in frames(traceback)):
        out.append(_Stack(sys._getframe(1)))
    return out


def function_place(closed: Any) -> tuple[str, str, int] | None:
    """(function, file, line) of the user's function that a jaxpr is of, or of what it does first; None where neither is known."""
    jaxpr, _ = open_jaxpr(closed)
    found = re.fullmatch(r"(.*) at (.*):(\d+)", str(jaxpr.debug_info.func_src_info or ""))
    if found is not None and _is_reported(found[2]):
        return found[1], found[2], int(found[3])
    for eqn in jaxpr.eqns:
        for file, function, line, _ in frames(eqn.source_info.traceback):
            return function, file, line
        for inner in inner_jaxprs(eqn):
            if (place := function_place(inner)) is not None:
                return place
    return None


def function_line(closed: Any) -> str:
    """The same as errors have it; nothing where it is not known."""
    place = function_place(closed)
    return "" if place is None else f"\n  at {place[1]}:{place[2]} ({place[0]})"


def argument_names(jaxpr: Any) -> Sequence[str]:
    """What the user's function calls its arguments (`x_ref`, `pair[0]`, `rings['a']`), one for each invar; empty where that is not known.

    JAX reads a function's signature, which `functools.wraps` copies from another that may get its arguments in another order.
    """
    names = jaxpr.debug_info.arg_names or ()
    if len(names) != len(jaxpr.invars):
        return ()
    if str(jaxpr.debug_info.func_src_info).endswith(f" at {_NAMED.co_filename}:{_NAMED.co_firstlineno}"):
        return ["" if name.startswith(_UNNAMED) else name for name in names]
    return names if _code(jaxpr) is not None else ()


_UNNAMED = "smalt_unnamed"


def named(function: Callable[..., None], names: Sequence[str]) -> Callable[..., None]:
    """A function of ours whose arguments are called so by the user; those that are not known have empty names."""
    known = [name if name.isidentifier() and names.count(name) == 1 else f"{_UNNAMED}{i}" for i, name in enumerate(names)]

    def call(*args: Any) -> None:
        function(*args)

    kinds = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in known]
    call.__signature__ = inspect.Signature(kinds)  # type: ignore[attr-defined]
    return call


_NAMED = next(code for code in named.__code__.co_consts if inspect.iscode(code) and code.co_name == "call")

# What JAX calls an argument: the name of the function's own, and where in it.
_ARGUMENT = re.compile(r"(\w+)(?:\[(\d+)\])?(.*)")


def names_of_references(jaxpr: Any) -> dict[Any, Sequence[str]]:
    """What the user's function calls the references of a `plgpu.kernel`: for its jaxpr, and for that of its scratch.

    JAX binds the arguments and outputs to the user's function before it looks at names, and keeps those of scratch. The code of the
    function, which the tracebacks of what it does still have, has the rest; where that is not certain, there are no names.
    """
    inner = next((open_jaxpr(eqn.params["jaxpr"])[0] for eqn in jaxpr.eqns if eqn.primitive.name == "run_scoped"), None)
    if inner is None or (code := _code(inner)) is None:
        return {}
    own = code.co_varnames[: code.co_argcount]
    rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if code.co_flags & inspect.CO_VARARGS else ""
    # JAX 0.10, without paths of results, counts the references of all arguments, without which argument each is in.
    if jaxpr.debug_info.result_paths is None:
        return {inner: [""] * len(inner.invars)} if rest else {}
    roots = [_ARGUMENT.fullmatch(name) for name in jaxpr.debug_info.arg_names or ()]
    if not all(m and m[2] for m in roots) or len(roots) != len(jaxpr.invars):
        return {}
    places = [(int(m[2]), m[3]) for m in roots if m]
    count = 1 + max((at for at, _ in places), default=-1)
    scratch = argument_names(inner)
    taken = {m[1] for m in map(_ARGUMENT.fullmatch, scratch) if m}
    bound = own[: next((i for i, name in enumerate(own) if name in taken), len(own))]
    if rest and not own:
        bound = tuple(f"{rest}[{i}]" for i in range(count))
        # JAX counts what is left.
        shifted = [m and m[1] == rest and m[2] and f"{rest}[{int(m[2]) + count}]{m[3]}" for m in map(_ARGUMENT.fullmatch, scratch)]
        scratch = [new or name for new, name in zip(shifted, scratch)]
    elif rest:
        return {inner: [""] * len(inner.invars)}
    if own[:1] == ("self",) and len(bound) == count + 1:
        bound = bound[1:]
    if len(bound) != count:
        return {}
    return {jaxpr: [bound[at] + path for at, path in places], inner: scratch}


def _code(jaxpr: Any) -> Any:
    """The code of the user's function that a jaxpr was traced from, if JAX itself called it, by the tracebacks of its equations."""
    place = traced_function(jaxpr)
    if place is None:
        return None
    for eqn in jaxpr.eqns:
        codes = eqn.source_info.traceback.raw_frames()[0] if eqn.source_info.traceback is not None else []
        outermost = next((code for code in reversed(codes) if _is_reported(code.co_filename)), None)
        if outermost is not None:
            own = (outermost.co_filename, outermost.co_name, outermost.co_firstlineno, 0)
            return outermost if own == place else None
    return None


def argument_name(jaxpr: Any, at: int, otherwise: str) -> str:
    """The name that the user's function gives its argument; `otherwise` where that is not known."""
    names = argument_names(jaxpr)
    return names[at] if at < len(names) and names[at].isidentifier() else otherwise


def here() -> str:
    """The lines of what is being traced, as errors end with them; of what runs at once, the caller's."""
    found = list(itertools.islice(frames(source_info_util.current().traceback), _Stack._LIMIT))
    return _listed(found or list(frames(_Stack(sys._getframe(1)))))


def line_of(eqn: Any) -> str:
    """The same for an equation that was traced before."""
    return _listed(list(itertools.islice(frames(eqn.source_info.traceback), _Stack._LIMIT)))


def _listed(found: Sequence[tuple[str, str, int, int]]) -> str:
    return "".join(f"\n  {'in' if i else 'at'} {file}:{line} ({function})" for i, (file, function, line, _) in enumerate(found))


def without_derivative(jaxpr: Any, text: str) -> tuple[str, str] | None:
    """Of JAX's error that a primitive has no derivative what it is, and its line in a jaxpr; None: it is about something else."""
    found = re.match(r"Differentiation rule for '(\w+)' not implemented", text)
    line = None if found is None else _line_of_first(jaxpr, found[1])
    return None if found is None or line is None else (f"the derivative of {found[1]}", line or function_line(jaxpr))


def _line_of_first(jaxpr: Any, name: str) -> str | None:
    """The line of the first such equation, or of what it is in; None: there is none."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == name:
            return line_of(eqn)
        for inner in inner_jaxprs(eqn):
            if (line := _line_of_first(inner, name)) is not None:
                return line or line_of(eqn)
    return None
