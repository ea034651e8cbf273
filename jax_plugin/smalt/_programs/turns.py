"""Steps of a grid that run in turn, as one program with a loop.

Who writes for a TPU lets the grid's last axis walk along what a product contracts, or along the keys of attention, and keeps sums in scratch, or in
an output's block, from step to step:

    @pl.when(pl.program_id(2) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += x_ref[...] @ y_ref[...]

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...]

Here the axis becomes a loop, what only the first or the last step does stands in front of it or behind it, and what lasts over steps is carried as
values. What is the same at each step is computed once. Then it is a program as one writes it for Triton, and `warpgroups.py` takes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from smalt import _versions
from smalt._programs import division
from smalt._programs.program import FUNCTIONS, Block, Node, Unreadable, Value, read_program


class _Other(Exception):
    """A body that is no such program."""


@dataclasses.dataclass(eq=False)
class Turns:
    """A program with a loop in the place of an axis."""

    program: Block
    loop: Node
    steps: int
    #: Of each parameter of the program the reference of the body, and of which step it is; None: of the one that the loop is at.
    refs: dict[Value, tuple[int, int | None]]
    roles: TurnRoles

    def is_moving(self, at: int) -> bool:
        return at in self.roles.moving

    @property
    def free(self) -> set[Value]:
        """Parameters that are inputs."""
        return {v for v, (at, _) in self.refs.items() if at in self.roles.read_only}


@dataclasses.dataclass(frozen=True)
class TurnRoles:
    """Of which references of a body what is known, by their places: outputs and scratch; those whose blocks are others at each step; inputs."""

    outputs: frozenset[int]
    scratch: frozenset[int]
    moving: frozenset[int]
    read_only: frozenset[int]


def read_turns(jaxpr: Any, axis: int, steps: int, roles: TurnRoles) -> Turns | None:
    """The steps of a body along one of its axes as a program; None: it is no such body."""
    if steps < 2:
        return None
    try:
        return _Reader(read_program(jaxpr), axis, steps, roles).read()
    except (_Other, Unreadable):
        return None


@dataclasses.dataclass(frozen=True)
class _Loop:
    """What stands for a loop's equation."""

    params: dict[str, Any]
    source_info: Any
    effects: tuple[()] = ()


@dataclasses.dataclass
class _Section:
    """Where nodes are written: the step that it is of (None: any), what stands there for the body's values, and what lasts."""

    block: Block
    step: int | None
    values: dict[Value, Value]
    state: dict[Value, Value]

    def within(self, block: Block) -> _Section:
        return _Section(block, self.step, dict(self.values), dict(self.state))


#: What is computed of scalars at each step where nothing but the step's number goes into it.
_OF_STEPS = frozenset(FUNCTIONS) - {"iota", "broadcast_in_dim", "reshape", "squeeze"}


class _Reader:
    def __init__(self, body: Block, axis: int, steps: int, roles: TurnRoles) -> None:
        self.body, self.axis, self.steps, self.roles = body, axis, steps, roles
        self.at = {v: i for i, v in enumerate(body.params)}
        self.by_step = self._by_step()
        touched = self._touched()
        # In order, as all that is iterated over here: a call has one descriptor, whatever addresses its values have.
        self.lasting = [v for v, i in self.at.items() if i in roles.scratch or i in roles.outputs - roles.moving and v in touched]
        self.program = Block(None)
        self.refs: dict[tuple[int, int | None], Value] = {}
        self.before = _Section(self.program, 0, {}, {})
        self.body_of_loop = Block(None)
        self.inside = _Section(self.body_of_loop, None, {}, {})
        #: What is the same at each step, of the body's values and of the program's.
        self.invariant: dict[Value, Value] = {}
        self.fixed: set[Value] = set()
        self.counter = Value(_versions.array_aval((), np.dtype(np.int32)))
        self.carried: dict[Value, Value] = {}
        #: What lasting references hold behind the loop, by the body's value.
        self.final: dict[Value, Value] = {}

    # -------------------------------------------------------------------------------- what is known of the body

    def _by_step(self) -> dict[Value, np.ndarray[Any, Any]]:
        """Scalars that follow from the step's number, at each step."""
        found: dict[Value, np.ndarray[Any, Any]] = {}
        for node in self.body.nodes:
            if node.name in division.PLACES and node.eqn.params["axis"] == self.axis:
                found[node.results[0]] = np.arange(self.steps) if node.name == "program_id" else np.full(self.steps, self.steps)
            elif node.name in _OF_STEPS and not node.results[0].shape:
                operands = [v.known if v.known is not None else found.get(v) for v in node.operands]
                types = [np.dtype(getattr(v.aval, "dtype", object)) for v in (*node.results, *node.operands)]
                if all(x is not None for x in operands) and all(t.kind in "biu" for t in types):
                    with np.errstate(all="ignore"):
                        given = [np.asarray(x).astype(t) for x, t in zip(operands, types[1:])]
                        made = np.asarray(FUNCTIONS[node.name](node.eqn.params, *given))
                    found[node.results[0]] = np.broadcast_to(made, (self.steps,)).astype(types[0])
        return found

    def _arms(self, node: Node) -> np.ndarray[Any, Any] | None:
        """Which arm of a branch runs at each step."""
        at = node.operands[0]
        found = np.full(self.steps, at.known) if at.known is not None else self.by_step.get(at)
        return None if found is None else np.clip(found.astype(np.int64), 0, len(node.blocks) - 1)

    def _only(self, node: Node) -> str:
        """At which step alone a branch does something: "first", "last"; "": at others."""
        arms = self._arms(node) if node.name == "cond" and not node.results else None
        busy = [i for i, arm in enumerate(node.blocks) if arm.nodes]
        if arms is None or len(busy) != 1:
            return ""
        (runs,) = np.nonzero(arms == busy[0])
        return "" if len(runs) != 1 else {0: "first", self.steps - 1: "last"}.get(int(runs[0]), "")

    def _touched(self) -> set[Value]:
        """References that steps load or store to, but for what the last one alone does."""
        nodes = [n for n in self.body.nodes if self._only(n) != "last"]
        inner = [m for n in nodes for block in n.blocks for m in block.all_nodes()]
        return {n.operands[0] for n in (*nodes, *inner) if n.operands and n.operands[0].is_ref}

    # -------------------------------------------------------------------------------- the program

    def read(self) -> Turns:
        last: list[Node] = []
        for node in self.body.nodes:
            only = self._only(node)
            if only == "first":
                if self.inside.state or self.carried or self._stores(self.inside.block.nodes):
                    raise _Other("something before what the first step does")
                self._branch(node, self.before)
            elif only == "last":
                last.append(node)
            else:
                before = dict(self.inside.state)
                count = len(self.inside.block.nodes)
                self._write(node, self.inside)
                if last and (before != self.inside.state or self._stores(self.inside.block.nodes[count:])):
                    raise _Other("something behind what the last step does")
        loop = self._loop()
        # What the first step stores and no other touches is what it stored.
        state = self.before.state | {r: self.final[v] for r, v in self.inside.state.items()}
        after = _Section(self.program, self.steps - 1, {}, state)
        for node in last:
            self._branch(node, after)
        for ref in self.lasting:
            if self.at[ref] in self.roles.outputs:
                self._put(ref, after)
        self.program.params = list(self.refs.values())
        return Turns(self.program, loop, self.steps, {v: key for key, v in self.refs.items()}, self.roles)

    def _stores(self, nodes: Iterable[Node]) -> bool:
        return any(
            n.name in division.STORES or not n.blocks and n.name not in division.LOADS and n.eqn.effects
            for node in nodes
            for n in (node, *(m for block in node.blocks for m in block.all_nodes()))
        )

    def _loop(self) -> Node:
        inside, carried = self.inside, self.carried
        for ref in inside.state:
            if ref not in carried:  # each step stores before it loads
                carried[ref] = Value(self._content(ref))
        starts = [self.before.state.get(ref) or self._zeros(ref) for ref in carried]
        zero = Value(self.counter.aval, known=np.int32(0), is_literal=True)
        eqn = next(n.eqn for n in self.body.nodes)
        params = {"length": self.steps, "num_consts": 0, "num_carry": 1 + len(carried)}
        node = Node(_Loop(params, eqn.source_info), "scan", [zero, *starts], [], self.program)
        node.counter = 0
        node.results = [Value(v.aval, node) for v in (self.counter, *carried.values())]
        block = self.body_of_loop
        block.owner, block.params = node, [self.counter, *carried.values()]
        finals = [inside.state.get(ref, param) for ref, param in carried.items()]
        block.results = [Value(self.counter.aval), *finals]
        self.final = dict(zip(finals, node.results[1:]))
        inside.state = dict(zip(carried, finals))
        node.blocks = [block]
        self.program.nodes.append(node)
        return node

    def _content(self, ref: Value) -> Any:
        return _versions.array_aval(ref.shape, ref.aval.dtype)

    def _zeros(self, ref: Value) -> Value:
        return Value(self._content(ref), known=np.zeros(ref.shape, ref.aval.dtype), is_literal=True)

    def _put(self, ref: Value, section: _Section) -> None:
        """Stores what a lasting output holds."""
        if ref not in section.state:
            return
        for node in self.body.all_nodes():
            if node.name == "swap" and node.operands[0] is ref:
                operands = [self._parameter(ref, None), section.state[ref], *node.operands[2:]]
                made = Node(node.eqn, "swap", operands, [], section.block)
                made.results = [Value(v.aval, made) for v in node.results]
                section.block.nodes.append(made)
                return

    # -------------------------------------------------------------------------------- values

    def _ref(self, ref: Value, step: int | None) -> Value:
        if ref in self.lasting:
            raise _Other("a use of what lasts that is no load or store of all of it")
        return self._parameter(ref, step)

    def _parameter(self, ref: Value, step: int | None) -> Value:
        key = self.at[ref], step if self.at[ref] in self.roles.moving else None
        if key not in self.refs:
            self.refs[key] = Value(ref.aval)
        return self.refs[key]

    def _is_outer(self, value: Value) -> bool:
        """Whether it is a value of the body, outside of branches and loops."""
        return value.node is not None and value.node.block is self.body

    def _value(self, value: Value, section: _Section) -> Value:
        if value.is_literal or value.node is None and value.known is not None:
            return value
        if value.is_ref:
            return self._ref(value, section.step)
        if section.step is not None and value in self.by_step:
            return self._number(value, section.step)
        if value in section.values:
            return section.values[value]
        if value in self.invariant:
            return self.invariant[value]
        if section.step is None or not self._is_outer(value):
            raise _Other("a value that is not known here")
        inside = self.inside.values.get(value)
        if section.step == self.steps - 1 and inside in self.final:
            return self.final[inside]
        node = value.node
        assert node is not None
        if node.blocks or node.name == "dot_general" or node.operands and node.operands[0] in self.lasting:
            raise _Other("a value of a step")
        self._write(node, section)
        return section.values[value]

    def _number(self, value: Value, step: int) -> Value:
        return Value(value.aval, known=self.by_step[value][step], is_literal=True)

    # -------------------------------------------------------------------------------- nodes

    def _write(self, node: Node, section: _Section) -> None:
        """Writes a node of the body."""
        access = division.access_of(node)
        if access is not None and node.operands[0] in self.lasting:
            self._last(node, access, section)
        elif node.name in division.PLACES and node.eqn.params["axis"] == self.axis:
            is_step = node.name == "program_id" and section.step is None
            section.values[node.results[0]] = self.counter if is_step else self._number(node.results[0], section.step or 0)
        elif node.name == "cond":
            self._branch(node, section)
        else:
            self._copy(node, section)

    def _last(self, node: Node, access: Any, section: _Section) -> None:
        """A load or a store of what lasts."""
        ref = node.operands[0]
        if node.name not in ("get", "swap") or not access.is_whole:
            raise _Other("a part of what lasts")
        self._begin(ref, section)
        if ref in section.state:
            section.values[node.results[0]] = section.state[ref]
        elif node.name == "get":
            raise _Other("a load of what was never stored")
        if node.name == "swap":
            section.state[ref] = self._value(access.value, section)

    def _begin(self, ref: Value, section: _Section) -> None:
        """What a step finds, if steps before it left something."""
        if ref not in section.state and section.step is None and ref in self.before.state:
            self.carried.setdefault(ref, Value(self._content(ref)))
            section.state[ref] = self.carried[ref]

    def _copy(self, node: Node, section: _Section) -> None:
        operands = [self._value(v, section) for v in node.operands]
        block = section.block
        is_load = node.name in division.LOADS and self.at.get(node.operands[0]) in self.roles.read_only
        is_fixed = all(v.is_literal or v in self.fixed or v.is_ref and self._is_fixed_ref(v) for v in operands)
        is_pure = not node.blocks and not node.eqn.effects and node.name != "dot_general"
        if section.step is None and is_fixed and (is_load or is_pure and (operands or node.name in division.PLACES)):
            if is_load or node.name in division.PLACES or any(v in self.fixed for v in operands):
                block = self.program
        elif section.step is None and is_load and all(v.is_literal or v.is_ref for v in operands):
            block = self.body_of_loop  # of a branch: its operands come ahead of it
        made = Node(node.eqn, node.name, operands, [], block)
        made.results = [Value(v.aval, made, v.known) for v in node.results]
        for inner in node.blocks:
            copied = Block(made)
            copied.params = [Value(v.aval) for v in inner.params]
            own = section.within(copied)
            own.values.update(zip(inner.params, copied.params))
            for n in inner.nodes:
                self._write(n, own)
            if own.state != section.state:
                raise _Other("a loop over what lasts")
            copied.results = [self._value(v, own) for v in inner.results]
            made.blocks.append(copied)
        block.nodes.append(made)
        if block is self.program and section.step is None:
            self.fixed.update(made.results)
            self.invariant.update(zip(node.results, made.results))
        section.values.update(zip(node.results, made.results))

    def _is_fixed_ref(self, ref: Value) -> bool:
        at, _ = next(key for key, v in self.refs.items() if v is ref)
        return at in self.roles.read_only and at not in self.roles.moving

    def _branch(self, node: Node, section: _Section) -> None:
        arms = self._arms(node)
        if arms is not None and section.step is not None:
            arms = arms[[section.step]]
        if arms is not None and (arms == arms[0]).all():
            self._open(node.blocks[int(arms[0])], node, section)
            return
        index = self._value(node.operands[0], section)
        made = Node(node.eqn, "cond", [index], [], section.block)
        inner = []
        for arm in node.blocks:
            own = section.within(Block(made))
            for n in arm.nodes:
                self._write(n, own)
            own.block.results = [self._value(v, own) for v in arm.results]
            inner.append(own)
        for ref in dict.fromkeys(r for own in inner for r in own.state):
            self._begin(ref, section)
            for own in inner:
                if ref in section.state:
                    own.state.setdefault(ref, section.state[ref])
        changed = [r for r in self.lasting if any(o.state.get(r) is not section.state.get(r) for o in inner)]
        for own in inner:
            if any(ref not in own.state for ref in changed):
                raise _Other("what is stored in one arm only")
            own.block.results += [own.state[ref] for ref in changed]
            made.blocks.append(own.block)
        made.results = [Value(v.aval, made) for v in node.results] + [Value(self._content(r), made) for r in changed]
        section.block.nodes.append(made)
        section.values.update(zip(node.results, made.results))
        section.state.update(zip(changed, made.results[len(node.results) :]))

    def _open(self, arm: Block, node: Node, section: _Section) -> None:
        """Writes an arm in the branch's place."""
        for n in arm.nodes:
            self._write(n, section)
        section.values.update(zip(node.results, [self._value(v, section) for v in arm.results]))
