"""Random element-wise and control-flow programs, each a kernel and the same in NumPy.

A program is not data: `Generator` makes random choices and carries them out at once with a backend (`backends.py`), lax or NumPy.
Choices depend on types and shapes alone, and every block draws from its own seed, so that both backends make the same ones,
however often a body is traced or run.
"""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import numpy as np
from jax import lax

from tests.corpus.case import NUMPY, kernel, like, x64
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar
from tests.oracles import semantics
from tests.oracles.semantics import BF16, BOOL, F16, F32, FP8, INTS, Array, is_float
from tests.oracles.special import data, specials
from tests.programs.backends import Jax, Numpy

SHAPES = ((128,), (10,), (33,), (1,), (200,), (64, 24), (8, 16), (7, 64), (3, 5, 7), (64, 32), (5, 1, 12), (256,))
I32, U32 = np.dtype(np.int32), np.dtype(np.uint32)
MAX_DEPTH = 3
TABLE = 8


@dataclasses.dataclass(frozen=True)
class Program:
    """One kernel: a grid of `blocks`, each of `warpgroups`, all running the same program on their own arrays.

    `by_warps`: in a warp region, so that each warp has its own arrays.
    """

    seed: int
    shape: tuple[int, ...]
    blocks: int
    warpgroups: int
    dtypes: tuple[np.dtype[Any], ...]
    inputs: tuple[np.dtype[Any], ...]
    outputs: tuple[np.dtype[Any], ...]
    steps: int
    x64: bool
    by_warps: bool = False

    @classmethod
    def of(cls, seed: int, by_warps: bool = False) -> Program:
        rng = random.Random(seed)
        x64 = seed % 4 == 3
        wide = [d for d in INTS if d.itemsize == 8]
        others = [F16, BF16, *(d for d in INTS if d.itemsize < 8 and d != I32)]
        # Few types, so that values often meet others of theirs.
        dtypes = [F32, I32, BOOL, rng.choice(wide) if x64 else rng.choice(others), *rng.sample(others, 2)]
        return cls(
            seed=seed,
            shape=SHAPES[seed % len(SHAPES)],
            blocks=rng.choice((1, 1, 2, 3)),
            warpgroups=rng.choice((1, 1, 1, 2, 3)),
            dtypes=tuple(dtypes),
            inputs=(F32, I32, *dtypes[3:]),
            outputs=(*dtypes[3:], U32),
            steps=rng.randint(4, 7),
            x64=x64,
            by_warps=by_warps,
        )

    @property
    def lead(self) -> tuple[int, ...]:
        """Who has arrays of their own."""
        return (self.blocks, self.warpgroups, *((4,) if self.by_warps else ()))

    def data(self) -> list[np.ndarray[Any, Any]]:
        """The inputs: arrays, then two tables of scalars."""
        rng = np.random.default_rng(zlib.crc32(f"program {self.seed}".encode()))
        lead = self.lead
        arrays = [data(rng, (*lead, *self.shape), dtype) for dtype in self.inputs]
        return [*arrays, data(rng, (*lead, TABLE), I32), data(rng, (*lead, TABLE), F32)]

    def run(self, *inputs: Array) -> Any:
        """The kernel, traced by the caller's jit."""
        lead = self.lead

        def body(*refs: Any) -> None:
            at = (lax.axis_index("block"), lax.axis_index("wg") if self.warpgroups > 1 else np.int32(0))
            if self.by_warps:
                pl.core_map(plgpu.WarpMesh(axis_name="warp"))(lambda: each(refs, (*at, lax.axis_index("warp"))))
            else:
                each(refs, at)

        def each(refs: Sequence[Any], at: tuple[Array, ...]) -> None:
            *arrays, ints, floats = refs[: len(self.inputs) + 2]
            ops = Jax(1 if self.by_warps else self.warpgroups, at[1], [ints.at[at], floats.at[at]])
            values = [r[at] for r in arrays] + self._indices(at)
            *whole, scalar = self._go(ops, values)
            for ref, v in zip(refs[len(self.inputs) + 2 :], whole):
                ref[at] = v
            refs[-1][at] = scalar

        outs = [like((*lead, *self.shape), d) for d in self.outputs] + [like(lead, np.int32)]
        threads = {"num_threads": self.warpgroups, "thread_name": "wg"} if self.warpgroups > 1 else {}
        return kernel(body, outs, params=NUMPY, grid=(self.blocks,), grid_names=("block",), **threads)(*inputs)

    def expected(self, inputs: Sequence[Array]) -> list[Array]:
        lead = self.lead
        outs = [np.zeros((*lead, *self.shape), d) for d in self.outputs] + [np.zeros(lead, np.int32)]
        for at in np.ndindex(lead):
            *arrays, ints, floats = (x[at] for x in inputs)
            values = [*arrays, *map(np.int32, self._indices(at))]
            with np.errstate(all="ignore"):
                for out, v in zip(outs, self._go(Numpy([ints, floats]), [np.asarray(v) for v in values])):
                    out[at] = v
        return outs

    def _indices(self, at: Sequence[Array]) -> list[Array]:
        return [at[0], *(at[1:2] if self.warpgroups > 1 else ()), *at[2:]]

    def _go(self, ops: Any, values: list[Array]) -> list[Array]:
        """The outputs: some values, the digest of all, a scalar."""
        g = Generator(ops, self.shape, self.dtypes, 1 if self.by_warps else self.warpgroups)
        values = [*values, *(ops.lookup(table, np.int32(i)) for table in range(2) for i in range(2))]
        pool = g.block(random.Random(self.seed), values[:], self.steps, 0, uniform=True)
        rng = random.Random(self.seed + 1)
        recent = pool[len(values) :] or pool
        outs = [g.as_type(g.pick(rng, recent, lambda v: v.shape == self.shape), d, self.shape) for d in self.outputs[:-1]]
        return [*outs, g.digest(recent, self.shape), g.as_type(g.pick(rng, recent, lambda v: v.shape == ()), I32, ())]

    def check(self) -> None:
        """Bit for bit. Any NaN equals any other: the machine's is 0x7fffffff, NumPy's and x86's are other ones."""
        inputs = self.data()
        with x64(self.x64):
            got = jax.block_until_ready(jax.jit(self.run)(*inputs))
        for i, (a, b) in enumerate(zip(got, self.expected(inputs), strict=True)):
            a = keep(a)
            assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{self}: output {i} is {a.dtype}{a.shape}"
            wrong = (semantics.bits(a) != semantics.bits(b)) & ~(semantics.is_nan(a) & semantics.is_nan(b))
            if wrong.any():
                at = tuple(int(k[0]) for k in np.nonzero(wrong))
                raise AssertionError(f"{self}: output {i}: {wrong.sum()} of {a.size} differ; at {at} {a[at]!r}, expected {b[at]!r}")


class Generator:
    """Chooses and performs. `uniform`: whether all warpgroups take the same way, as a scope that they share demands."""

    def __init__(self, ops: Any, shape: tuple[int, ...], dtypes: Sequence[np.dtype[Any]], warpgroups: int) -> None:
        self.ops = ops
        self.shape = shape
        self.warpgroups = warpgroups
        self.dtypes = list(dict.fromkeys(dtypes))

    # ------------------------------------------------------------------------------------------ values

    def pick(self, rng: random.Random, pool: Sequence[Array], fits: Callable[[Array], bool]) -> Array:
        """One that fits, late ones rather than early ones; any zero, if none does."""
        found = [v for v in pool if fits(v)]
        if not found:
            candidates = [self.ops.full(d.type(0), s) for s in (self.shape, ()) for d in self.dtypes]
            found = [v for v in candidates if fits(v)][:1]
        return found[max(rng.randrange(len(found)), rng.randrange(len(found)))]

    def as_type(self, v: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        if v.dtype != dtype:
            v = self.ops.convert(v, dtype)
        return v if v.shape == shape else self.ops.broadcast(v, shape, ())

    def partner(self, rng: random.Random, pool: Sequence[Array], x: Array) -> Array:
        """An operand to go with x: of its type, now and then a constant or a scalar."""
        dtype = np.dtype(x.dtype)
        if rng.random() < 0.2:
            return self.ops.full(rng.choice(list(specials(dtype))), x.shape)
        same = [v for v in pool if v.dtype == dtype and v.shape in (x.shape, ())]
        if rng.random() < 0.7 and same:
            y = rng.choice(same)
        else:
            y = self.pick(rng, pool, lambda v: v.shape == x.shape)
        return self.as_type(y, dtype, x.shape)

    def digest(self, values: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """A number that depends on every bit of all values of the shape and all scalars: nothing is computed in vain."""
        ops = self.ops
        out = ops.full(np.uint32(1), shape)
        for v in values:
            if v.shape not in (shape, ()):
                continue
            dtype = np.dtype(v.dtype)
            if is_float(dtype):
                v = ops.bitcast(self.number(v), np.dtype(f"u{dtype.itemsize}"))
            elif dtype.itemsize == 8:
                high = ops.apply("shift_right_logical", v, ops.full(dtype.type(32), v.shape))
                v = ops.apply("xor", v, high)
            out = ops.mix(out, v if v.dtype == U32 else ops.convert(v, U32))
        return out

    def number(self, x: Array) -> Array:
        """x with 1 for NaN, where the bits of a NaN would show."""
        nan = self.ops.compare("ne", x, x)
        return self.ops.select(nan, x, self.ops.full(np.dtype(x.dtype).type(1), x.shape))

    def scalar(self, rng: random.Random, pool: Sequence[Array]) -> Array:
        """A scalar that depends on the data: loaded, or reduced from an array."""
        arrays = [v for v in pool if v.shape]
        if not arrays or rng.random() < 0.5:
            return self.pick(rng, pool, lambda v: v.shape == ())
        x = self.pick(rng, arrays, lambda v: True)
        return self.ops.reduce(self.reduction(rng, x), x, tuple(range(len(x.shape))))

    def condition(self, rng: random.Random, pool: Sequence[Array]) -> Array:
        s = self.scalar(rng, pool)
        if s.dtype == BOOL:
            return s
        return self.ops.compare(rng.choice(list(semantics.COMPARISONS)), s, self.partner(rng, [s], s))

    def small_count(self, rng: random.Random, pool: Sequence[Array], most: int) -> Array:
        i = self.as_type(self.scalar(rng, pool), I32, ())
        return self.ops.apply("and", i, self.ops.full(np.int32(most), ()))

    def reduction(self, rng: random.Random, x: Array) -> str:
        dtype = np.dtype(x.dtype)
        names = ["max", "min"]
        if dtype in INTS:
            names += ["add", "and", "or", "xor"]
        return rng.choice(["and", "or"] if dtype == BOOL else names)

    # ------------------------------------------------------------------------------------------ steps

    def block(self, rng: random.Random, pool: list[Array], steps: int, depth: int, uniform: bool) -> list[Array]:
        for _ in range(steps):
            if depth < MAX_DEPTH and rng.random() < 0.3:
                self.control(rng, pool, depth, uniform)
            else:
                pool.append(self.step(rng, pool))
        return pool

    def step(self, rng: random.Random, pool: list[Array]) -> Array:
        ops = self.ops
        x = self.pick(rng, pool, lambda v: True)
        dtype = np.dtype(x.dtype)
        kind = rng.choice(("unary", "binary", "binary", "binary", "compare", "select", "clamp", "convert", "convert", "bits", "reduce", "lookup", "shape"))
        if kind == "unary":
            return ops.apply(rng.choice(list(semantics.table(dtype, 1))), x)
        if kind == "binary":
            return ops.apply(rng.choice(list(semantics.table(dtype, 2))), x, self.partner(rng, pool, x))
        if kind == "compare":
            return ops.compare(rng.choice(list(semantics.COMPARISONS)), x, self.partner(rng, pool, x))
        if kind == "select":
            which = self.as_type(self.pick(rng, pool, lambda v: v.shape == x.shape), BOOL, x.shape)
            return ops.select(which, x, self.partner(rng, pool, x))
        if kind == "clamp" and dtype != BOOL:
            return ops.clamp(self.partner(rng, pool, x), x, self.partner(rng, pool, x))
        if kind == "bits":
            return self.bits(rng, pool, x)
        if kind == "reduce" and len(x.shape) >= 1:
            axis = rng.randrange(len(x.shape))
            kept = tuple(i for i in range(len(x.shape)) if i != axis)
            return ops.broadcast(ops.reduce(self.reduction(rng, x), x, (axis,)), x.shape, kept)
        if kind == "lookup":
            # Where to look depends on the data, on a loop's counter among it.
            return ops.lookup(rng.randrange(2), self.small_count(rng, pool, TABLE - 1))
        if kind == "shape" and x.shape:
            return self.rearranged(rng, pool, x)
        if kind == "convert" and dtype == F32 and rng.random() < 0.15:
            return ops.convert(ops.convert(x, rng.choice(FP8)), F32)
        return ops.convert(x, rng.choice([d for d in self.dtypes if d != dtype]))

    def rearranged(self, rng: random.Random, pool: list[Array], x: Array) -> Array:
        """Elements in other places, of the same shape."""
        ops, dtype = self.ops, np.dtype(x.dtype)
        axis = rng.randrange(len(x.shape))
        what = rng.choice(("reverse", "roll", "transpose", "reshape", "row", "running"))
        if what == "reverse":
            return ops.reverse(x, axis)
        if what == "roll" and x.shape[axis] > 1:
            return ops.roll(x, rng.randrange(1, x.shape[axis]), axis)
        if what == "transpose" and len(x.shape) > 1:
            name = rng.choice(list(semantics.table(dtype, 2)))
            return ops.through_transpose(x, lambda t: ops.apply(name, t, ops.reverse(t, axis)))
        if what == "reshape":
            flat = ops.reshape(x, (int(np.prod(x.shape)),))
            return ops.reshape(ops.apply(rng.choice(list(semantics.table(dtype, 2))), flat, ops.reverse(flat, 0)), x.shape)
        if what == "row":
            # JAX counts negative numbers from the end; these are not.
            index = [ops.apply("and", self.small_count(rng, pool, 63), ops.full(np.int32(63), ())) for _ in range(2)]
            return ops.with_row(x, index[0], ops.row(x, index[1]))
        names = ["max", "min"] + (["add"] if dtype in INTS else [])
        return ops.reverse(x, axis) if dtype == BOOL else ops.running(rng.choice(names), x, axis, rng.random() < 0.5)

    def bits(self, rng: random.Random, pool: list[Array], x: Array) -> Array:
        """What shows bits: bitcasts, signs, neighbours."""
        ops, dtype = self.ops, np.dtype(x.dtype)
        if dtype == BOOL:
            return ops.apply("not", x)
        if is_float(dtype):
            to = np.dtype(f"{rng.choice('iu')}{dtype.itemsize}")
            what = rng.randrange(4)
            if what == 0:
                return ops.is_finite(x)
            if what == 1:
                return ops.copysign(x, self.number(self.partner(rng, pool, x)))
            if what == 2 and dtype == F32:
                return ops.nextafter(x, self.partner(rng, pool, x))
            return ops.bitcast(self.number(x), to)
        same = {4: (F32,), 2: (F16, BF16)}.get(dtype.itemsize, ())
        if not same:
            return ops.apply("not", x)
        return self.number(ops.bitcast(x, rng.choice(same)))

    def control(self, rng: random.Random, pool: list[Array], depth: int, uniform: bool) -> None:
        """One loop, branch or scope; appends its results to the pool."""
        shape = next((v.shape for v in reversed(pool) if v.shape), ())
        kinds = ["for", "for", "while", "cond", "cond", "switch"]
        if shape and shape[0] <= 33:
            kinds += ["scan", "scan"]
        if shape and (uniform or self.warpgroups == 1):
            kinds += ["scope", "scope"]
        kind = rng.choice(kinds)
        count = rng.randint(1, 3)
        carried = [self.pick(rng, pool, lambda v: True) for _ in range(count)]
        types = [(np.dtype(v.dtype), v.shape) for v in carried]
        steps = rng.randint(1, 3)
        alone = self.warpgroups == 1

        def inside(seed: int, extra: Sequence[Array], given: Sequence[Array], stays: bool, out: Sequence[Any] = types) -> list[Array]:
            own = random.Random(seed)
            inner = self.block(own, [*given, *extra], steps, depth + 1, uniform and stays)
            late = inner[len(given) :] or inner
            return [self.as_type(self.pick(own, late, lambda v: v.shape in (s, ())), d, s) for d, s in out] + [late]

        def summed(outs: list[Any], before: Array | None) -> list[Array]:
            """What a body yields, the digest of all that it computed last."""
            *kept, late = outs
            digest = self.digest(late if before is None else [before, *late], (before if before is not None else start).shape)
            return [*kept, digest]

        seed = rng.getrandbits(40)
        start = self.ops.full(np.uint32(0), shape)
        if kind == "for":
            fixed = rng.random() < 0.5
            n = rng.randint(0, 4) if fixed else self.small_count(rng, pool, 3)
            given = pool[:]
            pool += self.ops.loop(n, [*carried, start], lambda i, *c: summed(inside(seed, [i, *c[:-1]], given, fixed or alone), c[-1]))
        elif kind == "while":
            limit = self.small_count(rng, pool, 7)
            given = pool[:]

            def cond(i: Array, *c: Array) -> Array:
                return self.ops.apply("and", self.ops.compare("lt", i, limit), self.condition(random.Random(seed + 1), [*c, i]))

            def body(i: Array, *c: Array) -> list[Array]:
                more = self.ops.apply("add", i, self.ops.full(np.int32(1), ()))
                return [more, *summed(inside(seed, [i, *c[:-1]], given, alone), c[-1])]

            pool += self.ops.while_loop([self.ops.full(np.int32(0), ()), *carried, start], cond, body)
        elif kind in ("cond", "switch"):
            arms = 2 if kind == "cond" else rng.randint(2, 4)
            given = pool[:]
            if kind == "cond":
                index = self.condition(rng, pool)
            else:
                index = self.ops.clamp(*(self.ops.full(np.int32(0), ()), self.small_count(rng, pool, 3), self.ops.full(np.int32(arms - 1), ())))
            pool += self.ops.branch(index, [lambda k=k: summed(inside(seed + k, [], given, alone), None) for k in range(arms)])
        elif kind == "scan":
            xs = [self.pick(rng, pool, lambda v: v.shape == shape) for _ in range(rng.randint(1, 2))]
            carried = [v if v.shape == () else self.ops.reduce(self.reduction(rng, v), v, (0,)) for v in carried]
            scalars = [v for v in pool if v.shape == ()]
            types = [(np.dtype(v.dtype), v.shape) for v in carried]
            types += [(np.dtype(v.dtype), shape[1:]) for v in xs]
            start = self.ops.full(np.uint32(0), shape[1:])

            def step(*c: Array) -> list[Array]:
                return summed(inside(seed, c, scalars, True, types), None)

            last, stacked = self.ops.scan(xs, carried, rng.random() < 0.5, step)
            pool += [v for v in last if v.shape in (shape, ())] + list(stacked)
        else:
            x = self.pick(rng, pool, lambda v: v.shape == shape)
            given = pool[:]
            pool += self.ops.through_smem(x, lambda v: summed(inside(seed, [v], given, True), None))


#: Every fifth one is by warps. Scopes in scopes, of warps or warpgroups with arrays of their own, may be too large.
SCALARS = Grammar("scalar programs", lambda seed: Program.of(seed, by_warps=seed % 5 == 0), Program.check, counts_memory=False)
SCALARS_OF_WARPGROUPS = dataclasses.replace(SCALARS, name="scalar programs of warpgroups", draw=Program.of)
SCALARS_OF_WARPS = dataclasses.replace(SCALARS, name="scalar programs of warps", draw=lambda seed: Program.of(seed, by_warps=True))
