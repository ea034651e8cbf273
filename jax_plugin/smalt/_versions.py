"""Everything that smalt knows about JAX's versions (0.10.2, 0.11.2, 0.12).

The rest of the plugin sees one internal form: the names, parameters and semantics of `docs/descriptor.md`.
Features are detected; where one version means something else with the same equation, a feature of that
version stands for it and the comment says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import itertools
import os
import re
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import ml_dtypes
import numpy as np
from jax._src import ad_util as _ad_util
from jax._src import api_util as _api_util
from jax._src import config as _jax_config
from jax._src import core as jax_core
from jax._src import custom_batching as _custom_batching
from jax._src import distributed as _distributed
from jax._src import effects as jax_effects
from jax._src import linear_util as _linear_util
from jax._src import mesh as mesh_lib
from jax._src import pjit as _pjit
from jax._src import source_info_util
from jax._src.export import _export
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import partial_eval as _partial_eval
from jax._src.interpreters import pxla as _pxla
from jax._src.lax import special as lax_special
from jax._src.lib import xla_client
from jax._src.pallas import core as pallas_core
from jax._src.pallas import mpmd, pallas_call
from jax._src.pallas import primitives as pallas_primitives
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu import helpers as gpu_helpers
from jax._src.pallas.mosaic_gpu import pipeline as gpu_pipeline
from jax._src.pallas.mosaic_gpu import primitives as gpu_primitives
from jax._src.state import discharge as _discharge
from jax._src.state import primitives as _state_primitives
from jax._src.state import types as state_types
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import launch_context as mgpu_launch
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import builtin as builtin_dialect
from jaxlib.mlir.dialects import func as func_dialect
from jaxlib.mlir.dialects import llvm as llvm_dialect

try:
    TRITON: Any = importlib.import_module("jax._src.pallas.triton.core")
except ImportError:  # JAX is about to remove it: then nobody has its parameters
    TRITON = None

# ------------------------------------------------------------------------------------------ features

_IS_011 = hasattr(jax_core.Jaxpr, "with_consts")  # one class is a jaxpr, with or without the values of its constvars
_IS_012 = hasattr(gpu_primitives, "barrier_arrive_and_wait_p")  # came with 0.12: `_contract.py`

#: What nothing in an equation shows (`Semantics` in the schema).
FALSE_PREDICATE_SUPPRESSES_ARRIVAL = _IS_012
TENSOR_CORE_BARRIER_TRACKS_COPIES = _IS_012
LEADER_TRACKED_LAST_AXIS_ONLY = _IS_012

def lowering_semantics(params: Any) -> str:
    """"LANE" or "WARPGROUP": what the kernel asked for, else this version's default."""
    if params is None or not hasattr(params, "lowering_semantics"):
        params = plgpu.CompilerParams()
    return str(params.lowering_semantics.name).upper()


# ------------------------------------------------------------------------------------------ kernels

mpmd_map_p = mpmd.mpmd_map_p
#: A function with a rule for `jax.vmap`: what `plgpu.kernel` makes.
custom_vmap_p = _custom_batching.custom_vmap_p


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """One `plgpu.kernel` as the lowering rule receives it."""

    name: str
    mesh: Any  # plgpu.Mesh
    jaxpr: Any  # open, without constvars
    num_inputs: int
    aliases: tuple[tuple[int, int], ...]  # (input, output)
    compiler_params: Any


def is_gpu_kernel(params: dict[str, Any]) -> bool:
    """Whether an `mpmd_map` equation is a Mosaic GPU kernel to be compiled (not interpreted)."""
    meshes = params["meshes"]
    return not params["interpret"] and len(meshes) == 1 and isinstance(meshes[0], gpu_core.Mesh)


def kernel_call(num_inputs: int, params: dict[str, Any]) -> KernelCall:
    (jaxpr,) = params["jaxprs"]
    (mesh,) = params["meshes"]
    return KernelCall(
        name=mesh.kernel_name or params["name"] or jaxpr.debug_info.func_name,
        mesh=mesh,
        jaxpr=jaxpr,
        num_inputs=num_inputs,
        aliases=tuple(sorted(params["input_output_aliases"].items())),
        compiler_params=params["compiler_params"],
    )


# ------------------------------------------------------------------------------------------ jaxprs


def is_jaxpr(x: Any) -> bool:
    return isinstance(x, jax_core.Jaxpr) or hasattr(x, "jaxpr") and hasattr(x, "consts")


def open_jaxpr(x: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr and the values of its constvars, if it holds them.

    0.10 has `ClosedJaxpr` and `Jaxpr`; since 0.11 one class is both, and the consts of a `run_scoped` body are
    dead tracers: the caller, which knows that the equation's operands bind the constvars, ignores them.
    """
    if isinstance(x, jax_core.Jaxpr):
        return x, getattr(x, "consts", None) or ()
    return x.jaxpr, x.consts


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The jaxprs among an equation's parameters, opened."""
    values = [v for p in eqn.params.values() for v in (p if isinstance(p, (tuple, list)) else [p])]
    return [open_jaxpr(v)[0] for v in values if is_jaxpr(v)]


# JAX's name -> the descriptor's. 0.12 dropped the `_p` that some printed names had.
_RENAMED = {
    "get": "load",
    "_copysign": "copysign",
    "async_load": "async_load_tmem",
    "mgpu_atomic_store": "atomic_store",
    "wgmma_ref": "wgmma",
    "inline_mgpu_p": "inline_mgpu",
    "debug_barrier_p": "debug_barrier",
    "elementwise_inline_asm_p": "elementwise_inline_asm",
    "smalt_access": "access",
    "smalt_inline_ptx": "inline_ptx",
    "smalt_mbarrier_arrive": "mbarrier_arrive",
    "smalt_mbarrier_expect": "mbarrier_expect",
    "smalt_mbarrier_wait": "mbarrier_wait",
    "set_max_registers_p": "set_max_registers",
    "wgmma_accumulator_deref_p": "wgmma_accumulator_deref",
    "wgmma_accumulator_store_p": "wgmma_accumulator_store",
    "mosaic_gpu_reduce_sum": "reduce_sum",
    "mosaic_gpu_reduce_max": "reduce_max",
    "mosaic_gpu_reduce_min": "reduce_min",
    "mosaic_gpu_reduce_prod": "reduce_prod",
    "scatter-add": "scatter_add",
    "scatter-sub": "scatter_sub",
    "scatter-mul": "scatter_mul",
    "scatter-min": "scatter_min",
    "scatter-max": "scatter_max",
}

# Primitives that only call, with the parameter that holds the callee.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "jaxpr_call": "jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "call_jaxpr",
    "custom_lin": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_batching_call": "call",
    "custom_vmap_call": "call",
}


def primitive_name(eqn: Any) -> str:
    name = str(eqn.primitive.name)
    if name in ("core_map", "mpmd_map"):
        return "warp_map"
    return _RENAMED.get(name, name)


def warp_map(eqn: Any) -> tuple[Any, Any, Sequence[Any]] | None:
    """(axis name, jaxpr, variables that the operands bind) of a warp region; None if `eqn` is another map.

    0.10 has `core_map`, whose captured values are constvars; later ones a nested `mpmd_map`.
    """
    params = eqn.params
    if "jaxprs" in params:
        meshes, jaxprs = params["meshes"], params["jaxprs"]
        if len(meshes) != 1 or not isinstance(meshes[0], gpu_core.WarpMesh):
            return None
        return meshes[0].axis_name, jaxprs[0], jaxprs[0].invars
    if not isinstance(params["mesh"], gpu_core.WarpMesh):
        return None
    jaxpr, _ = open_jaxpr(params["jaxpr"])
    return params["mesh"].axis_name, jaxpr, jaxpr.constvars


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """(consts, carries) of a scan."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = (len(group) for group in params["ft_in"].unpack())
    return consts, carry


def count_param(eqn: Any) -> int:
    """The count of `wgmma_wait`, `set_max_registers` and the like: a parameter, or in 0.10 the last operand."""
    if "n" in eqn.params:
        return int(eqn.params["n"])
    return int(eqn.invars[-1].val)


def literal_value(atom: Any) -> Any:
    return atom.val


def is_accumulator_aval(aval: Any) -> bool:
    return isinstance(aval, gpu_core.WGMMAAbstractAccumulatorRef)


def is_literal(atom: Any) -> bool:
    return isinstance(atom, jax_core.Literal)


def is_dropped(var: Any) -> bool:
    return isinstance(var, jax_core.DropVar)


def view_shape(aval: Any, transforms: Sequence[Any]) -> tuple[int, ...]:
    """The shape of a ref seen through index transforms, on whatever device it lies."""
    shape = tuple(aval.shape)
    for t in transforms:
        if type(t).__name__ != "PeerMemRef":
            shape = tuple(t.get_indexer_shape())
    return shape


def is_ref_aval(aval: Any) -> bool:
    return isinstance(aval, state_types.AbstractRef)


def promise_in_bounds() -> dict[str, Any]:
    """What a `plgpu.BlockSpec` takes whose blocks are all inside of their array; nothing where it has no such field (0.10)."""
    mode = getattr(gpu_core, "OOBFillMode", None)
    fields = {f.name for f in dataclasses.fields(plgpu.BlockSpec)}
    return {"oob_fill_mode": mode.PROMISE_IN_BOUNDS} if mode is not None and "oob_fill_mode" in fields else {}


def copy_in_bounds() -> dict[str, Any]:
    """The same of a `plgpu.copy_gmem_to_smem`."""
    mode = getattr(gpu_core, "OOBFillMode", None)
    known = "oob_mode" in inspect.signature(plgpu.copy_gmem_to_smem).parameters
    return {"oob_mode": mode.PROMISE_IN_BOUNDS} if mode is not None and known else {}


def key_data(keys: Any) -> Any:
    return np.asarray(jax.random.key_data(keys))


def physical_aval(shape: Sequence[int], dtype: Any, weak: bool) -> Any:
    return jax_core.ShapedArray(tuple(shape), dtype, weak_type=weak)


# ------------------------------------------------------------------------------------------ JAX's definitions of primitives


def defined_by_jax(eqn: Any) -> Callable[..., Any] | None:
    """The function by which JAX lowers a primitive on every platform that has no rule of its own; None if it is no function."""
    function = _definitions().get(eqn.primitive.name)
    return None if function is None else functools.partial(function, **eqn.params)


def defined_by_primitive(name: str, params: dict[str, Any]) -> Callable[..., Any] | None:
    function = _definitions().get(name)
    if function is None and hasattr(lax_special, f"{name}_impl"):
        own = getattr(lax_special, f"{name}_impl")
        return lambda *xs: own(*xs, dtype=xs[0].dtype)
    return None if function is None else functools.partial(function, **params)


#: What JAX defines by others and smalt has itself, or what is a call or a loop of the kernel.
_OWN = frozenset({
    "argmax", "argmin", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "logistic", "one_minus_square", "run_state", "scan",
    "custom_vmap_call",
})  # fmt: skip


@functools.cache
def _definitions() -> dict[str, Callable[..., Any]]:
    found = {}
    for primitive, entry in _mlir._lowerings.items():
        if (function := lowered_function(entry.rule)) is not None:
            found[primitive.name] = function
    return found


def lowered_function(rule: Any) -> Callable[..., Any] | None:
    """The function that a rule lowers: `mlir.lower_fun(f)` is a closure over `f`; None for other rules."""
    while isinstance(rule, functools.partial):
        rule = rule.func
    code = getattr(rule, "__code__", None)
    if code is None or "lower_fun" not in rule.__qualname__ or "fun" not in code.co_freevars:
        return None
    return rule.__closure__[code.co_freevars.index("fun")].cell_contents  # type: ignore[no-any-return]


def has_definition(name: str) -> bool:
    return name in _definitions() and name not in _OWN


@contextlib.contextmanager
def tracing_mode(wide: bool) -> Iterator[None]:
    """For tracing what is ours: no promotion that the user chose; 64-bit types if asked for."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.numpy_dtype_promotion("standard"))
        stack.enter_context(jax.numpy_rank_promotion("allow"))
        if wide and jax.dtypes.canonicalize_dtype(np.int64) != np.int64:
            enable = getattr(jax, "enable_x64", None)
            stack.enter_context(enable(True) if enable is not None else jax.experimental.enable_x64())
        yield


# ------------------------------------------------------------------------------------------ layouts


def layout_kind(x: Any) -> str:
    """What a layout object is: "parameterized", "reduced", "named" (users' own), "strided", "splat", "tiled" (Mosaic's)."""
    match x:
        case gpu_core.ParameterizedLayout():
            return "parameterized"
        case gpu_core.ReducedLayout():
            return "reduced"
        case mgpu.WGStridedFragLayout():
            return "strided"
        case mgpu.WGSplatFragLayout():
            return "splat"
        case mgpu.TiledLayout():
            return "tiled"
        case _:
            return "named" if hasattr(x, "to_mgpu") else "unknown"


# ------------------------------------------------------------------------------------------ locations

# The kernels and helpers that JAX ships are users' code to us: their lines are worth reporting.
_JAX_DIR = os.path.dirname(jax.__file__) + os.sep
_SHIPPED = (
    os.path.join(_JAX_DIR, "experimental", "pallas", "ops") + os.sep,
    os.path.join(_JAX_DIR, "_src", "pallas", "mosaic_gpu", "pipeline.py"),
    os.path.join(_JAX_DIR, "_src", "pallas", "mosaic_gpu", "helpers.py"),
)
_OWN_DIR = os.path.dirname(__file__) + os.sep


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

    JAX cuts an equation's traceback at the jaxpr that holds it, and tells a lowering rule nothing of the equations around
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

    JAX asks a function's signature, which `functools.wraps` copies from another that may get its arguments in another order.
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
    function, which the tracebacks of what it does still have, says the rest; where it does not say it for certain, there are no names.
    """
    inner = next((open_jaxpr(eqn.params["jaxpr"])[0] for eqn in jaxpr.eqns if eqn.primitive.name == "run_scoped"), None)
    if inner is None or (code := _code(inner)) is None:
        return {}
    own = code.co_varnames[: code.co_argcount]
    rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if code.co_flags & inspect.CO_VARARGS else ""
    # JAX 0.10, which knows no paths of results, counts the references of all arguments and does not say which argument each is in.
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
    """The code of the user's function that a jaxpr was traced from, if JAX itself called it, as the tracebacks of what it does tell."""
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


# ------------------------------------------------------------------------------------------ device mesh


def device_mesh(axis_context: Any) -> list[tuple[Any, int]]:
    """Axes (name, size) of the JAX device mesh that a lowering runs under, outermost first."""
    mesh = getattr(axis_context, "mesh", None)
    if mesh is None or mesh.empty:
        return []
    return list(mesh.shape.items())


def concrete_mesh(axis_context: Any) -> Any | None:
    """The mesh that a lowering runs under, if its devices are known."""
    mesh = getattr(axis_context, "mesh", None)
    return None if mesh is None or isinstance(mesh, mesh_lib.AbstractMesh) or not mesh.devices.size else mesh


def process_index(mesh: Any | None) -> int:
    """This process's number in its job; of the backend whose devices a mesh has."""
    return int(jax.process_index() if mesh is None else mesh.devices.flat[0].client.process_index())


def automatic_axes(axis_context: Any) -> list[Any]:
    """Axes of the device mesh (of more than one device) that a lowering leaves to XLA's partitioner."""
    manual = getattr(axis_context, "manual_axes", None) or frozenset(name for name, _ in device_mesh(axis_context))
    return [name for name, size in device_mesh(axis_context) if size > 1 and name not in manual]


def abstract_device() -> Any | None:
    """The device of the abstract mesh in scope, which stands for a GPU that is not there."""
    mesh = mesh_lib.get_abstract_mesh()
    return getattr(mesh, "abstract_device", None)


@dataclasses.dataclass(frozen=True)
class EmulatedDevice(mesh_lib.AbstractDevice):  # type: ignore[misc]
    """An abstract device that also knows its architecture (JAX asks for it where there is one)."""

    compute_capability: str = ""


@contextlib.contextmanager
def abstract_device_scope(kind: str, core_count: int, compute_capability: str) -> Iterator[None]:
    """Makes `get_abstract_mesh().abstract_device` a GPU of the given kind."""
    device = EmulatedDevice(kind, core_count, "cuda", compute_capability)
    mesh = mesh_lib.get_abstract_mesh()
    if mesh.empty:
        mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    else:
        mesh = jax.sharding.AbstractMesh(
            mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types, abstract_device=device
        )
    with jax.sharding.use_abstract_mesh(mesh):
        yield


class _CudaVersions:
    """What kernels ask of `jax._src.lib.cuda_versions`, which is None without the CUDA plugin."""

    def cuda_runtime_get_version(self) -> int:
        return 13000


#: (name, what the class had under it).
_ANSWERED: list[tuple[str, Any]] = []


def answer_for_cpu_devices(**answers: Callable[[], Any]) -> None:
    """Has CPU devices answer like another one, until `stop_answering`: with what a function gives, where it gives something.

    What they know themselves (`platform`, `device_kind`) JAX goes on to be told, which compiles for what is there.
    """
    cls = xla_client.Device
    by_name = getattr(cls, "__getattr__", None)  # how devices answer what only some of them know

    def prop(name: str, own: Any, answer: Callable[[], Any]) -> property:
        def get(device: Any) -> Any:
            if own is not None:
                value = own.__get__(device, cls)
                if platform.__get__(device, cls) != "cpu" or _is_jax(sys._getframe(1)):
                    return value
                return answer() or value
            if by_name is not None:
                with contextlib.suppress(AttributeError):
                    return by_name(device, name)
            if (value := answer()) is None:
                raise AttributeError(name)
            return value

        return property(get)

    platform = vars(cls)["platform"]
    for name, answer in answers.items():
        own = vars(cls).get(name)
        _ANSWERED.append((name, own))
        setattr(cls, name, prop(name, own, answer))
    module = _attention_module()
    if module is not None and getattr(module, "cuda_versions", None) is None:
        module.cuda_versions = _CudaVersions()


def _attention_module() -> Any:
    """The shipped attention kernels, which took the CUDA versions into their own namespace; None if they can't be had."""
    try:
        return importlib.import_module("jax.experimental.pallas.ops.gpu.attention_mgpu")
    except ImportError:  # they need absl-py, which JAX does not bring
        return None


def _is_jax(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).split(".")[0] in ("jax", "jaxlib")


def stop_answering() -> None:
    for name, own in _ANSWERED:
        if own is None:
            delattr(xla_client.Device, name)
        else:
            setattr(xla_client.Device, name, own)
    _ANSWERED.clear()
    module: Any = sys.modules.get("jax.experimental.pallas.ops.gpu.attention_mgpu")
    if isinstance(getattr(module, "cuda_versions", None), _CudaVersions):
        module.cuda_versions = None


# ------------------------------------------------------------------------------------------ configuration


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


# ------------------------------------------------------------------------------------------ errors of runs

RuntimeError_: Any = jax.errors.JaxRuntimeError
"""What JAX raises when a custom call fails."""


def choose_runtime_errors(find: Callable[[str], tuple[type[Exception], Any] | None]) -> None:
    """For an error of XLA whose text `find` knows, an instance of its class, with its attributes, is raised.

    C++ makes the exception by calling the class with text and code, like anybody else.
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


# ------------------------------------------------------------------------------------------ export


def promise_stable(targets: Iterable[str]) -> None:
    """Lets `jax.export` export these custom calls: whoever loads the program later finds them understood.

    JAX keeps the list; it has no public way to it but a flag at each call of `jax.export.export`.
    """
    _export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE.update(targets)


# ------------------------------------------------------------------------------------------ lowering


#: `rule(before, ctx, *operands, **params)`: `before` is the rule that answered until now.
ChainedRule: TypeAlias = Callable[..., Any]


def chain_rule(primitive: Any, rule: ChainedRule, platforms: Sequence[str]) -> list[Callable[[], None]]:
    """Puts a rule before those that JAX has for a primitive on these platforms; the steps that take it away again, the last one first.

    Where it is already the first one, nothing is done. A rule that another plugin puts there later stays there.
    """
    undo: list[Callable[[], None]] = []
    made: dict[Any, Any] = {}  # one rule for the platforms that had one rule: they share one lowering
    for platform in platforms:
        table = _mlir._platform_specific_lowerings[platform]
        there = table.get(primitive)
        if isinstance(getattr(there, "rule", None), _Chained) and there.rule.rule is rule:
            continue
        key = None if there is None else there.rule
        if key not in made:
            made[key] = _Chained(rule, primitive, there)
        mlir.register_lowering(primitive, made[key], platform=platform)
        undo.append(functools.partial(_take_away, table, primitive, table[primitive], there))
    return undo


@dataclasses.dataclass(frozen=True, eq=False)
class _Chained:
    rule: ChainedRule
    primitive: Any
    there: Any  # the platform's entry, if it had one

    def before(self, ctx: Any, *args: Any, **params: Any) -> Any:
        entry = self.there or _mlir._lowerings[self.primitive]
        return entry.rule(ctx, *args, **params)

    def __call__(self, ctx: Any, *args: Any, **params: Any) -> Any:
        return self.rule(self.before, ctx, *args, **params)


def _take_away(table: dict[Any, Any], primitive: Any, ours: Any, there: Any) -> None:
    if table.get(primitive) is not ours:
        return
    if there is None:
        del table[primitive]
    else:
        table[primitive] = there


def platforms(ctx: Any) -> tuple[str, ...]:
    """The platforms that a lowering is for: "cpu", "cuda", …"""
    return tuple(ctx.platforms or ctx.module_context.platforms)


def lowering_devices(ctx: Any) -> Sequence[Any]:
    """The devices that a lowering is for, if they are known."""
    try:
        backend = ctx.module_context.get_backend(optional=True)
    except Exception:
        return ()
    return () if backend is None else backend.local_devices()


def custom_call(
    ctx: Any,
    target: str,
    operands: Sequence[Any],
    results: Sequence[Any],
    attributes: dict[str, Any],
    aliases: dict[int, int],
    has_side_effect: bool,
) -> Sequence[Any]:
    """Emits a typed-FFI custom call with row-major layouts; `operands` are (value, aval), `results` avals."""
    op = _mlir.custom_call(
        target,
        result_types=[_mlir.aval_to_ir_type(ctx.module_context, a) for a in results],
        operands=[value for value, _ in operands],
        backend_config={name: _mlir.ir_attribute(value) for name, value in attributes.items()},
        api_version=4,
        operand_output_aliases=aliases,
        operand_layouts=[_row_major(a) for _, a in operands],
        result_layouts=[_row_major(a) for a in results],
        has_side_effect=has_side_effect,
    )
    return list(op.results)


def tokens_in(ctx: Any) -> list[tuple[Any, Any]]:
    """Tokens of the ordered effects so far: (value, aval)."""
    return [(ctx.tokens_in.get(effect), jax_core.abstract_token) for effect in ctx.tokens_in.effects()]


def set_tokens_out(ctx: Any, tokens: Sequence[Any]) -> None:
    """Those of the ordered effects once the equation's are over, in the order of `tokens_in`."""
    if tokens:
        made = _mlir.TokenSet(dict(zip(ctx.tokens_in.effects(), tokens)))
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(made))


def _row_major(aval: Any) -> tuple[int, ...]:
    if aval is jax_core.abstract_token:
        return ()
    rank = len(jax_core.physical_aval(aval).shape)  # of keys: with the dimension of their data
    return tuple(range(rank - 1, -1, -1))


def zeros(ctx: Any, size: int) -> tuple[Any, Any]:
    """A zero-filled `u8[size]`: (value, aval)."""
    aval = jax_core.ShapedArray((size,), np.dtype(np.uint8))
    return _mlir.full_like_aval(ctx, 0, aval), aval


def coordination_service() -> Any | None:
    """The client of the job's coordination service; None in a program of one process."""
    return _distributed.global_state.client


def mesh_number(axis_context: Any) -> int:
    """A number for the devices of the mesh that a lowering runs under, if they are of several processes; else, or if they are not known, 0."""
    mesh = concrete_mesh(axis_context)
    devices = [] if mesh is None else [d for d in mesh.devices.flat]
    if len({d.process_index for d in devices}) <= 1:
        return 0
    return 1 + zlib.crc32(repr([d.id for d in devices]).encode())


def device_position(ctx: Any, within: Any | None = None) -> tuple[Any, Any]:
    """The executing device's position in the mesh that the lowering runs under, or in what its host has of it (`_hosts.Within`), a `u32[]`: (value,
    aval)."""
    aval = jax_core.ShapedArray((), np.dtype(np.uint32))
    whole, hlo = _mlir.hlo.partition_id(), _mlir.hlo
    if within is None:
        return whole, aval

    def number(n: int) -> Any:
        return _mlir.ir_constant(np.uint32(n))

    def sum_of(terms: Sequence[tuple[Any, int]]) -> Any:
        return functools.reduce(hlo.add, [hlo.multiply(x, number(n)) for x, n in terms])

    return within.position(whole, lambda x, n: hlo.divide(x, number(n)), lambda x, n: hlo.remainder(x, number(n)), sum_of), aval


def debug_checks_are_enabled() -> bool:
    """Whether `pl.debug_check` checks anything."""
    return bool(pallas_core.enable_debug_checks.value)


def has_effects(call: KernelCall) -> bool:
    """Whether a kernel does something that XLA must keep although nobody uses its results."""
    local = (jax_effects.JaxprInputEffect, jax_core.NamedAxisEffect)
    return any(
        not isinstance(e, local) and not call.mesh.discharges_effect(e) and not _is_kernel_local(e)
        for e in call.jaxpr.effects
    )


def _is_kernel_local(effect: Any) -> bool:
    known = getattr(pallas_core, "kernel_local_effects", None)
    return known is not None and known.contains(effect)


# ------------------------------------------------------------------------------------------ derivatives


#: Tables of rules by which JAX differentiates.
_DERIVATIVES: dict[str, dict[Any, Any]] = {
    "jvp": _ad.primitive_jvps,
    "linearize": _ad.primitive_linearizations,
    "transpose": _ad.primitive_transposes,
    "partial": _partial_eval.custom_partial_eval_rules,
    "checkpoint": _partial_eval.partial_eval_jaxpr_custom_rules,
    "discharge": _discharge._discharge_rules,
}


def chain_derivative(kind: str, primitive: Any, rule: Callable[..., Any]) -> list[Callable[[], None]]:
    """Puts `rule(before, ...)` before the rule that JAX has; the step that takes it away again.

    Of "jvp": (primals, tangents, **params); "linearize": (is_vjp, nonzero, *primals, **params); "transpose": (cotangents, *operands, **params);
    "partial": (trace, *tracers, **params), some of which are not known; "checkpoint": (saveable, unknown, instantiated, equation); "discharge", of
    what is done to references: see `discharged_load`.
    """
    table = _DERIVATIVES[kind]
    there = table.get(primitive)
    if isinstance(there, _ChainedDerivative) and there.rule is rule:
        return []
    kinds = {"linearize": _ChainedLinearization, "partial": _ChainedPartial, "checkpoint": _ChainedCheckpoint}
    made = table[primitive] = kinds.get(kind, _ChainedDerivative)(rule, primitive, there)
    return [functools.partial(_take_away, table, primitive, made, there)]


@dataclasses.dataclass(frozen=True, eq=False)
class _ChainedDerivative:
    rule: Callable[..., Any]
    primitive: Any
    there: Any

    def before(self, *args: Any, **params: Any) -> Any:
        if self.there is None:
            raise NotImplementedError(f"Differentiation rule for '{self.primitive}' not implemented")
        return self.there(*args, **params)

    def __call__(self, *args: Any, **params: Any) -> Any:
        return self.rule(self.before, *args, **params)


class _ChainedLinearization(_ChainedDerivative):
    def before(self, *args: Any, **params: Any) -> Any:
        rule = self.there or functools.partial(_ad.fallback_linearize_rule, self.primitive)
        return rule(*args, **params)


def linearized(results: Sequence[Any], operands: Sequence[Any], linear: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]) -> Any:
    """What a rule to linearize gives: results, and `linear(operands, tangents)`, which gives theirs."""
    has_tangent = [is_float(x) for x in results]
    if _IS_011:  # which has residuals of a structure, too
        return results, has_tangent, operands, None, lambda given, _, *tangents: linear(given, tangents)
    return results, has_tangent, operands, lambda given, *tangents: linear(given, tangents)


class _ChainedPartial(_ChainedDerivative):
    def before(self, trace: Any, *tracers: Any, **params: Any) -> Any:
        if self.there is not None:
            return self.there(trace, *tracers, **params)
        return trace.default_process_primitive(self.primitive, tracers, params)


class _ChainedCheckpoint(_ChainedDerivative):
    def before(self, saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any) -> Any:
        if self.there is not None:
            return self.there(saveable, unknown, instantiated, eqn)
        count, residuals = len(eqn.outvars), to_instantiate(eqn, instantiated)
        if any(unknown):
            return None, eqn, [True] * count, [True] * count, residuals
        policy = _partial_eval.ensure_enum(saveable(eqn.primitive, *(x.aval for x in eqn.invars), **eqn.params))
        if isinstance(policy, _partial_eval.RecomputeType):
            return eqn, eqn, [False] * count, [True] * count, residuals
        return eqn, None, [False] * count, [False] * count, []


def to_instantiate(eqn: Any, instantiated: Sequence[bool]) -> list[Any]:
    """Operands that what is evaluated later needs, and does not have."""
    return [x for x, has in zip(eqn.invars, instantiated) if isinstance(x, jax_core.Var) and not has]


def known_value(tracer: Any) -> Any:
    """What is known of it while a part of a program is evaluated; None: nothing."""
    return tracer.pval.get_known()


def is_float(x: Any) -> bool:
    return bool(jax.dtypes.issubdtype(jax_core.typeof(x).dtype, np.inexact))


def is_linear_operand(x: Any) -> bool:
    """Whether an operand of what is transposed is one whose cotangent is wanted."""
    return isinstance(x, _ad.UndefinedPrimal)


def zero_cotangent(aval: Any) -> Any:
    return _ad_util.Zero(aval)


def varying_axes(xs: Iterable[Any]) -> frozenset[Any]:
    """The axes of the device mesh over which some of the values vary."""
    return frozenset().union(*(jax_core.typeof(x).manual_axis_type.varying for x in xs))


def varying_aval(shape: Sequence[int], dtype: Any, axes: frozenset[Any]) -> Any:
    known = jax.ShapeDtypeStruct(tuple(shape), dtype, manual_axis_type=jax_core.ManualAxisType(varying=axes))
    return pallas_core._convert_out_shape_to_aval(known)


def varying_zeros(aval: Any, axes: frozenset[Any]) -> Any:
    zeros = jax.numpy.zeros(aval.shape, aval.dtype)
    return jax.lax.pcast(zeros, tuple(axes), to="varying") if axes else zeros


def led_by(block: Any, axis: int, size: int) -> Any:
    """A block mapping of an array with one dimension more in front, of which each index of a grid axis has its own part."""
    opened, consts = open_jaxpr(block.index_map_jaxpr)
    info = opened.debug_info._replace(result_paths=None)
    results = block.index_map_out_tree.unflatten(opened.outvars)
    opened = opened.replace(outvars=[opened.invars[axis], *opened.outvars], debug_info=info)
    return dataclasses.replace(
        block,
        index_map_out_tree=jax.tree.structure((0, *results)),
        block_shape=(pallas_core.Squeezed(), *block.block_shape),
        index_map_jaxpr=opened if _IS_011 else jax_core.ClosedJaxpr(opened, consts),
        array_aval=block.array_aval.update(shape=(size, *block.array_aval.shape)),
    )


def summed(block: Any, ref: Any) -> tuple[Any, Any]:
    """A block mapping and the body's reference, of what is added up: in f32 where the type has fewer bits."""
    if ref.dtype.itemsize >= 4:
        return block, ref

    def wide(aval: Any) -> Any:
        return aval.update(inner_aval=aval.inner_aval.update(dtype=np.dtype(np.float32)))

    array = block.array_aval.update(dtype=np.dtype(np.float32))
    return dataclasses.replace(block, array_aval=array, transformed_block_aval=wide(block.transformed_block_aval)), wide(ref)


def trace_body(body: Callable[..., None], avals: Sequence[Any], name: str) -> Any:
    """The open jaxpr of a function of references."""

    def flat(*refs: Any) -> list[Any]:
        body(*refs)
        return []

    info = _api_util.debug_info(name, body, list(avals), {})
    jaxpr, _, consts = _partial_eval.trace_to_jaxpr_dynamic(_linear_util.wrap_init(flat, debug_info=info), list(avals))
    if consts:
        raise NotImplementedError(f"it needs an array of constants: {', '.join(str(jax_core.typeof(c)) for c in consts)}")
    return jaxpr


def without_references(jaxpr: Any) -> Any:
    """A jaxpr that takes what its references hold, and gives what they are left with."""
    if _IS_011:
        return _discharge.discharge_state(jaxpr, strip_memory_space=True)
    return _discharge.discharge_state(jax_core.ClosedJaxpr(jaxpr, ()))


def without_new_references(closed: Any) -> Any:
    """A jaxpr in which references that it makes (`jax.new_ref`) are the values that they hold."""
    opened, consts = open_jaxpr(closed)
    if not any(is_ref_aval(var.aval) for eqn in opened.eqns for var in eqn.outvars):
        return closed
    return _discharge.discharge_state(opened if _IS_011 else jax_core.ClosedJaxpr(opened, consts))


def _no_tangents(dtype: Any) -> Any:
    return jax.dtypes.float0


class _RulesOfBarriers:
    tangent_dtype = staticmethod(_no_tangents)


def give_barriers_tangents() -> list[Callable[[], None]]:
    """JAX asks each operand of what is differentiated for the type of its tangents: barriers and semaphores, which do not say, have none.
    The steps that take it away again."""
    undo: list[Callable[[], None]] = []
    for kind in (gpu_core.BarrierType, gpu_core.ClusterBarrierType):
        if kind._rules is None:
            kind._rules = _RulesOfBarriers
            undo.append(functools.partial(delattr, kind, "_rules"))
    semaphores = pallas_core.AbstractSemaphoreTyRules
    if not hasattr(semaphores, "tangent_dtype"):
        semaphores.tangent_dtype = staticmethod(_no_tangents)
        undo.append(functools.partial(delattr, semaphores, "tangent_dtype"))
    return undo


def primitives_without_jvp() -> list[Any]:
    """What Pallas and Mosaic GPU have in kernels and JAX has no derivative of."""
    found = {id(p): p for module in (pallas_primitives, gpu_primitives) for p in vars(module).values() if isinstance(p, jax_core.Primitive)}
    return [p for p in found.values() if p not in _ad.primitive_jvps]


get_p = _state_primitives.get_p
masked_load_p, masked_swap_p = pallas_primitives.load_p, pallas_primitives.swap_p


def discharged_load(args: Sequence[Any], params: dict[str, Any]) -> dict[str, Any]:
    """What a rule takes that makes a load a function of what its reference holds: operands, and these by name."""
    operands = args[1 if _IS_011 else 2 :]
    if "args_tree" in params:
        ref, transforms, mask, other = params["args_tree"].unflatten(operands)
    else:
        ref, mask, other = operands[0], None, None
        transforms = params["tree"].unflatten(operands[1:])
    return {"operands": operands, "ref": ref, "transforms": tuple(transforms or ()), "mask": mask, "other": other}


def transformed(x: Any, transforms: Sequence[Any]) -> Any:
    """What a view of a reference has of the array that the reference holds."""
    return _discharge.transform_array(x, transforms)


def masked_operands(flat: Sequence[Any], params: dict[str, Any]) -> dict[str, Any]:
    """What a masked load takes, by name; None: not given. Of tangents, too."""
    ref, _, mask, other = params["args_tree"].unflatten(flat)
    return {"ref": ref, "mask": mask, "other": other}


def is_zero(tangent: Any) -> bool:
    """Whether a tangent is known to be 0."""
    return type(tangent) is _ad_util.Zero


def instantiated(tangent: Any) -> Any:
    return _ad_util.instantiate(tangent)


def zero_tangent(x: Any) -> Any:
    return _ad_util.Zero(jax_core.typeof(x).to_tangent_aval())


def is_float_memory(aval: Any) -> bool:
    """Whether a reference is to floats."""
    dtype = getattr(aval.inner_aval, "dtype", None)
    return dtype is not None and bool(jax.dtypes.issubdtype(dtype, np.inexact))


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


def jvp_of_jaxpr(jaxpr: Any, nonzero: Sequence[bool]) -> tuple[Any, list[bool]]:
    """The open JVP of a jaxpr without constvars, and which of its results have tangents.

    It takes the operands, then the tangents that are not 0, and gives the results, then theirs.
    """
    closed = jaxpr if _IS_011 else jax_core.ClosedJaxpr(jaxpr, ())
    made, has_tangent = _ad.jvp_jaxpr(closed, list(nonzero), False)
    opened, consts = open_jaxpr(made)
    if consts:
        raise NotImplementedError(f"it needs an array of constants: {', '.join(str(jax_core.typeof(c)) for c in consts)}")
    return opened, list(has_tangent)


def without_constvars(jaxpr: Any) -> Any:
    """A jaxpr that takes what its constvars stand for as its first operands."""
    return _partial_eval.convert_constvars_jaxpr(jaxpr)


def bind_scope(jaxpr: Any, captured: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A `run_scoped` of a jaxpr that takes what it captures, then what is allocated."""
    if _IS_011:
        scope = jaxpr.with_consts(captured)
    else:
        scope = jaxpr.replace(constvars=jaxpr.invars[: len(captured)], invars=jaxpr.invars[len(captured) :])
    return list(pallas_primitives.run_scoped_p.bind(*captured, **{**params, "jaxpr": scope}))


def with_arguments(jaxpr: Any, invars: Sequence[Any], names: Sequence[str]) -> Any:
    """A jaxpr with its arguments in another order, and what they are called."""
    info = jaxpr.debug_info._replace(arg_names=tuple(names))
    return jaxpr.replace(invars=list(invars), debug_info=info)


def kernel_trace(params: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Within the scope, what is traced is in a kernel of these parameters of `mpmd_map`."""
    (mesh,) = params["meshes"]
    return mpmd.mpmd_map_tracing_context(mesh, (mesh, *params["external_meshes"]))  # type: ignore[no-any-return]


def twice(cost: Any) -> Any:
    """The estimate for a kernel that computes tangents, too."""
    return cost and dataclasses.replace(cost, **{f.name: 2 * getattr(cost, f.name) for f in dataclasses.fields(cost)})


# ------------------------------------------------------------------------------------------ pallas_call

pallas_call_p = pallas_call.pallas_call_p


def grid_names(mapping: Any) -> tuple[Any, ...]:
    """Names of a grid's axes but those that `vmap` added, which have none (and no place in 0.10)."""
    names = tuple(mapping.grid_names or ())
    if len(names) < len(mapping.grid):
        return names
    return tuple(name for axis, name in enumerate(names) if axis not in mapping.vmapped_dims)


def grid_trace(mapping: Any) -> contextlib.AbstractContextManager[None]:
    """Within the scope, what is traced is in a body of this grid."""
    names = mapping.grid_names
    if names is not None and len(names) < len(mapping.grid):  # 0.10, under vmap
        own = iter(names)
        mapping = mapping.replace(grid_names=tuple(object() if a in mapping.vmapped_dims else next(own) for a in range(len(mapping.grid))))
    return mapping.trace_env()  # type: ignore[no-any-return]


def heed_grids_in_traces() -> None:
    """Makes a call's grid part of the keys of what JAX remembers of tracing.

    `pl.num_programs` is a number when a kernel is traced; JAX gives a kernel that it has traced before, whatever its grid was then.
    """
    own = pallas_core.tracing_grid_env
    if getattr(own, "_smalt", False):
        return
    grids = make_state(None)

    @contextlib.contextmanager
    def tracing_grid_env(grid: Any, mapped_dims: Any) -> Iterator[None]:
        with own(grid, mapped_dims), grids((tuple(grid), tuple(mapped_dims))):
            yield

    tracing_grid_env._smalt = True  # type: ignore[attr-defined]
    pallas_core.tracing_grid_env = tracing_grid_env


def is_gpu_compiler_params(params: Any) -> bool:
    return isinstance(params, gpu_core.CompilerParams)


def is_triton_compiler_params(params: Any) -> bool:
    return TRITON is not None and isinstance(params, TRITON.CompilerParams)


def is_tpu_compiler_params(params: Any) -> bool:
    module = sys.modules.get("jax._src.pallas.mosaic.core")
    return module is not None and isinstance(params, module.CompilerParams)


def has_side_effects(params: Any) -> bool:
    """Whether parameters say that a call does something besides computing its results."""
    return bool(getattr(params, "has_side_effects", False))


def describe_as_tpus(kinds: Sequence[str], shared_memory: int) -> list[Callable[[], None]]:
    """What a TPU's kernels, and JAX's pipelines for them, ask about the chip is answered for these GPUs: a core with so much memory.

    Returns what takes it away again.
    """
    try:
        from jax._src.pallas.mosaic import tpu_info
    except ImportError:  # no Pallas for TPUs
        return []

    def about() -> Any:
        chip = tpu_info.get_tpu_info_for_chip(tpu_info.ChipVersion.TPU_V5E, 1)
        return dataclasses.replace(chip, vmem_capacity_bytes=shared_memory)

    mine = [kind for kind in kinds if kind not in tpu_info.registry]
    tpu_info.registry.update(dict.fromkeys(mine, about))
    return [functools.partial(tpu_info.registry.pop, kind, None) for kind in mine]


def compiler_params_for_gpu(params: Any) -> Any:
    """What a TPU's parameters mean here is what they say of the grid; the others are about its compiler and its memories."""
    if params is None:
        return plgpu.CompilerParams()
    return plgpu.CompilerParams(dimension_semantics=params.dimension_semantics) if is_tpu_compiler_params(params) else params


def lower_function(ctx: Any, f: Callable[..., Any], *operands: Any) -> Any:
    """Traces `f` on the rule's operands and lowers it in the rule's place.

    Over which axes of a mesh values vary was checked when the equation was traced; what stands in its place is of one device.
    """
    plain = [a.update_manual_axis_type(jax_core.empty_mat) if isinstance(a, jax_core.ShapedArray) else a for a in ctx.avals_in]
    with _jax_config._check_vma(False):
        ctx = ctx.replace(avals_in=plain)
        return _mlir.lower_fun(f, multiple_results=True)(ctx, *operands)


def call_in_parts(params: dict[str, Any], axes: dict[int, int], arrays: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The parameters of a `pl.pallas_call` over a part of its grid and of its arrays. `axes`: into how many parts axes are split; `arrays`: of each
    operand and result, and each of its dimensions."""
    mapping = params["grid_mapping"]
    blocks = mapping.block_mappings
    first = len(arrays) - len(blocks)
    made = [
        dataclasses.replace(b, array_aval=b.array_aval.update(shape=tuple(n // p for n, p in zip(b.array_aval.shape, parts))))
        for b, parts in zip(blocks, arrays[first:])
    ]
    grid = tuple(n // axes[a] if a in axes else n for a, n in enumerate(mapping.grid))
    results = arrays[len(arrays) - len(params["out_avals"]) :]
    return params | {
        "grid_mapping": mapping.replace(grid=grid, block_mappings=tuple(made)),
        "out_avals": tuple(a.update(shape=tuple(n // p for n, p in zip(a.shape, parts))) for a, parts in zip(params["out_avals"], results)),
        "cost_estimate": None,
    }


def call_of_static_shape(params: dict[str, Any], grid: dict[int, int], shapes: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """The parameters of a `pl.pallas_call` with other sizes of these axes, over arrays of these shapes."""
    mapping = params["grid_mapping"]
    made = [dataclasses.replace(b, array_aval=b.array_aval.update(shape=shape)) for b, shape in zip(mapping.block_mappings, shapes)]
    results = shapes[mapping.num_inputs :]
    return params | {
        "grid_mapping": mapping.replace(grid=tuple(grid.get(a, n) for a, n in enumerate(mapping.grid)), block_mappings=tuple(made)),
        "out_avals": tuple(a.update(shape=shape) for a, shape in zip(params["out_avals"], results)),
        "cost_estimate": None,
    }


def dimension_value(dim: Any) -> Any:
    """A dimension's size as an `i32[]`: what is symbolic is known when the program runs."""
    return jax.numpy.asarray(jax_core.dimension_as_value(dim), np.int32)


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """Those of a jaxpr, and of the jaxprs in it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from all_equations(inner)


def make_primitive(name: str, abstract_eval: Callable[..., Any], one_result: bool = False) -> Any:
    """A primitive whose results and effects the rule gives."""
    primitive = jax_core.Primitive(name)
    primitive.multiple_results = not one_result
    primitive.def_effectful_abstract_eval(abstract_eval)
    return primitive


def ref_effects(operands: Iterable[int]) -> set[Any]:
    """Effects of an equation that reads and writes the refs at these operands."""
    operands = list(operands)
    return {state_types.ReadEffect(i) for i in operands} | {state_types.WriteEffect(i) for i in operands}


def only_read(eqn: Any) -> set[Any]:
    """References among an equation's operands that its effects say it reads, and does not write."""
    found: dict[Any, bool] = {}
    for effect in eqn.effects:
        if isinstance(effect, jax_effects.JaxprInputEffect):
            found[effect.input] = found.get(effect.input, True) and isinstance(effect, state_types.ReadEffect)
    return {var for var, reads in found.items() if reads}


def plain_effects(jaxpr: Any) -> set[Any]:
    """Effects of a jaxpr that are not about its refs."""
    return {e for e in jaxpr.effects if not isinstance(e, jax_effects.JaxprInputEffect)}


def ref_and_transforms(ref: Any) -> tuple[Any, tuple[Any, ...]]:
    if isinstance(ref, state_types.TransformedRef):
        return ref.ref, tuple(ref.transforms)
    return ref, ()


def is_gmem_block(block_mapping: Any, is_output: bool) -> bool:
    """Whether an operand stays in device memory. A TPU's names for that are HBM, and ANY; there steps follow one another, so that an output is
    what the last of them leaves: in blocks that is seen to, in memory that steps store to as they like it is not."""
    space = block_mapping.transformed_block_aval.memory_space
    return space is gpu_core.MemorySpace.GMEM or not is_output and (space is pallas_core.MemorySpace.ANY or str(space) == "hbm")


def is_in_device_memory_of_tpu(block_mapping: Any) -> bool:
    space = block_mapping.transformed_block_aval.memory_space
    return space is pallas_core.MemorySpace.ANY or str(space) == "hbm"


def is_semaphore_of_tpu(aval: Any) -> bool:
    """Whether scratch is semaphores as TPUs have them, where steps follow one another."""
    return str(getattr(aval, "memory_space", "")) == "semaphore_mem"


def eval_jaxpr(closed: Any, args: Sequence[Any], consts: Sequence[Any] = ()) -> Any:
    """`consts`: the values of its constvars, where it does not hold them itself."""
    jaxpr, own = open_jaxpr(closed)
    return jax_core.eval_jaxpr(jaxpr, consts or own, *args)


def run_kernel(
    body: Callable[..., None],
    arrays: Sequence[Any],
    *,
    out_types: Sequence[Any],
    mesh: Any,
    compiler_params: Any,
    aliases: dict[int, int],
    name: str,
) -> list[Any]:
    """Binds a kernel; `aliases`: operand -> result. The body gets refs of operands, then of results."""
    run = mpmd._mpmd_map(
        [(mesh, body)], list(out_types), input_output_aliases=aliases, compiler_params=compiler_params, name=name
    )
    return list(run(*arrays))


_NARROW = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}


def bits_of(dtype: Any) -> int:
    """Of one element; of a key, those of its data."""
    if is_key(dtype):
        return 32 * int(np.prod(dtype._impl.key_shape))
    dtype = np.dtype(dtype)
    return _NARROW.get(dtype.name, 8 * int(dtype.itemsize))


def is_key(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def is_integer(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, np.integer))


def is_narrow(dtype: Any) -> bool:
    """Whether elements are of less than a byte."""
    return getattr(dtype, "name", "") in _NARROW


def array_aval(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax_core.ShapedArray(shape, dtype)


def written_refs(jaxpr: Any) -> set[int]:
    """Which invars of a jaxpr are refs that it writes."""
    written = set()
    at = {var: i for i, var in enumerate(jaxpr.invars)}
    for effect in jaxpr.effects:
        if not isinstance(effect, jax_effects.JaxprInputEffect):
            continue
        index = effect.input_index if hasattr(effect, "input_index") else at.get(effect.input)
        if isinstance(index, int) and not isinstance(effect, state_types.ReadEffect):
            written.add(index)
    return written


@dataclasses.dataclass(frozen=True)
class Access:
    """What an equation does to a reference, its first operand."""

    transforms: tuple[Any, ...]
    value: Any = None  # what it stores; None: nothing
    loads: bool = False  # whether or not somebody wants what it gives
    mask: Any = None
    other: Any = None  # what it loads where the mask does not hold
    is_unordered: bool = False  # an atomic, or another one whose order the author gives

    @property
    def is_whole(self) -> bool:
        return all(is_whole_index(t) for t in self.transforms)

    @property
    def is_sliced(self) -> bool:
        """Whether it is a load, or a store without a mask, of what one index of slices and numbers takes."""
        if self.is_unordered or self.value is not None and (self.loads or self.mask is not None) or len(self.transforms) > 1:
            return False
        is_index = not self.transforms or type(self.transforms[-1]).__name__ == "NDIndexer"
        return is_index and all(i.stride == 1 if is_slice(i) else not is_gather(i) for i in indices_of(self.transforms))


_BY_TREE = {"get": True, "load": True, "swap": False, "store": False, "addupdate": True}


@dataclasses.dataclass(frozen=True)
class Dma:
    """A TPU's copy: from its first operand to the one at `target_at`; `operands`: how many there are of both references and their transforms."""

    source: tuple[Any, ...]
    target: tuple[Any, ...]
    target_at: int
    operands: int
    device_id: Any


def dma_of(eqn: Any) -> Dma:
    """What a `dma_start` does."""
    source, target, _, _, device_id = eqn.params["tree"].unflatten(eqn.invars)
    transforms = [ref_and_transforms(x)[1] for x in (source, target)]
    operands = set(map(id, eqn.invars))
    first, second = (1 + sum(id(x) in operands for x in jax.tree.leaves(t)) for t in transforms)
    return Dma(transforms[0], transforms[1], first, first + second, device_id)


def dma_views(eqn: Any, operands: Sequence[Any]) -> tuple[Any, Any]:
    """The two references of a `dma_start`, of values of its operands as far as they are those of both."""
    rest = [None] * (len(eqn.invars) - len(operands))
    source, target, *_ = eqn.params["tree"].unflatten([*operands, *rest])
    return source, target


def access_of(eqn: Any, operands: Sequence[Any] | None = None) -> Access | None:
    """The access that an equation is to a reference; None where it is another one. `operands`: what stands for its variables."""
    name, params = eqn.primitive.name, eqn.params
    operands = eqn.invars if operands is None else operands
    if name in _BY_TREE:
        is_load = name in ("get", "load")
        value, leaves = (None, operands[1:]) if is_load else (operands[1], operands[2:])
        tree = params["tree"]
        return Access(() if tree is None else tuple(tree.unflatten(leaves)), value, _BY_TREE[name])
    if name in ("masked_load", "masked_swap", "atomic_rmw"):
        _, transforms, *rest = params["args_tree"].unflatten(operands)
        if name == "masked_load":
            return Access(tuple(transforms), loads=True, mask=rest[0], other=rest[1], is_unordered=bool(params["is_volatile"]))
        is_atomic = name == "atomic_rmw"
        return Access(tuple(transforms), rest[0], is_atomic, rest[1], is_unordered=is_atomic)
    if name == "atomic_cas":
        return Access((), operands[2], True, is_unordered=True)
    if name == "smalt_access":
        leaves, given = operands[1 : 1 + params["tree"].num_leaves], operands[1 + params["tree"].num_leaves :]
        access = params["access"]
        value = given[access.offsets] if access.values else None
        loads = access.instruction != "st"
        mask = given[-1] if access.is_masked else None
        return Access(tuple(params["tree"].unflatten(leaves)), value, loads, mask, is_unordered=True)
    return None


def count_loads(jaxpr: Any) -> list[int]:
    """Of each reference among a jaxpr's invars how many equations load from it, those of inner jaxprs included."""
    count = [0] * len(jaxpr.invars)

    def look(inner: Any, at: dict[Any, int]) -> None:
        for eqn in inner.eqns:
            access = access_of(eqn)
            if access is not None and access.loads and eqn.invars[0] in at:
                count[at[eqn.invars[0]]] += 1
            for opened in inner_jaxprs(eqn):
                operands = eqn.invars[len(eqn.invars) - len(opened.invars) :]
                if eqn.primitive.name == "while":  # both sets of constants are in front of what is carried
                    ours, others = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
                    is_cond = opened is open_jaxpr(eqn.params["cond_jaxpr"])[0]
                    constants = eqn.invars[:ours] if is_cond else eqn.invars[ours : ours + others]
                    operands = [*constants, *eqn.invars[ours + others :]]
                look(opened, {v: at[a] for v, a in zip(opened.invars, operands) if not is_literal(a) and a in at})

    look(jaxpr, {v: i for i, v in enumerate(jaxpr.invars)})
    return count


def begins_with_store(jaxpr: Any, at: int) -> bool:
    """Whether the first thing a jaxpr does with the ref in its invar is a store to all of it."""
    var = jaxpr.invars[at]
    for eqn in jaxpr.eqns:
        if not any(not is_literal(a) and a is var for a in eqn.invars):
            continue
        access = access_of(eqn)
        if access is None or access.value is None or access.loads or eqn.invars[0] is not var or any(a is var for a in eqn.invars[1:]):
            return False
        if eqn.outvars and any(a is eqn.outvars[0] for e in jaxpr.eqns for a in e.invars):
            return False  # what was there is used
        return access.is_whole and access.mask is None
    return False


def is_stored_once(jaxpr: Any, at: int) -> bool:
    """Whether a jaxpr stores to all of the ref in its invar once, and does nothing else with it."""
    var = jaxpr.invars[at]
    uses = sum(any(not is_literal(a) and a is var for a in eqn.invars) for eqn in jaxpr.eqns)
    return uses == 1 and begins_with_store(jaxpr, at)


def is_whole_index(transform: Any) -> bool:
    """Whether a transform is an index of the whole ref."""
    if type(transform).__name__ != "NDIndexer":
        return False
    sizes = [(getattr(i, "start", None), getattr(i, "size", None), getattr(i, "stride", 1)) for i in transform.indices]
    return all(start == 0 and size == n and stride == 1 for (start, size, stride), n in zip(sizes, transform.shape))


def used_variables(jaxpr: Any) -> frozenset[Any]:
    """Of an open jaxpr: what its equations and results use."""
    used = {atom for eqn in jaxpr.eqns for atom in eqn.invars if not is_literal(atom)}
    used.update(atom for atom in jaxpr.outvars if not is_literal(atom))
    return frozenset(used)


def at_line_of(eqn: Any) -> Any:
    """Within the scope, what is traced has the line of an equation."""
    return source_info_util.user_context(eqn.source_info.traceback, name_stack=eqn.source_info.name_stack)


def scopes(eqn: Any) -> list[str]:
    """The named scopes that an equation is in, as far as its own jaxpr goes."""
    return [scope.name for scope in eqn.source_info.name_stack.stack]


# ------------------------------------------------------------------------------------------ primitives of ours


def new_primitive(name: str) -> Any:
    primitive = jax_core.Primitive(name)
    primitive.multiple_results = True
    return primitive


lowered_under_p = jax_core.Primitive("smalt_lowered_under")
lowered_under_p.multiple_results = True
lowered_under_p.def_abstract_eval(lambda *avals, closed, scope: list(closed.out_avals))


def lowered_under(scope: Callable[[], contextlib.AbstractContextManager[None]], fn: Callable[..., Any], values: Sequence[Any]) -> list[Any]:
    """Calls a function so that it is traced and lowered in a context, wherever and whenever JAX does that."""
    with scope():
        closed = jax.make_jaxpr(fn)(*values)
    return lowered_under_p.bind(*values, closed=closed, scope=scope)  # type: ignore[no-any-return]


def _lowered_under(ctx: Any, *operands: Any, closed: Any, scope: Any) -> Any:
    with scope():
        return _mlir.lower_fun(lambda *values: eval_jaxpr(closed, values), multiple_results=True)(ctx, *operands)


called_from_python_p = jax_core.Primitive("smalt_called_from_python")
called_from_python_p.def_abstract_eval(lambda aval: aval)


def called_from_python(operands: Sequence[Any]) -> list[Any]:
    """The same values; the program that has them is called by JAX's Python (`call_from_python`)."""
    return [called_from_python_p.bind(operands[0]), *operands[1:]]


def _called_from_python(ctx: Any, operand: Any) -> Any:
    if "cpu" in platforms(ctx):
        call_from_python(ctx)
    return [operand]


def register_lowering(primitive: Any, rule: Callable[..., Any]) -> None:
    mlir.register_lowering(primitive, rule)


register_lowering(lowered_under_p, _lowered_under)
register_lowering(called_from_python_p, _called_from_python)


def register_batching(primitive: Any, rule: Callable[..., Any]) -> None:
    """`rule(size, operands, dims, **params)`, where some operand is mapped, gives the results and their axes of the batch."""

    def batch(axis: Any, operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        if all(dim is None for dim in dims):
            results = primitive.bind(*operands, **params)
            return results, [None] * len(results)
        return rule(axis.size, operands, dims, **params)

    _batching.fancy_primitive_batchers[primitive] = batch


#: JAX's own, whatever stands in its place.
emit_pipeline = plgpu.emit_pipeline


def is_block_spec(x: Any) -> bool:
    return isinstance(x, pallas_core.BlockSpec)


def is_stored_in_turn(spec: Any, grid: Sequence[Any]) -> bool:
    """Whether a pipeline stores an output's block step by step, and not once at its end, or never."""
    return bool(gpu_pipeline._in_smem(spec)) and not gpu_pipeline._is_index_invariant(spec, grid)


def chain_pipelines(heeding: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[Callable[[], None]]:
    """Puts a function around those of JAX that make pipelines; the steps that take it away again."""
    undo: list[Callable[[], None]] = []
    for name in ("emit_pipeline", "emit_pipeline_warp_specialized"):
        there = getattr(plgpu, name)
        if not hasattr(there, "_smalt"):
            made = heeding(there)
            made._smalt = True  # type: ignore[attr-defined]
            setattr(plgpu, name, made)
            undo.append(functools.partial(_give_back, name, made, there))
    return undo


def _give_back(name: str, ours: Any, there: Any) -> None:
    if getattr(plgpu, name) is ours:
        setattr(plgpu, name, there)


def replace_as_torch_kernel(dispatch: Callable[[Any], Any]) -> None:
    """`plgpu.as_torch_kernel` becomes what `dispatch` makes of it."""
    plgpu.as_torch_kernel = dispatch(plgpu.as_torch_kernel)


def effects_of_memory(avals: Sequence[Any], only_reads: bool = False) -> set[Any]:
    """The effects of an equation that does something to memory, and may do it to these operands."""
    refs = [i for i, aval in enumerate(avals) if is_ref_aval(aval)]
    return {gpu_core._memory_effect} | ({state_types.ReadEffect(i) for i in refs} if only_reads else ref_effects(refs))


def is_ref(x: Any) -> bool:
    return is_ref_aval(jax_core.typeof(x))


def split_ref(x: Any) -> tuple[Any, Any]:
    """A reference and its transforms; what is none, and None."""
    if isinstance(x, state_types.TransformedRef):
        return x.ref, tuple(x.transforms)
    try:
        return x, () if is_ref_aval(jax_core.typeof(x)) else None
    except TypeError:
        return x, None


def kind_of_memory(ref: Any) -> str | None:
    """Whether a reference is to "gmem", "smem", or to a "block" of a `pallas_call`, which is not decided yet; None of others."""
    aval = jax_core.typeof(ref)
    space = str(getattr(aval, "memory_space", None)).lower()
    if isinstance(aval.inner_aval, jax_core.ShapedArray) and "smem" in space:
        return "smem"
    if space == "default":
        return "block"
    return "gmem" if "gmem" in space or space in ("any", "none", "device") else None


def is_cluster_ref(transforms: Sequence[Any]) -> bool:
    return any(type(t).__name__ == "ClusterRefTransform" for t in transforms)


def is_slice(index: Any) -> bool:
    return hasattr(index, "stride") and hasattr(index, "size")


def is_gather(index: Any) -> bool:
    """Whether an index of one dimension is an array."""
    return not is_slice(index) and bool(getattr(getattr(index, "aval", index), "shape", ()))


def indices_of(transforms: Sequence[Any]) -> tuple[Any, ...]:
    """What a view's last transform takes along each dimension; empty where that is no index."""
    return tuple(transforms[-1].indices) if transforms and type(transforms[-1]).__name__ == "NDIndexer" else ()


def masked_load(ref: Any, mask: Any, other: Any) -> Any:
    return pallas_primitives.load(ref, None, mask=mask, other=other)


def masked_swap(ref: Any, value: Any, mask: Any) -> Any:
    return pallas_primitives.swap(ref, None, value, mask=mask)


def seen_through(ref: Any, transforms: Sequence[Any]) -> Any:
    return state_types.TransformedRef(ref, tuple(transforms)) if transforms else ref


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """How many elements are between neighbours along each dimension."""
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))


def element_strides(strides: Sequence[int], transforms: Sequence[Any]) -> tuple[int, ...] | None:
    """How many elements are between neighbours along each dimension of a view of memory where they are so many; None if it is more than
    slices."""
    for t in transforms:
        name = type(t).__name__
        if name in ("PeerMemRef", "ClusterRefTransform"):
            continue
        if name != "NDIndexer":
            return None
        kept = []
        for index, stride in zip(t.indices, strides):
            if is_slice(index):
                kept.append(stride * index.stride)
            elif is_gather(getattr(index, "atom", index)):
                return None
        strides = kept
    return tuple(strides)


def register_layout(x: Any) -> Any:
    """The layout of a `plgpu.ShapeDtypeStruct`; None of others (arrays have a `layout` that is another thing)."""
    return x.layout if isinstance(x, plgpu.ShapeDtypeStruct) else None


def layout_cast(x: Any, layout: Any) -> Any:
    return plgpu.layout_cast(x, layout)


def wait_for_all() -> None:
    """All that was dispatched is done, or has failed: whoever wants a result is told so."""
    for array in jax.live_arrays():
        try:
            array.block_until_ready()
        except Exception:  # not ours to raise, or deleted meanwhile
            pass
# ------------------------------------------------------------------------------------------ MLIR of `inline_mgpu`

FragmentedArray = mgpu.FragmentedArray
StockLaunchContext = mgpu_launch.LaunchContext


def is_inline_ptx_helper(function: Any) -> bool:
    """Whether it is what JAX's `inline_ptx(asm)` makes of a text."""
    return function.__code__ is inline_ptx_code()


@functools.cache
def inline_ptx_code() -> Any:
    codes = [c for c in gpu_helpers.inline_ptx.__code__.co_consts if hasattr(c, "co_name")]
    return next((c for c in codes if "asm" in c.co_freevars), None)


@contextlib.contextmanager
def mlir_function(arch: tuple[int, int]) -> Iterator[Callable[[Sequence[Any]], Any]]:
    """A context of MLIR of its own; what it gives makes a function with arguments of these types, and a place in it to build at."""
    context = _mlir.make_ir_context()
    with context, ir.Location.unknown(context), contextlib.ExitStack() as stack:
        mgpu.dialect.register_dialect(context)
        module = ir.Module.create()
        i32 = ir.IntegerType.get_signless(32)
        for name, number in zip(("arch_major", "arch_minor"), arch):
            module.operation.attributes[f"mosaic_gpu.{name}"] = ir.IntegerAttr.get(i32, number)

        def enter(types: Sequence[Any]) -> Any:
            with ir.InsertionPoint(module.body):
                block = func_dialect.FuncOp("inline_mgpu", ir.FunctionType.get(list(types), [])).add_entry_block()
            stack.enter_context(ir.InsertionPoint(block))
            return block

        yield enter


def mlir_type(dtype: Any) -> Any:
    return mgpu_utils.dtype_to_ir_type(dtype)


def mlir_memref_type(shape: Sequence[int], strides: Sequence[int], element: Any, shared: bool) -> Any:
    dense = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        dense[i] = dense[i + 1] * shape[i + 1]
    layout = None if list(strides) == dense else ir.StridedLayoutAttr.get(0, list(strides))
    return ir.MemRefType.get(list(shape), element, layout=layout, memory_space=mgpu_utils.smem() if shared else None)


def mlir_shared_pointer(far: bool) -> Any:
    """To the block's shared memory, or to another block's of its cluster."""
    return ir.Type.parse("!llvm.ptr<7>" if far else "!llvm.ptr<3>")


def barrier_reference(address: Any) -> Any:
    """A `BarrierRef` at an address, as the kernel's functions have them. Phases are not counted: they are the kernel's."""
    zero = mgpu_utils.c(0, ir.IntegerType.get_signless(32))
    return mgpu_utils.BarrierRef(address, zero, None, 1)


def kernel_argument(memref: Any) -> Any:
    """The memref, marked as JAX marks the kernel's own arguments in device memory."""
    cast = builtin_dialect.UnrealizedConversionCastOp([memref.type], [memref])
    cast.attributes[mgpu_launch.ORIGINAL_KERNEL_ARG_ATTR] = ir.UnitAttr.get()
    return cast.result


def is_device_memref(value: Any) -> bool:
    return str(value.type).startswith("memref<") and ir.MemRefType(value.type).memory_space is None


def add_pointer(block: Any) -> Any:
    """One more argument: a generic pointer."""
    return block.add_argument(ir.Type.parse("!llvm.ptr"), ir.Location.unknown())


def transformed_memref(memref: Any, transforms: Sequence[Any]) -> tuple[list[int], list[int], Any]:
    """The shape, strides and element type (NumPy's) of a memref behind JAX's transforms."""
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        block = func_dialect.FuncOp("transformed", ir.FunctionType.get([memref.type], [])).add_entry_block()
    with ir.InsertionPoint(block):
        seen = block.arguments[0]
        for t in transforms:
            seen = t.apply(seen)
        made = ir.MemRefType(seen.type)
        strides, _ = made.get_strides_and_offset()
        return list(made.shape), list(strides), _numpy_type(str(made.element_type))


def _numpy_type(name: str) -> Any:
    """Of an element type of MLIR's of whole bytes."""
    special = {"bf16": "bfloat16", "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2", "f8E8M0FNU": "float8_e8m0fnu"}
    if name in special:
        return np.dtype(getattr(ml_dtypes, special[name]))
    return np.dtype(f"{'f' if name.startswith('f') else 'i'}{int(name[1:]) // 8}")


def mlir_memref(value_type: Any) -> Any:
    return ir.MemRefType(value_type)


def fragmented_array(registers: Sequence[Any], layout: Any, shape: Sequence[int], dtype: Any) -> Any:
    array = np.empty(len(registers), object)
    array[:] = registers
    return mgpu.FragmentedArray(
        _registers=array.reshape(layout.registers_shape(tuple(shape))), _layout=layout, _is_signed=mgpu_utils.is_signed(dtype)
    )


def fragment_types(layout: Any, shape: Sequence[int], dtype: Any) -> list[Any]:
    """The MLIR types of the registers of a fragmented array."""
    element = layout.registers_element_type(mlir_type(dtype))
    return [element] * int(np.prod(layout.registers_shape(tuple(shape)), dtype=np.int64))


def first_lane(layout: Any, shape: Sequence[int]) -> list[int]:
    """The elements that the first lane has in a fragmented array, in its registers' order, by their numbers in row-major order."""
    if isinstance(layout, mgpu.WGSplatFragLayout):
        return [0]
    n = int(np.prod(shape, dtype=np.int64))
    if isinstance(layout, mgpu.WGStridedFragLayout):
        return [i * 128 * layout.vec_size + j for i in range(n // (128 * layout.vec_size)) for j in range(layout.vec_size)]
    at = np.arange(n).reshape(tuple(shape))
    for tile in layout.tiling.tiles:
        rank, k = at.ndim, len(tile)
        split = [part for d, t in zip(at.shape[rank - k :], tile) for part in (d // t, t)]
        at = at.reshape(at.shape[: rank - k] + tuple(split))
        first = rank - k
        at = at.transpose(*range(first), *range(first, first + 2 * k, 2), *range(first + 1, first + 2 * k, 2))
    index = [slice(None)] * at.ndim
    for d in (*layout.warp_dims, *layout.lane_dims):
        if isinstance(d, int):
            index[d] = slice(0, 1)
    return [int(i) for i in np.moveaxis(at[tuple(index)], layout.vector_dim, -1).ravel()]


def splat_layout(shape: Sequence[int]) -> Any:
    return mgpu.WGSplatFragLayout(tuple(shape))


def mlir_attribute(op: Any, name: str) -> Any:
    """An attribute of an op; None if it has none of this name."""
    return op.attributes[name] if name in op.attributes else None


def mlir_ints(attribute: Any) -> list[int]:
    """The numbers of an array attribute of whatever width."""
    text = str(attribute)
    inner = text[text.index(":") + 1 : text.rindex(">")] if text.startswith("array<") and ":" in text else text.strip("[]") if text.startswith("[") else ""
    return [int(part.split(":")[0]) for part in inner.split(",") if part.strip()]


def mlir_dimension(attribute: Any) -> str:
    """The member that an attribute of an enumeration is: `x` of `#gpu<dim x>` or `#gpu.dim<x>`."""
    text = str(attribute)
    found = re.search(r"<(?:\w+ )?([^<>]+)>$", text)
    return found.group(1) if found else text


def mlir_numbers(attribute: Any) -> list[float]:
    """The value of a constant; one number where all elements are equal."""
    try:
        dense = ir.DenseElementsAttr(attribute)
    except (ValueError, TypeError):
        return [attribute.value]
    if dense.is_splat:
        return [dense.get_splat_value().value]
    for cls in (ir.DenseIntElementsAttr, ir.DenseFPElementsAttr):
        if cls.isinstance(attribute) if hasattr(cls, "isinstance") else isinstance(attribute, cls):
            return list(cls(attribute))
    raise TypeError(f"a constant {attribute}")


def mlir_shape(value_type: Any) -> list[int]:
    """Of a vector; one of no dimensions is a scalar's."""
    return list(ir.VectorType(value_type).shape) if str(value_type).startswith("vector<") else []


def mlir_element(value_type: Any) -> Any:
    return ir.VectorType(value_type).element_type if str(value_type).startswith("vector<") else value_type


def mlir_fields(value_type: Any) -> list[Any]:
    """The types of the results of an assembly: none of void, those in a structure, or one."""
    text = str(value_type)
    if text == "!llvm.void":
        return []
    return list(llvm_dialect.StructType(value_type).body) if text.startswith("!llvm.struct") else [value_type]
