"""The rooms of the tests: which imports which, what may live in each, and how large they are."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

from tests import ROOT

pytestmark = pytest.mark.shared

TESTS = ROOT / "tests"

#: From the bottom: each imports what stands in rows above its own, and nothing beside it.
LAYERS = (
    ("__init__", "machine", "contexts", "fresh"),
    ("filetests", "corpus"),
    ("oracles", "fuzz"),
    ("programs",),
    ("suites",),
    ("table", "mutants", "passes", "canary"),
    ("emulated",),
    ("unit",),
    ("gpu",),
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}

#: The table of all grammars, and what runs them by name, stand above the grammars. Processes look there when they have begun.
TABLE = ("fuzz.registry", "fuzz.__main__")
LAZY = {("fuzz/runner.py", "table")}

#: Python files of a folder.
MOST = 35


def room_of(module: str) -> str:
    """Of a module, as it is imported: without `tests.`"""
    return "table" if module in TABLE else module.split(".")[0]


def files() -> list[pathlib.Path]:
    return sorted(TESTS.rglob("*.py"))


def module_of(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(TESTS).with_suffix("").parts)


def imports_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What is imported of the tests, in functions, too; and where."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute here"
            if node.module == "tests":
                yield from ((a.name, node.lineno) for a in node.names if (TESTS / a.name).exists() or (TESTS / f"{a.name}.py").exists())
            elif (node.module or "").startswith("tests."):
                inner = [f"{node.module}.{a.name}" for a in node.names]
                yield from ((name.removeprefix("tests."), node.lineno) for name in inner)
        elif isinstance(node, ast.Import):
            yield from ((a.name.removeprefix("tests."), node.lineno) for a in node.names if a.name.startswith("tests."))


def rooms_of(name: str) -> str:
    """The room that an import names: `fuzz.registry.GRAMMARS` is of the table."""
    return next((room_of(part) for part in (name, name.rpartition(".")[0]) if part in TABLE), room_of(name))


def test_every_room_is_in_a_layer() -> None:
    assert {room_of(module_of(path)) for path in files()} == set(LAYER)


@pytest.mark.parametrize("own", LAYER)
def test_rooms_import_what_is_below_them(own: str) -> None:
    for path in files():
        name = str(path.relative_to(TESTS))
        for imported, line in imports_of(ast.parse(path.read_text())) if room_of(module_of(path)) == own else ():
            room = rooms_of(imported)
            if room != own and (name, room) not in LAZY:
                assert LAYER[room] < LAYER[own], f"{name}:{line}: {own} is not above {room}"


@pytest.mark.parametrize("folder", sorted({path.parent for path in files()}), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_says_what_may_live_in_it(folder: pathlib.Path) -> None:
    head = folder / ("conftest.py" if folder.relative_to(TESTS).parts[:1] == ("gpu",) else "__init__.py")
    if folder == TESTS / "gpu" / "suites":  # as its parent
        return
    assert ast.get_docstring(ast.parse(head.read_text())), f"{head} has no head"
    assert len(list(folder.glob("*.py"))) <= MOST


def test_the_reader_of_imports_reads() -> None:
    text = """
import smalt
from tests import ROOT, machine
from tests.fuzz.registry import GRAMMARS
from tests.programs.memory import run
def f():
    import tests.suites.multi_gpu.remote
    from tests.fuzz import registry
"""
    found = [name for name, _ in imports_of(ast.parse(text))]
    assert sorted(found) == ["fuzz.registry", "fuzz.registry.GRAMMARS", "machine", "programs.memory.run", "suites.multi_gpu.remote"]
    assert [rooms_of(name) for name in sorted(found)] == ["table", "table", "machine", "programs", "suites"]


def test_contexts_are_shared_once() -> None:
    """By the tests of two rooms that are collected together: a second time, JAX's function would be the first one's."""
    from jax._src.interpreters import mlir

    from tests import contexts

    contexts.share()
    before = mlir.make_ir_context
    contexts.share()
    assert mlir.make_ir_context is before and len(contexts._own) == 1
