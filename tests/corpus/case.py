"""What a corpus kernel is, and the list of them.

A case is a function of arrays that calls one or more Pallas:MGPU kernels, with seeded inputs and a reference. The
corpus serialises every case; the run tests execute those that have a reference.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

import smalt


@dataclasses.dataclass(frozen=True)
class Arg:
    """An input: normal data, or uniform over [low, high) (integers, and floats where a range is given)."""

    shape: tuple[int, ...]
    dtype: Any = jnp.float32
    low: float | None = None
    high: float | None = None
    values: tuple[Any, ...] | None = None  # special values, repeated to fill the shape

    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    def make(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        dtype = np.dtype(self.dtype)
        if self.values is not None:
            return np.resize(np.array(self.values, dtype), self.shape)
        if dtype == np.bool_:
            return rng.integers(0, 2, self.shape).astype(dtype)
        if jnp.issubdtype(dtype, jnp.integer):
            info = jnp.iinfo(dtype)
            low = int(info.min) if self.low is None else int(self.low)
            high = int(info.max) + 1 if self.high is None else int(self.high)
            if high - low > 2**63:
                return rng.integers(0, 2**64, self.shape, dtype=np.uint64).astype(dtype)
            return rng.integers(low, high, self.shape).astype(dtype)
        if self.low is not None and self.high is not None:
            return rng.uniform(self.low, self.high, self.shape).astype(dtype)
        return rng.standard_normal(self.shape).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Case:
    """One corpus entry.

    Attributes:
        fn: The function; its arguments are the arrays of `args`.
        reference: The expected outputs, from the same arrays (NumPy or plain JAX); None: the case is only serialised.
        tolerance: Largest error relative to max(1, |expected|); None: bit for bit (NaN equals NaN).
        target: What it needs to run: "hopper", "blackwell", or "devices" (several of them).
        x64: Runs and traces with 64-bit types enabled.
        why: Why there is no reference.
    """

    name: str
    fn: Callable[..., Any]
    args: tuple[Arg, ...] = ()
    reference: Callable[..., Any] | None = None
    tolerance: float | None = None
    target: str = "hopper"
    x64: bool = False
    device: str = "H100"
    why: str = ""

    @property
    def large(self) -> bool:
        """Whether it takes long in an interpreter."""
        return self.name.startswith(("hopper_", "attention_", "ragged_", "transposed_", "grid_wide"))

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """The configuration under which the case is traced and run: smalt, for the emulated device or the GPU there is."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(x64(self.x64))
            gpu = jax.default_backend() == "gpu"
            stack.enter_context(smalt.enabled(True, pallas_call=True) if gpu else smalt.emulated(self.device))
            yield

    def run(self) -> None:
        """Runs the case through smalt; raises AssertionError where an output is not as expected."""
        inputs = self.inputs()
        with self.scope():
            got = jax.block_until_ready(jax.jit(self.fn)(*inputs))
        self.check(got, inputs)

    def inputs(self) -> list[np.ndarray[Any, Any]]:
        """The same arrays in every process."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        return [arg.make(rng) for arg in self.args]

    def expected(self, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        assert self.reference is not None
        with x64(self.x64):
            out = self.reference(*inputs)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(out)]

    def check(self, got: Any, inputs: Sequence[np.ndarray[Any, Any]]) -> None:
        """Raises AssertionError where the outputs are not as expected."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(got)]
        wanted = self.expected(inputs)
        assert len(leaves) == len(wanted), f"{self.name}: {len(leaves)} outputs, expected {len(wanted)}"
        for i, (a, b) in enumerate(zip(leaves, wanted)):
            where = f"{self.name}: output {i}"
            assert a.shape == b.shape and a.dtype == b.dtype, f"{where}: {a.dtype}{a.shape} for {b.dtype}{b.shape}"
            if self.tolerance is None:
                same = (_bits(a) == _bits(b)) | (_nan(a) & _nan(b))
                assert same.all(), f"{where}: {int((~same).sum())} of {a.size} differ, first at {_first(~same)}"
            else:
                x, y = a.astype(np.float64), b.astype(np.float64)
                finite = np.isfinite(y)
                assert ((x == y) | (np.isnan(x) & np.isnan(y)))[~finite].all(), f"{where}: non-finite values differ"
                error = np.abs(x - y)[finite] / np.maximum(1, np.abs(y))[finite]
                worst = error.max(initial=0)
                assert worst <= self.tolerance, f"{where}: error {worst:.3g}, allowed {self.tolerance:.3g}"


def _bits(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return a.view(f"u{a.dtype.itemsize}") if a.size and a.ndim else np.atleast_1d(a).view(f"u{a.dtype.itemsize}").reshape(a.shape)


def _nan(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.isnan(a.astype(np.float64)) if jnp.issubdtype(a.dtype, jnp.floating) else np.zeros(a.shape, bool)


def _first(mask: np.ndarray[Any, Any]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])


REGISTRY: dict[str, Case] = {}


@contextlib.contextmanager
def x64(on: bool) -> Iterator[None]:
    if on == jax.config.jax_enable_x64:
        yield
    elif hasattr(jax, "enable_x64"):
        with jax.enable_x64(on):
            yield
    else:
        with jax.experimental.enable_x64(on):  # type: ignore[attr-defined]
            yield


def case(*args: Arg, when: bool = True, name: str | None = None, **kwargs: Any) -> Callable[[Any], Any]:
    """Registers a function as a case, unless this version of JAX lacks what it needs (`when`)."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        key = name or fn.__name__
        if when:
            assert key not in REGISTRY, key
            REGISTRY[key] = Case(name=key, fn=fn, args=args, **kwargs)
        return fn

    return register


# ------------------------------------------------------------------------------------------ spelling


def f32(*shape: int, **kwargs: Any) -> Arg:
    return Arg(shape, jnp.float32, **kwargs)


def f16(*shape: int, **kwargs: Any) -> Arg:
    return Arg(shape, jnp.float16, **kwargs)


def bf16(*shape: int, **kwargs: Any) -> Arg:
    return Arg(shape, jnp.bfloat16, **kwargs)


def i32(*shape: int, **kwargs: Any) -> Arg:
    return Arg(shape, jnp.int32, **kwargs)


def like(shape: Sequence[int], dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


#: JAX's own GPU interpreter, when the references are held against it (`python -m tests.corpus --interpret`).
INTERPRET: Any = None

#: Whether kernels take mutable references as arguments.
REFS_AS_ARGUMENTS = jax.__version_info__ >= (0, 11)

#: Whether JAX says which argument of a `plgpu.kernel` a reference is in. Only then messages have the name of that argument.
NAMES_ARGUMENTS = jax.__version_info__ >= (0, 11)

#: Arithmetic as NumPy does it: no contraction to fma.
EXACT = smalt.CompilerParams(fp_contract=False)

#: The same, quotients too: f32 bit for bit.
NUMPY = smalt.CompilerParams(fp_contract=False, precise_division=True)


def kernel(body: Callable[..., Any], out: Any, *scratch: Any, params: Any = EXACT, **kwargs: Any) -> Any:
    """`plgpu.kernel` in the spelling that all versions share."""
    if scratch:
        kwargs["scratch_types"] = list(scratch)
    if INTERPRET is not None:
        kwargs["interpret"] = INTERPRET
    return plgpu.kernel(body, out_type=out, compiler_params=params, **kwargs)


def called(name: str) -> str:
    """What a message has in front of an argument or output of a `plgpu.kernel`, which the kernel's function calls so."""
    return f"`{name}`, " if NAMES_ARGUMENTS else ""


def load(ref: Any, *, layout: Any = None, optimized: bool = True) -> Any:
    """`plgpu.load` of a whole ref, whose signature differs."""
    index = inspect.signature(plgpu.load).parameters.get("idx")
    if index is not None and index.default is inspect.Parameter.empty:
        return plgpu.load(ref, (), layout=layout, optimized=optimized)
    return plgpu.load(ref, layout=layout, optimized=optimized)
