"""What smalt reads of JAX's private parts is as it was; each row of the contract notices when it is not; and what the plugin reads is in a row."""

from __future__ import annotations

import ast
import functools
import importlib.util
import pathlib
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import jax
import pytest
import smalt
from jax._src import core as jax_core
from jax._src.interpreters import mlir
from smalt._config import takeover
from smalt._lowering import lower
from smalt._versions import contract, contract_rows, fragments
from smalt._versions.jaxprs import _RENAMED
from tests.fresh import environment

ROOMS = pathlib.Path(contract.__file__).parent
PLUGIN = ROOMS.parent


def other() -> None:
    """What a newer JAX might have in a function's place."""


def other_lower_fun(function: Any, multiple_results: bool = True) -> Any:
    def rule(ctx: Any, *args: Any) -> Any:
        return function

    return rule


class Entry:
    def __init__(self, rule: Any) -> None:
        self.lowering = rule


class Empty:
    """A class that has nothing."""

    __slots__ = ()


class Parameters:
    __dataclass_fields__ = {"num_ctas": None}


#: What no table says: row -> (where, what a newer JAX might have there).
OTHERS: dict[str, tuple[str, Any]] = {
    "jax._src.interpreters.mlir.lower_fun (closure)": ("interpreters.mlir:lower_fun", other_lower_fun),
    "jax._src.pallas.mosaic_gpu.helpers.inline_ptx (closure)": ("pallas.mosaic_gpu.helpers:inline_ptx", other),
    "jax._src.interpreters.mlir._lowerings, _platform_specific_lowerings": ("interpreters.mlir:_lowerings", {"mpmd_map_p": Entry(None)}),
    "jax._src.export._export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE (type)": ("export._export:_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE", frozenset()),
    "jax._src.pallas.mosaic.tpu_info": ("pallas.mosaic.tpu_info:registry", ()),
    "jax._src.pallas.mosaic_gpu.core.MemorySpace (members)": ("pallas.mosaic_gpu.core:MemorySpace", types.SimpleNamespace(__members__={"SMEM": 1})),
}
if importlib.util.find_spec("jax._src.pallas.triton.core"):
    OTHERS["jax._src.pallas.triton.core.CompilerParams"] = ("pallas.triton.core:CompilerParams", Parameters)


def changes(row: str) -> Iterator[list[tuple[str, Any]]]:
    """What may become of what a row looks at: places, and what is there then (`...`: nothing). Each is to be noticed."""
    look = contract.ROWS[row]
    if not isinstance(look, functools.partial):
        yield [OTHERS[row]]
        return
    kind = row.partition(" (")[2].rstrip(")")
    path, words = (*look.args, "")[:2]
    if kind in ("signature", "code"):
        yield [(path, other)]
    elif kind == "fields":
        yield [(path, Empty)]
    elif kind == "class":
        name = path.rpartition(":")[2]
        yield [(path, type(f"New{name}", (), dict.fromkeys(contract.wanted(words))))]
        if contract.wanted(words):
            yield [(path, type(name, (), {}))]
    elif kind == "primitive":
        names, _, parameters = words.partition(":")
        module, _, own = path.partition(":")
        yield [(path, jax_core.Primitive("renamed"))]
        if contract.wanted(parameters):
            naming = [name for name, x in vars(importlib.import_module(contract.full_name(module))).items() if callable(x) and not isinstance(x, type)]
            yield [(path, jax_core.Primitive(contract.wanted(names)[0])), *((f"{module}:{name}", other) for name in naming if name != own)]
    else:
        yield [(path, ...)]


#: kind -> its rows.
KINDS = {kind: {row for row in contract.ROWS if row.endswith(f" ({kind})")} for kind in ("signature", "fields", "class", "primitive", "code")}


def test_the_contract_holds() -> None:
    assert list(contract.broken()) == []
    assert len(contract.ROWS) > 250 and all(KINDS.values())
    own = {row for row, look in contract.ROWS.items() if not isinstance(look, functools.partial)}
    assert own - set(OTHERS) <= {"jax._src.pallas.triton.core.CompilerParams"}


@pytest.mark.parametrize("row", contract.ROWS)
def test_a_change_of_jax_is_noticed(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if row.startswith("jax._src.pallas.triton") and row not in OTHERS:
        pytest.skip("this JAX has no Pallas:Triton")
    for change in changes(row):
        fragments.inline_ptx_code.cache_clear()
        with monkeypatch.context() as patch:
            for path, made in change:
                module, _, names = path.partition(":")
                where = functools.reduce(getattr, names.split(".")[:-1], importlib.import_module(contract.full_name(module)))
                if made is ...:
                    patch.delattr(where, names.split(".")[-1])
                else:
                    patch.setattr(where, names.split(".")[-1], made)
            found = list(contract.broken([row]))
        fragments.inline_ptx_code.cache_clear()
        assert len(found) == 1 and found[0].startswith(row), (change, found)


def test_the_error_says_what_is_missing_where_and_what_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mlir, "lower_fun")
    monkeypatch.setattr(jax_core, "Literal", other)
    with pytest.raises(smalt.CompileError) as e:
        contract.check()
    assert isinstance(e.value, ImportError)
    for word in ("0.10.2, 0.11.2", "jax._src.interpreters.mlir.lower_fun", "jax._src.core.Literal (signature) with the parameters val, aval"):
        assert word in str(e.value.expected)
    assert f"got: jax {jax.__version__}" in str(e.value) and "remedy: pip install" in str(e.value)


CHANGED = """
import jax.experimental.pallas.mosaic_gpu, jax._src.pallas.mpmd as mpmd, jax._src.core as core
{change}
try:
    import smalt
    print("imported")
    smalt.enable()
    print("enabled")
except ImportError as e:
    print(type(e).__name__, e)
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("", ["imported", "enabled"]),
        ("del mpmd._mpmd_map", ["NotInstalled smalt: this version of JAX is not supported", "with jax._src.pallas.mpmd._mpmd_map\n"]),
        (
            "mpmd._mpmd_map = lambda meshes, functions: None",
            ["imported", "NotInstalled", "jax._src.pallas.mpmd._mpmd_map (signature) with the parameters meshes_and_fns, out_types\n"],
        ),
        ("del core.JaxprEqn, core.Jaxpr, core.Literal", ["NotInstalled", "jax._src.core.Jaxpr; jax._src.core.JaxprEqn; jax._src.core.Literal\n"]),
    ],
)
def test_names_are_looked_at_when_smalt_is_imported_and_all_else_when_it_is_enabled_first(change: str, words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", CHANGED.format(change=change)], env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    at = 0
    for word in words:
        assert word in done.stdout[at:], done.stdout
        at = done.stdout.index(word, at)
    assert ("enabled\n" in done.stdout) == (not change)


def test_it_takes_no_time() -> None:
    """5 ms on an idle machine."""
    taken = []
    for _ in range(10):
        begun = time.process_time()
        contract.check()
        taken.append(time.process_time() - begun)
    assert min(taken) < 0.012, taken


def test_an_enabling_that_fails_leaves_jax_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    rules, holders = dict(mlir._platform_specific_lowerings["cuda"]), takeover._holders  # another test may have a choice that is held for ever
    monkeypatch.setattr(takeover, "_is_first", True)
    monkeypatch.setitem(contract.ROWS, "a thing", lambda: "of another kind")
    for enable in (smalt.enable, lambda: smalt.enabled(True).__enter__(), lambda: smalt.emulated().__enter__()):
        with pytest.raises(smalt.CompileError, match="with a thing of another kind"):
            enable()
        assert mlir._platform_specific_lowerings["cuda"] == rules and takeover._holders == holders
    assert not smalt._config.settings().enabled
    assert lower._prepare_jax in takeover._FIRST


def test_words_of_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, words in {(0, 10, 2): "a d", (0, 11, 0): "a b d", (0, 11, 2): "a b d f", (0, 12, 0, 1): "a b c f", (0, 13, 0): "a b c f"}.items():
        monkeypatch.setattr(jax, "__version_info__", version)
        assert contract.wanted("a b@0.11 c@0.12 d!0.12 e@0.11!0.11 f@0.11.1") == words.split()


# ------------------------------------------------------------------------------------------ what is read is in the list


def reads(path: pathlib.Path) -> tuple[set[str], list[tuple[str, int, tuple[str, ...]]]]:
    """The private names that a module of `_versions` reads, and its calls of them: (name, arguments by position, by name)."""
    tree = ast.parse(path.read_text())
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("jax"):
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            known |= {a.asname: a.name for a in node.names if a.asname and a.name.startswith("jax.")}

    def dotted(node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return known.get(node.id)
        below = dotted(node.value) if isinstance(node, ast.Attribute) else None
        return below and f"{below}.{node.attr}"  # type: ignore[attr-defined]

    names, calls = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := dotted(node)):
            names.add(name)
        elif isinstance(node, ast.Call) and (name := dotted(node.func)) and not any(isinstance(a, ast.Starred) for a in node.args):
            calls.append((name, len(node.args), tuple(k.arg for k in node.keywords if k.arg)))
    return names, calls


def is_private(name: str) -> bool:
    """Of JAX, and no promise to anyone: MLIR's own bindings are looked at by what is built with them."""
    is_mosaic = name.startswith(("jax.experimental.mosaic", "jax.experimental.pallas.mosaic_gpu"))
    return is_mosaic or name.startswith("jax._src") and ".lib." not in name and ".mosaic.tpu_info" not in name


def test_every_private_name_is_in_the_contract() -> None:
    listed = {contract.full_name(f"{module}:{word.partition('@')[0].partition('!')[0]}") for module, row in contract_rows.NAMES.items() for word in row.split()}
    found: set[str] = set()
    for path in ROOMS.glob("*.py"):
        found |= {name for name in reads(path)[0] if is_private(name)}
    assert len(found) > 100
    modules = tuple(f"{contract.full_name(module)}." for module in contract_rows.NAMES)
    unlisted = {name for name in found if not any(name == one or name.startswith(f"{one}.") for one in listed) and f"{name}." not in modules}
    assert unlisted == set(), "in contract_rows.NAMES is missing"


#: Calls of what has no signature that can be read, or takes whatever it is given.
BOUND = {"bind", "update", "items", "pop", "convert", "divide", "remainder", "partition_id", "register_dialect"}


def test_every_call_of_a_private_function_is_in_the_contract() -> None:
    listed = {contract.full_name(path): row for path, row in contract_rows.SIGNATURES.items()}
    unlisted = []
    for path in ROOMS.glob("*.py"):
        for name, by_position, by_name in reads(path)[1]:
            if not is_private(name) or name.rpartition(".")[2] in BOUND or not (by_position or by_name):
                continue
            first, _, others = listed.get(name, "").partition("*")
            words = [word.partition("@")[0].partition("!")[0] for word in others.split()]
            if name not in listed or by_position > len(first.split()) or not set(by_name) <= {*words, *first.split()}:
                unlisted.append((path.name, name, by_position, by_name))
    assert unlisted == [], "in contract_rows.SIGNATURES is missing"


def test_every_parameter_that_a_rule_reads_is_in_the_contract() -> None:
    """Of primitives with a row."""
    listed: dict[str, set[str]] = {}
    for row in contract_rows.PRIMITIVES.values():
        names, _, parameters = row.partition(":")
        for word in names.split():
            name = word.partition("@")[0].partition("!")[0]
            name = "warp_map" if name in ("core_map", "mpmd_map") else _RENAMED.get(name, name)
            listed.setdefault(name, set()).update(p.partition("@")[0].partition("!")[0] for p in parameters.split())
    seen = 0
    for path in (PLUGIN / "_rules").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            names = [a.value for d in node.decorator_list if isinstance(d, ast.Call) for a in d.args if isinstance(a, ast.Constant)]
            read = {
                n.slice.value
                for n in ast.walk(node)
                if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Attribute) and n.value.attr == "params" and isinstance(n.slice, ast.Constant)
            }
            for name in names:
                if name in listed and read:
                    seen += 1
                    assert read <= listed[name], (path.name, node.name, name, read - listed[name])
    assert seen > 20


def told_by_name(tree: ast.AST) -> set[str]:
    """The strings that `type(x).__name__` is compared with."""

    def is_name(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr == "__name__" and isinstance(node.value, ast.Call)

    found: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Match) and is_name(node.subject):
            found += [case.pattern for case in node.cases]
        elif isinstance(node, ast.Compare) and is_name(node.left):
            found += node.comparators
    return {n.value for top in found for n in ast.walk(top) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def test_names_of_classes_in_the_source_are_in_the_list() -> None:
    known = {path.rpartition(":")[2] for path in contract_rows.CLASSES}
    #: Types of elements, which no version has under all of these names; JAX's own classes of arrays of keys.
    of_some_versions = {"SemaphoreTy", "BarrierSemaphoreTy", "DmaSemaphore", "DMASemaphore", "DmaSemaphoreTy", "KeyTy"}
    read = set().union(*(told_by_name(ast.parse(path.read_text())) for path in pathlib.Path(smalt.__file__).parent.rglob("*.py")))
    assert {"NDIndexer", "ExtractAliasedRef", "ClusterBarrierType"} <= read
    assert read - known - of_some_versions == set()
