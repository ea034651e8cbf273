"""The text of a print: what JAX hands on -> a format in which only run-time values are left open.

Python's own `str.format` does it, over stand-ins for the arguments that are traced. So names, positions, attributes (`x.shape`), nested
specifications and arguments that are no arrays mean what they mean outside of kernels.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from smalt._errors import InvalidKernel, Unsupported

# Around a field in Python's result. Of the private use area: no user's text has them.
_OPEN, _CLOSE = "\ue0f0", "\ue0f1"


class _Shown(str):
    """The text of a stand-in (`{!s}`), which may have a specification of its own."""

    argument: int

    def __format__(self, spec: str) -> str:
        return f"{_OPEN}{self.argument}!s{':' if spec else ''}{spec}{_CLOSE}"


class _StandIn:
    """An argument that is traced."""

    def __init__(self, index: int, aval: Any) -> None:
        self._index = index
        self.shape, self.dtype, self.ndim, self.size = aval.shape, aval.dtype, len(aval.shape), aval.size

    def __format__(self, spec: str) -> str:
        return f"{_OPEN}{self._index}{':' if spec else ''}{spec}{_CLOSE}"

    def __str__(self) -> str:
        shown = _Shown(self.__format__(""))
        shown.argument = self._index
        return shown

    __repr__ = __str__


def text(params: dict[str, Any], atoms: Sequence[Any]) -> tuple[str, bool, list[Any]]:
    """The format of a `debug_print`, whether it has fields (else the arguments follow it), and the arguments."""
    if params.get("logging_record") is not None:
        raise Unsupported("`jax.debug.log` in a kernel\n  remedy: use jax.debug.print, or pl.debug_print")
    fmt: str = params["fmt"]
    static, tree = dict(params.get("static_args", ())), params["in_tree"]
    traced = [atom for atom in atoms if not _is_known(atom)]
    stand_ins = (_StandIn(i, atom.aval) for i, atom in enumerate(traced))
    dynamic = (np.asarray(atom.val).item() if _is_known(atom) else next(stand_ins) for atom in atoms)
    leaves = [static[i] if i in static else next(dynamic) for i in range(tree.num_leaves)]
    args, kwargs = jax.tree_util.tree_unflatten(tree, leaves)
    if not _has_fields(fmt):
        if not static and not kwargs and len(args) == len(traced) == len(atoms):
            return fmt, False, traced
        fmt = _escaped(fmt) + " {}" * len(args)
    return _made(fmt, args, kwargs, len(traced)), True, traced


def check(error: Any) -> tuple[Any, str, list[Any]]:
    """Of a checkify error over atoms: whether it happened, the format of its message, and the arguments of that."""
    preds, metadata, payloads = (list(getattr(error, name).values()) for name in ("_pred", "_metadata", "_payload"))
    if not len(preds) == len(metadata) == len(payloads) == 1:
        raise Unsupported(f"a check of {len(preds)} errors in a kernel\n  remedy: check one condition after the other")
    exception = jax.tree_util.tree_unflatten(metadata[0], payloads[0])
    if not hasattr(exception, "fmt_string"):
        raise Unsupported(f"a check for {type(exception).__name__} in a kernel\n  remedy: checkify.check(condition, text)")
    leaves, tree = jax.tree_util.tree_flatten((exception.args, exception.kwargs))
    args, kwargs = jax.tree_util.tree_unflatten(tree, [_StandIn(i, atom.aval) for i, atom in enumerate(leaves)])
    # JAX's messages may leave arguments out.
    fmt = _made(exception.fmt_string, args, kwargs, None)
    return preds[0], fmt, leaves


def _has_fields(fmt: str) -> bool:
    """JAX looks at the first piece only."""
    try:
        return any(name is not None for _, name, _, _ in string.Formatter().parse(fmt))
    except ValueError:  # what is wrong with it is reported when it is used
        return True


def _made(fmt: str, args: Sequence[Any], kwargs: dict[str, Any], count: int | None) -> str:
    """The format, for `count` arguments that are traced, each of which it names; None: whichever it names."""
    try:
        made = fmt.format(*args, **kwargs)
    except (IndexError, KeyError, ValueError, AttributeError, TypeError) as e:
        raise InvalidKernel(
            f"the format {fmt!r} of a print\n  expected: Python's format syntax, with an argument for each field"
            f"\n  got: {_arguments(args, kwargs)}: {_reason(e)}\n  remedy: pass what each {{}} is to show"
        ) from e
    return _canonical(fmt, made, count)


def _is_known(atom: Any) -> bool:
    """A whole number of the program's text, which may be a width as well."""
    return hasattr(atom, "val") and not atom.aval.shape and np.dtype(atom.aval.dtype).kind in "biu"


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _arguments(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    named = f" and {', '.join(kwargs)}" if kwargs else ""
    return f"{len(args)} argument{'' if len(args) == 1 else 's'}{named}"


def _reason(e: Exception) -> str:
    return f"no {e}" if isinstance(e, KeyError) else str(e)


def _canonical(fmt: str, made: str, count: int | None) -> str:
    """Python's result as a format: braces doubled, fields by number; without numbers where they are in order."""
    start, *rest = made.split(_OPEN)
    fields, texts = [], [_escaped(start)]
    for part in rest:
        field, text = part.split(_CLOSE, 1)
        fields.append(field)
        texts.append(_escaped(text))
    indices = [int(f.split(":", 1)[0].split("!", 1)[0]) for f in fields]
    if missing := sorted(set(range(count or 0)) - set(indices)):
        raise InvalidKernel(
            f"the format {fmt!r} of a print\n  expected: a field for each argument"
            f"\n  got: none for argument {missing[0]} of {count}\n  remedy: add a {{}}, or leave the argument out"
        )
    if indices == list(range(len(indices))):
        fields = [f[len(str(i)) :] for i, f in zip(indices, fields)]
    return texts[0] + "".join(f"{{{field}}}{text}" for field, text in zip(fields, texts[1:]))
