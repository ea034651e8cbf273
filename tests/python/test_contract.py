"""What smalt reads of JAX's private parts is as it was; and each row of the list notices when it is not."""

from __future__ import annotations

import ast
import dataclasses
import pathlib
import re
from typing import Any

import pytest
import smalt
from jax._src import core as jax_core
from jax._src import pjit
from jax._src.export import _export
from jax._src.interpreters import mlir, pxla
from jax._src.lib import xla_client
from jax._src.pallas import primitives as pallas_primitives
from jax._src.pallas.mosaic_gpu import helpers
from jax._src.pallas.mosaic_gpu import primitives as gpu_primitives
from smalt import _versions
from smalt._config import takeover
from smalt._lowering import lower
from smalt._versions import contract, fragments


def other_lower_fun(function: Any, multiple_results: bool = True) -> Any:
    def rule(ctx: Any, *args: Any) -> Any:
        return function

    return rule


def other_subcomp(ctx: Any, jaxpr: Any) -> None:
    for equation in jaxpr.eqns:
        del equation


class Entry:
    def __init__(self, rule: Any) -> None:
        self.lowering = rule


class Empty:
    """A class that has nothing."""

    __slots__ = ()
    _fields = ()


@dataclasses.dataclass
class Parameters:
    exporting: bool = False


#: row -> (where it is read, the name there, what a newer JAX might have).
CHANGED: dict[str, tuple[Any, str, Any]] = {
    "mlir.lower_fun is a closure over `fun`": (mlir, "lower_fun", other_lower_fun),
    "mlir.jaxpr_subcomp has the equation in `eqn`": (mlir, "jaxpr_subcomp", other_subcomp),
    "mlir's tables of rules have entries with `rule`": (mlir, "_lowerings", {_versions.mpmd_map_p: Entry(None)}),
    "mosaic_gpu.primitives.barrier_arrive_and_wait_p came with JAX 0.12": (
        gpu_primitives,
        "barrier_arrive_and_wait_p",
        None if not hasattr(gpu_primitives, "barrier_arrive_and_wait_p") else ...,
    ),
    "core.Jaxpr.with_consts came with JAX 0.11": (jax_core.Jaxpr, "with_consts", ... if hasattr(jax_core.Jaxpr, "with_consts") else other_subcomp),
    "pallas.primitives.run_scoped_p is called run_scoped": (pallas_primitives, "run_scoped_p", jax_core.Primitive("scoped")),
    "mosaic_gpu.helpers.inline_ptx has a function with `asm`": (helpers, "inline_ptx", other_subcomp),
    "mosaic.gpu.LaunchContext makes tensor maps in `_get_tma_desc` alone": (_versions.StockLaunchContext, "_get_tma_desc", other_subcomp),
    "pallas.triton.core.CompilerParams has num_warps, num_stages, or is gone": (_versions.TRITON, "CompilerParams", Parameters),
    "mlir.ModuleContext.add_keepalive": (mlir.ModuleContext, "add_keepalive", ...),
    "mlir.LoweringParameters.for_export": (mlir, "LoweringParameters", Parameters),
    "pxla.ExecuteReplicated.keepalive": (pxla, "ExecuteReplicated", Empty),
    "pxla.MeshExecutable.unsafe_call": (pxla, "MeshExecutable", Empty),
    "pjit._get_fastpath_data begins with the executable": (pjit, "_get_fastpath_data", other_subcomp),
    "export's set of stable custom calls": (_export, "_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE", frozenset()),
    "core.DebugInfo.func_src_info, arg_names": (jax_core, "DebugInfo", Empty),
    "Traceback.raw_frames, code_addr2location": (xla_client, "Traceback", Empty),
    "Device.platform, device_kind": (xla_client, "Device", Empty),
} | {
    f"{module.__name__.removeprefix('jax._src.')}.{name}": (module, name, type(f"New{name}", (), {}))
    for module, names in contract.CLASSES.items()
    for name in names
}  # fmt: skip


def test_the_list_holds() -> None:
    assert list(contract._broken()) == []
    assert set(CHANGED) == set(contract.ROWS)


@pytest.mark.parametrize("row", CHANGED)
def test_a_change_of_jax_is_noticed(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, other = CHANGED[row]
    if other is ...:
        monkeypatch.delattr(where, name)
    else:
        monkeypatch.setattr(where, name, other, raising=False)
    fragments.inline_ptx_code.cache_clear()
    try:
        with pytest.raises(smalt.CompileError) as e:
            contract.check()
    finally:
        fragments.inline_ptx_code.cache_clear()
    assert isinstance(e.value, ImportError) and row in e.value.expected
    assert "remedy: pip install" in str(e.value) and re.search(r"got: jax \d", str(e.value))


def test_it_is_looked_at_when_smalt_is_enabled_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at import; and an enabling that fails leaves JAX as it was."""
    rules, holders = dict(mlir._platform_specific_lowerings["cuda"]), takeover._holders  # another test may have a choice that is held for ever
    monkeypatch.setattr(takeover, "_is_first", True)
    monkeypatch.setitem(contract.ROWS, "a thing", lambda: False)
    for enable in (smalt.enable, lambda: smalt.enabled(True).__enter__(), lambda: smalt.emulated().__enter__()):
        with pytest.raises(smalt.CompileError, match="with a thing"):
            enable()
        assert mlir._platform_specific_lowerings["cuda"] == rules and takeover._holders == holders
    assert not smalt._config.settings().enabled
    assert lower._prepare_jax in takeover._FIRST


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
    known = {name for names in contract.CLASSES.values() for name in names}
    #: Types of elements, which no version has under all of these names; JAX's own classes of arrays of keys.
    of_some_versions = {"SemaphoreTy", "BarrierSemaphoreTy", "DmaSemaphore", "DMASemaphore", "DmaSemaphoreTy", "KeyTy"}
    told = set().union(*(told_by_name(ast.parse(path.read_text())) for path in pathlib.Path(smalt.__file__).parent.rglob("*.py")))
    assert {"NDIndexer", "ExtractAliasedRef", "ClusterBarrierType"} <= told
    assert told - known - of_some_versions == set()
