"""The kernel of a program whose loops have rings: each warpgroup's role, as [the plan](warpgroups.py) says.

`_Run` writes the program for one role: what a warpgroup computes, or what is copied. A producer runs the latter by itself (`run_by_warpgroups`). One
who computes alone runs it beside, some steps ahead: `_Ahead`.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from smalt import _primitives, _versions
from smalt._programs import accumulation, dimensions, division, slicing
from smalt._programs.dimensions import Split
from smalt._programs.program import Block, Node, Value, initial
from smalt._programs.warpgroups import PRODUCER_REGISTERS, Ring, WarpgroupPlan

#: Of swizzled memory.
ALIGNMENT = 1024

WARPGROUP_AXIS = "warpgroup"


@dataclasses.dataclass
class _Slots:
    """A ring in the kernel, with the producer's barriers."""

    memory: Any
    full: Any = None
    empty: Any = None


def run_by_warpgroups(plan: WarpgroupPlan, refs: Callable[[Any], Sequence[Any]], place: Callable[[str, int], Any]) -> None:
    """Writes the kernel's body. `refs`: the references at a step of the axis that is a loop; `place`: what `program_id` and `num_programs` give."""
    # What is no multiple of the alignment comes last: nothing is lost between.
    rings = sorted(plan.rings, key=lambda r: r.bytes % ALIGNMENT != 0)
    computed = [s for s in plan.sums.values() if s.sum.is_in_buffer]

    def memory(ring: Ring) -> Any:
        return plgpu.SMEM((ring.stages, *ring.value.shape), ring.value.aval.dtype, transforms=plan.transforms(ring))

    def with_producer(*scratch: Any) -> None:
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

    def alone(*scratch: Any) -> None:
        slots = {r: _Slots(given) for r, given in zip(rings, scratch)}
        copies = _Copies(plan, _Run(plan, refs, slots, {}, place, None))
        _Run(plan, refs, slots, {}, place, jnp.int32(0), ahead=copies).run()

    allocations: list[Any] = []
    for ring in rings:
        allocations.append(memory(ring))
        if plan.has_producer:
            allocations.append(plgpu.Barrier(num_barriers=ring.stages))
            if ring.loop is not None:
                allocations.append(plgpu.Barrier(num_arrivals=plan.computing, num_barriers=ring.stages))
    allocations += [s.buffers for s in computed]
    if plan.has_producer:
        pl.run_scoped(with_producer, *allocations, collective_axes=WARPGROUP_AXIS)
    else:
        pl.run_scoped(alone, *allocations)


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
    #: Of one who computes alone: the copies that it makes.
    ahead: _Copies | None = None
    #: Of one who copies ahead: whether there is such a step.
    when: Any = True
    #: What stays in registers.
    kept: dict[Ring, Any] = dataclasses.field(default_factory=dict)

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
        found = set(self.plan.demands.get(value, ()))
        if self.ahead is not None and value in self.plan.needed and value.node is not None and not value.node.block.loops:
            found.add(None)  # loops begin with it
        return division.in_order(found)

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
            elif ring.loop is None and self.ahead is not None:
                self.ahead.once(ring, env)
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
        if load and ring in self.kept and self.step is not None:
            return self.kept[ring]
        if self.ahead is not None and self.step is None:
            self.ahead.settle()
        return self.in_slot(ring, self.slot(ring), load)

    def in_slot(self, ring: Ring, slot: Any, load: bool) -> Any:
        own = []
        for d, n in enumerate(ring.value.shape):
            part = n // self.plan.computing
            own.append(pl.ds(self.part * part, part) if d == ring.split else slice(None))
        memory, index = self.slots[ring].memory, (slot, *own)
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
        if self.when is not True:  # a scalar
            return lax.cond(self.when, lambda: view[...], lambda: jnp.zeros(node.results[0].shape, node.results[0].aval.dtype))
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
        if self.copies and not self.rings_of(node):
            return
        if self.ahead is not None and not self.rings_of(node):
            self.ahead.settle()  # there may be no step
        loop = _Loop(self, node, env)
        ahead = self.ahead.of(self, node, env) if self.ahead is not None and self.rings_of(node) else None
        n = len(loop.init)

        def again(step: Any, state: Sequence[Any]) -> list[Any]:
            rest = state[n:] if ahead is None else ahead.step(step, state[n:])
            return [*loop.next(step, state[:n]), *rest]

        begin = [*loop.init, *(() if ahead is None else ahead.init)]
        if loop.length is not None:
            end = lax.fori_loop(0, loop.length, again, begin)
        else:
            end = lax.while_loop(lambda state: loop.goes_on(state[:n]), lambda state: again(loop.step_of(state), state), begin)
        loop.leave(end[:n])

    def rings_of(self, loop: Node) -> list[Ring]:
        return [r for r in self.plan.rings if r.loop is loop]

    def carried(self, loop: Node, at: int) -> list[Split]:
        if self.copies:
            return [None] if any(block.params[at] in self.plan.needed for block in loop.blocks) else []
        return division.in_order(division.carried_splits(self.plan.demands, loop, at))

    def copy(self, ring: Ring, env: Environment) -> None:
        slots, slot = self.slots[ring], self.slot(ring)
        if ring.loop is not None and self.plan.has_producer:
            pl.when(self.step >= ring.stages)(lambda: plgpu.barrier_wait(slots.empty.at[slot]))
        source, index = env[ring.load.operands[0], None], self.index(ring.load, None, env)
        if index is not None:
            source = source.at[index]
        if not self.plan.has_producer:
            _primitives.copy_by_threads(source, slots.memory.at[slot], self.when)
            return
        plgpu.copy_gmem_to_smem(source, slots.memory.at[slot], slots.full.at[slot], **_versions.copy_in_bounds())

    def consume(self, body: Block, rings: Sequence[Ring], env: Environment) -> None:
        if self.ahead is not None:
            self.block(body, env)
            return
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
        if self.ahead is not None and self.step is None:
            self.ahead.settle()  # what an arm waits for, the others have not
        kept = self.kept

        def arm(block: Block) -> Callable[[], list[Any]]:
            def go() -> list[Any]:
                inner = env.new_child()
                self.kept = dict(kept)
                self.block(block, inner)
                self.kept = kept
                return [jnp.asarray(self.read(block.results[i], s, inner), node.results[i].aval.dtype) for i, s in results]

            return go

        index = self.read(node.operands[0], None, env)
        arms = [arm(b) for b in node.blocks]
        if len(arms) == 2:
            made = lax.cond(jnp.asarray(index, jnp.bool_), arms[1], arms[0])
        else:
            made = lax.switch(index, arms)
        env.update(((node.results[i], s), x) for (i, s), x in zip(results, made))


class _Loop:
    """A loop as a role runs it: what it carries, and a step."""

    def __init__(self, run: _Run, node: Node, env: Environment) -> None:
        self.run, self.node, self.env = run, node, env
        self.rings, self.body, self.counter = run.rings_of(node), node.blocks[-1], _counter(node)
        #: How many steps, where that is known.
        self.length: int | None = node.eqn.params["length"] if node.name == "scan" else None
        carried = [(i, s) for i in range(len(node.results)) for s in run.carried(node, i)]
        if run.sum is not None:
            carried = [(i, s) for i, s in carried if i != run.sum[0].sum.at]
        if self.length is not None or (self.counter, None) not in carried:
            carried = [(i, s) for i, s in carried if i != self.counter]
        self.carried = carried
        starts = initial(node)
        values = [jnp.asarray(run.read(starts[i], s, env), node.results[i].aval.dtype) for i, s in carried]
        #: Where the step is carried, among what is; None: it is what a counted loop has, or it stands in front.
        self.at = None if self.length is not None else next((k for k, (i, _) in enumerate(carried) if i == self.counter), None)
        self.own = 1 if self.length is None and self.at is None else 0
        self.init = [*(jnp.int32(0) for _ in range(self.own)), *values]

    def enter(self, block: Block, values: Sequence[Any], more: dict[Any, Any]) -> Environment:
        turns = self.run.plan.turns
        if turns is not None and self.node is turns.loop:
            more = more | self.run._views(more[block.params[0], None], None)
        return self.env.new_child({**{(block.params[i], s): x for (i, s), x in zip(self.carried, values)}, **more})

    def step_of(self, state: Sequence[Any]) -> Any:
        return state[self.at or 0]

    def goes_on(self, state: Sequence[Any]) -> Any:
        cond = self.node.blocks[0]
        inner = self.enter(cond, state[self.own :], {})
        self.run.block(cond, inner)
        return self.run.read(cond.results[0], None, inner)

    def next(self, step: Any, state: Sequence[Any]) -> list[Any]:
        """A step."""
        after = [step + np.int32(1) for _ in range(self.own)]
        count = {} if self.length is None or self.counter is None else {(self.body.params[self.counter], None): step}
        inner = self.enter(self.body, state[self.own :], count)
        run, outer = self.run, self.run.step
        if self.rings:
            run.step = step
        if run.copies:
            run.block(self.body, inner)
        else:
            run.consume(self.body, self.rings, inner)
        run.step = outer
        return [*after, *(run.read(self.body.results[i], s, inner) for i, s in self.carried)]

    def leave(self, state: Sequence[Any]) -> None:
        if self.length is not None and self.counter is not None:
            self.env[self.node.results[self.counter], None] = jnp.int32(self.length)
        self.env.update(((self.node.results[i], s), x) for (i, s), x in zip(self.carried, state[self.own :]))


class _Copies:
    """Copies by one who computes alone."""

    def __init__(self, plan: WarpgroupPlan, role: _Run) -> None:
        self.plan, self.role = plan, role
        #: Whether copies of rings without a loop have begun, and may not be over.
        self.has_begun = False

    def once(self, ring: Ring, env: Environment) -> None:
        self.role.copy(ring, env)
        self.has_begun = True

    def settle(self) -> None:
        """Waits for what is copied once."""
        if self.has_begun:
            _primitives.await_copies(0)
            self.has_begun = False

    def of(self, run: _Run, node: Node, env: Environment) -> _Ahead:
        return _Ahead(self, run, _Loop(self.role, node, env))


class _Ahead:
    """Copies of a loop's tiles. At a step those of `depth` steps later begin, into the slots that were read at the step before: each thread waits for
    its copies of this step, and for the others to have left that one."""

    def __init__(self, copies: _Copies, run: _Run, loop: _Loop) -> None:
        self.copies, self.loop = copies, loop
        depth = min(r.stages for r in loop.rings) - 1
        self.depth = depth if loop.length is None else min(depth, loop.length)
        if self.depth == 0:
            copies.settle()
        state = loop.init
        for step in range(self.depth):
            state = self.begin(jnp.int32(step), state, None if loop.length is None else True)
        kept = [r for r, loops in copies.plan.kept.items() if loop.node in loops and r not in run.kept]
        if kept and copies.has_begun:
            _primitives.await_copies(self.depth * len(loop.rings))
        for ring in kept:
            run.kept[ring] = run.in_slot(ring, 0, load=True)
        if kept or loop.length is not None:  # else there may be no step, and no wait
            copies.has_begun = False
        self.init = state

    def begin(self, step: Any, state: Sequence[Any], when: Any = None) -> list[Any]:
        """The copies of a step, if it is there."""
        loop, role = self.loop, self.copies.role
        if when is None:
            when = loop.goes_on(state) if loop.length is None else step < loop.length
        role.when = when
        after = loop.next(step, state)
        role.when = True
        return after if loop.length is not None else [jnp.where(when, x, last) for x, last in zip(after, state)]  # nothing is behind the end

    def step(self, step: Any, state: Sequence[Any]) -> list[Any]:
        """What a step begins with."""
        if self.depth == 0:
            state = self.begin(step, state, True)
        _primitives.await_copies(max(0, self.depth - 1) * len(self.loop.rings))
        return list(state) if self.depth == 0 else self.begin(step + np.int32(self.depth), state)


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
