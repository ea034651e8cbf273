"""A body's jaxpr as a program that passes can look at: values with where they come from, calls opened, loops and branches as blocks.

What a loop or a branch takes from outside is the value outside: blocks have parameters for what a loop carries only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from smalt import _versions

#: Elements of arrays that are computed while the program is read, to find masks.
MAX_KNOWN = 1 << 16


class Unreadable(Exception):
    """Something that programs have no node for."""


@dataclasses.dataclass(eq=False, repr=False)
class Value:
    """An array, a scalar or a reference; `known` is what it is where nothing but constants goes into it."""

    aval: Any
    node: Node | None = None  # None: a parameter
    known: Any = None
    is_literal: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(getattr(self.aval, "shape", ()))

    @property
    def is_ref(self) -> bool:
        return _versions.is_ref_aval(self.aval)


@dataclasses.dataclass(eq=False, repr=False)
class Node:
    eqn: Any
    name: str
    operands: list[Value]
    results: list[Value]
    block: Block
    #: Of a loop: its condition (none: `scan`) and its body; of a branch: its arms.
    blocks: list[Block] = dataclasses.field(default_factory=list)
    #: Of a loop: the carried value that counts its turns from 0, where its builder has set it.
    counter: int | None = None

    @property
    def is_loop(self) -> bool:
        return self.name in ("while", "scan")


@dataclasses.dataclass(eq=False, repr=False)
class Block:
    """Nodes in order. `owner`: the loop or branch that it is of."""

    owner: Node | None
    params: list[Value] = dataclasses.field(default_factory=list)
    nodes: list[Node] = dataclasses.field(default_factory=list)
    results: list[Value] = dataclasses.field(default_factory=list)

    def all_nodes(self) -> Iterator[Node]:
        for node in self.nodes:
            yield node
            for block in node.blocks:
                yield from block.all_nodes()

    @property
    def loops(self) -> list[Node]:
        """The loops around it, the innermost first."""
        found, block = [], self
        while block.owner is not None:
            if block.owner.is_loop:
                found.append(block.owner)
            block = block.owner.block
        return found


def initial(node: Node) -> list[Value]:
    """What a loop's carried values begin as."""
    params = node.eqn.params
    skipped = params["cond_nconsts"] + params["body_nconsts"] if node.name == "while" else _versions.scan_counts(params)[0]
    return node.operands[skipped:]


def loop_parameters(program: Block) -> dict[Value, tuple[Node, int]]:
    """Of each parameter of a loop's blocks the loop, and which carried value it is."""
    return {v: (n, i) for n in program.all_nodes() if n.is_loop for block in n.blocks for i, v in enumerate(block.params)}


def divisor(value: Value, loops: dict[Value, tuple[Node, int]]) -> int:
    """A number that divides a scalar whatever the kernel is given; 0: it is 0. `loops`: what loops carry."""
    if value.shape:
        return 1
    if value.known is not None:
        return abs(int(value.known)) if np.dtype(value.aval.dtype).kind in "iu" else 1
    node = value.node
    if node is None:
        if value not in loops:
            return 1
        loop, at = loops[value]
        return math.gcd(divisor(initial(loop)[at], loops), _advance(loop.blocks[-1], at, loops))
    if node.name not in _DIVISORS or np.dtype(value.aval.dtype).kind not in "iu":
        return 1
    operands = node.operands[1:] if node.name == "select_n" else node.operands
    found = _DIVISORS[node.name](*(divisor(v, loops) for v in operands))
    return found if found.bit_length() < 31 else 1


def _advance(body: Block, at: int, loops: dict[Value, tuple[Node, int]]) -> int:
    """What divides what a turn adds to a carried value; 1: it does something else to it."""
    before, after = body.params[at], body.results[at]
    if before is after:
        return 0
    if after.node is None or after.node.name != "add" or before not in after.node.operands:
        return 1
    (other,) = [v for v in after.node.operands if v is not before] or [before]
    return 1 if other is before else divisor(other, loops)


_DIVISORS: dict[str, Callable[..., int]] = {
    "mul": lambda a, b: a * b,
    **dict.fromkeys(("add", "sub", "select_n", "min", "max", "rem"), math.gcd),
    **dict.fromkeys(("convert_element_type", "copy", "neg"), lambda a: a),
}


def read_program(jaxpr: Any) -> Block:
    block = Block(None)
    block.params = [Value(v.aval) for v in jaxpr.invars]
    _fill(block, jaxpr, (), block.params)
    return block


def _fill(block: Block, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Value]) -> list[Value]:
    env: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
    for var, const in zip(jaxpr.constvars, consts):
        env[var] = Value(var.aval, known=const)

    def value(atom: Any) -> Value:
        if _versions.is_literal(atom):
            return Value(atom.aval, known=_versions.literal_value(atom), is_literal=True)
        return env[atom]

    for eqn in jaxpr.eqns:
        operands = [value(a) for a in eqn.invars]
        name = eqn.primitive.name
        callee = eqn.params.get(_versions.CALLS.get(name, ""))
        if callee is not None:
            inner, inner_consts = _versions.open_jaxpr(callee)
            if len(inner.invars) == len(operands):
                env.update(zip(eqn.outvars, _fill(block, inner, inner_consts, operands)))
                continue
        node = Node(eqn, name, operands, [], block)
        node.results = [Value(v.aval, node) for v in eqn.outvars]
        if name == "while":
            counts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
            carried = operands[sum(counts) :]
            _loop_block(node, eqn.params["cond_jaxpr"], operands[: counts[0]], carried)
            _loop_block(node, eqn.params["body_jaxpr"], operands[counts[0] : sum(counts)], carried)
        elif name == "scan":
            constants, carries = _versions.scan_counts(eqn.params)
            if constants + carries != len(operands) or carries != len(node.results):
                raise Unreadable("a scan over arrays")
            _loop_block(node, eqn.params["jaxpr"], operands[:constants], operands[constants:])
        elif name == "cond":
            for branch in eqn.params["branches"]:
                inner, inner_consts = _versions.open_jaxpr(branch)
                arm = Block(node)
                arm.results = _fill(arm, inner, inner_consts, operands[1:])
                node.blocks.append(arm)
        elif _versions.inner_jaxprs(eqn):
            raise Unreadable(name)
        else:
            _evaluate(node)
        block.nodes.append(node)
        env.update(zip(eqn.outvars, node.results))
    block.results = [value(a) for a in jaxpr.outvars]
    return block.results


def _loop_block(node: Node, closed: Any, constants: Sequence[Value], carried: Sequence[Value]) -> None:
    jaxpr, consts = _versions.open_jaxpr(closed)
    block = Block(node)
    block.params = [Value(v.aval) for v in jaxpr.invars[len(constants) :]]
    if len(block.params) != len(carried):
        raise Unreadable(node.name)
    block.results = _fill(block, jaxpr, consts, [*constants, *block.params])
    node.blocks.append(block)


def _evaluate(node: Node) -> None:
    """Computes what constants alone make, of integers and truths: by NumPy, for JAX may be lowering a program just now."""
    function = FUNCTIONS.get(node.name)
    if function is None or len(node.results) != 1 or any(v.known is None for v in node.operands):
        return
    result = node.results[0]
    types = [np.dtype(getattr(v.aval, "dtype", object)) for v in (result, *node.operands)]
    if any(t.kind not in "biu" for t in types) or int(np.prod(result.shape)) > MAX_KNOWN:
        return
    operands = [np.asarray(v.known, t) for v, t in zip(node.operands, types[1:])]
    with np.errstate(all="ignore"):
        known = np.asarray(function(node.eqn.params, *operands))
    result.known = np.broadcast_to(known, result.shape).astype(types[0])


def _iota(params: dict[str, Any]) -> Any:
    shape, at = params["shape"], params["dimension"]
    return np.arange(shape[at]).reshape([n if d == at else 1 for d, n in enumerate(shape)])


def _broadcast(params: dict[str, Any], x: Any) -> Any:
    at = params["broadcast_dimensions"]
    return x.reshape([x.shape[at.index(d)] if d in at else 1 for d in range(len(params["shape"]))])


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "convert_element_type": lambda _, x: x,
    "reshape": lambda p, x: x.reshape(p["new_sizes"]),
    "squeeze": lambda p, x: x.squeeze(tuple(p["dimensions"])),
    "not": lambda _, x: np.invert(x),
    **{
        name: lambda _, x, y, f=f: f(x, y)
        for name, f in {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "min": np.minimum,
            "max": np.maximum,
            "and": np.bitwise_and,
            "or": np.bitwise_or,
            "eq": np.equal,
            "ne": np.not_equal,
            "lt": np.less,
            "le": np.less_equal,
            "gt": np.greater,
            "ge": np.greater_equal,
        }.items()
    },
}
