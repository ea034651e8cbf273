"""Derivatives of `pl.pallas_call`, backwards: what `jax.grad` and `jax.vjp` make of a call.

The kernel of a derivative (`forwards.py`) is linear in its tangents. Its transpose is a call over the same grid, whose step loads the
operands' blocks and the cotangents of the results' blocks, computes the step again, and takes the cotangents of the operands' blocks
from it. Where steps share a block of an operand, their cotangents are added: in an array that begins with zeros, one step after the
other. Operands that are shared along other axes have calls of their own, so that the other axes still run at once.

A step is a function of the operands' blocks alone only if nothing that it loads was stored by another one: `check` sees to that.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp

from smalt import _blocks, _messages, _partition, _versions, _walk
from smalt._errors import Error, Unsupported

_REMEDY = "write the backward kernel, and give the call to jax.custom_vjp"


@dataclasses.dataclass(frozen=True)
class Origin:
    """The call of which another one is the derivative, its operands with tangents, and its results with tangents."""

    params: dict[str, Any]
    inputs: Sequence[int]
    outputs: Sequence[int]


_ORIGINS: weakref.WeakKeyDictionary[Any, Origin] = weakref.WeakKeyDictionary()


def remember(jaxpr: Any, origin: Origin) -> None:
    """`jaxpr`: the body of a derivative."""
    _ORIGINS[jaxpr] = origin


def transpose(before: Any, cotangents: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
    """The rule: cotangents of the tangents among a derivative's operands."""
    origin = _ORIGINS.get(params["jaxpr"])
    if origin is None:
        return before(cotangents, *operands, **params)  # type: ignore[no-any-return]
    mapping = origin.params["grid_mapping"]
    own = operands[: len(operands) - len(origin.inputs)]
    first = len(own) - mapping.num_inputs
    tangents = dict(zip(origin.inputs, operands[len(own) :]))
    given = dict(zip(origin.outputs, cotangents[mapping.num_outputs :]))
    given = {o: ct for o, ct in given.items() if not _versions.is_zero(ct)}
    wanted = [i for i, t in tangents.items() if _versions.is_linear_operand(t)]
    found = {i: _versions.zero_cotangent(tangents[i].aval) for i in wanted}
    if given and _partition.is_symbolic([b.array_aval for b in mapping.block_mappings]):
        found |= _partition.symbolic_backward(origin.params, own, wanted, given)
    elif given:
        call = check(origin.params)
        for group in _groups(call, wanted):
            found |= _Backward(call, origin.params, group, sorted(given)).run(own[:first], own[first:], given)
    return [None] * len(own) + [found.get(i) for i in tangents]


def partial(before: Any, trace: Any, *tracers: Any, **params: Any) -> Any:
    """The rule where operands are known and tangents are not: results are known, too."""
    origin, out = _ORIGINS.get(params["jaxpr"]), before(trace, *tracers, **params)
    if origin is None:
        return out
    own = [_versions.known_value(t) for t in tracers[: len(tracers) - len(origin.inputs)]]
    if any(x is None for x in own):
        return out
    known = _versions.pallas_call_p.bind(*own, **origin.params)
    return [*known, *out[len(known) :]]


def checkpoint(before: Any, saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any) -> Any:
    """The same for what `jax.checkpoint` evaluates now, and again later."""
    origin = _ORIGINS.get(eqn.params.get("jaxpr"))
    count = 0 if origin is None else len(eqn.invars) - len(origin.inputs)
    if origin is None or any(unknown[:count]):
        return before(saveable, unknown, instantiated, eqn)
    results = len(eqn.outvars) - len(origin.outputs)
    known = eqn.replace(invars=eqn.invars[:count], outvars=eqn.outvars[:results], params=origin.params)
    is_unknown = [i >= results for i in range(len(eqn.outvars))]
    return known, eqn, is_unknown, [True] * len(eqn.outvars), _versions.to_instantiate(eqn, instantiated)


def repeated(before: Any, *args: Any, **params: Any) -> Any:
    """The rule for loads of positions that a stride of 0 repeats: JAX takes other ones, or divides by 0."""
    given = _versions.discharged_load(args, params)
    load = _walk.repeating_load(given["transforms"])
    if load is None:
        return before(*args, **params)
    found = jnp.broadcast_to(_versions.transformed(given["ref"], load.transforms), load.params["shape"])
    if given["mask"] is not None and given["other"] is not None:
        found = jnp.where(given["mask"], found, given["other"])
    return (None,) * len(given["operands"]), found


def check(params: dict[str, Any]) -> _blocks.Call:
    """What is known of a call that can be transposed; others are refused. Of a call over symbolic shapes: of a part of it."""
    mapping = params["grid_mapping"]
    if params["input_output_aliases"]:
        raise _refused("operands that share the buffers of results", "no input_output_aliases", "it has some")
    if any(block.transforms for block in mapping.block_mappings):
        raise _refused("blocks in layouts of one's own", "no transforms", "it has some")
    try:
        params = _partition.symbolic_sample(params)
        call = _blocks.Call(params | {"compiler_params": without_semantics(params["compiler_params"])})
    except Error as e:
        e.args = (f"smalt: {e}{_versions.here()}",)
        raise
    first, scratch = call.indices, call.indices + len(call.blocks)
    for block in call.blocks:
        use = call.uses[first + block.number]
        if any(d.outside and d.form.axes & set(mapping.vmapped_dims) for d in block.dims):
            raise _refused(
                f"blocks of {block.name} that reach outside of its array, elsewhere for each element of a vmap",
                "blocks that divide it", f"{block.shape} of {block.mapping.array_aval.shape}",
            )  # fmt: skip
        if not block.is_output:
            if block.is_written:
                raise _refused(f"a store to {block.name}", "inputs that are loaded only", "one that is stored to")
            continue
        if use.exposed.any():
            raise _refused(f"a load from {block.name}, which a step may not have stored", "results that are stored first", "one that is loaded")
        if axes := _shared_axes(call, block):
            raise _refused(
                f"steps that write the same block of {block.name}", "a block of its own for each step", f"grid axes along which it stays, or comes again: {axes}"
            )
    for at, aval in enumerate(mapping.scratch_avals, scratch):
        name = _versions.argument_name(call.jaxpr, at, f"scratch {at - scratch}")
        if not _messages.is_dtype(aval.inner_aval.dtype):
            raise _refused(f"scratch that holds no numbers ({name})", "arrays", str(aval.inner_aval.dtype))
        if at in call.uses and call.uses[at].exposed.any():
            raise _refused(
                f"steps that depend on each other: one may load what another one stored in scratch {name}", "all of it to be stored before it is loaded", "a load before that"
            )
    return call


def without_semantics(compiler_params: Any) -> Any:
    """Which axes run at once is another question for a transpose."""
    return compiler_params and _versions.compiler_params_for_gpu(compiler_params).replace(dimension_semantics=None)


def _refused(what: str, expected: str, got: str) -> Unsupported:
    return Unsupported(
        f"smalt: not supported yet: jax.grad of a pl.pallas_call with {what}\n  expected: {expected}\n  got: {got}\n  remedy: {_REMEDY}{_versions.here()}"
    )


def _shared_axes(call: _blocks.Call, block: Any) -> list[int]:
    """The axes along which steps have elements of a block in common."""
    return [a for a, n in enumerate(call.grid) if n != 1] if block.is_left_alone else list(_blocks.shared_axes(call.grid, block))


def _is_partitioned(call: _blocks.Call, block: Any) -> bool:
    """Whether each element of an operand is in the block of one step."""
    if not all(isinstance(n, int) for n in call.grid) or _shared_axes(call, block):
        return False
    # As many as whole blocks have, where the last one is not whole.
    extents = [d.extent if d.is_element or d.length is not None else -(-d.extent // d.size) * d.size for d in block.dims]
    return bool(math.prod(call.grid) * math.prod(d.size for d in block.dims) == math.prod(extents))


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """How the cotangent of an operand is made."""

    adds: bool  # to what an array of zeros has by then
    axes: Sequence[int]  # along which steps have elements of it in common


def _groups(call: _blocks.Call, wanted: Sequence[int]) -> list[dict[int, _Wanted]]:
    """What calls compute, by operand."""
    found = {i: _Wanted(not _is_partitioned(call, call.blocks[i]), _shared_axes(call, call.blocks[i])) for i in wanted}
    partitioned = {i: w for i, w in found.items() if not w.adds}
    return [*([partitioned] if partitioned else []), *({i: w} for i, w in found.items() if w.adds)]


class _Backward:
    """The call that computes the cotangents of some operands."""

    def __init__(self, call: _blocks.Call, params: dict[str, Any], wanted: dict[int, _Wanted], given: Sequence[int]) -> None:
        self.call, self.params, self.wanted, self.given = call, params, wanted, list(given)
        self.mapping, self.jaxpr = params["grid_mapping"], params["jaxpr"]
        indices, inputs = self.mapping.num_index_operands, self.mapping.num_inputs
        self.outputs = indices + inputs  # where they begin among the body's references
        refs = [v.aval for v in self.jaxpr.invars]
        blocks = self.mapping.block_mappings
        sums = {i: _versions.summed(blocks[i], refs[indices + i]) if w.adds else (blocks[i], refs[indices + i]) for i, w in wanted.items()}
        #: The elements of a `vmap` are independent of each other: of what they share, each has a sum of its own.
        self.batch: dict[int, int] = {}
        for i, w in wanted.items():
            for axis in sorted(set(w.axes) & set(self.mapping.vmapped_dims), reverse=True):
                block, ref = sums[i]
                sums[i] = _versions.led_by(block, axis, self.mapping.grid[axis]), ref
                self.batch[i] = self.batch.get(i, 0) + 1
        self.out_avals = [sums[i][0].array_aval for i in wanted]
        added = [i for i, w in wanted.items() if w.adds]
        given_blocks = [_named(blocks[inputs + o]) for o in self.given]
        operands = [*blocks[:inputs], *given_blocks, *(_named(sums[i][0]) for i in added)]
        results = [_named(sums[i][0]) for i in wanted]
        self.made = self.mapping.replace(
            block_mappings=(*operands, *results), num_inputs=len(operands), num_outputs=len(results), scratch_avals=()
        )
        self.avals = [
            *refs[: indices + inputs], *(refs[self.outputs + o] for o in self.given), *(sums[i][1] for i in added), *(sums[i][1] for i in wanted)
        ]  # fmt: skip
        start = indices + inputs + len(self.given)
        self.aliases = tuple((start + k, list(wanted).index(i)) for k, i in enumerate(added))

    def run(self, indices: Sequence[Any], operands: Sequence[Any], cotangents: dict[int, Any]) -> dict[int, Any]:
        """`indices`: sizes of the grid, and what index maps read."""
        try:
            with _versions.grid_trace(self.mapping):
                values = _versions.without_references(self.jaxpr)
                body = _versions.trace_body(lambda *refs: self._body(values, refs), self.avals, "backward")
        except (NotImplementedError, ValueError) as e:
            if isinstance(e, Unsupported):
                raise
            expected = "loops with a static number of turns, no scopes, no strides under masks"
            raise _refused("what JAX cannot differentiate backwards", expected, re.split(r"\.\s", str(e))[0].removesuffix(".")) from e
        axes = _versions.varying_axes([*operands, *cotangents.values()])
        out_avals = [_versions.varying_aval(aval.shape, aval.dtype, axes) for aval in self.out_avals]
        zeros = [_versions.varying_zeros(aval, axes) for aval, w in zip(self.out_avals, self.wanted.values()) if w.adds]
        name = self.params["name"] or self.jaxpr.debug_info.func_name
        found = _versions.pallas_call_p.bind(
            *indices,
            *operands,
            *(cotangents[o] for o in self.given),
            *zeros,
            **self.params
            | {
                "jaxpr": body,
                "grid_mapping": self.made,
                "out_avals": tuple(out_avals),
                "input_output_aliases": self.aliases,
                "compiler_params": without_semantics(self.params["compiler_params"]),
                "cost_estimate": None,
                "name": f"{name}_backward",
            },
        )
        return {i: self._finish(i, x, operands[i], axes) for i, x in zip(self.wanted, found)}

    def _finish(self, number: int, found: Any, operand: Any, axes: frozenset[Any]) -> Any:
        """Adds up what elements of a `vmap`, and devices of a mesh, found for an operand that they share."""
        found = found.sum(axis=tuple(range(self.batch.get(number, 0))))
        shared = axes - _versions.varying_axes([operand])
        return (jax.lax.psum(found, tuple(shared)) if shared else found).astype(operand.dtype)

    def _body(self, values: Any, refs: Sequence[Any]) -> None:
        first = self.mapping.num_index_operands
        inside = [self._inside(block, refs[:first]) for block in self.call.blocks]
        loaded = [*(ref[...] for ref in refs[:first]), *map(_of_the_array, refs[first : self.outputs], inside)]
        given = [
            ref[...] if (there := inside[self.outputs - first + o]) is None else jnp.where(there, ref[...], 0)
            for o, ref in zip(self.given, refs[self.outputs :])
        ]
        results = refs[len(refs) - len(self.wanted) :]
        begin = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in self.jaxpr.invars[self.outputs :]]

        def step(*some: Any) -> list[Any]:
            now = list(loaded)
            for i, x in zip(self.wanted, some):
                now[first + i] = x
            left = _versions.eval_jaxpr(values, [*now, *begin])
            return [left[self.outputs + o] for o in self.given]

        _, backward = jax.vjp(step, *(loaded[first + i] for i in self.wanted))
        for ref, ct, w in zip(results, backward(given), self.wanted.values()):
            ref[...] = ref[...] + ct.astype(ref.dtype) if w.adds else ct

    def _inside(self, block: Any, index_refs: Sequence[Any]) -> Any:
        """Which elements of a block that may reach outside of its array are in it; None: all."""
        if not block.outside:
            return None
        own = itertools.count()
        indices = [jnp.int32(0) if a in self.mapping.vmapped_dims else pl.program_id(next(own)) for a in range(len(self.call.grid))]
        found = block.results(_versions.eval_jaxpr(block.mapping.index_map_jaxpr, [*indices, *index_refs]))
        starts, lengths = found[: len(block.dims)], iter(found[len(block.dims) :])
        inside, axis = jnp.ones(block.shape, bool), 0
        for dim, start in zip(block.dims, starts):
            length = None if dim.length is None else next(lengths)
            if dim.squeezed:
                continue
            if dim.outside:
                at = jax.lax.broadcasted_iota(jnp.int32, block.shape, axis)
                where = at + dim.start(start, 0)
                inside &= (where >= 0) & (where < dim.extent)
                inside &= True if length is None else at < length
            axis += 1
        return inside


def _of_the_array(ref: Any, inside: Any) -> Any:
    """What an operand's block has of its array. Elsewhere it repeats its first element: derivatives are as finite there as they are inside,
    and add nothing to the cotangents of what steps share."""
    if inside is None:
        return ref[...]
    first, is_there = ref[(0,) * len(ref.shape)], inside[(0,) * len(ref.shape)]
    return jnp.where(inside, ref[...], jnp.where(is_there, first, jnp.ones_like(first)))


def _named(block: Any) -> Any:
    return dataclasses.replace(block, origin=f"the cotangent of {block.origin}")
