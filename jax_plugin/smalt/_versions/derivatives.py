"""Rules of derivatives, and what they are made with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax._src import ad_util as _ad_util
from jax._src import api_util as _api_util
from jax._src import core as jax_core
from jax._src import linear_util as _linear_util
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import partial_eval as _partial_eval
from jax._src.pallas import core as pallas_core
from jax._src.pallas import primitives as pallas_primitives
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu import primitives as gpu_primitives
from jax._src.state import discharge as _discharge
from jax._src.state import primitives as _state_primitives

from smalt._versions.features import CONSTS_ARE_FIRST_INPUTS, DISCHARGES_WITH_CONTEXT, IS_011, LINEARIZES_WITH_STRUCTURE
from smalt._versions.jaxprs import open_jaxpr
from smalt._versions.lowering import take_away, zeros
from smalt._versions.references import is_ref_aval
from smalt._versions.types import is_float

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
    """Registers `rule(before, ...)` before JAX's rule; returns the step that removes it.

    Of "jvp": (primals, tangents, **params); "linearize": (is_vjp, nonzero, *primals, **params); "transpose": (cotangents, *operands, **params);
    "partial": (trace, *tracers, **params), some of which are not known; "checkpoint": (saveable, unknown, instantiated, equation);
    "discharge", of what is done to references: see `discharged_load`.
    """
    table = _DERIVATIVES[kind]
    there = table.get(primitive)
    if isinstance(there, _ChainedDerivative) and there.rule is rule:
        return []
    kinds = {"linearize": _ChainedLinearization, "partial": _ChainedPartial, "checkpoint": _ChainedCheckpoint}
    made = table[primitive] = kinds.get(kind, _ChainedDerivative)(rule, primitive, there)
    return [functools.partial(take_away, table, primitive, made, there)]


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
    if LINEARIZES_WITH_STRUCTURE:
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
    return _discharge.discharge_state(_closed(jaxpr), **({"strip_memory_space": True} if DISCHARGES_WITH_CONTEXT else {}))


def without_new_references(closed: Any) -> Any:
    """A jaxpr in which references that it makes (`jax.new_ref`) are the values that they hold."""
    opened, consts = open_jaxpr(closed)
    if not any(is_ref_aval(var.aval) for eqn in opened.eqns for var in eqn.outvars):
        return closed
    return _discharge.discharge_state(_closed(opened, consts))


def _closed(jaxpr: Any, consts: Sequence[Any] = ()) -> Any:
    return jaxpr if IS_011 else jax_core.ClosedJaxpr(jaxpr, consts)


def _no_tangents(dtype: Any) -> Any:
    return jax.dtypes.float0


class _RulesOfBarriers:
    tangent_dtype = staticmethod(_no_tangents)


def give_barriers_tangents() -> list[Callable[[], None]]:
    """JAX needs the tangent type of each operand of what is differentiated: barriers and semaphores have none.
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
    operands = args[1 if DISCHARGES_WITH_CONTEXT else 2 :]
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


def jvp_of_jaxpr(jaxpr: Any, nonzero: Sequence[bool]) -> tuple[Any, list[bool]]:
    """The open JVP of a jaxpr without constvars, and which of its results have tangents.

    It takes the operands, then the tangents that are not 0, and gives the results, then theirs.
    """
    made, has_tangent = _ad.jvp_jaxpr(_closed(jaxpr), list(nonzero), False)
    opened, consts = open_jaxpr(made)
    if consts:
        raise NotImplementedError(f"it needs an array of constants: {', '.join(str(jax_core.typeof(c)) for c in consts)}")
    return opened, list(has_tangent)


def bind_scope(jaxpr: Any, captured: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A `run_scoped` of a jaxpr that takes what it captures, then what is allocated."""
    if CONSTS_ARE_FIRST_INPUTS:
        scope = jaxpr.with_consts(captured)
    else:
        scope = jaxpr.replace(constvars=jaxpr.invars[: len(captured)], invars=jaxpr.invars[len(captured) :])
    return list(pallas_primitives.run_scoped_p.bind(*captured, **{**params, "jaxpr": scope}))


def twice(cost: Any) -> Any:
    """The estimate for a kernel that computes tangents, too."""
    return cost and dataclasses.replace(cost, **{f.name: 2 * getattr(cost, f.name) for f in dataclasses.fields(cost)})
