"""Random kernels that index, order and run along arrays, against JAX outside of kernels, bit for bit.

A trial has a few steps, each a function of one array (or of two) and of arrays of indices; its kernel makes them all, in one to
three warpgroups, in a loop or a branch now and then, so that they share scratch. Numbers are such that sums and products are exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.corpus.case import x64
from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar
from tests.fuzz.outcome import Outcome

Array = Any
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32)
WIDE = (np.int64, np.uint64, np.float64)
EIGHTH = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
SIZES = (1, 2, 3, 5, 8, 13, 31, 32, 33, 64, 100, 127, 129)
LONG = (255, 500, 1000, 1024, 2500)


def is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def shape_of(rng: np.random.Generator, most: int = 3000) -> tuple[int, ...]:
    rank = int(rng.integers(1, 4))
    while True:
        sizes = SIZES + LONG if rank == 1 else SIZES
        shape = tuple(int(n) for n in rng.choice(sizes, rank))
        if np.prod(shape) <= most:
            return shape


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, special: bool = False) -> np.ndarray[Any, Any]:
    """Small whole numbers, many of them equal; floats with zeros of both signs, NaN and infinities where `special`."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    signed = is_float(dtype) or np.iinfo(dtype).min < 0
    out = rng.integers(-4 if signed else 0, 5, shape)
    if not is_float(dtype):
        out = np.where(rng.random(shape) < 0.1, np.iinfo(dtype).max if special else 1, out.astype(dtype))
        return out.astype(dtype)
    values = out.astype(np.float32)
    if special:
        for x in (np.nan, 0.0, -0.0, np.inf, -np.inf):
            values = np.where(rng.random(shape) < 0.05, np.float32(x), values)
    with np.errstate(all="ignore"):
        return values.astype(dtype)


@dataclasses.dataclass(frozen=True)
class Step:
    """`function(x, *more)`; `more` are arrays of its own."""

    what: str
    function: Callable[..., Any]
    x: np.ndarray[Any, Any]
    more: tuple[np.ndarray[Any, Any], ...] = ()


# ------------------------------------------------------------------------------------------ indices


def indices(rng: np.random.Generator, extent: int, shape: tuple[int, ...], low: int | None = None, high: int | None = None) -> Any:
    low, high = -extent if low is None else low, extent if high is None else high
    return rng.integers(low, high, shape).astype(np.int32)


def index(rng: np.random.Generator, shape: tuple[int, ...], negative: bool = True) -> tuple[list[Any], list[np.ndarray[Any, Any]]]:
    """An index of an array: for each dimension a slice, a number or None, for which an array of the list stands."""
    inner = tuple(int(n) for n in rng.choice((1, 2, 5, 9, 20), int(rng.integers(1, 3))))
    out: list[Any] = []
    arrays = []
    for extent in shape:
        kind = rng.integers(0, 4)
        start = int(rng.integers(0, extent))
        if kind == 0:
            out.append(slice(start, int(rng.integers(start, extent)) + 1))
        elif kind == 1:
            out.append(start)
        else:
            out.append(None)
            some = inner if rng.integers(0, 2) else inner[-1:]
            arrays.append(indices(rng, extent, some, None if negative else 0))
    if not arrays:
        out[0] = None
        arrays.append(indices(rng, shape[0], inner, None if negative else 0))
    return out, arrays


def fill(template: list[Any], arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    rest = iter(arrays)
    return tuple(next(rest) if i is None else i for i in template)


def any_dtype(rng: np.random.Generator, wide: bool) -> Any:
    return rng.choice(np.array((np.bool_, *INTEGERS, *FLOATS, *EIGHTH, *(WIDE if wide else ())), object))


def gathering(rng: np.random.Generator, wide: bool) -> Step:
    shape, dtype = shape_of(rng), any_dtype(rng, wide)
    x = numbers(rng, shape, dtype, special=True)
    axis = int(rng.integers(0, len(shape)))
    match int(rng.integers(0, 4)):
        case 0:
            template, arrays = index(rng, shape)
            return Step(f"x[{template}]", lambda x, *i: x[fill(template, i)], x, tuple(arrays))
        case 1:
            mode = str(rng.choice(("fill", "clip", "wrap")))
            i = indices(rng, shape[axis], (int(rng.choice((1, 7, 40))),), -2 * shape[axis], 2 * shape[axis])
            return Step(f"take {mode} {axis}", lambda x, i: jnp.take(x, i, axis=axis, mode=mode), x, (i,))
        case 2:
            own = tuple(7 if d == axis else n for d, n in enumerate(shape))
            i = indices(rng, shape[axis], own)
            return Step(f"take_along_axis {axis}", lambda x, i: jnp.take_along_axis(x, i, axis=axis), x, (i,))
        case _:
            i = indices(rng, shape[axis], ())
            return Step(f"roll {axis}", lambda x, i: jnp.roll(x, i, axis), x, (i,))


def scattering(rng: np.random.Generator, wide: bool) -> Step:
    shape, dtype = shape_of(rng, 1500), any_dtype(rng, wide)
    kind = str(rng.choice(("set", "add", "multiply", "max", "min") if dtype != np.bool_ else ("set", "max", "min")))
    exact = kind in ("add", "multiply")
    if dtype in EIGHTH and exact:
        dtype = np.float32
    x = numbers(rng, shape, dtype, special=not exact)
    if rng.integers(0, 4) == 0:
        axis = int(rng.integers(0, len(shape)))
        start = int(rng.integers(0, shape[axis]))
        template: list[Any] = [slice(None)] * axis + [slice(start, int(rng.integers(start, shape[axis])) + 1)]
        if shape[axis] == 1:  # Of the whole array JAX makes an empty array of indices, which no kernel may capture.
            template[axis] = 0
        arrays: list[Any] = []
    else:
        template, arrays = index(rng, shape)
    mode = str(rng.choice(("drop", "clip"))) if rng.integers(0, 3) == 0 else None
    if mode is not None:
        arrays = [a * 2 for a in arrays]
    part = jax.eval_shape(lambda x, *i: x[fill(template, i)], x, *arrays).shape
    update = numbers(rng, part, dtype, special=not exact)
    if kind == "multiply":
        update = np.where(rng.random(part) < 0.1, 2, np.where(rng.random(part) < 0.5, 1, -1 if is_float(dtype) else 1)).astype(dtype)

    def function(x: Array, update: Array, *i: Array) -> Array:
        return getattr(x.at[fill(template, i)], kind)(update, mode=mode)

    return Step(f"x.at[{template}].{kind} {mode}", function, x, (update, *arrays))


def applying(rng: np.random.Generator, wide: bool) -> Step:
    shape = shape_of(rng, 500)
    i = indices(rng, shape[0], (int(rng.choice((1, 6, 30))),))
    return Step("apply", lambda x, i: x.at[i].apply(lambda a: a + 1), numbers(rng, shape, np.int32), (i,))


def counting(rng: np.random.Generator, wide: bool) -> Step:
    n, of = int(rng.choice(SIZES)), int(rng.choice((1, 4, 9, 40)))
    match int(rng.integers(0, 4)):
        case 0:
            i, x = indices(rng, of, (n,), 0), numbers(rng, (n, int(rng.choice((1, 3, 16)))), np.float32)
            return Step("segment_sum", lambda x, i: jax.ops.segment_sum(x, i, num_segments=of), x, (i,))
        case 1:
            return Step("bincount", lambda x: jnp.bincount(x, length=of), indices(rng, of, (n,), 0, 2 * of))
        case 2:
            x = np.sort(rng.integers(-9, 9, n).astype(np.float32))
            query = numbers(rng, (int(rng.choice((1, 5, 70))),), np.float32, special=True)
            side = str(rng.choice(("left", "right")))
            return Step(f"searchsorted {side}", lambda x, q: jnp.searchsorted(x, q, side=side), x, (query,))
        case _:
            x = numbers(rng, (n,), np.int32)
            return Step("nonzero", lambda x: jnp.nonzero(x > 0, size=of, fill_value=-1)[0], x)


# ------------------------------------------------------------------------------------------ order


def ordering(rng: np.random.Generator, wide: bool) -> Step:
    shape, dtype = shape_of(rng), any_dtype(rng, wide)
    x, axis = numbers(rng, shape, dtype, special=True), int(rng.integers(0, len(shape)))
    match int(rng.integers(0, 4)):
        case 0:
            return Step(f"sort {axis}", lambda x: jnp.sort(x, axis=axis), x)
        case 1:
            down = bool(rng.integers(0, 2)) and dtype not in EIGHTH
            return Step(f"argsort {axis} {down}", lambda x: jnp.argsort(x, axis=axis, descending=down), x)
        case 2:
            others = [numbers(rng, shape, any_dtype(rng, wide), special=True) for _ in range(int(rng.integers(1, 3)))]
            keys = int(rng.integers(1, len(others) + 2))
            return Step(f"sort of several {axis} {keys}", lambda *xs: lax.sort(xs, dimension=axis, num_keys=keys), x, tuple(others))
        case _:
            if dtype == np.bool_ or dtype in EIGHTH:
                x = numbers(rng, shape, np.float32, special=True)
            k = int(rng.integers(1, shape[-1] + 1))
            return Step(f"top_k {k}", lambda x: lax.top_k(x, k), x)


def running(rng: np.random.Generator, wide: bool) -> Step:
    shape, dtype = shape_of(rng, 2500), any_dtype(rng, wide)
    axis, reverse = int(rng.integers(0, len(shape))), bool(rng.integers(0, 2))
    kind = str(rng.choice(("cumsum", "cumprod", "cummax", "cummin", "argmax", "argmin")))
    if kind.startswith("arg"):
        function = getattr(jnp, kind)
        over = None if rng.integers(0, 3) == 0 else axis
        x = numbers(rng, shape, dtype, special=dtype not in EIGHTH)
        return Step(f"{kind} {over}", lambda x: function(x, axis=over), x)
    if dtype == np.bool_ or dtype in EIGHTH:
        dtype = np.int8
    x = numbers(rng, shape, dtype, special=kind in ("cummax", "cummin"))
    if kind == "cumprod":
        x = np.where(x.astype(np.float32) > 0, 1, -1 if is_float(dtype) else 1).astype(dtype)
    if kind == "cumsum" and is_float(dtype) and np.dtype(dtype).itemsize == 2:
        x = np.where(rng.random(shape) < 0.05, x.astype(np.float32), 0).astype(dtype)
    return Step(f"{kind} {axis} {reverse}", lambda x: getattr(lax, kind)(x, axis=axis, reverse=reverse), x)


def windowing(rng: np.random.Generator, wide: bool) -> Step:
    shape = shape_of(rng, 700)
    kind, start = (("add", 0.0), ("max", -np.inf), ("min", np.inf))[int(rng.integers(0, 3))]
    x = numbers(rng, shape, np.float32)
    pick = lambda *choices: tuple(int(n) for n in rng.choice(choices, len(shape)))  # noqa: E731
    window, strides, dilation, base = pick(1, 2, 3, 7), pick(1, 2, 3), pick(1, 1, 2), pick(1, 1, 2)
    padding = tuple((int(lo), int(hi)) for lo, hi in rng.integers(0, 3, (len(shape), 2)))
    if rng.integers(0, 3) == 0:
        # Sums of halves, in another order, of any function of two.
        over = tuple(sorted({int(d) for d in rng.integers(0, len(shape), 2)}))
        return Step(f"reduce {over}", lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b + 0 * a, over), x)

    def function(x: Array) -> Array:
        combine = getattr(lax, kind)
        return lax.reduce_window(
            x, start, combine, window, strides, padding, base_dilation=base, window_dilation=dilation
        )

    return Step(f"reduce_window {kind} {window} {strides} {padding} {base} {dilation}", function, x)


FAMILIES = (gathering, gathering, scattering, scattering, applying, counting, ordering, ordering, running, running, windowing)


# ------------------------------------------------------------------------------------------ trials


@dataclasses.dataclass(frozen=True)
class Trial:
    seed: int
    steps: tuple[Step, ...]
    warpgroups: int
    place: str  # of the steps: "plain", in a "loop", in a "branch"
    wide: bool

    @staticmethod
    def of(seed: int) -> Trial:
        rng = np.random.default_rng([seed, 77])
        wide = rng.random() < 0.2
        families = rng.choice(np.array(FAMILIES, object), int(rng.integers(1, 4)))
        steps = tuple(family(rng, wide) for family in families)
        place = str(rng.choice(("plain", "plain", "plain", "loop", "branch")))
        return Trial(seed, steps, int(rng.choice((1, 1, 2, 3))), place, wide)

    def __str__(self) -> str:
        steps = ", ".join(f"{s.what} of {s.x.dtype}{list(s.x.shape)}" for s in self.steps)
        return f"trial {self.seed} ({self.place}, {self.warpgroups} warpgroups): {steps}"

    def inputs(self) -> list[np.ndarray[Any, Any]]:
        return [a for s in self.steps for a in (s.x, *s.more)]

    def _all(self, arrays: list[Array]) -> list[Array]:
        out = []
        for s in self.steps:
            n = 1 + len(s.more)
            out += jax.tree.leaves(s.function(*arrays[:n]))
            arrays = arrays[n:]
        return out

    def expected(self) -> list[np.ndarray[Any, Any]]:
        # XLA on a CPU: on a GPU equal numbers, NaNs among them, come in another order, and so do updates of one place.
        with jax.default_device(jax.devices("cpu")[0]):
            return [np.asarray(x) for x in jax.jit(lambda *a: self._all(list(a)))(*self.inputs())]

    def call(self) -> list[Array]:
        """The results of the kernel, of each warpgroup."""
        inputs = self.inputs()
        shapes = jax.eval_shape(lambda *a: self._all(list(a)), *inputs)
        count = len(inputs)

        def body(*refs: Any) -> None:
            thread = lax.axis_index("wg") if self.warpgroups > 1 else None

            def once() -> None:
                results = self._all([ref[...] for ref in refs[:count]])
                for ref, x in zip(refs[count:], results):
                    ref[0 if thread is None else thread] = x

            match self.place:
                case "loop":
                    lax.fori_loop(0, 2, lambda i, _: once(), None)
                case "branch":
                    # The first number of some array, whatever it is.
                    first = refs[0][(0,) * len(refs[0].shape)].astype(jnp.float32)
                    lax.cond(first < 1, once, once)
                case _:
                    once()

        out = [jax.ShapeDtypeStruct((self.warpgroups, *s.shape), s.dtype) for s in shapes]
        threads = {"num_threads": self.warpgroups, "thread_name": "wg"} if self.warpgroups > 1 else {}
        return list(plgpu.kernel(body, out_type=out, **threads)(*inputs))

    def check(self) -> Outcome | None:
        with x64(self.wide):
            try:
                results = self.call()
            except ValueError as e:
                if "captures non-scalar array constants" in str(e):  # JAX's rule: an empty slice makes an empty constant
                    return Outcome("no program", str(e))
                raise
            for k, (got, want) in enumerate(zip(results, self.expected())):
                for warpgroup in keep(got):
                    assert warpgroup.shape == want.shape and warpgroup.dtype == want.dtype, f"{self}: result {k}"
                    same = bits(warpgroup) == bits(want)
                    assert same.all(), f"{self}: result {k} at {np.argwhere(~same)[:5].tolist()}:\n{warpgroup}\n{want}"
        return None


def bits(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of an array; all NaNs are one."""
    if is_float(x.dtype):
        with np.errstate(all="ignore"):
            x = np.where(np.isnan(x.astype(np.float64)), np.array(np.nan).astype(x.dtype), x)
    return np.ascontiguousarray(x).reshape(x.shape).view(np.dtype(f"u{x.dtype.itemsize}")) if x.size else x


# ------------------------------------------------------------------------------------------ references


@dataclasses.dataclass(frozen=True)
class RefTrial:
    """Loads, stores and atomic updates of memory at arrays of indices."""

    seed: int
    x: np.ndarray[Any, Any]
    template: list[Any]
    arrays: tuple[np.ndarray[Any, Any], ...]
    kind: str  # load, store, swap, atomic_add
    shared: bool
    value: np.ndarray[Any, Any]

    @staticmethod
    def of(seed: int) -> RefTrial:
        rng = np.random.default_rng([seed, 78])
        kind = str(rng.choice(("load", "load", "store", "swap", "atomic_add")))
        dtype = np.int32 if kind == "atomic_add" else rng.choice(np.array((np.bool_, *INTEGERS, *FLOATS, *EIGHTH), object))
        x = numbers(rng, shape_of(rng, 2000), dtype, special=True)
        template, arrays = index(rng, x.shape, negative=kind != "atomic_add")  # which takes indices as they are
        if kind in ("store", "swap"):
            # One array, of which no place comes twice: who comes last is not said.
            axis = int(rng.integers(0, x.ndim))
            template = [slice(None) if i is None else i for i in template]
            template[axis] = None
            some = rng.permutation(x.shape[axis])[: int(rng.choice((1, 6, 40)))]
            arrays = [(some - x.shape[axis] * rng.integers(0, 2, some.shape)).astype(np.int32)]
        part = x[fill(template, tuple(arrays))].shape
        return RefTrial(seed, x, template, tuple(arrays), kind, bool(rng.integers(0, 2)), numbers(rng, part, dtype))

    def __str__(self) -> str:
        where = "SMEM" if self.shared else "GMEM"
        return f"{self.kind} {self.seed}: {self.template} of {self.x.dtype}{list(self.x.shape)} in {where}"

    def expected(self) -> list[np.ndarray[Any, Any]]:
        at, x = fill(self.template, self.arrays), self.x.copy()
        match self.kind:
            case "load":
                return [x[at]]
            case "store":
                x[at] = self.value
                return [x]
            case "swap":
                old = x[at]
                x[at] = self.value
                return [x, old]
            case _:
                np.add.at(x, at, self.value)
                return [x]

    def check(self) -> None:
        wanted = self.expected()

        def body(x: Any, value: Any, *refs: Any) -> None:
            arrays, rest = refs[: len(self.arrays)], refs[len(self.arrays) :]
            at = fill(self.template, tuple(a[...] for a in arrays))
            out = rest[0]
            place = rest[len(wanted)] if self.shared else (x if self.kind == "load" else out)
            if place is not x:
                place[...] = x[...]
            match self.kind:
                case "load":
                    out[...] = place[at]
                case "store":
                    place[at] = value[...]
                case "swap":
                    rest[1][...] = place[at]
                    place[at] = value[...]
                case _:
                    plgpu.atomic_add(place.at[at], value[...])
            if self.shared and self.kind != "load":
                out[...] = place[...]

        scratch = [plgpu.SMEM(self.x.shape, self.x.dtype)] if self.shared else []
        like = [jax.ShapeDtypeStruct(w.shape, w.dtype) for w in wanted]
        got = plgpu.kernel(body, out_type=like, scratch_types=scratch)(self.x, self.value, *self.arrays)
        for result, want in zip(got, wanted):
            assert (bits(keep(result)) == bits(want)).all(), f"{self}:\n{result}\n{want}"


INDEXING = Grammar("indexing", Trial.of, Trial.check)
REFERENCES_AT_INDICES = Grammar("references at indices", RefTrial.of, RefTrial.check)
