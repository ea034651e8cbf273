"""`pl.pallas_call`, re-expressed as a kernel around a pipeline.

"parallel" grid axes become the kernel's grid, "sequential" ones a loop. `blocks.py` decides which axes are which and how each
block gets in and out; here the loop is written: what the copy engine moves goes through `plgpu.emit_pipeline`, other blocks are
copied by loads and stores where they change, or are views of their arrays. The body was traced by JAX with refs of block shape; a
primitive of ours carries its jaxpr into the new kernel, where the walker (`_rules/rules.py`, "pallas_block") writes it with each
block's ref standing for a slot or a view.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from smalt import _config, _programs, _rules, _versions
from smalt._blocks import axis_order, blocks, finer_rows, flow
from smalt._blocks.blocks import Block, Way
from smalt._config import CompilerParams
from smalt._errors import InvalidKernel, Unsupported

#: Slots of a ring by default.
STAGES = 4
#: Elements that one load or store of a block moves: 32 a thread.
CHUNK = 4096


@dataclasses.dataclass(frozen=True)
class Written:
    """How one ref of the body is written: what the body's uses start with, and what stands there instead."""

    strip: int  # the body's own unswizzle and untile
    treedef: Any  # of the pipeline's transforms; None: a window
    window: tuple[int | None, ...] = ()  # its size in each dimension of the array; None: one index

    @property
    def operands(self) -> int:
        """How many there are behind the ref: leaves of transforms, or where a window begins."""
        return len(self.window) if self.treedef is None else int(self.treedef.num_leaves)


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """The static parameter of the primitive: the jaxpr, and how its operands are laid out."""

    jaxpr: Any
    grid_rank: int
    sizes: tuple[int, ...]  # the axes of traced size, whose sizes are operands behind the indices
    refs: tuple[Written, ...]
    name: str
    axes: tuple[Any, ...] = ()  # names of the grid's axes


def _abstract_eval(*avals: Any, body: Body) -> tuple[list[Any], set[Any]]:
    at = body.grid_rank + len(body.sizes)
    refs = []
    for ref in body.refs:
        refs.append(at)
        at += 1 + ref.operands
    refs += range(at, len(avals))  # scratch
    return [], _versions.ref_effects(refs) | _versions.plain_effects(body.jaxpr)


pallas_block_p = _versions.make_primitive("pallas_block", _abstract_eval)


# ------------------------------------------------------------------------------------------ windows


@dataclasses.dataclass(frozen=True)
class Part:
    """One dimension of a window: an index (size None) or positions from a start; both may be dynamic, and outside."""

    size: int | None


def _load_eval(ref: Any, *starts: Any, parts: tuple[Part, ...]) -> tuple[Any, set[Any]]:
    shape = tuple(p.size for p in parts if p.size is not None)
    return _versions.array_aval(shape, ref.dtype), _versions.ref_effects([0])


def _store_eval(ref: Any, value: Any, *starts: Any, parts: tuple[Part, ...]) -> tuple[list[Any], set[Any]]:
    return [], _versions.ref_effects([0])


window_load_p = _versions.make_primitive("window_load", _load_eval, one_result=True)
window_store_p = _versions.make_primitive("window_store", _store_eval)


# ------------------------------------------------------------------------------------------ the kernel


class Allocation:
    """A scratch ref with a type that is already known."""

    def __init__(self, aval: Any) -> None:
        self._aval = aval

    def get_ref_aval(self) -> Any:
        return self._aval


@dataclasses.dataclass(frozen=True)
class BlockReport:
    """What was decided for one operand of a call."""

    of: str
    block: tuple[int, ...]  # in the kernel: finer than the block spec where rows are split
    way: str
    runs: str


def is_wanted(compiler_params: Any, interpret: Any, enabled: bool) -> bool:
    """Whether smalt compiles a call: with a GPU's, a TPU's and our parameters, and with Triton's or none where those are wanted, on every
    platform alike."""
    if interpret or not enabled:
        return False
    if compiler_params is None:
        return _config.settings().pallas_call
    if _versions.is_triton_compiler_params(compiler_params):
        return _config.settings().triton
    return _versions.is_gpu_compiler_params(compiler_params) or _versions.is_tpu_compiler_params(compiler_params)


def kernel(
    arrays: Sequence[Any], params: dict[str, Any], budget: int = blocks.BUDGET, means: _programs.Means = _programs.Means()
) -> tuple[list[Any], tuple[BlockReport, ...]]:
    """A function of the call's operands, to be traced and lowered in its place; and what was decided for them.

    `budget`: bytes of shared memory for blocks; what is beyond are views of their arrays, where they can be. `means`: the machine's.
    """
    call = Call(params, budget, means)
    outputs = {call.indices + b.number: b.name for b in call.blocks if b.is_output and b.alias is None}
    flow.warn_of_outputs_never_stored(call.jaxpr, outputs, call.uses)
    axis_order.warn_of_doubts(call.jaxpr, call.axes)
    out_types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in params["out_avals"]]
    aliases = {call.sizes + i: o for i, o in params["input_output_aliases"]}
    for at in call.stored_indices:
        aliases[call.sizes + at] = len(out_types)
        out_types.append(jax.ShapeDtypeStruct(arrays[call.sizes + at].shape, arrays[call.sizes + at].dtype))
    for block in call.kept:  # XLA gives the call an array of its own, as each result that shares an operand's buffer
        aliases[call.sizes + call.indices + block.number] = len(out_types)
        out_types.append(jax.ShapeDtypeStruct(block.mapping.array_aval.shape, block.dtype))
    name = params.get("name") or params["jaxpr"].debug_info.func_name
    results = _versions.run_kernel(
        _versions.named(call.body, call.argument_names()),
        list(arrays),
        out_types=out_types,
        mesh=plgpu.Mesh(grid=call.blocks_grid, grid_names=call.names, kernel_name=name, **call.threads()),
        compiler_params=call.compiler_params.replace(dimension_semantics=None),
        aliases=aliases,
        name=name,
    )
    return results[: len(params["out_avals"])], call.report()


class Call:
    """What is decided before anything is traced."""

    def __init__(self, params: dict[str, Any], budget: int = blocks.BUDGET, means: _programs.Means = _programs.Means()) -> None:
        self.means = means
        mapping = self.mapping = params["grid_mapping"]
        _check(params)
        self.jaxpr = params["jaxpr"]
        self.grid = tuple(mapping.grid)
        self.sizes = sum(not isinstance(n, int) for n in self.grid)  # operands that are sizes of grid axes
        self.indices = mapping.num_index_operands  # operands for index maps
        self.is_triton = _versions.is_triton_compiler_params(params["compiler_params"])
        given_params = params["compiler_params"]
        self.compiler_params = _parameters(given_params, self.is_triton)
        is_output = [i >= mapping.num_inputs for i in range(len(mapping.block_mappings))]
        self.blocks = [
            blocks.block_of(i, m, out, self.grid, mapping.vmapped_dims) for i, (m, out) in enumerate(zip(mapping.block_mappings, is_output))
        ]
        given, wanted = len(self.jaxpr.invars), self.indices + len(self.blocks) + len(mapping.scratch_avals)
        if given != wanted:  # JAX's rule for derivatives counts tangents that are 0
            raise Unsupported(
                "not supported yet: the derivative of a pallas_call with respect to some of its inputs, or of one with scratch"
                f"\n  expected: {wanted} references of the body\n  got: {given}"
                "\n  remedy: a tangent for each input (jax.jvp with zeros), or jax.custom_jvp around the call"
            )
        blocks.check_inside(self.blocks, self.grid)
        self.own = [a for a in range(len(self.grid)) if a not in mapping.vmapped_dims]  # axes that the body has
        uses = self.uses = flow.uses(self.jaxpr, [self.grid[a] if isinstance(self.grid[a], int) else None for a in self.own])
        self._analyse_body(uses, params["input_output_aliases"])
        hints = _versions.is_tpu_compiler_params(given_params)
        self.axes = axis_order.decide(self.blocks, mapping, self.jaxpr, uses, self.compiler_params.dimension_semantics, hints)
        self.parallel = self.axes.parallel
        #: Prefetched operands that the body stores to: steps find them as others left them.
        self.stored_indices = [at for at in range(self.indices) if at in uses and uses[at].is_written]
        self.kept = [b for b in self.blocks if b.number in self.axes.kept]
        for block in self.kept:
            block.is_kept = True
            blocks.check_narrow(block)
        self.loops = [a for a, p in enumerate(self.parallel) if not p]
        self.blocks_grid = tuple(self.grid[a] for a, p in enumerate(self.parallel) if p)
        self.parts, self.rows = blocks.split_rows(self.jaxpr, self.blocks, self.indices)
        if self.parts != 1:
            self.blocks_grid += (self.parts,)
        self.names = tuple(f"d{i}" for i in range(len(self.blocks_grid)))
        self.is_static = not self.sizes
        self.steps = 1
        if self.is_static:
            turns = math.prod(self.grid[a] for a in self.loops)
            self.steps = max(1, min(self.compiler_params.max_concurrent_steps, turns))
        for block in self.blocks:
            block.settled, returns = axis_order.visits(block, self.axes.touched.get(block.number), self.grid, self.loops)
            if block.goes_back:
                block.resident = any(self.grid[a] != 1 for a in self.loops[block.settled :])
                block.reload = returns or block.is_kept or block.alias is not None and not block.overwrites
        self._keep_order()
        self.plan = self._plan(given_params, budget)
        if self.plan is not None:
            for block in self.blocks:
                block.way = Way.VIEW
        else:
            blocks.choose_ways(self.blocks, self.steps, self.is_static, windows=self.parts == 1, budget=budget)
            if self.is_triton and all(self.grid[a] == 1 for a in self.loops):
                loads = _versions.count_loads(self.jaxpr)
                blocks.spread(self.blocks, lambda b: loads[self.indices + b.number] == 1)

    def _plan(self, params: Any, budget: int) -> _programs.WarpgroupPlan | None:
        """Several warpgroups, for a program whose blocks can all be pointers: one of Triton's, or one whose last axis walks along what it sums."""
        turns = [a for a in self.loops if self.grid[a] != 1]
        if not self.is_static or self.parts != 1 or self.indices or 0 in self.grid:
            return None
        if any(not blocks.may_be_view(b, self.blocks) or b.is_kept or b.in_order for b in self.blocks):
            return None
        read_only = [b.number for b in self.blocks if not b.is_output and b.alias is None and not b.is_written and not b.begins_anywhere]
        if self.is_triton and not turns and not self.mapping.scratch_avals:
            try:
                program = _programs.read_program(self.jaxpr)
            except _programs.Unreadable:
                return None
            return _programs.plan_warpgroups(program, {program.params[i] for i in read_only}, params.num_stages or _rules.TRITON_STAGES, budget, True, self.means)
        if len(turns) != 1 or turns[0] != max(self.own) or any(b.alias is not None for b in self.blocks):
            return None
        if not all(_versions.is_plain_scratch(a) for a in self.mapping.scratch_avals):
            return None
        first = len(self.blocks)
        roles = _programs.TurnRoles(
            outputs=frozenset(b.number for b in self.blocks if b.is_output),
            scratch=frozenset(range(first, first + len(self.mapping.scratch_avals))),
            moving=frozenset(b.number for b in self.blocks if turns[0] in b.axes),
            read_only=frozenset(read_only),
        )
        found = _programs.read_turns(self.jaxpr, self.own.index(turns[0]), self.grid[turns[0]], roles)
        if found is None:
            return None
        stages = params.num_stages if self.is_triton else self.steps if self.steps > 1 else None  # 1 is the default
        any_order = self.compiler_params.approx_math or getattr(self.compiler_params, "accumulate_products", False)
        return _programs.plan_warpgroups(found.program, found.free, stages or STAGES, budget, any_order, self.means, found)

    def threads(self) -> dict[str, Any]:
        """Of the kernel's mesh, how many warpgroups there are."""
        return {} if self.plan is None or self.plan.threads == 1 else {"num_threads": self.plan.threads, "thread_name": _programs.WARPGROUP_AXIS}

    def _analyse_body(self, uses: Mapping[int, flow.Use], aliases: Sequence[tuple[int, int]]) -> None:
        stored = _versions.written_refs(self.jaxpr)
        for block in self.blocks:
            at = self.indices + block.number
            block.is_read, block.is_written = uses[at].read, at in stored or uses[at].is_written
            block.overwrites = _versions.begins_with_store(self.jaxpr, at)
            block.is_stored_once = _versions.is_stored_once(self.jaxpr, at)
            block.is_sliced = uses[at].is_sliced and flow.Kind.UNKNOWN not in uses[at].kinds
            if flow.Kind.UNORDERED in uses[at].kinds:
                block.in_gmem = True
                blocks.check_atomic(block)
        for operand, result in aliases:
            a, b = self.blocks[operand - self.indices], self.blocks[self.mapping.num_inputs + result]
            a.alias, b.alias = b.number, a.number
            if any(flow.Kind.UNORDERED in uses[self.indices + x.number].kinds for x in (a, b)):
                a.in_gmem = b.in_gmem = True  # one buffer, whichever name it has
        if self.is_triton:
            self._leave_pointers_alone(uses)
        for operand, result in aliases:
            a, b = self.blocks[operand - self.indices], self.blocks[self.mapping.num_inputs + result]
            if not uses[operand].is_written or a.is_left_alone:
                continue
            # With Triton's parameters or atomics the buffer is one; JAX's interpreter has a block of its own for each name.
            is_one = self.is_triton or uses[operand].kinds == {flow.Kind.UNORDERED}
            if not is_one or not blocks.same_blocks(a, b) or any(x.outside or x.transforms for x in (a, b)):
                raise Unsupported(
                    f"not supported yet: pallas_call: a store to {a.name}, an input that shares the buffer of {b.name}"
                    f"\n  remedy: store to the reference of {b.name}, or take the whole array (memory_space=plgpu.GMEM)"
                )
            a.in_gmem = b.in_gmem = True

    def _leave_pointers_alone(self, uses: Mapping[int, flow.Use]) -> None:
        """A program of Triton's has an array without a block as a pointer, and an output's block that other programs have, too. If it takes
        parts of it only, they are its own."""
        axes = {a for a, n in enumerate(self.grid) if n != 1} - set(self.mapping.vmapped_dims)
        if not axes:
            return
        for block in self.blocks:
            pair = [block] if block.alias is None else [block, self.blocks[block.alias]]
            is_shared = any(b.is_output and axes - b.axes for b in pair) and not any(b.outside or b.transforms for b in pair)
            is_in_part = all(not uses[self.indices + b.number].kinds & {flow.Kind.WHOLE, flow.Kind.UNKNOWN} for b in pair)
            if is_in_part and (is_shared or all(b.is_whole for b in pair)):
                block.leave_alone()

    def _keep_order(self) -> None:
        """Where an input and an output share a buffer, a step reads what earlier ones wrote: if blocks are not the same ones, or if they
        are visited again, they are moved in each step, by loads and stores, which are done when the step is."""
        turns = [a for a in self.loops if self.grid[a] != 1]
        for block in self.blocks:
            if not block.is_output or block.alias is None or not self.blocks[block.alias].is_read:
                continue
            alias = self.blocks[block.alias]
            again = block.resident or block.reload and not block.overwrites and bool(turns) or not set(turns) <= block.alone
            if again or not blocks.same_blocks(block, alias):
                block.in_order = alias.in_order = True
                block.settled, block.resident = len(self.loops), False
                block.reload = not block.overwrites

    def report(self) -> tuple[BlockReport, ...]:
        """What was decided, for people."""
        axes = ", ".join(f"{n}{'' if p else ' in turn'}" for n, p in zip(self.grid, self.parallel)) or "one step"
        runs = axes if self.parts == 1 else f"{axes}; rows in {self.parts} parts"
        if self.plan is not None:
            runs += f"; {self.plan.describe()}"
        why = {self.own.index(a): reason.what for a, reason in self.axes.reasons.items() if a in self.own}
        runs += "".join(f"; axis {a} in turn: {what}" for a, what in sorted(why.items()))
        return tuple(BlockReport(b.name, b.shape, b.describe_way(self.steps), runs) for b in self.blocks)

    # -------------------------------------------------------------------------------- tracing

    def _name(self, at: int) -> str:
        return _versions.argument_name(self.jaxpr, at, "")

    def argument_names(self) -> list[str]:
        """What the user calls the call's operands and results."""
        own = [self._name(at) for at in range(self.indices + len(self.blocks))]
        return [""] * self.sizes + own + [""] * (len(self.stored_indices) + len(self.kept))

    def body(self, *refs: Any) -> None:
        """The kernel's body: the call's operands and results in device memory."""
        if 0 in self.grid:
            return
        slots = [b for b in self.blocks if b.way is Way.COPY or b.way is Way.TMA and b.resident]
        scratch = [] if self.plan is not None else [Allocation(a) for a in self.mapping.scratch_avals]
        first = self.indices + len(self.blocks)
        names = [self._name(self.indices + b.number) for b in slots] + [self._name(first + i) for i in range(len(scratch))]
        pl.run_scoped(
            _versions.named(functools.partial(self._scoped, refs, slots), names),
            *[plgpu.SMEM(b.shape or (1,), b.dtype, transforms=b.transforms) for b in slots],
            *scratch,
        )

    def _scoped(self, refs: Sequence[Any], slots: Sequence[Block], *scratch: Any) -> None:
        sizes, prefetched, arrays = refs[: self.sizes], refs[self.sizes :][: self.indices], list(refs[self.sizes + self.indices :])
        for block in self.blocks:
            if block.is_output and block.alias is not None:
                arrays[block.number] = arrays[block.alias]
        slot_of = {b.number: ref if b.shape else ref.at[0] for b, ref in zip(slots, scratch)}
        given = iter(sizes)
        extents = [n if isinstance(n, int) else next(given)[...] for n in self.grid]
        step = _Step(self, extents, prefetched, arrays, slot_of, scratch[len(slots) :])
        step.around(first=True)
        self._loop(step, extents, prefetched, arrays)
        step.around(first=False)

    def _loop(self, step: _Step, extents: Sequence[Any], prefetched: Sequence[Any], arrays: Sequence[Any]) -> None:
        if self.plan is not None:
            step.planned(self.plan)
            return
        streams = [b for b in self.blocks if b.way is Way.TMA and not b.resident]
        if not streams:
            _nest([extents[a] for a in self.loops], lambda *loop: step.run(loop, {}))
            return
        specs = {b.number: self._spec(b, prefetched, arrays[b.number]) for b in streams}
        ins = [b.number for b in streams if not b.is_output]
        outs = [b.number for b in streams if b.is_output]
        _versions.emit_pipeline(
            lambda loop, *slots: step.run(loop, dict(zip([*ins, *outs], slots))),
            grid=tuple(self.grid[a] for a in self.loops),
            in_specs=[specs[i] for i in ins],
            out_specs=[specs[i] for i in outs],
            max_concurrent_steps=self.compiler_params.max_concurrent_steps,
        )(*[arrays[i] for i in [*ins, *outs]])

    def merge(self, loop: Sequence[Any]) -> list[Any]:
        """Grid indices in the call's order, from the loop's and the kernel's."""
        inner, outer = iter(loop), iter([lax.axis_index(n) for n in self.names[: sum(self.parallel)]])
        return [jnp.asarray(next(outer) if p else next(inner), jnp.int32) for p in self.parallel]

    def _spec(self, block: Block, prefetched: Sequence[Any], array: Any) -> Any:
        # Where indices are known at run time only, the emulator looks whether they are in range: as it copies, where no block reaches
        # outside, and else here.
        is_checked = any(d.is_checked for d in block.dims)
        promise = _versions.promise_in_bounds() if is_checked and not block.outside and not block.is_output else {}

        def index_map(*loop: Any) -> tuple[Any, ...]:
            found = _versions.eval_jaxpr(block.mapping.index_map_jaxpr, [*self.merge(loop), *prefetched])
            if is_checked and not promise:
                found = _in_range(array, block, found)
            found = [_traced(i) if d.outside else i for d, i in zip(block.dims, found)]
            return tuple(i if d.parts == 1 else i * d.parts + self.part() for d, i in zip(block.dims, found))

        shape = tuple(None if d.squeezed else d.size for d in block.dims)
        return plgpu.BlockSpec(shape, index_map, transforms=block.transforms, **promise)

    def part(self) -> Any:
        """Which part of the rows this is."""
        return lax.axis_index(self.names[-1]) if self.parts != 1 else jnp.int32(0)


@dataclasses.dataclass(frozen=True)
class _Window:
    """A block that may reach outside of its array, as the body gets it."""

    array: Any
    starts: Sequence[Any]
    sizes: tuple[int | None, ...]


@dataclasses.dataclass
class _Step:
    """One step of the grid, in the kernel."""

    call: Call
    extents: Sequence[Any]
    prefetched: Sequence[Any]
    arrays: Sequence[Any]
    slots: dict[int, Any]  # the call's own slots, by operand
    scratch: Sequence[Any]

    def planned(self, plan: _programs.WarpgroupPlan) -> None:
        """All steps of the axis that is a loop."""
        call = self.call
        zero = jnp.int32(0)

        def indices(turn: Any) -> list[Any]:
            return call.merge([zero if call.grid[a] == 1 else turn for a in call.loops])

        def refs(turn: Any) -> list[Any]:
            at = indices(zero if turn is None else turn)
            inside = [_inside(b, self._starts(b, at)) for b in call.blocks]
            return [a if all(isinstance(i, slice) for i in here) else a.at[here] for a, here in zip(self.arrays, inside)]

        own = [indices(zero)[a] for a in call.own]
        extents = [self.extents[a] for a in call.own]
        _programs.run_by_warpgroups(plan, refs, lambda name, axis: own[axis] if name == "program_id" else jnp.int32(extents[axis]))

    def run(self, loop: Sequence[Any], streams: dict[int, Any]) -> None:
        """`streams`: the pipeline's slots, by operand."""
        call = self.call
        indices = call.merge(loop)
        starts = {b.number: self._starts(b, indices) for b in call.blocks if b.number not in streams}
        refs = []
        for block in call.blocks:
            at = block.number
            if at in streams:
                refs.append(streams[at])
            elif block.way is Way.VIEW:
                inside = _inside(block, starts[at])
                is_part = not all(isinstance(i, slice) for i in inside)
                refs.append(self.arrays[at].at[inside] if is_part else self.arrays[at])
            elif block.way is Way.WINDOW:
                refs.append(_Window(self.arrays[at], starts[at], tuple(None if d.squeezed else d.size for d in block.dims)))
            else:
                refs.append(self.slots[at])
                if _is_filled(block) and block.settled:
                    self._when(block, loop, True, functools.partial(self._copy_in, block, starts[at]))
        own = [indices[a] for a in call.own]
        extents = [self.extents[a] for a in call.own]
        if call.parts == 1:
            _bind(call, own, extents, [*self.prefetched, *refs], self.scratch)
        else:
            n = next(d for b in call.blocks for d in b.dims if d.parts != 1)
            parts = [*self.prefetched, *refs, *self.scratch]
            finer_rows.run(call.jaxpr, parts, call.rows, n.size * n.parts, n.size, lambda: call.part() * n.size, own, extents)
        for block in call.blocks:
            if block.goes_back and block.number in self.slots and block.settled:
                self._when(block, loop, False, functools.partial(self._copy_out, block, starts[block.number]))

    def around(self, first: bool) -> None:
        """What is done once, before and after all steps: for blocks that are the same ones in all of them."""
        indices = self.call.merge([jnp.int32(0)] * len(self.call.loops))
        for block in self.call.blocks:
            if block.number not in self.slots or block.settled:
                continue
            if first and _is_filled(block):
                self._copy_in(block, self._starts(block, indices))
            if not first and block.goes_back:
                self._copy_out(block, self._starts(block, indices))

    def _starts(self, block: Block, indices: Sequence[Any]) -> list[Any]:
        """Where a block begins, then how long its bounded dimensions are."""
        found = block.results(_versions.eval_jaxpr(block.mapping.index_map_jaxpr, [*indices, *self.prefetched]))
        found = [_traced(i) if d.outside else jnp.asarray(i, jnp.int32) for d, i in zip(block.dims, found)] + found[len(block.dims) :]
        starts = [dim.start(i, self.call.part()) for dim, i in zip(block.dims, found)]
        return [*starts, *(jnp.asarray(n, jnp.int32) for n in found[len(starts) :])]

    def _when(self, block: Block, loop: Sequence[Any], first: bool, do: Callable[[], None]) -> None:
        """Does it at the first (last) step of a block's visit: where the axes behind those that choose it are at their ends."""
        now = None
        for axis, i in list(zip(self.call.loops, loop))[block.settled :]:
            extent = self.extents[axis]
            if isinstance(extent, int) and extent == 1:
                continue
            here = i == (0 if first else extent - 1)
            now = here if now is None else jnp.logical_and(now, here)
        if now is None:
            do()
        else:
            pl.when(now)(do)

    def _copy_in(self, block: Block, starts: Sequence[Any]) -> None:
        _copy_in(self.arrays[block.number], self.slots[block.number], block, starts)

    def _copy_out(self, block: Block, starts: Sequence[Any]) -> None:
        array, slot = self.arrays[block.number], self.slots[block.number]
        if block.way is Way.COPY:
            _copy_out(array, slot, block, starts)
            return
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(slot, array.at[_inside(block, starts)])
        plgpu.wait_smem_to_gmem(0)


def _traced(index: Any) -> Any:
    """A number that is opaque to JAX: blocks may reach outside of their arrays, slices of known numbers may not."""
    return lax.add(jnp.asarray(index, jnp.int32), jnp.int32(0))


def _is_filled(block: Block) -> bool:
    """Whether a slot of our own begins with what the array has."""
    return block.way is Way.COPY and (not block.goes_back or block.reload)


def _bind(call: Call, indices: list[Any], extents: Sequence[Any], refs: Sequence[Any], scratch: Sequence[Any]) -> None:
    sizes = tuple(a for a, n in enumerate(extents) if not isinstance(n, int))
    operands: list[Any] = [*indices, *(extents[a] for a in sizes)]
    written = []
    strips = [0] * call.indices + [len(b.transforms) for b in call.blocks]
    for ref, strip in zip(refs, strips):
        if isinstance(ref, _Window):
            operands += [ref.array, *ref.starts]
            written.append(Written(0, None, ref.sizes))
            continue
        base, transforms = _versions.ref_and_transforms(ref)
        leaves, treedef = jax.tree.flatten(transforms)
        operands += [base, *leaves]
        written.append(Written(strip, treedef))
    for ref in scratch:
        operands.append(_versions.ref_and_transforms(ref)[0])
    name = "pallas_call: " + ", ".join(b.describe() for b in call.blocks)
    axes = _versions.grid_names(call.mapping)
    pallas_block_p.bind(*operands, body=Body(call.jaxpr, len(indices), sizes, tuple(written), name, axes))


def _parameters(given: Any, is_triton: bool) -> Any:
    """Mosaic GPU's parameters for what was given. Only where the author writes for Mosaic GPU, sums are in the order that is written."""
    made = _rules.triton_parameters(given) if is_triton else _versions.compiler_params_for_gpu(given)
    if _versions.is_gpu_compiler_params(given):
        return made
    return CompilerParams(
        dimension_semantics=made.dimension_semantics, max_concurrent_steps=made.max_concurrent_steps, accumulate_products=True
    )


def _check(params: dict[str, Any]) -> None:
    if params.get("mesh") is not None:
        raise Unsupported("not supported yet: pallas_call over a mesh\n  remedy: use plgpu.kernel")
    steps = getattr(params["compiler_params"], "max_concurrent_steps", 1)
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1:
        raise InvalidKernel(
            f"max_concurrent_steps of a pallas_call\n  expected: 1 and more: so many steps of a sequential axis have their blocks in shared memory"
            f"\n  got: {steps!r}\n  remedy: 1, or leave it out"
        )


# ------------------------------------------------------------------------------------------ blocks by loads and stores


def _inside(block: Block, starts: Sequence[Any]) -> tuple[Any, ...]:
    """The indices of a block that is all within its array."""
    return tuple(_index(d, s, d.size) for d, s in zip(block.dims, starts))


def _index(dim: blocks.Dim, start: Any, size: int) -> Any:
    if dim.squeezed:
        return start
    return slice(None) if size == dim.extent and not dim.outside else pl.ds(start, size)


def _copy_in(array: Any, slot: Any, block: Block, starts: Sequence[Any]) -> None:
    def move(at: Sequence[Any], sizes: Sequence[int | None], here: tuple[Any, ...]) -> None:
        slot[here] = _load(array, block, starts, at, sizes)

    _in_chunks(block, starts, move)


def _copy_out(array: Any, slot: Any, block: Block, starts: Sequence[Any]) -> None:
    def move(at: Sequence[Any], sizes: Sequence[int | None], here: tuple[Any, ...]) -> None:
        _store(array, block, starts, at, sizes, slot[here])

    _in_chunks(block, starts, move, bounded=True)


def _in_chunks(
    block: Block,
    starts: Sequence[Any],
    move: Callable[[Sequence[Any], Sequence[int | None], tuple[Any, ...]], None],
    bounded: bool = False,
) -> None:
    """Calls `move` with parts of a block: starts in the array, sizes (None: one index), and the index in the slot.

    `bounded`: bounded dimensions go position by position, as far as they are the block's.
    """
    if 0 in block.shape:
        return
    dims = block.dims
    starts, given = starts[: len(dims)], iter(starts[len(dims) :])
    lengths = [jnp.minimum(next(given), d.size) if bounded and d.length is not None else None for d in dims]
    inner = [math.prod([d.size for d in dims[k:]]) for k in range(len(dims) + 1)]

    def go(k: int, at: list[Any], sizes: list[int | None], here: list[Any]) -> None:
        is_bounded = any(n is not None for n in lengths[k:])
        if (inner[k] <= CHUNK and not is_bounded) or k == len(dims):
            rest = dims[k:]
            kept = [slice(None)] * sum(not d.squeezed for d in rest)
            move([*at, *starts[k:]], [*sizes, *[None if d.squeezed else d.size for d in rest]], (*here, *kept))
            return
        dim = dims[k]
        if dim.squeezed:
            go(k + 1, [*at, starts[k]], [*sizes, None], here)
        elif lengths[k] is not None:
            _nest([lengths[k]], lambda i: go(k + 1, [*at, starts[k] + i], [*sizes, None], [*here, i]))
        elif inner[k + 1] <= CHUNK and not is_bounded:
            n = CHUNK // inner[k + 1]
            rest = dims[k + 1 :]
            kept = [slice(None)] * sum(not d.squeezed for d in rest)
            tail = [None if d.squeezed else d.size for d in rest]

            def some(i: Any) -> None:
                first = jnp.minimum(i * n, dim.size - n)
                move([*at, starts[k] + first, *starts[k + 1 :]], [*sizes, n, *tail], (*here, pl.ds(first, n), *kept))

            _nest([-(-dim.size // n)], some)
        elif dim.outside:
            # A window of one: it may be behind the end, which an index may not.
            _nest([dim.size], lambda i: go(k + 1, [*at, starts[k] + i], [*sizes, 1], [*here, pl.ds(i, 1)]))
        else:
            _nest([dim.size], lambda i: go(k + 1, [*at, starts[k] + i], [*sizes, None], [*here, i]))

    go(0, [], [], [])


def _checked_value(array: Any, block: Block, origin: Sequence[Any], value: Any) -> Any:
    """A value of a block that reaches outside of its array. Where it has nothing of it, since an index that is known at run time only is out of
    range, the block's first element is loaded: an index outside of its dimension, which the emulator reports."""
    if not any(d.is_checked for d in block.dims):
        return value
    nothing = jnp.bool_(False)
    for dim, start in zip(block.dims, origin):
        if dim.is_checked:
            nothing |= (start < 0) | (start >= dim.extent)
    first = [s if d.is_checked else jnp.clip(s, 0, d.extent - 1) for d, s in zip(block.dims, origin)]
    return lax.cond(nothing, lambda: jnp.broadcast_to(array[tuple(first)], value.shape), lambda: value)


def _in_range(array: Any, block: Block, found: Sequence[Any]) -> list[Any]:
    """Numbers of a block that the copy engine moves. Where there is no such block, an element of it is loaded, which the emulator reports,
    and the numbers are those of the nearest one."""
    counts = [-(-d.extent // (d.size * d.parts)) for d in block.dims]
    found = [jnp.asarray(i, jnp.int32) for i in found]
    nearest = [jnp.clip(i, 0, n - 1) for i, n in zip(found, counts)]
    nothing = functools.reduce(jnp.logical_or, [i != near for d, i, near in zip(block.dims, found, nearest) if d.is_checked])

    def outside() -> list[Any]:
        element = array[tuple((i if d.is_checked else near) * d.size * d.parts for d, i, near in zip(block.dims, found, nearest))]
        some = (element != jnp.zeros_like(element)).astype(jnp.int32)  # whatever it is
        return [jnp.clip(some, near, near) if d.is_checked else i for d, i, near in zip(block.dims, found, nearest)]

    return list(lax.cond(nothing, outside, lambda: list(found)))


def _load(array: Any, block: Block, origin: Sequence[Any], starts: Sequence[Any], sizes: Sequence[int | None]) -> Any:
    index = tuple(s if n is None else pl.ds(s, n) for s, n in zip(starts, sizes))
    if not block.outside:
        return array[index]

    def window() -> Any:
        parts = tuple(Part(n) for n in sizes)
        loaded = window_load_p.bind(_versions.ref_and_transforms(array)[0], *starts, parts=parts)
        return _checked_value(array, block, origin, loaded)

    if _never_inside(block, sizes):
        return window()
    return lax.cond(_all_inside(block, starts, sizes), lambda: array[index], window)


def _store(array: Any, block: Block, origin: Sequence[Any], starts: Sequence[Any], sizes: Sequence[int | None], value: Any) -> None:
    index = tuple(s if n is None else pl.ds(s, n) for s, n in zip(starts, sizes))

    def whole() -> None:
        array[index] = value

    def window() -> None:
        parts = tuple(Part(n) for n in sizes)
        window_store_p.bind(
            _versions.ref_and_transforms(array)[0], _checked_value(array, block, origin, value), *starts, parts=parts
        )

    if not block.outside:
        whole()
    elif _never_inside(block, sizes):
        window()
    else:
        lax.cond(_all_inside(block, starts, sizes), whole, window)


def _never_inside(block: Block, sizes: Sequence[int | None]) -> bool:
    return any((size or 1) > dim.extent for dim, size in zip(block.dims, sizes))


def _all_inside(block: Block, starts: Sequence[Any], sizes: Sequence[int | None]) -> Any:
    """Whether a part of a block is within its array."""
    inside = jnp.bool_(True)
    for dim, start, size in zip(block.dims, starts, sizes):
        if dim.outside:
            inside &= (start >= 0) & (start + (size or 1) <= dim.extent)
    return inside


def _nest(extents: Sequence[Any], do: Callable[..., None]) -> None:
    """Loops within loops; none of one turn."""

    def go(k: int, indices: tuple[Any, ...]) -> None:
        if k == len(extents):
            do(*indices)
        elif isinstance(extents[k], int) and extents[k] == 1:
            go(k + 1, (*indices, jnp.int32(0)))
        else:

            def turn(i: Any, carry: None) -> None:
                go(k + 1, (*indices, jnp.asarray(i, jnp.int32)))

            lax.fori_loop(jnp.int32(0), jnp.asarray(extents[k], jnp.int32), turn, None)

    go(0, ())
