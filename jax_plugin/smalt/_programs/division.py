"""Which part of each value of a program is wanted, where its stores are divided among warpgroups.

From the stores backwards: of every value the dimensions that are divided, `None` where all of it is wanted. A rule states what an operation needs of
its operands for a part of its result; one without a rule raises `Mixed`.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from smalt import _versions
from smalt._programs import dimensions
from smalt._programs.dimensions import Mixed, Split, aligned
from smalt._programs.program import Block, Node, Value, initial

#: Ways to divide what is stored that are tried.
MAX_CHOICES = 32
#: Positions that a part has at least.
LEAST = 8

Demands = dict[Value, set[Split]]

STORES = ("swap", "masked_swap")
LOADS = ("get", "masked_load")
PLACES = ("program_id", "num_programs")


def access_of(node: Node) -> Any:
    """The access with values in place of variables."""
    access = _versions.access_of(node.eqn, node.operands)
    if access is not None and access.mask is not None and access.mask.known is not None and np.all(access.mask.known):
        return dataclasses.replace(access, mask=None, other=None)
    return access


def divide(
    program: Block, products: Sequence[Node], parts: int, shared: Mapping[Node, tuple[Value, Split]]
) -> tuple[dict[Node, Split], Demands] | None:
    """Which part of each value is wanted, by the division of what is stored that leaves no product to all warpgroups, and least of the rest.

    `shared`: of products the right operand of which each warpgroup computes a part for all of them, and the dimension that is divided.
    """
    best = None
    stores = [n for n in program.all_nodes() if n.name in STORES]
    choices: list[list[Split]] = []
    for node in stores:
        shape = access_of(node).value.shape
        divisible = [d for d, n in enumerate(shape) if parts > 1 and n % parts == 0 and n >= parts * LEAST]
        choices.append([*divisible, None] if parts > 1 else [None])
    for chosen in itertools.islice(itertools.product(*choices), MAX_CHOICES):
        by_store = dict(zip(stores, chosen))
        try:
            demands = demands_of(program, by_store, shared)
        except Mixed:
            continue
        if parts == 1 or not any(None in demands[n.results[0]] for n in products):
            work = _elements(program, demands, parts)
            if best is None or work < best[0]:
                best = work, by_store, demands
    return None if best is None else best[1:]


def _elements(program: Block, demands: Demands, parts: int) -> int:
    """How many elements a warpgroup computes, element by element."""
    total = 0
    for node in program.all_nodes():
        if node.name in dimensions.ELEMENTWISE:
            for v in node.results:
                total += sum(math.prod(v.shape) // (1 if s is None else parts) for s in demands.get(v, ()))
    return total


def demands_of(program: Block, stores: dict[Node, Split], shared: Mapping[Node, tuple[Value, Split]]) -> Demands:
    demands: Demands = collections.defaultdict(set)
    work: list[tuple[Value, Split]] = []

    def want(value: Value, split: Split) -> None:
        if value.is_literal or value.is_ref or split in demands[value]:
            return
        demands[value].add(split)
        work.append((value, split))

    carried: dict[Value, tuple[Node, int]] = {}
    for node in program.all_nodes():
        if node in stores:
            _want_access(node, stores[node], want)
        for block in node.blocks:
            if node.is_loop:
                carried.update((v, (node, i)) for i, v in enumerate(block.params))
        if node.name == "while":
            want(node.blocks[0].results[0], None)
        if node.name == "cond":
            want(node.operands[0], None)
    while work:
        value, split = work.pop()
        made = value.node
        if made is None:
            if value in carried:
                loop, at = carried[value]
                _want_carried(loop, at, split, want)
            elif value.shape:
                raise Mixed("a parameter")
        elif made.is_loop:
            _want_carried(made, made.results.index(value), split, want)
        elif made.name == "cond":
            for arm in made.blocks:
                want(arm.results[made.results.index(value)], split)
        elif made in shared:
            left = made.operands[0]
            want(left, None if split is None else operand_splits(made, split)[0])
            want(*shared[made])
        else:
            _needs(made, split, want)
    for node in program.all_nodes():
        if node.is_loop:
            for at, result in enumerate(node.results):
                if len(carried_splits(demands, node, at)) > 1:
                    raise Mixed("a carried value that is divided in two ways")
    return demands


def _want_carried(loop: Node, at: int, split: Split, want: Callable[[Value, Split], None]) -> None:
    want(initial(loop)[at], split)
    want(loop.blocks[-1].results[at], split)
    for block in loop.blocks:
        want(block.params[at], split)


def carried_splits(demands: Demands, loop: Node, at: int) -> set[Split]:
    found = set(demands.get(loop.results[at], ()))
    for block in loop.blocks:
        found |= demands.get(block.params[at], set())
    return found


def _want_access(node: Node, split: Split, want: Callable[[Value, Split], None]) -> None:
    access = access_of(node)
    shape = access.value.shape if access.value is not None else node.results[0].shape
    if access.value is not None:
        want(access.value, split)
    if access.mask is not None:
        want(access.mask, aligned(access.mask.shape, shape, split))
    if access.other is not None:
        want(access.other, aligned(access.other.shape, shape, split))
    for index in leaves(access):
        want(index, None)
    if split is not None:
        divided_dimension(access, split)


def in_order(splits: Iterable[Split]) -> list[Split]:
    """Whole values first."""
    return sorted(splits, key=lambda s: -1 if s is None else s)


def leaves(access: Any) -> list[Value]:
    return [leaf for leaf in jax.tree.leaves(tuple(access.transforms)) if isinstance(leaf, Value)]


def divided_dimension(access: Any, split: int) -> int | None:
    """The dimension of the reference that dimension `split` of what is accessed is; None: the same one, without an index."""
    indices = _versions.indices_of(access.transforms)
    if not indices:
        return None
    if any(_versions.is_gather(i) for i in indices):
        raise Mixed("an array of indices")
    dims = [d for d, i in enumerate(indices) if _versions.is_slice(i)]
    if split >= len(dims) or indices[dims[split]].stride != 1:
        raise Mixed("a stride")
    return dims[split]


def _needs(node: Node, split: Split, want: Callable[[Value, Split], None]) -> None:
    name, operands = node.name, node.operands
    if name in LOADS:
        _want_access(node, split, want)
        return
    if name in PLACES or name == "iota":
        return
    if split is None:
        for v in operands:
            want(v, None)
        return
    for v, at in zip(operands, operand_splits(node, split)):
        want(v, at)


def operand_splits(node: Node, split: int) -> list[Split]:
    """Of each operand the dimension that is divided where that of the result is `split`."""
    shapes = [v.shape for v in node.operands]
    return dimensions.operand_splits(node.name, node.eqn.params, shapes, node.results[0].shape, split)
