"""The plugin's packages: each has a door, layers, and no circle. What may live in each says the head of its `__init__.py`."""

from __future__ import annotations

import ast
import dataclasses
import functools
import pathlib
import tomllib
from collections.abc import Iterator

import pytest
import smalt
from smalt import _errors
from smalt._versions import locations
from tests import ROOT

PLUGIN = ROOT / "jax_plugin" / "smalt"

pytestmark = pytest.mark.shared

#: From the bottom: each imports what stands in rows above its own, and nothing beside it.
LAYERS = (
    ("_errors", "_registry"),
    ("_requirements", "_native"),
    ("_versions",),
    ("_messages", "_config", "_primitives"),
    ("_devices", "_walk", "_mlir", "_programs"),
    ("_expand",),
    ("_rules",),
    ("_blocks",),
    ("_partition",),
    ("_derivatives",),
    ("_lowering",),
    ("_tools", "_torch"),
    ("__init__",),
    ("__main__",),
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}

#: Modules that import something of smalt's in a function: without JAX, without PyTorch, or before JAX is known to be one that smalt knows.
LAZY = {"__init__", "__main__", "_torch/calls", "_versions/contract"}


@dataclasses.dataclass(frozen=True)
class Import:
    """`name` is empty where a whole room is imported; `module`: a module in it, where it is said."""

    room: str
    module: str
    name: str
    line: int
    is_lazy: bool = False
    is_for_types: bool = False


def room_of(path: pathlib.Path) -> str:
    return path.relative_to(PLUGIN).parts[0].removesuffix(".py")


def files() -> list[pathlib.Path]:
    return sorted(PLUGIN.rglob("*.py"))


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports_of(tree: ast.Module) -> list[Import]:
    """What a module imports of smalt's, in functions and for types included."""

    def walk(node: ast.AST, is_lazy: bool, is_for_types: bool) -> Iterator[Import]:
        lazy = is_lazy or isinstance(node, (ast.FunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            types = is_for_types or isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            if isinstance(child, ast.ImportFrom) and (child.module or "").split(".")[0] == "smalt":
                _, room, module = [*str(child.module).split("."), "", ""][:3]
                for a in child.names:
                    yield Import(room or a.name, module, a.name if room else "", child.lineno, lazy, types)
            elif isinstance(child, ast.Import):
                for a in child.names:
                    if a.name.split(".")[0] == "smalt":
                        _, room, module = [*a.name.split("."), "", ""][:3]
                        yield Import(room or "__init__", module, "", child.lineno, lazy, types)
            assert not (isinstance(child, ast.ImportFrom) and child.level), "imports are absolute here"
            yield from walk(child, lazy, types)

    return list(walk(tree, False, False))


def modules_in(room: str) -> set[str]:
    return {path.stem for path in (PLUGIN / room).glob("*.py")} - {"__init__"}


def door(room: str) -> set[str]:
    """The names that a package has for others."""
    return {a.asname or a.name for n in tree_of(PLUGIN / room / "__init__.py").body if isinstance(n, ast.ImportFrom) for a in n.names}


PACKAGES = sorted(path.parent.name for path in PLUGIN.glob("*/__init__.py"))


@functools.cache
def used_of(tree: ast.Module) -> list[tuple[str, str, int]]:
    """(room, name in it, line): what a module takes of rooms that it has imported whole, or by name."""
    rooms = {i.room for i in imports_of(tree) if not i.name and i.room in PACKAGES}
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    used = [(node.value.id, node.attr, node.lineno) for node in attributes if isinstance(node.value, ast.Name) and node.value.id in rooms]
    return used + [(i.room, i.name, i.line) for i in imports_of(tree) if i.name and i.room in PACKAGES]


def test_every_room_is_in_a_layer() -> None:
    assert {room_of(path) for path in files()} == set(LAYER)


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(PLUGIN)))
def test_rooms_import_what_is_below_them_by_its_door(path: pathlib.Path) -> None:
    own, tree = room_of(path), tree_of(path)
    for i in imports_of(tree):
        assert i.room in LAYER, f"line {i.line}: {i.room}"
        if i.room == own:
            continue
        assert LAYER[i.room] < LAYER[own], f"line {i.line}: {own} is not above {i.room}"
        assert not i.module, f"line {i.line}: smalt.{i.room}.{i.module} is behind a door"
    for room, name, line in used_of(tree):
        if room != own:
            assert name in door(room) and name not in modules_in(room), f"line {line}: smalt.{room} has no {name} for others"


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(PLUGIN)))
def test_imports_in_functions_hide_no_circle(path: pathlib.Path) -> None:
    name = str(path.relative_to(PLUGIN).with_suffix(""))
    assert name in LAZY or not any(i.is_lazy for i in imports_of(tree_of(path)))


@pytest.mark.parametrize("room", PACKAGES)
def test_modules_of_a_package_are_no_circle(room: str) -> None:
    """But for what they say of each other's types."""
    graph = {
        path.stem: {i.module or i.name for i in imports_of(tree_of(path)) if i.room == room and not (i.is_lazy or i.is_for_types)}
        for path in (PLUGIN / room).glob("*.py")
    }
    while graph:
        free = [module for module, needs in graph.items() if not needs & graph.keys() - {module}]
        assert free, f"a circle: {sorted(graph)}"
        for module in free:
            del graph[module]


@pytest.mark.parametrize("room", PACKAGES)
def test_a_door_has_what_others_use(room: str) -> None:
    tree = tree_of(PLUGIN / room / "__init__.py")
    head = ast.get_docstring(tree) or ""
    assert len(head.splitlines()) >= 3 and "mports " in head, "what may live there, and what it may import"
    others = [path for path in files() if room_of(path) != room]
    used = {name for path in others for of, name, _ in used_of(tree_of(path)) if of == room}
    if room != "_versions":  # tests ask for some: tests/unit/test_plugin.py
        assert door(room) == used
    assert not (door(room) - {"contract"}) & modules_in(room), "a name and a module"
    assert all(isinstance(n, (ast.ImportFrom, ast.Expr)) for n in tree.body), "a door has no logic"


def test_types_are_checked_at_doors() -> None:
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    assert next(o["module"] for o in overrides if o.get("implicit_reexport")) == [f"smalt.{room}" for room in PACKAGES]


def test_files_and_functions_are_short() -> None:
    for path in files():
        assert len(path.read_text().splitlines()) <= 1000, path
        long = [n.name for n in ast.walk(tree_of(path)) if isinstance(n, ast.FunctionDef) and (n.end_lineno or 0) - n.lineno >= 120]
        assert not long, (path, long)


def test_frames_of_every_package_are_ours() -> None:
    """Errors, reports and tables of frames have the user's."""
    for path in files():
        assert _errors.is_installed(str(path)) and not locations._is_reported(str(path)), path
    assert locations._is_reported(__file__) and not _errors.is_installed(__file__)


def test_what_the_package_is() -> None:
    """Its own names are those that are documented; all else has an underscore."""
    assert {name for name in vars(smalt) if not name.startswith("_")} == set(smalt.__all__)


def test_the_reader_of_imports_reads() -> None:
    text = """
from __future__ import annotations
import smalt
from smalt import _a, _b
from smalt._c import x
from smalt._c.d import y as z
if TYPE_CHECKING:
    from smalt import _e
def f():
    import smalt._g.h
    def inner():
        from smalt._i import j
from numpy import k
"""
    found = [(i.room, i.module, i.name, i.is_lazy, i.is_for_types) for i in imports_of(ast.parse(text))]
    assert found == [
        ("__init__", "", "", False, False),
        ("_a", "", "", False, False),
        ("_b", "", "", False, False),
        ("_c", "", "x", False, False),
        ("_c", "d", "y", False, False),
        ("_e", "", "", False, True),
        ("_g", "h", "", True, False),
        ("_i", "", "j", True, False),
    ]
