"""Programs that load the operands of their products in a loop, taken by several warpgroups: one copies ahead, the others compute. Or by one, which
copies ahead itself.

A kernel written for Triton has its loop's loads as they come: `k = load(k_ref.at[pl.ds(i * n, n)])`, then `pl.dot(q, k.T)`. One that is written
for Mosaic GPU has a warpgroup that copies tiles into a ring in shared memory, others whose `wgmma` read them there, and two barriers for each
slot. Here the second is made of the first:

* **Rings.** A load in a loop, of a part of an array that the kernel only reads, whose indices are scalars, and which a product reads, becomes a
  ring of as many slots as there are stages, and one in front of the loops a place of its own. The producer runs the part of the program that
  indices and trip counts need.
* **Alone.** Where a producer keeps registers that the others need (`Machine.producers`), and one warpgroup has enough for all sums, it
  copies by itself (`cp.async`), as many steps ahead as there are slots but one. With four warps for all rows less is read, too.
* **Rows.** Where products have 128 rows and more, and no operation mixes them, each of the computing warpgroups takes its part (`division.py`).

What each value is was decided by then; `roles.py` writes the program once for a warpgroup's part, and once for what copies.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from smalt import _versions
from smalt._programs import accumulation, dimensions, division
from smalt._programs.dimensions import Split
from smalt._programs.division import Demands
from smalt._programs.program import Block, Node, Value, divisor, initial, loop_parameters
from smalt._programs.turns import Turns

#: Rows of a computing warpgroup, as `wgmma` takes them, and how many warpgroups compute.
ROWS = 64
MAX_COMPUTING = 4
#: Two blocks of a multiprocessor have room for rings of so many bytes together, beside what the compiler takes.
ROOM = 200 << 10
#: Loads of fewer bytes come sooner by themselves, or, if an operand is computed with them, before its product.
LEAST, LEAST_FACTOR = 2 << 10, 128
#: What the copy engine takes along one dimension.
MAX_SIDE = 256
#: Registers of a thread that copies; those that compute share the others that a block begins with.
PRODUCER_REGISTERS = 40
#: Beside sums: operands in registers, and what they are computed of.
OPERAND_REGISTERS = 64
MAX_REGISTERS = 240
#: Of results of products and operands that stay: with more of an operand than this leaves it is faster to read it again (attention of head 64, H200).
MAX_RESIDENT = 192
#: Of a multiprocessor.
REGISTERS = 65_536


@dataclasses.dataclass(frozen=True)
class Means:
    """What a machine has for products and copies."""

    wgmma: bool = True
    #: Whether a warpgroup that only copies gives its registers to the others.
    producer: bool = True


@dataclasses.dataclass(eq=False)
class Ring:
    """A load whose tiles pass through shared memory."""

    load: Node
    #: None: it is loaded once, and stays.
    loop: Node | None
    stages: int
    #: The dimension of which each warpgroup reads its part.
    split: Split = None

    @property
    def value(self) -> Value:
        return self.load.results[0]

    @property
    def slot_bytes(self) -> int:
        return -(-math.prod(self.value.shape) * _versions.bits_of(self.value.aval.dtype) // 8)

    @property
    def bytes(self) -> int:
        return self.slot_bytes * self.stages


@dataclasses.dataclass(eq=False)
class WarpgroupPlan:
    program: Block
    computing: int
    demands: Demands
    #: Of each store the dimension of what it stores that is divided.
    stores: dict[Node, Split]
    rings: list[Ring]
    #: What the producer computes, and with which nodes.
    needed: set[Value]
    scalars: set[Node]
    #: Where the loop is an axis of the grid.
    turns: Turns | None = None
    #: Of loops the sum of products that they carry, where it is waited for a step later.
    sums: dict[Node, accumulation.Accumulation] = dataclasses.field(default_factory=dict)
    has_producer: bool = True

    def ring_of(self, value: Value) -> Ring | None:
        """The ring that a value is read from, through transposes."""
        node = value.node
        while node is not None and node.name == "transpose":
            node = node.operands[0].node
        return self.ring_of_load(node)

    def ring_of_load(self, node: Node | None) -> Ring | None:
        return next((r for r in self.rings if r.load is node), None)

    def transforms(self, ring: Ring) -> tuple[Any, ...]:
        """How a ring's slots lie in memory, if its uses do not decide it."""
        if ring in self.kept:
            return accumulation.swizzled(ring.value.shape, ring.value.aval.dtype)
        found = None if ring.loop is None else self.sums.get(ring.loop)
        if found is None or found.sum.product.operands[0].node is ring.load:
            return ()
        return found.transforms(ring.value.shape, ring.value.aval.dtype)

    @property
    def threads(self) -> int:
        return self.computing + self.has_producer

    @property
    def registers(self) -> int:
        """Of a thread that computes: for two blocks of a multiprocessor, if one warpgroup computes, and there is room for their rings and sums."""
        is_small = 2 * sum(r.bytes for r in self.rings) <= ROOM
        is_double = self.computing == 1 and is_small and self.needed_registers <= REGISTERS // (2 * 128 * self.threads)
        pool = REGISTERS // (128 * self.threads * (2 if is_double else 1)) // 8 * 8 * self.threads
        return min(MAX_REGISTERS, (pool - PRODUCER_REGISTERS) // self.computing // 8 * 8)

    @property
    def needed_registers(self) -> int:
        """Of a thread: the result of a product, and what it is computed of."""
        parts = [(n, s) for n in self.program.all_nodes() if n.name == "dot_general" for s in self.demands.get(n.results[0], ())]
        words = [math.prod(dimensions.part_of(n.results[0].shape, s, self.computing)) // 128 for n, s in parts]
        return max(words, default=0) + OPERAND_REGISTERS

    @functools.cached_property
    def kept(self) -> dict[Ring, set[Node]]:
        """What is loaded once and stays in registers in these loops, since `mma` takes it from there: left operands of products of whose results others
        are the left operand, where a warp has whole rows."""
        found: dict[Ring, set[Node]] = collections.defaultdict(set)
        for loop in dict.fromkeys(r.loop for r in self.rings if not self.has_producer):
            if loop is None:
                continue
            products = [n for n in loop.blocks[-1].nodes if n.name == "dot_general"]
            left = MAX_RESIDENT - sum(math.prod(n.results[0].shape) // 128 for n in products)
            for node in products:
                ring = self.ring_of_load(node.operands[0].node)
                if ring is None or ring.loop is not None or loop in found[ring] or _versions.bits_of(ring.value.aval.dtype) != 16:
                    continue
                goes_on = any(n is not node and _is_computed_from(n.operands[0], node.results[0]) for n in products)
                if goes_on and ring.slot_bytes // 512 <= left:
                    left -= ring.slot_bytes // 512
                    found[ring].add(loop)
        return {ring: loops for ring, loops in found.items() if loops}

    def describe(self) -> str:
        each = "a warpgroup computes" if self.computing == 1 else f"{self.computing} warpgroups compute, each its part"
        slots = ", ".join(f"{list(r.value.shape)} in {r.stages} slots" for r in self.rings)
        return f"{each}; one copies ahead: {slots}" if self.has_producer else f"a warpgroup computes, and copies ahead: {slots}"


def plan_warpgroups(
    program: Block, free: set[Value], stages: int, room: int, any_order: bool, means: Means, turns: Turns | None = None
) -> WarpgroupPlan | None:
    """None: the program stays as it is. `free`: references to arrays in device memory that nothing stores to; `room`: bytes of shared memory for
    rings; `any_order`: whether floats may be added to sums one by one; `turns`: what the program was made of."""
    nodes = list(program.all_nodes())
    products = [n for n in nodes if n.name == "dot_general"]
    if not free or not products or not _may_be_run(nodes):
        return None
    rows = max(_product_rows(n) for n in products)
    loops = (n for n in nodes if n.is_loop and not n.block.loops)
    sums = [s for s in map(accumulation.find, loops) if s is not None] if means.wgmma else []
    if not any_order and any(np.dtype(s.product.results[0].aval.dtype).kind != "i" for s in sums):
        sums = []
    if any(n not in [s.product for s in sums] for n in products):  # `wgmma` beside other products
        sums = []
    choices = list(itertools.product(sorted({1, rows // ROWS}, reverse=True), [sums, []] if sums else [[]]))
    in_registers = [s.in_registers() or s for s in sums]
    if any(s.is_in_registers for s in in_registers):  # each warpgroup its columns
        choices = [(n, in_registers) for n in (*range(2, MAX_COMPUTING + 1), 1)] + choices
    if not means.producer:
        alone = _plan(program, free, products, 1, [], stages, room, has_producer=False)
        if alone is not None and alone.needed_registers <= MAX_REGISTERS:
            alone.turns = turns
            return alone
    for computing, found in choices:
        is_by_rows = not any(s.is_in_registers for s in found)
        if not 1 <= computing <= MAX_COMPUTING or computing > 1 and (is_by_rows and rows % ROWS or not _is_independent(nodes, free)):
            continue
        made = _plan(program, free, products, computing, found, stages, room)
        if made is not None:
            made.turns = turns
            return made
    return None


def _plan(
    program: Block,
    free: set[Value],
    products: Sequence[Node],
    computing: int,
    sums: Sequence[accumulation.Sum],
    stages: int,
    room: int,
    has_producer: bool = True,
) -> WarpgroupPlan | None:
    computed = [s for s in sums if s.is_in_buffer]
    shared = {s.product: (s.right, s.shared(computing) if computing > 1 else None) for s in computed}
    if computing > 1 and any(at is None for _, at in shared.values()):
        return None
    divided = division.divide(program, products, computing, shared)
    if divided is None:
        return None
    stores, demands = divided
    accumulations: dict[Node, accumulation.Accumulation] = {}
    for s in sums:
        made = accumulation.divided(s, demands, computing)
        if made is None:
            return None
        accumulations[s.loop] = made
    rings = _rings(program, demands, free, stages, room - sum(accumulations[s.loop].bytes for s in computed))
    if any(r.loop in accumulations and r.stages == 1 for r in rings):  # a product reads a slot while the next one is filled
        return None
    in_memory = [s.in_memory for s in sums]
    if any(v is not None and v.node not in [r.load for r in rings] for v in in_memory):
        return None
    needed = _producer(rings, free)
    if not rings or needed is None:
        return None
    found = WarpgroupPlan(program, computing, demands, stores, rings, *needed, None, accumulations, has_producer)
    # Nothing can keep sums elsewhere while products from registers add to them.
    is_tight = any(s.is_in_registers for s in sums) and found.needed_registers > found.registers
    return None if is_tight else found


def _may_be_run(nodes: Sequence[Node]) -> bool:
    """Whether nothing has an effect but loads and stores, whose views are one index each."""
    for node in nodes:
        if node.name in division.STORES or node.name in division.LOADS:
            access = division.access_of(node)
            if access is None or len(access.transforms) > 1 or access.is_unordered or access.value is not None and access.loads:
                return False
            if node.name in division.STORES and any(_is_used(nodes, r) for r in node.results):
                return False
            if access.transforms and not _versions.indices_of(access.transforms):
                return False
        elif not node.blocks and node.eqn.effects:
            return False
    return True


def _is_independent(nodes: Sequence[Node], free: set[Value]) -> bool:
    """Whether no warpgroup needs what another one stores: nothing that is stored to is loaded, or stored to twice."""
    stored = [n.operands[0] for n in nodes if n.name in division.STORES]
    loaded = {n.operands[0] for n in nodes if n.name in division.LOADS}
    return len(set(stored)) == len(stored) and loaded <= free


def _is_used(nodes: Sequence[Node], value: Value) -> bool:
    return any(value in n.operands for n in nodes)


def _product_rows(node: Node) -> int:
    (contracted, _), (batch, _) = node.eqn.params["dimension_numbers"]
    free = [n for d, n in enumerate(node.operands[0].shape) if d not in (*contracted, *batch)]
    return math.prod(free)


def _is_computed_from(value: Value, source: Value) -> bool:
    """Whether it is, in the same block."""
    work, seen = [value], set[Value]()
    while work:
        v = work.pop()
        if v is source:
            return True
        if v not in seen and v.node is not None and not v.node.blocks:
            work += v.node.operands
        seen.add(v)
    return False


# ------------------------------------------------------------------------------------------ rings


def _rings(program: Block, demands: Demands, free: set[Value], stages: int, room: int) -> list[Ring]:
    """Loads that get a ring, of as many slots as there is room for."""
    rings = []
    multiplied, carried = _multiplied(program), loop_parameters(program)
    for node in program.all_nodes():
        loops = node.block.loops
        if node.name not in division.LOADS or len(loops) > 1 or loops and node.block is not loops[0].blocks[-1]:
            continue
        access, splits = division.access_of(node), demands.get(node.results[0], set())
        if node.operands[0] not in free or node.results[0] not in multiplied or len(splits) != 1:
            continue
        least = min(multiplied[node.results[0]])
        if access.mask is not None or not _may_be_copied(node, access, least, carried):
            continue
        (split,) = splits
        if not loops:
            rings.append(Ring(node, None, 1, split))
        else:
            rings.append(Ring(node, loops[0], max(1, stages), split))
    if all(r.loop is None for r in rings):
        return []
    while rings and sum(r.bytes for r in rings) > room:
        deep = [r for r in rings if r.stages > 1]
        if deep:
            most = max(r.stages for r in deep)
            for ring in deep:
                ring.stages = most - 1
        else:
            rings.remove(max(rings, key=lambda r: (r.loop is None, r.slot_bytes)))
    return rings if any(r.loop is not None for r in rings) else []


def _multiplied(program: Block) -> dict[Value, set[int]]:
    """What products read, and what their operands are computed from, element by element; how many bytes of it are worth a copy. What an operand has
    of a product comes late, and factors that go with that are loaded meanwhile."""
    found: dict[Value, set[int]] = collections.defaultdict(set)
    late: set[Value] = set()
    for node in program.all_nodes():
        if node.name == "dot_general" or any(v in late for v in node.operands):
            late.update(node.results)
    for node in reversed(list(program.all_nodes())):
        if node.name == "dot_general":
            for v in node.operands:
                found[v].add(LEAST)
        elif node.name == "transpose" or node.name in _SAME_ELEMENTS and len(node.operands) == 1:
            for least in found.get(node.results[0], ()):
                found[node.operands[0]].add(least)
        elif node.name in dimensions.ELEMENTWISE and node.results[0] in found and node.results[0] not in late:
            for v in node.operands:
                found[v].add(LEAST_FACTOR)
    return found


#: What gives elements of its operand, all or some of them more than once, and what converts them.
_SAME_ELEMENTS = ("broadcast_in_dim", "reshape", "squeeze", "convert_element_type", "copy")


def _may_be_copied(node: Node, access: Any, least: int, carried: dict[Value, tuple[Node, int]]) -> bool:
    """Whether the copy engine takes it: rows of 16 bytes at multiples of 16 bytes, at most 256 along each dimension."""
    value, array = node.results[0], node.operands[0]
    bits = _versions.bits_of(value.aval.dtype)
    if _versions.is_key(value.aval.dtype) or np.dtype(value.aval.dtype).kind == "c" or not value.shape or 0 in value.shape:
        return False
    if math.prod(value.shape) * bits // 8 < least or max(value.shape) > MAX_SIDE or value.shape[-1] * bits % 128:
        return False
    if array.shape[-1] * bits % 128:
        return False
    if not access.transforms:
        return True
    indices = _versions.indices_of(access.transforms)
    if any(_versions.is_gather(i) or _versions.is_slice(i) and i.stride != 1 for i in indices):
        return False
    if not _versions.is_slice(indices[-1]):
        return False
    start = indices[-1].start
    return (divisor(start, carried) if isinstance(start, Value) else int(start)) * bits % 128 == 0


def _producer(rings: Sequence[Ring], free: set[Value]) -> tuple[set[Value], set[Node]] | None:
    """What gives the rings' indices and how often their loops run; None: scalars alone do not, or ones that the kernel may store to."""
    nodes: set[Node] = set()
    seen: set[Value] = set()
    work: list[Value] = []
    for ring in rings:
        work += division.leaves(division.access_of(ring.load))
        block: Block | None = ring.load.block
        while block is not None and block.owner is not None:
            owner = block.owner
            nodes.add(owner)
            if owner.name == "while":
                work.append(owner.blocks[0].results[0])
            if owner.name == "cond":
                work.append(owner.operands[0])
            block = owner.block
    loops = {r.loop for r in rings if r.loop is not None}
    carried = {v: (loop, i) for loop in loops for block in loop.blocks for i, v in enumerate(block.params)}
    while work:
        value = work.pop()
        if value in seen or value.is_literal or value.is_ref:
            continue
        seen.add(value)
        if value.shape:
            return None
        node = value.node
        if node is None:
            if value in carried:
                loop, at = carried[value]
                work += [initial(loop)[at], loop.blocks[-1].results[at], *(b.params[at] for b in loop.blocks)]
            continue
        if node.blocks or node.name in division.LOADS and node.operands[0] not in free:
            return None
        nodes.add(node)
        work += [v for v in node.operands if not v.is_ref]
    return seen, nodes
