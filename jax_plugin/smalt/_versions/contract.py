"""Whether JAX's private parts are as smalt reads them (`contract_rows.py`): names when smalt is imported, all the rest at the first enabling.

A name that is gone would fail where it is used, somewhere in a kernel; a class that is identified by its name, a variable of a frame or of a closure, a
parameter with another meaning would change what smalt does silently. Here each is one error, with what is missing.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from smalt import _requirements
from smalt._errors import NotInstalled
from smalt._versions.contract_rows import CLASSES, CODE, FIELDS, NAMES, PRIMITIVES, SIGNATURES

#: What an error lists at most.
_LIMIT = 8


def _here(word: str) -> bool:
    """Whether this version has a word of a row."""
    name, _, until = word.partition("!")
    since = name.partition("@")[2]
    own = jax.__version_info__
    return not (since and own < _numbers(since)) and not (until and own >= _numbers(until))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def wanted(words: str) -> list[str]:
    """The words of a row that this version of JAX has."""
    all_words = words.split()
    if "@" not in words and "!" not in words:
        return all_words
    return [word.partition("!")[0].partition("@")[0] for word in all_words if _here(word)]


def full_name(path: str) -> str:
    return (path if path.startswith(("jax.", "jaxlib.")) else f"jax._src.{path}").replace(":", ".")


def _find(path: str) -> Any:
    """What is at `module:name.name`."""
    module, _, names = path.partition(":")
    return functools.reduce(getattr, names.split("."), _module(full_name(module)))


def _module(name: str) -> Any:
    return sys.modules.get(name) or importlib.import_module(name)


# Each of these returns what is missing, in words; nothing: all is there.


def _name(path: str) -> str:
    _find(path)
    return ""


def _signature(path: str, row: str) -> str:
    first, _, others = row.partition("*")
    given, named, takes_any = _parameters(_find(path))
    if given[: len(wanted(first))] != wanted(first):
        return f"with the parameters {', '.join(wanted(first))}"
    missing = [] if takes_any else [name for name in wanted(others) if name not in named]
    return f"with the parameters {', '.join(missing)}" if missing else ""


def _parameters(x: Any) -> tuple[list[str], Iterable[str], bool]:
    """Of a function or a class: parameters by position, all of them, and whether it takes others by name."""
    x = getattr(x, "__wrapped__", x)
    own = vars(x).get("__init__") if isinstance(x, type) else x
    if isinstance(own, types.FunctionType) and not hasattr(own, "__wrapped__"):
        code = own.__code__
        by_position = code.co_varnames[1 if isinstance(x, type) else 0 : code.co_argcount]
        return list(by_position), code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], bool(code.co_flags & inspect.CO_VARKEYWORDS)
    found = inspect.signature(x).parameters
    kinds = {p.kind for p in found.values()}
    return [p.name for p in found.values() if p.kind <= p.POSITIONAL_OR_KEYWORD], found, inspect.Parameter.VAR_KEYWORD in kinds


def _fields(path: str, row: str) -> str:
    """Attributes of a class, and what its instances are given when they are made."""
    cls = _find(path)
    missing = [name for name in wanted(row) if not hasattr(cls, name) and name not in getattr(cls, "__dataclass_fields__", ())]
    if missing:
        made = {name for base in cls.__mro__ for own in ("__init__", "__new__") for code in _codes(vars(base).get(own)) for name in code.co_names}
        missing = [name for name in missing if name not in made]
    return f"with {', '.join(missing)}" if missing else ""


def _class(path: str, row: str) -> str:
    name = path.rpartition(":")[2]
    return _fields(path, row) if _find(path).__name__ == name else f"called {name}"


def _primitive(path: str, row: str) -> str:
    """The parameters are looked for in its own rule, then in the functions that name it."""
    module, _, own = path.partition(":")
    names, _, parameters = row.partition(":")
    primitive = _find(path)
    if wanted(names) != [primitive.name]:
        return f"called {', '.join(wanted(names))}"
    missing = set(wanted(parameters)) - words_of(vars(primitive).get("abstract_eval"))
    for code in _functions_naming(full_name(module)).get(own, ()) if missing else ():
        missing -= _words(_within(code))
    return f"with the parameters {', '.join(sorted(missing))}" if missing else ""


def _code(path: str, row: str) -> str:
    missing = sorted(set(wanted(row)) - words_of(_find(path)))
    return f"with the variables {', '.join(missing)}" if missing else ""


def words_of(function: Any) -> set[str]:
    """The variables of a function's code, and the names by which it passes arguments."""
    return _words(_codes(function))


def _words(codes: Iterable[types.CodeType]) -> set[str]:
    words: set[str] = set()
    for code in codes:
        words.update(code.co_varnames, code.co_freevars, code.co_cellvars)
        for constant in code.co_consts:
            if isinstance(constant, tuple):  # of names, at a call
                words.update(c for c in constant if isinstance(c, str))
    return words


def _codes(function: Any) -> Iterator[types.CodeType]:
    """The code of a function, of functions in it, and of those that it is made of."""
    left = [function]
    while left:
        x = left.pop()
        if isinstance(x, types.FunctionType):
            yield from _within(x.__code__)
            left += [c for c in map(_contents, x.__closure__ or ()) if isinstance(c, (types.FunctionType, functools.partial)) and c is not x]
        elif isinstance(x, functools.partial):
            left += [x.func, *x.args]
        elif isinstance(x, staticmethod) or hasattr(x, "__wrapped__"):
            left.append(x.__wrapped__)


def _within(code: types.CodeType) -> list[types.CodeType]:
    found = [code]
    for inner in found:  # which grows
        found += [c for c in inner.co_consts if isinstance(c, types.CodeType)]
    return found


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


@functools.cache
def _functions_naming(module: str) -> dict[str, list[types.CodeType]]:
    """By the name of each of a module's primitives the functions of the module that use it."""
    found: dict[str, list[types.CodeType]] = {name: [] for name in vars(_module(module)) if name.endswith("_p")}
    primitives = frozenset(found)
    for x in vars(_module(module)).values():
        x = getattr(x, "__wrapped__", x)
        if isinstance(x, types.FunctionType) and x.__module__ == module:
            for code in _within(x.__code__):
                for name in primitives.intersection(code.co_names):
                    found[name].append(x.__code__)
    return found


# What no table has.


def _lower_fun() -> str:
    from smalt._versions.definitions import lowered_function

    rule = _find("interpreters.mlir:lower_fun")(_lower_fun, multiple_results=False)
    return "" if lowered_function(rule) is _lower_fun else "a closure over `fun`"


def _inline_ptx() -> str:
    from smalt._versions.fragments import inline_ptx_code

    return "" if inline_ptx_code() is not None else "with a function that is a closure over `asm`"


def _tables_of_rules() -> str:
    tables = _find("interpreters.mlir:_lowerings"), _find("interpreters.mlir:_platform_specific_lowerings")
    kept = callable(tables[0][_find("pallas.mpmd:mpmd_map_p")].rule) and isinstance(tables[1]["cuda"], dict)
    return "" if kept else "with entries that have a `rule`, and one for each platform"


def _stable_targets() -> str:
    return "" if isinstance(_find("export._export:_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE"), set) else "a set"


def _triton() -> str:
    from smalt._versions.features import TRITON

    names = set() if TRITON is None else set(TRITON.CompilerParams.__dataclass_fields__)
    return "" if TRITON is None or names == {"num_warps", "num_stages"} else "with num_warps, num_stages, or gone"


def _tpus() -> str:
    try:
        tpu_info = _module("jax._src.pallas.mosaic.tpu_info")
    except ImportError:  # no Pallas for TPUs
        return ""
    chip = tpu_info.get_tpu_info_for_chip(tpu_info.ChipVersion.TPU_V5E, 1)
    kept = isinstance(tpu_info.registry, dict) and "vmem_capacity_bytes" in chip.__dataclass_fields__
    return "" if kept else "with a registry of chips that have vmem_capacity_bytes"


def _spaces() -> str:
    members = _find("pallas.mosaic_gpu.core:MemorySpace").__members__, _find("pallas.core:MemorySpace").__members__
    return "" if "GMEM" in members[0] and {"ANY", "DEFAULT"} <= set(members[1]) else "with GMEM; those of pallas.core with ANY, DEFAULT"


#: What is looked at -> what is missing of it.
ROWS: dict[str, Callable[[], str]] = {
    full_name(f"{module}:{name}"): functools.partial(_name, f"{module}:{name}") for module, names in NAMES.items() for name in wanted(names)
}
_AT_IMPORT = tuple(ROWS)
for what, look, table in (
    ("signature", _signature, SIGNATURES),
    ("fields", _fields, FIELDS),
    ("class", _class, CLASSES),
    ("primitive", _primitive, PRIMITIVES),
    ("code", _code, CODE),
):
    # Of a primitive the first words are its names; a row of a version that has none of its words is left out.
    rows = {path: row for path, row in table.items() if wanted(row.partition(":")[0].replace("*", "")) or look is _class}
    ROWS.update((f"{full_name(path)} ({what})", functools.partial(look, path, row)) for path, row in rows.items())
ROWS |= {
    "jax._src.interpreters.mlir.lower_fun (closure)": _lower_fun,
    "jax._src.pallas.mosaic_gpu.helpers.inline_ptx (closure)": _inline_ptx,
    "jax._src.interpreters.mlir._lowerings, _platform_specific_lowerings": _tables_of_rules,
    "jax._src.export._export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE (type)": _stable_targets,
    "jax._src.pallas.triton.core.CompilerParams": _triton,
    "jax._src.pallas.mosaic.tpu_info": _tpus,
    "jax._src.pallas.mosaic_gpu.core.MemorySpace (members)": _spaces,
}


def broken(rows: Iterable[str] | None = None) -> Iterator[str]:
    """What is not as it was: rows, with what is missing."""
    _functions_naming.cache_clear()
    for row in ROWS if rows is None else rows:
        try:
            missing = ROWS[row]()
        except ModuleNotFoundError as e:
            if not (e.name or "").startswith("jax"):
                raise  # what JAX itself needs
            missing = f"in a module {e.name}"
        except Exception:  # it is so different that the look-up itself fails
            missing = "of any such kind"
        if missing:
            yield f"{row} {missing}".replace(" of any such kind", "")


def check(rows: Iterable[str] | None = None) -> None:
    """Raises NotInstalled if JAX has changed where smalt reads it."""
    if found := list(broken(rows)):
        more = f"; and {len(found) - _LIMIT} more" if len(found) > _LIMIT else ""
        raise NotInstalled(
            "smalt: this version of JAX is not supported: it has changed where smalt reads its private parts"
            f"\n  expected: jax {', '.join(_requirements.TESTED_JAX)}, with {'; '.join(found[:_LIMIT])}{more}"
            f"\n  got: jax {jax.__version__}, where that is otherwise\n  {_requirements.REMEDY}"
        )


def check_names() -> None:
    check(_AT_IMPORT)
