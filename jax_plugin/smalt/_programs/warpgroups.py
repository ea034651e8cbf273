"""Programs that load the operands of their products in a loop, taken by several warpgroups: one copies ahead, the others compute.

A kernel written for Triton has its loop's loads as they come: `k = load(k_ref.at[pl.ds(i * n, n)])`, then `pl.dot(q, k.T)`. One that is written
for Mosaic GPU has a warpgroup that copies tiles into a ring in shared memory, others whose `wgmma` read them there, and two barriers for each
slot. Here the second is made of the first:

* **Rings.** A load in a loop, of a part of an array that the kernel only reads, whose indices are scalars, and which a product reads, becomes a
  ring of as many slots as there are stages, and one in front of the loops a place of its own. The producer runs the part of the program that
  indices and trip counts need.
* **Rows.** Where products have 128 rows and more, and no operation mixes them, each of the computing warpgroups takes its part (`division.py`).

What each value is was decided by then; `_Run` writes the program once for a warpgroup's part, and once for the producer.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from smalt import _versions
from smalt._programs import accumulation, dimensions, division, slicing
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
#: Of a multiprocessor.
REGISTERS = 65_536

#: Of swizzled memory.
ALIGNMENT = 1024

WARPGROUP_AXIS = "warpgroup"


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
        found = None if ring.loop is None else self.sums.get(ring.loop)
        if found is None or found.sum.product.operands[0].node is ring.load:
            return ()
        return found.transforms(ring.value.shape, ring.value.aval.dtype)

    @property
    def threads(self) -> int:
        return self.computing + 1

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

    def describe(self) -> str:
        each = "a warpgroup computes" if self.computing == 1 else f"{self.computing} warpgroups compute, each its part"
        slots = ", ".join(f"{list(r.value.shape)} in {r.stages} slots" for r in self.rings)
        return f"{each}; one copies ahead: {slots}"


def plan_warpgroups(
    program: Block, free: set[Value], stages: int, room: int, any_order: bool, wgmma: bool, turns: Turns | None = None
) -> WarpgroupPlan | None:
    """None: the program stays as it is. `free`: references to arrays in device memory that nothing stores to; `room`: bytes of shared memory for
    rings; `any_order`: whether floats may be added to sums one by one; `wgmma`: whether the machine has it, which adds to sums; `turns`: what the
    program was made of."""
    nodes = list(program.all_nodes())
    products = [n for n in nodes if n.name == "dot_general"]
    if not free or not products or not _may_be_run(nodes):
        return None
    rows = max(_product_rows(n) for n in products)
    loops = (n for n in nodes if n.is_loop and not n.block.loops)
    sums = [s for s in map(accumulation.find, loops) if s is not None] if wgmma else []
    if not any_order and any(np.dtype(s.product.results[0].aval.dtype).kind != "i" for s in sums):
        sums = []
    if any(n not in [s.product for s in sums] for n in products):  # `wgmma` beside other products
        sums = []
    choices = list(itertools.product(sorted({1, rows // ROWS}, reverse=True), [sums, []] if sums else [[]]))
    in_registers = [s.in_registers() or s for s in sums]
    if any(s.is_in_registers for s in in_registers):  # each warpgroup its columns
        choices = [(n, in_registers) for n in (*range(2, MAX_COMPUTING + 1), 1)] + choices
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
    program: Block, free: set[Value], products: Sequence[Node], computing: int, sums: Sequence[accumulation.Sum], stages: int, room: int
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
    found = WarpgroupPlan(program, computing, demands, stores, rings, *needed, None, accumulations)
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


# ------------------------------------------------------------------------------------------ writing


@dataclasses.dataclass
class _Slots:
    """A ring in the kernel."""

    memory: Any
    full: Any
    empty: Any


def run_by_warpgroups(plan: WarpgroupPlan, refs: Callable[[Any], Sequence[Any]], place: Callable[[str, int], Any]) -> None:
    """Writes the kernel's body. `refs`: the references at a step of the axis that is a loop; `place`: what `program_id` and `num_programs` give."""
    allocations: list[Any] = []
    # What is no multiple of the alignment comes last: nothing is lost between.
    rings = sorted(plan.rings, key=lambda r: r.bytes % ALIGNMENT != 0)
    for ring in rings:
        allocations.append(plgpu.SMEM((ring.stages, *ring.value.shape), ring.value.aval.dtype, transforms=plan.transforms(ring)))
        allocations.append(plgpu.Barrier(num_barriers=ring.stages))
        if ring.loop is not None:
            allocations.append(plgpu.Barrier(num_arrivals=plan.computing, num_barriers=ring.stages))
    computed = [s for s in plan.sums.values() if s.sum.is_in_buffer]
    allocations += [s.buffers for s in computed]

    def scoped(*scratch: Any) -> None:
        given = iter(scratch)
        slots = {r: _Slots(next(given), next(given), None if r.loop is None else next(given)) for r in rings}
        buffers = dict(zip(computed, given))
        warpgroup = lax.axis_index(WARPGROUP_AXIS)

        def copy() -> None:
            plgpu.set_max_registers(PRODUCER_REGISTERS, action="decrease")
            _Run(plan, refs, slots, buffers, place, None).run()

        def compute() -> None:
            plgpu.set_max_registers(plan.registers, action="increase")
            _Run(plan, refs, slots, buffers, place, warpgroup).run()

        pl.when(warpgroup == plan.computing)(copy)
        pl.when(warpgroup < plan.computing)(compute)

    pl.run_scoped(scoped, *allocations, collective_axes=WARPGROUP_AXIS)


def _counter(loop: Node) -> int | None:
    """The carried value that counts a loop's turns, from 0."""
    if loop.counter is not None:
        return loop.counter
    body, starts = loop.blocks[-1], initial(loop)
    for i, (param, after, start) in enumerate(zip(body.params, body.results, starts)):
        adds = after.node is not None and after.node.name == "add" and param in after.node.operands
        if adds and not param.shape and param.aval.dtype == np.int32 and start.is_literal and start.known == 0:
            assert after.node is not None
            if any(v.is_literal and v.known == 1 for v in after.node.operands):
                return i
    return None


Environment = collections.ChainMap[tuple[Value, Split], Any]


@dataclasses.dataclass
class _Run:
    """Writes the program for one role: a part of what is computed, or (`part` None) what the producer does."""

    plan: WarpgroupPlan
    refs: Callable[[Any], Sequence[Any]]
    slots: dict[Ring, _Slots]
    #: Of sums whose right operand is computed.
    buffers: dict[accumulation.Accumulation, Any]
    place: Callable[[str, int], Any]
    part: Any
    #: The step of the loop that is being written, and the sum that it carries, with its accumulator.
    step: Any = None
    sum: tuple[accumulation.Accumulation, Any] | None = None
    #: Rings of which this step's slots are read: they are given back behind the fence of a computed operand, which is one for all.
    read_rings: list[Ring] = dataclasses.field(default_factory=list)

    def run(self) -> None:
        turns = self.plan.turns
        env: dict[tuple[Value, Split], Any]
        if turns is None:
            env = {(v, None): ref for v, ref in zip(self.plan.program.params, self.refs(None))}
        else:
            env = self._views(jnp.int32(0), 0) | self._views(jnp.int32(turns.steps - 1), turns.steps - 1)
            env |= {(v, None): ref for (v, _), ref in self._views(jnp.int32(0), None, is_moving=False).items()}
        self.block(self.plan.program, collections.ChainMap(env))

    def _views(self, at: Any, step: int | None, is_moving: bool = True) -> dict[tuple[Value, Split], Any]:
        """The references of a step of the axis that is a loop."""
        turns = self.plan.turns
        assert turns is not None
        wanted = {v: i for v, (i, s) in turns.refs.items() if s == step and (turns.is_moving(i) == is_moving)}
        refs = self.refs(at) if wanted else ()
        return {(v, None): refs[i] for v, i in wanted.items()}

    @property
    def copies(self) -> bool:
        return self.part is None

    def wanted(self, value: Value) -> list[Split]:
        """The parts of a value that are needed, in order."""
        if self.copies:
            return [None] if value in self.plan.needed else []
        return division.in_order(self.plan.demands.get(value, ()))

    def part_of(self, shape: Sequence[int], split: Split) -> tuple[int, ...]:
        """The shape of a warpgroup's part."""
        return dimensions.part_of(shape, split, self.plan.computing)

    def block(self, block: Block, env: Environment) -> None:
        for node in block.nodes:
            with _versions.at_line_of(node.eqn):
                self.node(node, env)

    def node(self, node: Node, env: Environment) -> None:
        if node.is_loop:
            self.loop(node, env)
        elif node.name == "cond":
            self.cond(node, env)
        elif self.copies:
            if node in self.plan.scalars or self.plan.ring_of_load(node) is not None:
                self.pure(node, env)
        elif node.name in division.STORES:
            self.store(node, env)
        else:
            self.pure(node, env)

    def pure(self, node: Node, env: Environment) -> None:
        ring = self.plan.ring_of_load(node)
        if ring is not None:  # its uses load from the slot
            if self.copies:
                self.copy(ring, env)
            elif ring.loop is None:
                plgpu.barrier_wait(self.slots[ring].full.at[0])
            return
        if node.name == "transpose" and self.ring_of(node.operands[0]) is not None:
            return
        if self.sum is not None and node in (self.sum[0].sum.product, self.sum[0].sum.add):
            if node is self.sum[0].sum.product:
                self.accumulate(*self.sum, env)
            return
        splits = division.in_order({s for v in node.results for s in self.wanted(v)})
        for split in splits:
            made = self.make(node, split, env)
            env.update(((v, split), x) for v, x in zip(node.results, made))

    # -------------------------------------------------------------------------------- values

    def ring_of(self, value: Value) -> Ring | None:
        return self.plan.ring_of(value)

    def read(self, value: Value, split: Split, env: Environment) -> Any:
        if value.is_literal and value.shape:  # an array of one number
            return lax.full(self.part_of(value.shape, split), value.known.flat[0], value.aval.dtype)
        if value.is_literal:
            return value.known
        if self.ring_of(value) is not None:
            return self.from_ring(value)
        if value.node is None and value.known is not None:
            return value.known
        return env[value, split]

    def accumulate(self, found: accumulation.Accumulation, sums: Any, env: Environment) -> None:
        if found.sum.is_in_registers:
            self.accumulate_slices(found, sums, env)
            return
        left, right = found.sum.product.operands
        a = self.in_ring(left) if self.ring_of(left) is not None else self.read(left, found.splits[0], env)
        if not found.sum.is_in_buffer:
            b = self.in_ring(right)
            if found.sum.product.eqn.params["dimension_numbers"][0][1] == (1,):
                b = _versions.transposed_ref(b, (1, 0))
        else:
            buffer = self.buffers[found].at[lax.rem(self.step, np.int32(accumulation.BUFFERS))]
            b = found.store(buffer, self.read(found.sum.right, found.part_of_right, env), self.part)
            for ring in self.read_rings:
                self.release(ring, is_running=False)
            self.read_rings = []
        found.multiply(sums, a, b)

    def accumulate_slices(self, found: accumulation.Accumulation, sums: Any, env: Environment) -> None:
        """Adds the transposed product, slice by slice; what lies in rings is loaded ahead."""
        right, split = found.sum.right, found.part_of_right
        b = _versions.transposed_ref(self.in_ring(found.sum.product.operands[0]), (1, 0))
        slices = _Slices(self, found.sum.loop.blocks[-1], env)
        shape = self.part_of(right.shape, split)
        at, size = found.sum.contracted, accumulation.SLICE
        boxes = [slicing.along(shape, at, k, size) for k in range(0, shape[at], size)]
        for box in boxes:
            slices.load(right, split, box)
        for i, box in enumerate(boxes):
            a = found.columns(slices.make(right, split, box))
            if i == len(boxes) - 1:
                for ring in self.read_rings:
                    self.release(ring, is_running=False)
                self.read_rings = []
            found.multiply(sums, a, b.at[pl.ds(*box[at])])

    def from_ring(self, value: Value) -> Any:
        return self.in_ring(value, load=True)

    def in_ring(self, value: Value, load: bool = False) -> Any:
        """A warpgroup's part of a slot, or what it holds."""
        node = value.node
        assert node is not None
        if node.name == "transpose":
            inner, permutation = self.in_ring(node.operands[0], load), node.eqn.params["permutation"]
            return jnp.transpose(inner, permutation) if load else _versions.transposed_ref(inner, permutation)
        ring = self.ring_of(value)
        assert ring is not None
        memory, own = self.slots[ring].memory, []
        for d, n in enumerate(ring.value.shape):
            part = n // self.plan.computing
            own.append(pl.ds(self.part * part, part) if d == ring.split else slice(None))
        index = (self.slot(ring), *own)
        return memory[index] if load else memory.at[index]

    def slot(self, ring: Ring) -> Any:
        return 0 if ring.loop is None else lax.rem(self.step, np.int32(ring.stages))

    def make(self, node: Node, split: Split, env: Environment) -> list[Any]:
        name, params = node.name, node.eqn.params
        if name in division.LOADS:
            return [self.load(node, split, env)]
        if name in division.PLACES:
            return [self.place(name, params["axis"])]
        if split is None:
            return self.bind(node, [self.read(v, None, env) for v in node.operands], params)
        if name == "iota":
            return [self.iota(node, split)]
        splits = division.operand_splits(node, split)
        operands = [self.read(v, s, env) for v, s in zip(node.operands, splits)]
        return self.bind(node, operands, dimensions.params_of_part(params, self.part_of(node.results[0].shape, split)))

    def bind(self, node: Node, operands: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
        out = node.eqn.primitive.bind(*operands, **params)
        return list(out) if node.eqn.primitive.multiple_results else [out]

    def iota(self, node: Node, split: int) -> Any:
        aval = node.results[0].aval
        part = self.part_of(aval.shape, split)
        counted = lax.broadcasted_iota(aval.dtype, part, node.eqn.params["dimension"])
        if node.eqn.params["dimension"] != split:
            return counted
        return counted + (self.part * part[split]).astype(aval.dtype)

    # -------------------------------------------------------------------------------- memory

    def index(self, node: Node, split: Split, env: Environment) -> tuple[Any, ...] | None:
        """The index of an access, or of its part along dimension `split`; None: everything."""
        access = division.access_of(node)
        indices = _versions.indices_of(access.transforms)
        if split is None and not indices:
            return None
        shape = node.operands[0].shape
        own = split if not indices else None if split is None else division.divided_dimension(access, split)
        found: list[Any] = []
        for d, n in enumerate(shape):
            i = indices[d] if indices else None
            if i is not None and not _versions.is_slice(i):
                found.append(self.number(i, env))
                continue
            start, size, stride = (0, n, 1) if i is None else (self.number(i.start, env), i.size, i.stride)
            is_whole = isinstance(start, int) and (start, size, stride) == (0, n, 1)
            if d == own:
                size //= self.plan.computing
                start = start + self.part * size
            found.append(slice(None) if is_whole and d != own else pl.ds(start, size, stride))
        return tuple(found)

    def number(self, x: Any, env: Environment) -> Any:
        if isinstance(x, Value):
            known = self.read(x, None, env)
            return int(known) if x.is_literal and np.ndim(known) == 0 else known
        return x

    def load(self, node: Node, split: Split, env: Environment) -> Any:
        ref = env[node.operands[0], None]
        index = self.index(node, split, env)
        view = ref if index is None else ref.at[index]
        access = division.access_of(node)
        if access.mask is None:
            return view[...]
        shape, other = node.results[0].shape, access.other
        given = None if other is None else self.read(other, dimensions.aligned(other.shape, shape, split), env)
        return _versions.masked_load(view, self.mask(access, shape, split, env), given)

    def mask(self, access: Any, shape: Sequence[int], split: Split, env: Environment) -> Any:
        mask = self.read(access.mask, dimensions.aligned(access.mask.shape, shape, split), env)
        return jnp.broadcast_to(mask, self.part_of(shape, split))

    def store(self, node: Node, env: Environment) -> None:
        access = division.access_of(node)
        value, split = access.value, self.plan.stores[node]
        ref = env[node.operands[0], None]

        def store() -> None:
            index = self.index(node, split, env)
            view = ref if index is None else ref.at[index]
            x = self.read(value, split, env)
            if access.mask is None:
                view[...] = x
            else:
                _versions.masked_swap(view, x, self.mask(access, value.shape, split, env))

        if split is None and self.plan.computing > 1:
            pl.when(self.part == 0)(store)
        else:
            store()

    # -------------------------------------------------------------------------------- control flow

    def loop(self, node: Node, env: Environment) -> None:
        found = None if self.copies else self.plan.sums.get(node)
        if found is None:
            self.turns(node, env)
            return

        keys: list[Any] = []

        def scope(sums: Any) -> list[Any]:
            self.sum = found, sums
            inner = env.new_child()
            self.turns(node, inner)
            self.sum = None
            keys.extend(inner.maps[0])
            return [found.result(sums[...]), *inner.maps[0].values()]

        total, *values = pl.run_scoped(scope, found.sums)
        env.update(zip(keys, values))
        start = initial(node)[found.sum.at]
        if start.known is None or np.any(np.asarray(start.known, np.float32) != 0):
            total = self.read(start, found.split, env) + total
        env[node.results[found.sum.at], found.split] = total

    def turns(self, node: Node, env: Environment) -> None:
        """A loop, but for the sum that is separate from it."""
        rings = [r for r in self.plan.rings if r.loop is node]
        if self.copies and not rings:
            return
        body, counter = node.blocks[-1], _counter(node)
        carried = [(i, s) for i in range(len(node.results)) for s in self.carried(node, i)]
        if self.sum is not None:
            carried = [(i, s) for i, s in carried if i != self.sum[0].sum.at]
        if node.name == "scan" or (counter, None) not in carried:
            carried = [(i, s) for i, s in carried if i != counter]
        starts = initial(node)
        init = [jnp.asarray(self.read(starts[i], s, env), node.results[i].aval.dtype) for i, s in carried]

        def enter(block: Block, values: Sequence[Any], more: dict[Any, Any]) -> Environment:
            if self.plan.turns is not None and node is self.plan.turns.loop:
                more = more | self._views(more[block.params[0], None], None)
            return env.new_child({**{(block.params[i], s): x for (i, s), x in zip(carried, values)}, **more})

        def turn(step: Any, values: Sequence[Any], more: dict[Any, Any]) -> list[Any]:
            inner = enter(body, values, more)
            outer = self.step
            if rings:
                self.step = step
            if self.copies:
                self.block(body, inner)
            else:
                self.consume(body, rings, inner)
            self.step = outer
            return [self.read(body.results[i], s, inner) for i, s in carried]

        if node.name == "scan":

            def again(i: Any, values: Sequence[Any]) -> list[Any]:
                return turn(i, values, {} if counter is None else {(body.params[counter], None): i})

            length = node.eqn.params["length"]
            end = lax.fori_loop(0, length, again, init)
            if counter is not None:
                env[node.results[counter], None] = jnp.int32(length)
        else:
            cond = node.blocks[0]
            at = next((k for k, (i, s) in enumerate(carried) if i == counter), None)
            own = [] if at is not None else [jnp.int32(0)]

            def goes_on(values: Sequence[Any]) -> Any:
                inner = enter(cond, values[len(own) :], {})
                self.block(cond, inner)
                return self.read(cond.results[0], None, inner)

            def next_turn(values: Sequence[Any]) -> list[Any]:
                step, rest = values[at or 0], values[len(own) :]
                return [*(step + np.int32(1) for _ in own), *turn(step, rest, {})]

            end = lax.while_loop(goes_on, next_turn, [*own, *init])[len(own) :]
        env.update(((node.results[i], s), x) for (i, s), x in zip(carried, end))

    def carried(self, loop: Node, at: int) -> list[Split]:
        if self.copies:
            return [None] if any(block.params[at] in self.plan.needed for block in loop.blocks) else []
        return division.in_order(division.carried_splits(self.plan.demands, loop, at))

    def copy(self, ring: Ring, env: Environment) -> None:
        slots, slot = self.slots[ring], self.slot(ring)
        if ring.loop is not None:
            pl.when(self.step >= ring.stages)(lambda: plgpu.barrier_wait(slots.empty.at[slot]))
        source, index = env[ring.load.operands[0], None], self.index(ring.load, None, env)
        if index is not None:
            source = source.at[index]
        plgpu.copy_gmem_to_smem(source, slots.memory.at[slot], slots.full.at[slot], **_versions.copy_in_bounds())

    def consume(self, body: Block, rings: Sequence[Ring], env: Environment) -> None:
        first: dict[Node, list[Ring]] = collections.defaultdict(list)
        last: dict[Node, list[Ring]] = collections.defaultdict(list)
        for ring in rings:
            uses = [n for n in body.nodes if self._uses(n, ring)]
            first[uses[0]].append(ring)
            last[uses[-1]].append(ring)
        product = None if self.sum is None else self.sum[0].sum.product
        before = self.sum is not None and self.sum[0].sum.in_memory is not self.sum[0].sum.right
        for node in body.nodes:
            with _versions.at_line_of(node.eqn):
                for ring in first[node]:
                    plgpu.barrier_wait(self.slots[ring].full.at[self.slot(ring)])
                self.node(node, env)
                for ring in last[node]:
                    if before and node is not product:
                        self.read_rings.append(ring)
                    else:
                        self.release(ring, is_running=node is product)
                before = before and node is not product

    def release(self, ring: Ring, is_running: bool) -> None:
        """Gives a slot back; the one of the step before, if a product still reads this step's."""
        empty = self.slots[ring].empty
        if is_running:
            before = lax.rem(self.step + np.int32(ring.stages - 1), np.int32(ring.stages))
            pl.when(self.step > 0)(lambda: plgpu.barrier_arrive(empty.at[before]))
        else:
            plgpu.barrier_arrive(empty.at[self.slot(ring)])

    def _uses(self, node: Node, ring: Ring) -> bool:
        if node is ring.load or node.name == "transpose" and self.ring_of(node.results[0]) is ring:
            return False
        inner = [n for block in node.blocks for n in block.all_nodes()]
        return any(self.ring_of(v) is ring for n in (node, *inner) for v in n.operands)

    def cond(self, node: Node, env: Environment) -> None:
        if self.copies:
            loads = {r.load for r in self.plan.rings}
            if any(n in loads for block in node.blocks for n in block.all_nodes()):
                self._branch(node, env, [])
            return
        results = [(i, s) for i, v in enumerate(node.results) for s in self.wanted(v)]
        stores = any(n.name in division.STORES for block in node.blocks for n in block.all_nodes())
        if results or stores:
            self._branch(node, env, results)

    def _branch(self, node: Node, env: Environment, results: Sequence[tuple[int, Split]]) -> None:
        def arm(block: Block) -> Callable[[], list[Any]]:
            def go() -> list[Any]:
                inner = env.new_child()
                self.block(block, inner)
                return [jnp.asarray(self.read(block.results[i], s, inner), node.results[i].aval.dtype) for i, s in results]

            return go

        index = self.read(node.operands[0], None, env)
        arms = [arm(b) for b in node.blocks]
        if len(arms) == 2:
            made = lax.cond(jnp.asarray(index, jnp.bool_), arms[1], arms[0])
        else:
            made = lax.switch(index, arms)
        env.update(((node.results[i], s), x) for (i, s), x in zip(results, made))


class _Slices:
    """Slices of what a step of a loop computes, in the order of their uses."""

    def __init__(self, run: _Run, body: Block, env: Environment) -> None:
        self.run, self.body, self.env = run, body, env
        self.known: dict[tuple[Value, Split, slicing.Box], Any] = {}

    def load(self, value: Value, split: Split, box: slicing.Box) -> None:
        """Loads what a slice needs of rings."""
        node = value.node
        if self.run.plan.ring_of_load(node) is not None:
            self.make(value, split, box)
            return
        for part in self.operands(value, split, box) or ():
            self.load(*part)

    def operands(self, value: Value, split: Split, box: slicing.Box) -> list[tuple[Value, Split, slicing.Box]] | None:
        """The slices of operands that a slice needs; None: all of it is computed."""
        node = value.node
        if node is None or node.block is not self.body or node.blocks or not node.operands or node.name in division.LOADS:
            return None
        splits: list[Split] = [None] * len(node.operands)
        if split is not None:
            splits = division.operand_splits(node, split)
        own = [self.run.part_of(v.shape, s) for v, s in zip(node.operands, splits)]
        boxes = slicing.operand_boxes(node.name, node.eqn.params, own, self.run.part_of(value.shape, split), box)
        return None if boxes is None else list(zip(node.operands, splits, boxes))

    def make(self, value: Value, split: Split, box: slicing.Box) -> Any:
        key = value, split, box
        if key not in self.known:
            self.known[key] = self._make(*key)
        return self.known[key]

    def _make(self, value: Value, split: Split, box: slicing.Box) -> Any:
        run, sizes = self.run, slicing.sizes(box)
        if value.is_literal and value.shape:
            return lax.full(sizes, value.known.flat[0], value.aval.dtype)
        at = tuple(slice(start, start + size) for start, size in box)
        if run.plan.ring_of_load(value.node) is not None:
            return run.in_ring(value).at[at][...]
        needed = self.operands(value, split, box)
        if needed is None:
            return run.read(value, split, self.env)[at] if value.shape else run.read(value, split, self.env)
        node = value.node
        assert node is not None
        params = dimensions.params_of_part(node.eqn.params, sizes)
        return run.bind(node, [self.make(*part) for part in needed], params)[node.results.index(value)]
