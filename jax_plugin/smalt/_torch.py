"""Kernels on PyTorch's tensors: `plgpu.as_torch_kernel` where smalt is enabled.

The function is traced once for tensors of a type; what it calls is launched on PyTorch's current stream, in PyTorch's memory. Tensors of
the CPU go to the emulator.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from smalt import _config, _native, _register, _versions
from smalt._errors import InvalidKernel, NotInstalled, Unsupported

#: What the compiler takes for granted of device memory (`target.rs`, `gmem_alignment`), in bytes.
_ALIGNMENT = 16


def as_torch_kernel(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function of JAX that calls kernels one of PyTorch's tensors.

    The function may call kernels (`plgpu.kernel`), one behind the other, `jax.jit` around them included; whatever else it computes must be
    constants. Its results are new tensors, but for those that a kernel writes in place (`input_output_aliases`): they are its operands.

    Args:
        fn: A function of arrays, or of PyTrees of them.

    Returns:
        The same of contiguous tensors of one device: of a GPU, whose current stream gets the kernels, or of the CPU, for the emulator. No gradients flow
        through it.
    """
    traced: dict[Any, _Traced] = {}

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        tensors, tree = jax.tree.flatten(args)
        key = tree, tuple((tuple(t.shape), t.dtype) if hasattr(t, "data_ptr") else None for t in tensors)
        device = _device_of(tensors)
        if key not in traced:
            traced[key] = _Traced(fn, tree, [_struct(t) for t in tensors])
        return traced[key](tensors, device)

    return call


def dispatch(stock: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's own where smalt is not enabled when the function is called."""

    @functools.wraps(stock)
    def choose(fn: Callable[..., Any]) -> Callable[..., Any]:
        ours, theirs = as_torch_kernel(fn), stock(fn)

        @functools.wraps(fn)
        def call(*args: Any) -> Any:
            return (ours if _config.is_enabled() else theirs)(*args)

        return call

    return choose


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise NotInstalled("smalt: as_torch_kernel without PyTorch\n  expected: a `torch` that can be imported\n  remedy: pip install torch") from None


def _device_of(tensors: Sequence[Any]) -> Any:
    for i, t in enumerate(tensors):
        if not hasattr(t, "data_ptr"):
            raise InvalidKernel(
                f"smalt: argument {i} of a kernel for PyTorch\n  expected: a torch.Tensor\n  got: {type(t).__name__}"
                "\n  remedy: make it a tensor, or close over it"
            )
        problem = None
        if t.device != tensors[0].device:
            problem = f"a tensor on {tensors[0].device}, as the first one", f"one on {t.device}", "move them to one device"
        elif t.device.type not in ("cuda", "cpu"):
            problem = "a tensor on a GPU, or on the CPU for the emulator", f"one on {t.device}", "move it: t.cuda()"
        elif not t.is_contiguous():
            problem = "a contiguous tensor", f"shape {tuple(t.shape)}, strides {t.stride()}", "t.contiguous()"
        elif t.data_ptr() % _ALIGNMENT:
            problem = f"memory at a multiple of {_ALIGNMENT} bytes", f"a view that begins {t.data_ptr() % _ALIGNMENT} bytes behind one", "t.clone()"
        elif t.requires_grad:
            problem = "a tensor through which no gradient flows", "one with requires_grad", "t.detach(), or a torch.autograd.Function"
        if problem:
            expected, got, remedy = problem
            raise InvalidKernel(f"smalt: argument {i} of a kernel for PyTorch\n  expected: {expected}\n  got: {got}\n  remedy: {remedy}")
    return tensors[0].device if tensors else None


def _struct(t: Any) -> jax.ShapeDtypeStruct:
    name = str(t.dtype).removeprefix("torch.")
    try:
        dtype = jnp.dtype(name)
    except TypeError:
        raise Unsupported(f"smalt: not supported yet: tensors of type {t.dtype}\n  expected: a type that JAX has\n  remedy: t.view or t.to another type") from None
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise InvalidKernel(
            f"smalt: a tensor of type {t.dtype}\n  expected: types of up to 32 bits, as JAX is set up"
            "\n  remedy: jax.config.update('jax_enable_x64', True), or t.to(torch.float32)"
        )
    return jax.ShapeDtypeStruct(tuple(t.shape), dtype)


class _Traced:
    """A function, traced for tensors of one type: kernels between numbered places. The first ones are its arguments', then come constants."""

    def __init__(self, fn: Callable[..., Any], tree: Any, structs: Sequence[Any]) -> None:
        def flat(*leaves: Any) -> Any:
            return fn(*jax.tree.unflatten(tree, leaves))

        with _config.enabled(True):
            closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*structs)
        jaxpr, consts = _versions.open_jaxpr(closed)
        self._tree = jax.tree.structure(shapes)
        self._constants: list[np.ndarray[Any, Any]] = []
        self._of_device: dict[Any, list[Any]] = {}
        # A place that a kernel fills: its step, and which result.
        self._steps: list[tuple[_Kernel, list[Any]]] = []
        self._results = self._walk(jaxpr, consts, [("argument", i, 0) for i in range(len(structs))])

    def _walk(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Constants are computed; of everything else it says where it will be."""
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, map(np.asarray, consts))) | dict(zip(jaxpr.invars, args))

        def read(atom: Any) -> Any:
            return np.asarray(atom.val) if _versions.is_literal(atom) else env[atom]

        for eqn in jaxpr.eqns:
            values = [read(atom) for atom in eqn.invars]
            name = str(eqn.primitive.name)
            if callee := _versions.CALLS.get(name):
                inner, own = _versions.open_jaxpr(eqn.params[callee])
                made = self._walk(inner, own, values)
            elif eqn.primitive is _versions.mpmd_map_p:
                made = [("result", len(self._steps), k) for k in range(len(eqn.outvars))]
                self._steps.append((_Kernel(eqn), [self._place(v) for v in values]))
            elif all(isinstance(v, np.ndarray) for v in values):
                out = eqn.primitive.bind(*values, **eqn.params)
                made = [np.asarray(x) for x in (out if eqn.primitive.multiple_results else [out])]
            else:
                raise Unsupported(
                    f"smalt: not supported yet: `{name}` of tensors, beside kernels\n  expected: a function that calls kernels and nothing else"
                    f"\n  got: {eqn.primitive}\n  remedy: compute that with PyTorch, before or behind the kernel"
                )
            env.update(zip(eqn.outvars, made))
        return [self._place(read(atom)) for atom in jaxpr.outvars]

    def _place(self, x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        self._constants.append(x)
        return "constant", len(self._constants) - 1, 0

    def __call__(self, tensors: Sequence[Any], device: Any) -> Any:
        torch = _torch()
        if device is None:
            device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        if device not in self._of_device:
            self._of_device[device] = [_tensor(x, device) for x in self._constants]
        places = {"argument": tensors, "constant": self._of_device[device]}
        elsewhere = device.type == "cuda" and torch.cuda.current_device() != device.index
        made: list[list[Any]] = []

        def at(place: Any) -> Any:
            kind, i, k = place
            return made[i][k] if kind == "result" else places[kind][i]

        with torch.cuda.device(device) if elsewhere else contextlib.nullcontext():
            for kernel, operands in self._steps:
                made.append(kernel.launch(torch, [at(place) for place in operands], device))
        return jax.tree.unflatten(self._tree, [at(place) for place in self._results])


def _tensor(x: Any, device: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    torch = _torch()
    if x.dtype.kind == "V" or x.dtype.name not in ("bool", *(f"{k}{n}" for k in ("int", "uint", "float") for n in (8, 16, 32, 64))):
        whole = torch.from_numpy(x.reshape(-1).view(np.uint8).copy()).to(device)  # a type that NumPy has by JAX
        return whole.view(getattr(torch, x.dtype.name)).reshape(x.shape)
    return torch.from_numpy(np.array(x)).to(device)


class _Kernel:
    """One call of a kernel."""

    def __init__(self, eqn: Any) -> None:
        structs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        with _config.enabled(True):
            (kernel,) = _register.captured(lambda *args: eqn.primitive.bind(*args, **eqn.params), *structs, compiles=True)
        self._kernel = kernel
        self._artifact = _native.compile(kernel.descriptor, kernel.debug, kernel.target)
        extra = self._artifact.extra_operands
        if extra.position:
            raise Unsupported(
                "smalt: not supported yet: a kernel that talks to other devices, for PyTorch"
                "\n  expected: a kernel of one GPU\n  remedy: call it in JAX, under jax.shard_map"
            )
        torch = _torch()
        aliases = {result: operand for operand, result in eqn.params["input_output_aliases"].items()}
        #: Of each result the operand that it is, or its shape and type.
        self._made = [(aliases.get(i), tuple(v.aval.shape), getattr(torch, np.dtype(v.aval.dtype).name)) for i, v in enumerate(eqn.outvars)]
        self._scratch = list(extra.scratch)
        own = [int(np.prod(v.aval.shape, dtype=np.int64)) * np.dtype(v.aval.dtype).itemsize for v in (*eqn.invars, *eqn.outvars)]
        n = len(eqn.invars)
        self._sizes = [*own[:n], *self._scratch], [*own[n:], *self._scratch]
        self._site: _native.CallSite | None = None

    def launch(self, torch: Any, operands: list[Any], device: Any) -> list[Any]:
        results = [
            torch.empty(shape, dtype=dtype, device=device) if operand is None else operands[operand] for operand, shape, dtype in self._made
        ]
        scratch = [torch.zeros(size, dtype=torch.uint8, device=device) for size in self._scratch]
        addresses = [t.data_ptr() for t in (*operands, *scratch)], [t.data_ptr() for t in (*results, *scratch)]
        if device.type == "cpu":
            given, made = (list(zip(some, sizes)) for some, sizes in zip(addresses, self._sizes))
            n = len(scratch)
            self._artifact.run_at([*given[: len(given) - n], *made[: len(made) - n], *given[len(given) - n :]])
            return results
        if self._site is None:
            self._site = _native.CallSite(self._kernel.descriptor, self._kernel.debug, self._kernel.target, *self._sizes)
        self._site.launch(device.index, torch.cuda.current_stream(device).cuda_stream, *addresses)
        return results
