"""The cases: each runs kernels and says what text comes of it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.pallas.mosaic_gpu import helpers

import smalt
from tests.corpus.case import kernel, like

ACC, SMEM, Barrier = plgpu.ACC, plgpu.SMEM, plgpu.Barrier


@dataclasses.dataclass(frozen=True)
class Case:
    run: Callable[[], None]
    expected: str


CASES: dict[str, Case] = {}


def prints(*lines: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Registers a function whose kernels print these lines."""

    def register(run: Callable[[], None]) -> Callable[[], None]:
        assert run.__name__ not in CASES
        CASES[run.__name__] = Case(run, "".join(f"{line}\n" for line in lines))
        return run

    return register


def printed(case: Case) -> str:
    """What the case prints on Python's standard output."""
    out = io.StringIO()
    with smalt.enabled(True), contextlib.redirect_stdout(out):
        case.run()
    return out.getvalue()


def once(body: Callable[..., None], *args: Any, out: Any = None, **options: Any) -> list[np.ndarray[Any, Any]]:
    """Runs a kernel under jit and waits for it."""
    made = jax.jit(kernel(body, out or like((128,)), **options))(*args)
    return [np.asarray(a) for a in jax.tree.leaves(made)]


X = np.arange(128, dtype=np.float32)


def zeros(o: Any) -> None:
    o[...] = jnp.zeros(o.shape, o.dtype)


# ------------------------------------------------------------------------------------------ scalars


@prints("hello", "{{as}} it stands", "{braces} 3.0 }", "x[3] = 3.0, twice 6.0", "no fields 3.0 6.0")
def scalars() -> None:
    def body(x: Any, o: Any) -> None:
        pl.debug_print("hello")
        pl.debug_print("{{as}} it stands")
        pl.debug_print("{{braces}} {} }}", x[3])
        pl.debug_print("x[3] = {}, twice {}", x[3], x[3] * 2)
        jax.debug.print("no fields", x[3], x[3] * 2, skip_format_check=True)
        zeros(o)

    once(body, X)


_FLOATS = {
    "float64": "0.1 -0.0 inf nan 1e+300",
    "float32": "0.1 -0.0 inf nan 1e+30",
    "float16": "0.1 -0.0 inf nan 30000.0",
    "bfloat16": "0.1 -0.0 inf nan 1e+30",
    "float8_e4m3fn": "0.1 -0.0 nan nan 450.0",
    "float8_e5m2": "0.09 -0.0 inf nan 60000.0",
}


@prints(*(f"{name}: {text}" for name, text in _FLOATS.items()))
def floats() -> None:
    with jax.enable_x64(True):
        for name, text in _FLOATS.items():
            dtype = jnp.dtype(name)
            large = {"float64": 1e300, "float16": 3e4, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}.get(name, 1e30)
            values = np.zeros(128, dtype)
            values[:5] = np.array([0.1, -0.0, np.inf, np.nan, large]).astype(dtype)

            def body(x: Any, o: Any, name: str = name) -> None:
                pl.debug_print(name + ": {} {} {} {} {}", x[0], x[1], x[2], x[3], x[4])
                zeros(o)

            once(body, values)


_INTEGERS = {
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}


@prints(*(f"{name}: {low} {high}" for name, (low, high) in _INTEGERS.items()), "bool: True False 1")
def integers() -> None:
    with jax.enable_x64(True):
        for name, (low, high) in _INTEGERS.items():
            dtype = jnp.dtype(name)
            wide = np.uint64 if name.startswith("u") else np.int64
            values = np.resize(np.array([low, high], wide), 128).astype(dtype)

            def body(x: Any, o: Any, name: str = name) -> None:
                v = x[...]
                pl.debug_print(name + ": {} {}", v[0], v[1])
                zeros(o)

            once(body, values)

        def bools(x: Any, o: Any) -> None:
            pl.debug_print("bool: {} {} {:d}", x[0] < 1, x[0] > 1, x[0] < 1)
            zeros(o)

        once(bools, X)


@prints("3 3.00|   3|3.000e+00|00ff|0xff|11111111|+5|3.0   |a b|1two|[3.0, 4.0]|  5|swapped 4.0 3.0|3.0 again 3.0")
def formats() -> None:
    def body(x: Any, i: Any, o: Any) -> None:
        a, b, k = x[3], x[4], i[0]
        five = k - 250
        jax.debug.print(
            "{n} {:.2f}|{:>4.0f}|{:.3e}|{:04x}|{:#x}|{:b}|{:+}|{x!s:6}|{word} b|{pair[0]}{pair[1]}|{whole}|{:{width}}"
            "|swapped {other} {x}|{x} again {x}",
            a, a, a, k, k, k, five, five, n=3, x=a, word="a", pair=(1, "two"), whole=[a, b], width=3, other=b,
        )  # fmt: skip
        zeros(o)

    once(body, X, np.full(128, 255, np.int32))


# ------------------------------------------------------------------------------------------ arrays


def _lines(values: np.ndarray[Any, Any], before: str, text: Callable[[Any], str] = str) -> list[str]:
    return [f"{before}[{', '.join(map(str, i))}]: {text(values[i])}" for i in np.ndindex(values.shape)]


@prints(*_lines(X, "x = "))
def one_array() -> None:
    def body(x: Any, o: Any) -> None:
        pl.debug_print("x = {}", x[...])
        zeros(o)

    once(body, X)


_SHAPES = ((1,), (3,), (10,), (33,), (64, 24), (8, 4, 8), (2, 128), (256,))


@prints(*(line for shape in _SHAPES for line in _lines(np.arange(np.prod(shape), dtype=np.int32).reshape(shape), f"{shape} ")))
def shapes() -> None:
    for shape in _SHAPES:

        def body(x: Any, o: Any, shape: Any = shape) -> None:
            pl.debug_print(f"{shape} " + "{}", x[...])
            zeros(o)

        once(body, np.arange(np.prod(shape), dtype=np.int32).reshape(shape))


_TYPES = ("bool", "int4", "uint4", "int8", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "float8_e4m3fn")


def _typed(name: str) -> np.ndarray[Any, Any]:
    return (np.arange(128).reshape(2, 64) % (2 if name == "bool" else 8)).astype(jnp.dtype(name))


def _number(name: str) -> Callable[[Any], str]:
    if name == "bool":
        return lambda v: str(bool(v))
    return (lambda v: str(float(v))) if "float" in name else (lambda v: str(int(v)))


@prints(*(line for name in _TYPES for line in _lines(_typed(name), f"{name} ", _number(name))))
def types_of_arrays() -> None:
    with jax.enable_x64(True):
        for name in _TYPES:

            def body(x: Any, o: Any, name: str = name) -> None:
                pl.debug_print(name + " {}", x[...])
                zeros(o)

            once(body, _typed(name))


_TILE = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)


@prints(
    *_lines(_TILE, "wgmma "),
    *_lines(_TILE.sum(axis=1), "rows ", lambda v: f"{v:.1f}"),
    *_lines(_TILE.sum(axis=0), "columns ", lambda v: f"{v:.1f}"),
    *_lines(np.full((2, 64), 7, np.float32), "splat "),
    *_lines(np.broadcast_to(np.arange(64, dtype=np.float32), (2, 64)), "broadcast "),
)
def layouts() -> None:
    def body(x: Any, o: Any) -> None:
        v = plgpu.layout_cast(x[...], plgpu.Layout.WGMMA)
        pl.debug_print("wgmma {}", v)
        pl.debug_print("rows {:.1f}", v.sum(axis=1))
        pl.debug_print("columns {:.1f}", v.sum(axis=0))
        pl.debug_print("splat {}", jnp.full((2, 64), 7, jnp.float32))
        pl.debug_print("broadcast {}", lax.broadcast_in_dim(x[0, :], (2, 64), (1,)))
        zeros(o)

    once(body, _TILE)


@prints(
    "a = [0.0, 1.0, 2.0], n = 3, b = [[0, 1], [2, 3]]",
    "a = [0.00, 1.00, 2.00], n =   3, b = [[0, 1], [10, 11]]",
)
def several_arrays() -> None:
    def body(a: Any, b: Any, o: Any) -> None:
        pl.debug_print("a = {}, n = {}, b = {}", a[...], b[1, 1], b[...])
        jax.debug.print("a = {:.2f}, n = {n:3}, b = {b:b}", a[...], n=b[1, 1], b=b[...])
        zeros(o)

    once(body, np.arange(3, dtype=np.float32), np.arange(4, dtype=np.int32).reshape(2, 2))


@prints("acc [0, 0]: 64.0", "acc [0, 1]: 64.0", "sum 262144.0")
def products() -> None:
    def body(a: Any, b: Any, o: Any, acc: Any) -> None:
        plgpu.wgmma(acc, a, b)
        v = acc[...]
        corner = v[0:1, 0:2]
        pl.debug_print("acc {}", corner)
        pl.debug_print("sum {}", v.sum())
        o[...] = v

    def whole(a: Any, b: Any, o: Any) -> None:
        def scoped(sa: Any, sb: Any, so: Any, barrier: Any) -> None:
            plgpu.copy_gmem_to_smem(a, sa, barrier)
            plgpu.copy_gmem_to_smem(b, sb, barrier)
            plgpu.barrier_wait(barrier)
            pl.run_scoped(lambda acc: body(sa, sb, so, acc), ACC((64, 64), jnp.float32))
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(so, o)
            plgpu.wait_smem_to_gmem(0)

        tiles = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
        pl.run_scoped(
            scoped,
            SMEM((64, 64), jnp.float16, transforms=tiles),
            SMEM((64, 64), jnp.float16, transforms=tiles),
            SMEM((64, 64), jnp.float32),
            Barrier(num_arrivals=2),
        )

    ones = np.ones((64, 64), np.float16)
    (out,) = once(whole, ones, ones, out=like((64, 64)))
    assert (out == 64).all()


# ------------------------------------------------------------------------------------------ control flow


@prints("0: 0", "1: 10", "2: 20", "even 0", "even 2", "end 2")
def loops() -> None:
    def body(n: Any, o: Any) -> None:
        def step(i: Any, _: None) -> None:
            pl.debug_print("{}: {}", i, i * 10)

        lax.fori_loop(0, n[0], step, None)

        def maybe(i: Any, last: Any) -> Any:
            @pl.when(i % 2 == 0)
            def _() -> None:
                pl.debug_print("even {}", i)

            return i

        pl.debug_print("end {}", lax.fori_loop(0, n[0], maybe, jnp.int32(-1)))
        zeros(o)

    once(body, np.full(128, 3, np.int32))


@prints()
def branches_not_taken() -> None:
    def body(n: Any, o: Any) -> None:
        @pl.when(n[0] > 100)
        def _() -> None:
            pl.debug_print("never {} {}", n[0], n[...])

        zeros(o)

    once(body, np.full(128, 3, np.int32))


@prints("x 1", "x 1")
def twice() -> None:
    def body(n: Any, o: Any) -> None:
        pl.debug_print("x {}", n[1])
        zeros(o)

    f = jax.jit(kernel(body, like((128,))))
    for _ in range(2):
        np.asarray(f(np.arange(128, dtype=np.int32)))


@prints("x 1", "x 1", "x 1")
def in_a_loop_of_the_program() -> None:
    def body(n: Any, o: Any) -> None:
        pl.debug_print("x {}", n[1])
        o[...] = n[...]

    call = kernel(body, like((128,), jnp.int32))
    np.asarray(jax.jit(lambda n: lax.fori_loop(0, 3, lambda _, v: call(v), n))(np.arange(128, dtype=np.int32)))


@prints("first 1", "second 2", "array [0]: 5", "array [1]: 6")
def ordered() -> None:
    def body(n: Any, o: Any) -> None:
        jax.debug.print("first {}", n[1], ordered=True)
        jax.debug.print("second {}", n[2], ordered=True)
        jax.debug.print(ordered=True)("array {}", n[5:7])
        o[...] = n[...]

    once(body, np.arange(128, dtype=np.int32), out=like((128,), jnp.int32))


# ------------------------------------------------------------------------------------------ who prints


@prints(*(f"[block ({i}, {j})] {10 * i + j}" for i in range(3) for j in range(2)))
def blocks() -> None:
    def body(x: Any, o: Any) -> None:
        pl.debug_print("{}", 10 * lax.axis_index("i") + lax.axis_index("j"))
        o[lax.axis_index("i"), lax.axis_index("j")] = x[...]

    once(body, X, out=like((3, 2, 128)), grid=(3, 2), grid_names=("i", "j"))


@prints(*(f"[block {i}] {i} of {v}" for i in range(200) for v in ("first", "second")))
def many_blocks() -> None:
    def body(x: Any, o: Any) -> None:
        pl.debug_print("{} of first", lax.axis_index("i"))
        o[lax.axis_index("i")] = x[...]
        pl.debug_print("{} of second", lax.axis_index("i"))

    once(body, X, out=like((200, 128)), grid=(200,), grid_names=("i",))


@prints(*(f"[block ({i}, {c})] {i} {c}" for i in range(2) for c in range(2)))
def clusters() -> None:
    def body(x: Any, o: Any) -> None:
        pl.debug_print("{} {}", lax.axis_index("i"), lax.axis_index("c"))
        o[lax.axis_index("i"), lax.axis_index("c")] = x[...]

    once(body, X, out=like((2, 2, 128)), grid=(2,), grid_names=("i",), cluster=(2,), cluster_names=("c",))


@prints(
    *(
        f"[block {i}, warpgroup {w}] {text}"
        for i in range(2)
        for w in range(2)
        for text in (f"wg {w}", *_lines(np.arange(4) + 100 * w, ""), *(["only the second"] if w else []))
    )
)
def warpgroups() -> None:
    def body(n: Any, o: Any) -> None:
        wg, i = lax.axis_index("wg"), lax.axis_index("i")
        pl.debug_print("wg {}", wg)
        pl.debug_print("{}", n[0:4] + 100 * wg)

        @pl.when(wg == 1)
        def _() -> None:
            pl.debug_print("only the second")

        o[i, wg] = n[...]

    once(
        body, np.arange(128, dtype=np.int32), out=like((2, 2, 128), jnp.int32), grid=(2,), grid_names=("i",), num_threads=2, thread_name="wg"
    )


@prints("before", *(f"[warp {w}] {w} {k}" for w in range(4) for k in (0, 1)))
def warps() -> None:
    def body(n: Any, o: Any) -> None:
        pl.debug_print("before")

        @helpers.warp_map
        def _(warp: Any) -> None:
            pl.debug_print("{} {}", warp, n[0])
            pl.debug_print("{} {}", warp, n[1])

        o[...] = n[...]

    once(body, np.arange(128, dtype=np.int32), out=like((128,), jnp.int32))


@prints("[block 0] 0.0", "[block 1] 10.0", "[block 2] 20.0")
def mapped() -> None:
    def body(x: Any, o: Any) -> None:
        pl.debug_print("{}", x[0])
        o[...] = x[...]

    xs = np.arange(3, dtype=np.float32)[:, None] * 10 + np.zeros(128, np.float32)
    np.asarray(jax.jit(jax.vmap(kernel(body, like((128,)))))(xs))


@prints(*(f"[block {i}] block {i} has {128.0 * i}" for i in range(3)))
def pallas_calls() -> None:
    def body(x: Any, o: Any) -> None:
        pl.debug_print("block {} has {}", pl.program_id(0), x[0])
        o[...] = x[...] + 1

    call = pl.pallas_call(
        body,
        out_shape=like((384,)),
        grid=(3,),
        in_specs=[pl.BlockSpec((128,), lambda i: (i,))],
        out_specs=pl.BlockSpec((128,), lambda i: (i,)),
        compiler_params=smalt.CompilerParams(),
    )
    out = np.asarray(jax.jit(call)(np.arange(384, dtype=np.float32)))
    assert (out == np.arange(384) + 1).all()
