"""Derivatives of kernels: `jax.jvp` of `pl.pallas_call` and of `plgpu.kernel`; backwards, `transposes.py`.

The kernel of a derivative computes the results and their tangents together. Its body is the JVP of the body, where references have
tangents, too: those of operands whose tangent is not known to be 0, of results, and of scratch, as far as they hold floats. What a body
stores goes to both. A tangent's blocks are those of what it is the tangent of, and so are its buffers if these are shared.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from smalt import _blocks, _config, _versions
from smalt._derivatives import transposes
from smalt._errors import Unsupported

_REMEDY = "give the call a derivative of its own: jax.custom_jvp, jax.custom_vjp"


def rules() -> list[tuple[str, Any, Callable[..., Any]]]:
    """(kind, primitive, rule) of what stands in kernels, and of the kernels themselves, as `_versions.chain_derivative` takes them."""
    call, kernel = _versions.pallas_call_p, _versions.mpmd_map_p
    masked = [("jvp", p, functools.partial(rule, p)) for p, rule in ((_versions.masked_load_p, _masked_load), (_versions.masked_swap_p, _masked_swap))]
    found: list[tuple[str, Any, Callable[..., Any]]] = [
        ("jvp", p, functools.partial(_RULES.get(p.name, _without), p)) for p in _versions.primitives_without_jvp()
    ]
    found += [("discharge", p, transposes.repeated) for p in (_versions.get_p, _versions.masked_load_p)]
    found += [*masked, ("jvp", call, _call), ("linearize", call, _linearized_call), ("transpose", call, transposes.transpose), ("partial", call, transposes.partial)]
    found += [("checkpoint", call, transposes.checkpoint)]
    return [*found, ("jvp", kernel, _kernel), ("linearize", _versions.custom_vmap_p, _linearized_kernel)]


# ------------------------------------------------------------------------------------------ kernels


def _call(before: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    if not _is_wanted(params):
        return before(primals, tangents, **params)
    own_params, mapping = dict(params), params["grid_mapping"]
    sizes = sum(not isinstance(n, int) for n in mapping.grid)
    first = sizes + mapping.num_index_operands
    for at, t in enumerate(tangents[sizes:first]):
        if not _versions.is_zero(t):
            name = _versions.argument_name(params["jaxpr"], at, f"index operand {at}")
            raise Unsupported(
                f"smalt: not supported yet: the derivative of a pl.pallas_call with respect to {name}, which is prefetched for index maps"
                "\n  expected: a tangent that is known to be 0"
                "\n  got: one that is not"
                "\n  remedy: pass it as an operand, too, with a block (pl.BlockSpec), or let jax.lax.stop_gradient say that it is constant"
                f"{_versions.here()}"
            )
    aliases = {i - mapping.num_index_operands: o for i, o in params["input_output_aliases"]}
    with _versions.grid_trace(mapping):
        twins = _Twins(params["jaxpr"], mapping.num_index_operands, primals[first:], tangents[first:], params["out_avals"], aliases)
    own, results = mapping.block_mappings[: mapping.num_inputs], mapping.block_mappings[mapping.num_inputs :]
    blocks = (*own, *(_twin(own[i]) for i in twins.inputs), *results, *(_twin(results[o]) for o in twins.outputs))
    made = mapping.replace(
        block_mappings=blocks,
        num_inputs=len(own) + len(twins.inputs),
        num_outputs=len(results) + len(twins.outputs),
        scratch_avals=(*mapping.scratch_avals, *(mapping.scratch_avals[i] for i in twins.scratch)),
    )
    params |= {
        "jaxpr": twins.jaxpr,
        "grid_mapping": made,
        "out_avals": (*params["out_avals"], *(params["out_avals"][o] for o in twins.outputs)),
        "input_output_aliases": tuple((i + mapping.num_index_operands, o) for i, o in twins.aliases.items()),
        "cost_estimate": _versions.twice(params.get("cost_estimate")),
    }
    transposes.remember(twins.jaxpr, transposes.Origin(own_params, twins.inputs, twins.outputs))
    found = _versions.pallas_call_p.bind(*primals, *twins.given, **params)
    return twins.results(found)


def _linearized_call(before: Callable[..., Any], is_vjp: bool, nonzero: Sequence[bool], *primals: Any, **params: Any) -> Any:
    """The call itself, and its derivative as a function of tangents, which `transposes.py` turns round."""
    if not _is_wanted(params):
        return before(is_vjp, nonzero, *primals, **params)
    if is_vjp:
        transposes.check(params)

    def linear(given: Sequence[Any], tangents: Sequence[Any]) -> Any:
        return _call(_not_ours, given, tangents, **params)[1]

    return _versions.linearized(_versions.pallas_call_p.bind(*primals, **params), primals, linear)


def _not_ours(*_: Any, **__: Any) -> Any:
    raise AssertionError("what smalt wants is smalt's")


def _is_wanted(params: dict[str, Any]) -> bool:
    return _blocks.is_wanted(params["compiler_params"], params["interpret"], _config.is_enabled(params["compiler_params"]))


def _twin(block: Any) -> Any:
    return dataclasses.replace(block, origin=f"the tangent of {block.origin}")


def _kernel(before: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    if not (_config.is_enabled(params["compiler_params"]) and _versions.is_gpu_kernel(params)):
        return before(primals, tangents, **params)
    (jaxpr,) = params["jaxprs"]
    with _versions.kernel_trace(params):
        twins = _Twins(jaxpr, 0, primals, tangents, params["out_avals"], params["input_output_aliases"])
    params |= {
        "jaxprs": (twins.jaxpr,),
        "out_avals": (*params["out_avals"], *(params["out_avals"][o] for o in twins.outputs)),
        "input_output_aliases": type(params["input_output_aliases"])(twins.aliases),
        "cost_estimate": _versions.twice(params.get("cost_estimate")),
    }
    found = _versions.mpmd_map_p.bind(*primals, *twins.given, **params)
    return twins.results(found)


def _linearized_kernel(before: Callable[..., Any], is_vjp: bool, nonzero: Sequence[bool], *primals: Any, **params: Any) -> Any:
    """`plgpu.kernel` is a function with a rule for `jax.vmap`, of which JAX has no transpose."""
    for eqn in _versions.open_jaxpr(params["call"])[0].eqns if is_vjp else ():
        if eqn.primitive is _versions.mpmd_map_p and _versions.is_gpu_kernel(eqn.params) and _config.is_enabled(eqn.params["compiler_params"]):
            raise Unsupported(
                "smalt: not supported yet: jax.grad of a plgpu.kernel\n  expected: a pl.pallas_call, or jax.jvp"
                f"\n  got: {eqn.params['name']}\n  remedy: write the backward kernel, and give the call to jax.custom_vjp{_versions.here()}"
            )
    return before(is_vjp, nonzero, *primals, **params)


class _Twins:
    """The body of a derivative, and which of its references have tangents.

    The body's references are those of index operands, operands, results, scratch; behind each group come the tangents of some of it.
    """

    def __init__(
        self, jaxpr: Any, others: int, primals: Sequence[Any], tangents: Sequence[Any], out_avals: Sequence[Any], aliases: dict[int, int]
    ) -> None:
        self.num_outputs = len(out_avals)
        variables = jaxpr.invars
        ends = [0, others, others + len(primals), others + len(primals) + len(out_avals), len(variables)]
        index, inputs, outputs, scratch = (range(*pair) for pair in itertools.pairwise(ends))
        written = _versions.written_refs(jaxpr)
        self.inputs = [
            i
            for i, at in enumerate(inputs)
            # What the body stores there, or a result that shares the buffer, has a tangent, whatever the operand's is.
            if not _versions.is_zero(tangents[i]) or _has_tangent(variables[at]) and (at in written or i in aliases)
        ]
        self.given = [_versions.instantiated(tangents[i]) for i in self.inputs]
        self.outputs = [o for o, at in enumerate(outputs) if _has_tangent(variables[at])]
        self.scratch = [s for s, at in enumerate(scratch) if _has_tangent(variables[at])]
        twins = [*(inputs[i] for i in self.inputs), *(outputs[o] for o in self.outputs), *(scratch[s] for s in self.scratch)]
        try:
            made, _ = _versions.jvp_of_jaxpr(jaxpr, [at in twins for at in range(len(variables))])
        except NotImplementedError as e:
            if isinstance(e, Unsupported):
                raise
            without = _versions.without_derivative(jaxpr, str(e))
            what, line = (str(e), _versions.function_line(jaxpr)) if without is None else without
            raise _lacking(what, line) from e
        names = list(_versions.argument_names(jaxpr)) or [""] * len(variables)
        own = dict(zip(range(len(variables)), zip(made.invars, names)))
        twin = dict(zip(twins, ((var, names[at] and f"{names[at]}_tangent") for at, var in zip(twins, made.invars[len(variables) :]))))
        order = [of[at] for group in (index, inputs, outputs, scratch) for of in (own, twin) for at in group if at in of]
        self.jaxpr = _versions.with_arguments(made, *zip(*order))
        self.aliases = dict(aliases)
        for i, o in aliases.items():
            if i in self.inputs and o in self.outputs:
                self.aliases[len(primals) + self.inputs.index(i)] = len(out_avals) + self.outputs.index(o)

    def results(self, found: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Results and tangents, those of integers JAX's symbolic zeros, from what the kernel gives."""
        own = list(found[: self.num_outputs])
        tangents = [_versions.zero_tangent(x) for x in own]
        for o, t in zip(self.outputs, found[self.num_outputs :]):
            tangents[o] = t
        return own, tangents


def _has_tangent(var: Any) -> bool:
    return _versions.is_ref_aval(var.aval) and _versions.is_float_memory(var.aval)


# ------------------------------------------------------------------------------------------ what stands in their bodies


def _without(primitive: Any, before: Any, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    """Of what is done with integers, barriers and the like, nothing is differentiated."""
    if not all(map(_versions.is_zero, tangents)):
        raise _lacking(f"the derivative of {primitive.name}", _versions.here())
    return _only(primitive, before, primals, tangents, **params)


def _only(primitive: Any, before: Any, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    """Of what looks at values, nothing is differentiated."""
    out = primitive.bind(*primals, **params)
    return (out, [_versions.zero_tangent(x) for x in out]) if primitive.multiple_results else (out, _versions.zero_tangent(out))


def _linear(primitive: Any, before: Any, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    (x, *others), (t, *_) = primals, tangents
    out = primitive.bind(x, *others, **params)
    return out, _versions.zero_tangent(out) if _versions.is_zero(t) else primitive.bind(t, *others, **params)


def _masked_load(primitive: Any, before: Any, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    """`plt.load`, of a reference or of another value that may have no tangent, of which JAX has no rule."""
    ref, other = (_versions.masked_operands(tangents, params)[k] for k in ("ref", "other"))
    if not _versions.is_zero(ref):
        return before(primals, tangents, **params)
    out = primitive.bind(*primals, **params)
    mask = _versions.masked_operands(primals, params)["mask"]
    if other is None or _versions.is_zero(other) or mask is None:
        return out, _versions.zero_tangent(out)
    return out, jnp.where(mask, jnp.zeros_like(other), other)


def _masked_swap(primitive: Any, before: Any, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    """`plt.store` and `plt.swap`, of integers, too."""
    if all(map(_versions.is_zero, tangents)):
        return _only(primitive, before, primals, tangents, **params)
    return before(primals, tangents, **params)


def _run_scoped(primitive: Any, before: Any, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    """Scratch of floats has tangents beside it."""
    jaxpr, _ = _versions.open_jaxpr(params["jaxpr"])
    count, results = len(primals), len(jaxpr.outvars)
    scratch = [s for s, var in enumerate(jaxpr.invars) if _has_tangent(var)]
    some = [not _versions.is_zero(t) for t in tangents]
    nonzero = [*some, *(s in scratch for s in range(len(jaxpr.invars)))]
    made, has_tangent = _versions.jvp_of_jaxpr(_versions.without_constvars(jaxpr), nonzero)
    own, twins = made.invars[: len(nonzero)], made.invars[len(nonzero) :]
    of_captured = sum(some)
    order = [*own[:count], *twins[:of_captured], *own[count:], *twins[of_captured:]]
    names = list(_versions.argument_names(jaxpr)) or [""] * len(jaxpr.invars)
    names = [*[""] * (count + of_captured), *names, *(names[s] and f"{names[s]}_tangent" for s in scratch)]
    if "ref_transforms" in params:
        params["ref_transforms"] = (*params["ref_transforms"], *(params["ref_transforms"][s] for s in scratch))
    captured = [*primals, *(t for t in tangents if not _versions.is_zero(t))]
    out = _versions.bind_scope(_versions.with_arguments(made, order, names), captured, params)
    found = iter(out[results:])
    return out[:results], [next(found) if has else _versions.zero_tangent(x) for x, has in zip(out, has_tangent)]


def _lacking(what: str, line: str) -> Unsupported:
    return Unsupported(
        f"smalt: not supported yet: the derivative of a kernel: {what}"
        "\n  expected: a body of loads, stores, arithmetic and control flow over references"
        f"\n  remedy: {_REMEDY}{line}"
    )


_RULES: dict[str, Callable[..., Any]] = {
    "run_scoped": _run_scoped,
    "layout_cast": _linear,
    "debug_print": _only,
    "print_layout": _only,
    "debug_check": _only,
}
