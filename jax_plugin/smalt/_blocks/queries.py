"""Calls over a part of a grid, whose bodies query their place in the whole: the index of an axis, a symbolic size.

JAX answers for the part. So the part's call has one more operand, with where the part begins (and the sizes), and its body is traced anew from the
old one, with the part's answers corrected by it. Branches, loops, scopes and calls with queries are traced again with it; what is in other
equations with bodies of their own is not found there (`Body.problem`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax

from smalt import _versions
from smalt._blocks.pallas_call import Allocation

_CONTROL = ("cond", "while", "scan", "run_scoped")


@dataclasses.dataclass(frozen=True)
class Query:
    """What a body queries: the "index" of an axis of its grid, how many steps it has ("count", where that is traced), or the "size" that a symbolic
    dimension is."""

    kind: str
    of: Any


class QueryingBody:
    """The queries in the body of a call. `names`: of its axes."""

    def __init__(self, jaxpr: Any, names: Sequence[Any]) -> None:
        self.jaxpr, self.names = jaxpr, list(names)
        self._found: dict[int, dict[Query, str | None]] = {}
        #: By query the primitive that it is in, if it is one that is not traced again.
        self.queries: Mapping[Query, str | None] = self._in(jaxpr)

    def problem(self, query: Query) -> str | None:
        return self.queries.get(query)

    def query(self, eqn: Any) -> Query | None:
        name, params = eqn.primitive.name, eqn.params
        if name == "program_id":
            return Query("index", params["axis"])
        if name == "num_programs":
            return Query("count", params["axis"])
        if name == "axis_index" and params["axis_name"] in self.names:
            return Query("index", self.names.index(params["axis_name"]))
        return Query("size", params["dim"]) if name == "dim_as_value" else None

    def queries_any(self, eqn: Any, some: Container[Query]) -> bool:
        """Whether an equation, or something in it, is one of some queries."""
        return self.query(eqn) in some or any(q in some for inner in _versions.inner_jaxprs(eqn) for q in self._in(inner))

    def _in(self, jaxpr: Any) -> dict[Query, str | None]:
        if id(jaxpr) in self._found:
            return self._found[id(jaxpr)]
        found: dict[Query, str | None] = {}
        used = _versions.used_variables(jaxpr)
        for eqn in jaxpr.eqns:
            query = self.query(eqn)
            if query is not None and used.intersection(eqn.outvars):
                found.setdefault(query, None)
            for inner in _versions.inner_jaxprs(eqn):
                for query, within in self._in(inner).items():
                    within = within or (None if _is_traced_again(eqn) else _versions.primitive_name(eqn))
                    found[query] = found.get(query) or within
        self._found[id(jaxpr)] = found
        return found


def _is_traced_again(eqn: Any) -> bool:
    """A derivative or a batch rule of the author's own would be lost."""
    name = eqn.primitive.name
    return name in _CONTROL or name in _versions.CALLS and not name.startswith("custom_")


def bind_answers(params: dict[str, Any], body: QueryingBody, given: Mapping[Query, Any], operands: Sequence[Any]) -> list[Any]:
    """A call over a part of a grid; `given`: what is added to the index of an axis, and sizes."""
    wanted = [q for q in given if q in body.queries]
    if not wanted:
        return list(_versions.pallas_call_p.bind(*operands, **params))
    mapping = params["grid_mapping"]
    numbers = jnp.stack([jnp.asarray(given[q], jnp.int32) for q in wanted])
    made, aval = _versions.with_numbers(mapping, len(wanted))
    at = mapping.num_index_operands + mapping.num_inputs
    avals = [v.aval for v in params["jaxpr"].invars]

    def again(*refs: Any) -> None:
        answers = {q: functools.partial(refs[at].__getitem__, k) for k, q in enumerate(wanted)}
        _Again(body, answers).run(body.jaxpr, [*refs[:at], *refs[at + 1 :]])

    with _versions.grid_trace(mapping):
        jaxpr = _versions.trace_body(again, [*avals[:at], aval, *avals[at:]], "part")
    jaxpr = _versions.described_as(jaxpr, params["jaxpr"], at, "part_of_grid")
    return list(_versions.pallas_call_p.bind(*operands, numbers, **params | {"jaxpr": jaxpr, "grid_mapping": made}))


@dataclasses.dataclass
class _Again:
    """Traces a body with answers to its queries."""

    body: QueryingBody
    loads: Mapping[Query, Callable[[], Any]]
    answers: dict[Query, Any] = dataclasses.field(default_factory=dict)

    def run(self, jaxpr: Any, values: Sequence[Any]) -> list[Any]:
        """The body itself, which loads all answers before its first query."""
        first = next(eqn for eqn in jaxpr.eqns if self.body.queries_any(eqn, self.loads))
        with _versions.at_line_of(first):
            self.answers = {q: load() for q, load in self.loads.items()}
        return self.eval(jaxpr, (), values)

    def eval(self, jaxpr: Any, consts: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts)) | dict(zip(jaxpr.invars, values))

        def read(atom: Any) -> Any:
            return _versions.literal_value(atom) if _versions.is_literal(atom) else env[atom]

        for eqn in jaxpr.eqns:
            operands = [read(a) for a in eqn.invars]
            if self.body.queries_any(eqn, self.loads):
                with _versions.at_line_of(eqn):
                    results = self.equation(eqn, operands)
            else:
                results = _versions.bind_again(eqn, operands)
            env.update(zip(eqn.outvars, results))
        return [read(a) for a in jaxpr.outvars]

    def equation(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        name, params = eqn.primitive.name, eqn.params
        query = self.body.query(eqn)
        if query is not None:
            answer = self.answers[query]
            return [answer + _versions.bind_again(eqn, operands)[0] if query.kind == "index" else answer.astype(eqn.outvars[0].aval.dtype)]
        if name == "cond":
            index, *rest = operands
            arms = [self.function(branch, rest) for branch in params["branches"]]
            return list(lax.cond(index != 0, arms[1], arms[0]) if len(arms) == 2 else lax.switch(index, arms))
        if name == "while":
            counts = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
            go_on = self.function(params["cond_jaxpr"], operands[: counts[0]])
            turn = self.function(params["body_jaxpr"], operands[counts[0] : counts[1]])
            return list(lax.while_loop(lambda carry: go_on(*carry)[0], lambda carry: turn(*carry), list(operands[counts[1] :])))
        if name == "scan":
            consts, carries = _versions.scan_counts(params)
            turn = self.function(params["jaxpr"], operands[:consts])

            def one(carry: Any, xs: Any) -> Any:
                found = turn(*carry, *xs)
                return found[:carries], found[carries:]

            carry, xs = list(operands[consts : consts + carries]), list(operands[consts + carries :])
            left, made = lax.scan(one, carry, xs, length=params["length"], reverse=params["reverse"], unroll=params["unroll"])
            return [*left, *made]
        if name == "run_scoped":
            scope, _ = _versions.open_jaxpr(params["jaxpr"])
            types = [Allocation(v.aval) for v in scope.invars]
            found = pl.run_scoped(lambda *refs: tuple(self.eval(scope, operands, refs)), *types, collective_axes=params["collective_axes"])
            return list(found)
        inner, held = _versions.open_jaxpr(params[_versions.CALLS[name]])
        return self.eval(inner, held, operands)

    def function(self, closed: Any, captured: Sequence[Any]) -> Callable[..., list[Any]]:
        jaxpr, consts = _versions.open_jaxpr(closed)
        return lambda *values: self.eval(jaxpr, consts, [*captured, *values])
