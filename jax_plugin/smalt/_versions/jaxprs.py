"""Jaxprs: their classes, equations and names, in one form for all versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import source_info_util
from jax._src import core as jax_core
from jax._src.interpreters import partial_eval as _partial_eval
from jax._src.pallas.mosaic_gpu import core as gpu_core


def is_jaxpr(x: Any) -> bool:
    return isinstance(x, jax_core.Jaxpr) or hasattr(x, "jaxpr") and hasattr(x, "consts")


def open_jaxpr(x: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr and the values of its constvars, if it holds them.

    0.10 has `ClosedJaxpr` and `Jaxpr`; since 0.11 one class is both, and the consts of a `run_scoped` body are
    dead tracers: the caller, for which the equation's operands bind the constvars, ignores them.
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
    "smalt_copy_gmem_to_smem": "copy_gmem_to_smem",
    "smalt_inline_ptx": "inline_ptx",
    "smalt_mbarrier_arrive": "mbarrier_arrive",
    "smalt_mbarrier_expect": "mbarrier_expect",
    "smalt_mbarrier_wait": "mbarrier_wait",
    "smalt_wait_gmem_to_smem": "wait_gmem_to_smem",
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


def is_literal(atom: Any) -> bool:
    return isinstance(atom, jax_core.Literal)


def is_dropped(var: Any) -> bool:
    return isinstance(var, jax_core.DropVar)


def without_constvars(jaxpr: Any) -> Any:
    """A jaxpr that takes what its constvars stand for as its first operands."""
    return _partial_eval.convert_constvars_jaxpr(jaxpr)


def with_arguments(jaxpr: Any, invars: Sequence[Any], names: Sequence[str]) -> Any:
    """A jaxpr with its arguments in another order, and what they are called."""
    info = jaxpr.debug_info._replace(arg_names=tuple(names))
    return jaxpr.replace(invars=list(invars), debug_info=info)


def dimension_value(dim: Any) -> Any:
    """A dimension's size as an `i32[]`: what is symbolic is known when the program runs."""
    return jax.numpy.asarray(jax_core.dimension_as_value(dim), np.int32)


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """Those of a jaxpr, and of the jaxprs in it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from all_equations(inner)


def eval_jaxpr(closed: Any, args: Sequence[Any], consts: Sequence[Any] = ()) -> Any:
    """`consts`: the values of its constvars, where it does not hold them itself."""
    jaxpr, own = open_jaxpr(closed)
    return jax_core.eval_jaxpr(jaxpr, consts or own, *args)


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


def bind_again(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """The equation once more, of these operands, at its line."""
    with at_line_of(eqn):
        made = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(made) if eqn.primitive.multiple_results else [made]


def described_as(jaxpr: Any, other: Any, at: int, name: str) -> Any:
    """A jaxpr with the debug info of another one's function, with one more argument."""
    names = tuple(other.debug_info.arg_names or ())
    if len(names) == len(other.invars):
        names = (*names[:at], name, *names[at:])
    return jaxpr.replace(debug_info=other.debug_info._replace(arg_names=names))
