"""A program as a kernel, and the same body for JAX's interpreter of `pl.pallas_call`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from tests.programs.arrays.program import Block, Form, Program, Ref, Step
from tests.programs.arrays.steps import STEPS, at_index

Array = Any
NAMES = ("x", "y", "z")


class Body:
    """Runs steps on references. `ids` are the indices of the grid, then of the warpgroup, then of the warp."""

    def __init__(self, program: Program, refs: dict[str, Any], ids: Sequence[Any]) -> None:
        self.program = program
        self.refs = refs
        self.ids = ids
        self.inputs = {r.name: r for r in program.inputs}
        self.shapes = {r.name: r for r in (*program.inputs, *program.scratch, *program.outputs)}

    def run(self) -> None:
        self.steps(self.program.steps, {})

    def steps(self, steps: Sequence[Step], values: dict[int, Array]) -> None:
        for s in steps:
            args = [values[a] for a in s.args]
            run = getattr(self, f"do_{s.kind}", None)
            outs = STEPS[s.kind](*args, **s.named) if run is None else run(s, args, values)
            outs = outs if isinstance(outs, (tuple, list)) else (outs,)
            values.update(zip((o.id for o in s.outs), outs))

    def block(self, b: Block, given: Sequence[Array], values: dict[int, Array]) -> tuple[Array, ...]:
        own = {**values, **dict(zip((p.id for p in b.params), given, strict=True))}
        self.steps(b.steps, own)
        return tuple(own[r] for r in b.results)

    # ------------------------------------------------------------------------------------------ memory

    def do_pid(self, s: Step, args: list[Array], values: dict[int, Array]) -> Array:
        return jnp.asarray(self.ids[s.named["axis"]], jnp.int32)

    def at(self, s: Step, args: list[Array]) -> Any:
        at = s.named["at"]
        if all(a[0] == "all" for a in at):
            return ...
        rest = iter(args)
        parts: list[Any] = []
        for a in at:
            if a[0] in ("dyn", "array"):
                parts.append(next(rest))
            elif a[0] == "ds":
                parts.append(pl.ds(next(rest), a[1]))
            else:
                parts.extend(at_index([a]))
        return tuple(parts)

    def do_load(self, s: Step, args: list[Array], values: dict[int, Array]) -> Array:
        name = s.named["ref"]
        x = self.refs[name][self.at(s, args)]
        ref = self.inputs.get(name)
        if ref is None or not any(ref.short):
            return x
        # What is beyond the array's end could be anything.
        for (d, axis), short in zip(ref.places, ref.short):
            if short:
                extent = ref.shape[d] * self.program.form.grid[axis] - short
                place = lax.broadcasted_iota(jnp.int32, x.shape, d) + self.ids[axis] * ref.shape[d]
                x = jnp.where(place < extent, x, jnp.zeros((), x.dtype))
        return x

    def do_store(self, s: Step, args: list[Array], values: dict[int, Array]) -> Any:
        self.refs[s.named["ref"]][self.at(s, args[1:])] = args[0]
        return ()

    def do_accumulate(self, s: Step, args: list[Array], values: dict[int, Array]) -> Any:
        ref, (x,) = self.refs[s.named["ref"]], args
        first = jnp.bool_(True)
        for axis in s.named["axes"]:
            first = first & (self.ids[axis] == 0)

        @pl.when(first)
        def _() -> None:
            ref[...] = jnp.zeros(x.shape, x.dtype)

        ref[...] = ref[...] + x if s.named["op"] == "add" else jnp.maximum(ref[...], x)
        return ()

    # ------------------------------------------------------------------------------------------ control flow

    def do_fori(self, s: Step, args: list[Array], values: dict[int, Array]) -> Any:
        n: Any = s.named["n"]
        if s.named["dynamic"]:
            n, *args = args
        more = {"unroll": True} if s.named["unroll"] else {}
        # JAX takes no counter of an unrolled loop as an index of a reference.
        return lax.fori_loop(0, n, lambda i, c: self.block(s.blocks[0], [jnp.asarray(i, jnp.int32), *c], values), tuple(args), **more)

    def do_while(self, s: Step, args: list[Array], values: dict[int, Array]) -> Any:
        limit, *carried = args

        def test(c: tuple[Array, ...]) -> Array:
            return (c[0] < limit) & self.block(s.blocks[0], c, values)[0]

        def body(c: tuple[Array, ...]) -> tuple[Array, ...]:
            return (c[0] + 1, *self.block(s.blocks[1], c, values))

        return lax.while_loop(test, body, (jnp.int32(0), *carried))[1:]

    def do_scan(self, s: Step, args: list[Array], values: dict[int, Array]) -> Any:
        k = s.named["carried"]

        def body(c: tuple[Array, ...], xs: tuple[Array, ...]) -> Any:
            out = self.block(s.blocks[0], [*c, *xs], values)
            return out[:k], out[k:]

        last, ys = lax.scan(body, tuple(args[:k]), tuple(args[k:]), length=s.named["n"], reverse=s.named["reverse"])
        return (*last, *ys)

    def do_cond(self, s: Step, args: list[Array], values: dict[int, Array]) -> Any:
        return lax.cond(args[0], *(lambda b=b: self.block(b, [], values) for b in reversed(s.blocks)))

    def do_switch(self, s: Step, args: list[Array], values: dict[int, Array]) -> Any:
        return lax.switch(args[0], [lambda b=b: self.block(b, [], values) for b in s.blocks])


# ------------------------------------------------------------------------------------------ kernels


def input_shapes(p: Program) -> list[tuple[int, ...]]:
    return [_whole(p.form, r) for r in p.inputs]


def _whole(form: Form, r: Ref) -> tuple[int, ...]:
    return r.array(form.grid) if form.kind == "call" else (*form.lead, *r.shape)


def function(p: Program, reference: bool = False) -> Callable[..., Any]:
    """The kernel as a function of its inputs; or the same body in JAX's interpreter."""
    outs = [jax.ShapeDtypeStruct(_whole(p.form, r), r.dtype) for r in p.outputs]
    if p.form.kind == "call":
        return _call(p, outs, reference)
    return _interpreted(p, outs) if reference else _kernel(p, outs)


def _call(p: Program, outs: list[Any], reference: bool) -> Callable[..., Any]:
    grid = p.form.grid

    def spec(r: Ref) -> Any:
        block = tuple(None if d < 0 else r.shape[d] for d, _ in r.places)

        def index_map(*ids: Any) -> Any:
            return tuple(0 if a < 0 else ids[a] for _, a in r.places)

        if r.space == "gmem":
            return plgpu.BlockSpec(block, index_map, memory_space=plgpu.GMEM)
        return pl.BlockSpec(block, index_map)

    def body(*refs: Any) -> None:
        ids = [pl.program_id(a) for a in range(len(grid))]
        Body(p, _named(p, refs), ids).run()

    params = plgpu.CompilerParams(dimension_semantics=p.form.semantics, max_concurrent_steps=p.form.slots)
    return pl.pallas_call(
        body,
        out_shape=outs,
        grid=grid,
        in_specs=[spec(r) for r in p.inputs],
        out_specs=[spec(r) for r in p.outputs],
        scratch_shapes=[_scratch(r, ()) for r in p.scratch],
        interpret=reference,
        compiler_params=None if reference else params,
    )


def _scratch(r: Ref, lead: tuple[int, ...]) -> Any:
    return (plgpu.GMEM if r.space == "gmem" else plgpu.SMEM)((*lead, *r.shape), jnp.dtype(r.dtype))


def _named(p: Program, refs: Sequence[Any]) -> dict[str, Any]:
    names = [*(r.name for r in p.inputs), *(r.name for r in p.outputs), *(r.name for r in p.scratch)]
    return dict(zip(names, refs, strict=True))


def _views(p: Program, refs: Sequence[Any], ids: Sequence[Any]) -> dict[str, Any]:
    """A warpgroup's own parts, or a warp's."""
    named = _named(p, refs)
    smem = {r.name for r in p.scratch if r.space == "smem"}
    own = ids[len(p.form.grid) :]
    for name, ref in named.items():
        lead = tuple(own) if name in smem else tuple(ids)
        named[name] = ref.at[lead] if lead else ref
    return named


def _kernel(p: Program, outs: list[Any]) -> Callable[..., Any]:
    form = p.form
    names = NAMES[: len(form.grid)]
    threads = {"num_threads": form.warpgroups, "thread_name": "wg"} if form.warpgroups > 1 else {}

    def body(*refs: Any) -> None:
        ids = [lax.axis_index(n) for n in (*names, *(("wg",) if threads else ()))]

        def each_warp() -> None:
            own = [*ids, lax.axis_index("warp")]
            Body(p, _views(p, refs, own), own).run()

        if form.handed:
            _hand_on(p, refs, ids)
        elif form.by_warps:
            pl.core_map(plgpu.WarpMesh(axis_name="warp"))(each_warp)
        else:
            Body(p, _views(p, refs, ids), ids).run()

    scratch = [_scratch(r, form.own if r.space == "smem" else form.lead) for r in p.scratch]
    if form.handed:
        scratch += [plgpu.SMEM((*form.own, *r.shape), jnp.dtype(r.dtype)) for r in p.outputs]
        scratch.append(plgpu.Barrier(num_barriers=form.warpgroups))
    kernel = plgpu.kernel(body, out_type=outs, scratch_types=scratch, grid=form.grid, grid_names=names, **threads)
    return lambda *xs: kernel(*xs)


def _hand_on(p: Program, refs: Sequence[Any], ids: Sequence[Any]) -> None:
    """Runs the steps with outputs in shared memory, and stores the outputs of the warpgroup before."""
    count = len(p.outputs)
    refs, through, barriers = refs[: -count - 1], refs[-count - 1 : -1], refs[-1]
    wg, n = ids[-1], p.form.warpgroups
    before = lax.rem(wg + (n - 1), jnp.int32(n))
    views = _views(p, refs, ids)
    Body(p, {**views, **{r.name: ref.at[wg] for r, ref in zip(p.outputs, through)}}, ids).run()
    plgpu.barrier_arrive(barriers.at[wg])
    plgpu.barrier_wait(barriers.at[before])
    there = _views(p, refs, [*ids[:-1], before])
    for r, ref in zip(p.outputs, through):
        there[r.name][...] = ref.at[before][...]


def _interpreted(p: Program, outs: list[Any]) -> Callable[..., Any]:
    form = p.form

    def body(*refs: Any) -> None:
        ids = [pl.program_id(a) for a in range(len(form.lead))]
        Body(p, _views(p, refs, ids), ids).run()

    return pl.pallas_call(
        body,
        out_shape=outs,
        grid=form.lead,
        scratch_shapes=[_scratch(r, form.own if r.space == "smem" else form.lead) for r in p.scratch],
        interpret=True,
    )
