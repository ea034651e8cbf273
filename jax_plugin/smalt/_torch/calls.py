"""Kernels on PyTorch's tensors: `plgpu.as_torch_kernel` where smalt is enabled.

The function is traced once for tensors of a type, and becomes a program of steps (`program.py`): kernels, launched on PyTorch's current
stream, in PyTorch's memory, and elementary operations between them, which are PyTorch's own (`elementary.py`). Tensors of the CPU go to the emulator.
Where gradients flow, the function's own derivative (`jax.vjp`) is a second program. `operations.py` registers programs with PyTorch,
`compiled.py` is the way of `torch.compile` to a call.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from smalt import _config, _versions
from smalt._errors import InvalidArgument, InvalidKernel, Unsupported
from smalt._torch.pulls import Pull

if TYPE_CHECKING:  # imports PyTorch
    from smalt._torch.program import Program


def as_torch_kernel(fn: Callable[..., Any], *, ref_argnums: int | Sequence[int] = ()) -> Callable[..., Any]:
    """Makes a function of JAX that calls kernels one of PyTorch's tensors.

    The function may call kernels (`plgpu.kernel`, `pl.pallas_call`), as many as it likes, with elementary operations between them, `jax.jit` around them
    included. Its results are new tensors, but for those that a kernel writes in place (`input_output_aliases`): they are its operands.

    Gradients flow through a call if `jax.vjp` of the function is one of kernels, too: by `jax.custom_vjp`, or because `jax.grad` differentiates
    them. `torch.compile` has a call as one operation of its own.

    Args:
        fn: A function of arrays, or of PyTrees of them.
        ref_argnums: Which of its arguments it takes as references (`jax.Ref`): what kernels store there is in the tensors.

    Returns:
        The same of contiguous tensors of one device: of a GPU, whose current stream gets the kernels, or of the CPU, for the emulator.
    """
    return _Function(fn, ref_argnums, None).call


def begin() -> None:
    """At import: where smalt is enabled first, `plgpu.as_torch_kernel` becomes one that checks whether it still is."""
    _config.take_over(first=lambda: _versions.replace_as_torch_kernel(_dispatch))


def _dispatch(stock: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's own where smalt is not enabled when the function is called."""

    @functools.wraps(stock)
    def choose(fn: Callable[..., Any]) -> Callable[..., Any]:
        return _Function(fn, (), stock(fn)).call

    return choose


_NUMBERS = itertools.count()
#: By a name, which is what a compiled program of PyTorch's may hold.
FUNCTIONS: weakref.WeakValueDictionary[str, _Function] = weakref.WeakValueDictionary()


class _Function:
    """A function, and what it became for tensors of the types that there were."""

    def __init__(self, fn: Callable[..., Any], ref_argnums: int | Sequence[int], stock: Callable[..., Any] | None) -> None:
        self._fn, self._stock = fn, stock
        self._refs = frozenset([ref_argnums] if isinstance(ref_argnums, int) else ref_argnums)
        self._traced: dict[Any, _Traced] = {}
        name = f"{getattr(fn, '__name__', 'kernels')} {next(_NUMBERS)}"
        FUNCTIONS[name] = self

        @functools.wraps(fn)
        def call(*args: Any) -> Any:
            from smalt._torch.pytorch import torch

            if torch.compiler.is_compiling():
                from smalt._torch.compiled import results_of, traced

                return results_of(traced(name, args))
            if "torch._dynamo" in sys.modules:  # else nothing compiles; importing it takes a second
                from smalt._torch.compiled import untraced

                return untraced(self, args)
            return self(*args)

        self.call = call

    def __call__(self, *args: Any) -> Any:
        if self._stock is not None and not _config.is_enabled():
            return self._stock(*args)
        from smalt._torch.pytorch import struct, torch

        leaves, tree = jax.tree.flatten(args)
        key = tree, tuple([getattr(t, "shape", None) for t in leaves]), tuple([getattr(t, "dtype", None) for t in leaves]), _gradients(torch, leaves)
        try:
            traced = self._traced.get(key)
        except TypeError:  # sizes that PyTorch keeps open: here they are numbers
            key = key[0], tuple(tuple(map(int, t.shape)) for t in leaves), *key[2:]
            traced = self._traced.get(key)
        if traced is None:
            names, refs = _names(args, self._refs)
            _check(leaves, names)
            traced = _Traced(self._fn, tree, [struct(t) for t in leaves], names, refs, key[-1])
            self._traced[key] = traced
        else:
            _check(leaves, traced.names)
        return traced(leaves, _device_of(torch, leaves))


def _gradients(torch: Any, leaves: Sequence[Any]) -> tuple[int, ...]:
    """The arguments through which gradients flow."""
    if not torch.is_grad_enabled():
        return ()
    return tuple([i for i, t in enumerate(leaves) if getattr(t, "requires_grad", False)])


def _names(args: Sequence[Any], refs: frozenset[int]) -> tuple[list[str], frozenset[int]]:
    """What errors call the leaves of arguments; which of them are taken as references."""
    if missing := sorted(i for i in refs if not 0 <= i < len(args)):
        raise InvalidArgument(
            f"smalt: as_torch_kernel(ref_argnums={tuple(sorted(refs))})\n  expected: numbers of arguments: {len(args)} were given"
            f"\n  got: {missing[0]}\n  remedy: count from 0, and pass references by position"
        )
    names: list[str] = []
    found: set[int] = set()
    for i, arg in enumerate(args):
        for path, _ in jax.tree_util.tree_flatten_with_path(arg)[0]:
            if i in refs:
                found.add(len(names))
            names.append(f"argument {i}{jax.tree_util.keystr(path)}")
    return names, frozenset(found)


def _check(leaves: Sequence[Any], names: Sequence[str]) -> None:
    for t, name in zip(leaves, names):
        if not hasattr(t, "data_ptr"):
            raise InvalidKernel(
                f"smalt: {name} of a kernel for PyTorch\n  expected: a torch.Tensor\n  got: {type(t).__name__}"
                "\n  remedy: make it a tensor, or close over it"
            )
        if t.device == leaves[0].device and t.is_contiguous() and t.device.type in ("cuda", "cpu"):
            continue
        if t.device != leaves[0].device:
            problem = f"a tensor on {leaves[0].device}, as the first one", f"one on {t.device}", "move them to one device"
        elif t.device.type not in ("cuda", "cpu"):
            problem = "a tensor on a GPU, or on the CPU for the emulator", f"one on {t.device}", "move it: t.cuda()"
        else:
            problem = "a contiguous tensor", f"shape {tuple(t.shape)}, strides {t.stride()}", "t.contiguous()"
        expected, got, remedy = problem
        raise InvalidKernel(f"smalt: {name} of a kernel for PyTorch\n  expected: {expected}\n  got: {got}\n  remedy: {remedy}")


def _device_of(torch: Any, tensors: Sequence[Any]) -> Any:
    if tensors:
        return tensors[0].device
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


class _Traced:
    """A function, for tensors of one type."""

    def __init__(
        self, fn: Callable[..., Any], tree: Any, structs: Sequence[Any], names: Sequence[str], refs: frozenset[int], gradients: Sequence[int]
    ) -> None:
        if taken := sorted(refs & set(gradients)):
            raise InvalidKernel(
                f"smalt: {names[taken[0]]} of a kernel for PyTorch, which it takes as a reference\n  expected: a tensor through which no gradient flows"
                "\n  got: one with requires_grad\n  remedy: t.detach(), or a function that gives the new value as its result"
            )
        if taken := [i for i in gradients if not jnp.issubdtype(structs[i].dtype, jnp.floating)]:
            raise Unsupported(
                f"smalt: not supported yet: gradients of complex numbers for PyTorch ({names[taken[0]]})\n  expected: floats"
                f"\n  got: {structs[taken[0]].dtype.name}\n  remedy: t.detach(), or a torch.autograd.Function"
            )
        self.names, self._gradients = names, list(gradients)
        self._shape: Any = None
        self._pull: Any = None

        def flat(*leaves: Any) -> list[Any]:
            held = {i: jax.new_ref(leaves[i]) for i in sorted(refs)}
            given = [held.get(i, x) for i, x in enumerate(leaves)]
            if gradients:

                def differentiated(*some: Any) -> Any:
                    now = list(given)
                    for i, x in zip(gradients, some):
                        now[i] = x
                    return fn(*jax.tree.unflatten(tree, now))

                out, pull = jax.vjp(differentiated, *(leaves[i] for i in gradients))
                saved, self._pull = jax.tree.flatten(pull)
            else:
                out, saved = fn(*jax.tree.unflatten(tree, given)), []
            results, self._shape = jax.tree.flatten(out)
            self._count = len(results)
            return [*results, *saved, *(ref[...] for ref in held.values())]

        name = getattr(fn, "__name__", "kernels")
        self._forward, avals = _program(name, flat, structs, names, stores=sorted(refs))
        self._results, saved = avals[: self._count], avals[self._count : len(avals) - len(refs)]
        self._backward: Program | None = None
        if gradients:
            #: The results that have cotangents.
            self._floats = [i for i, aval in enumerate(self._results) if jnp.issubdtype(aval.dtype, jnp.floating)]
            self._saved, given = len(saved), [*saved, *(self._results[i] for i in self._floats)]
            called = [*(f"what the call kept ({i})" for i in range(len(saved))), *(f"the cotangent of result {i}" for i in self._floats)]
            self._backward, _ = _program(f"{name}_backward", self._pulled, given, called, copies=True)

            def function(*leaves: Any) -> Sequence[Any]:
                return list(jax.tree.leaves(fn(*jax.tree.unflatten(tree, leaves))))

            #: The same as a function of the arguments, for those who differentiate it.
            self._pull_again = Pull(f"{name}_backward", function, structs, self._results, self._gradients, self._floats, _program)

    def _pulled(self, *args: Any) -> Any:
        """Cotangents of the arguments, from what the call kept and cotangents of its results."""
        given = dict(zip(self._floats, args[self._saved :]))
        cotangents = [given[i] if i in given else np.zeros(aval.shape, jax.dtypes.float0) for i, aval in enumerate(self._results)]
        return jax.tree.unflatten(self._pull, args[: self._saved])(jax.tree.unflatten(self._shape, cotangents))

    def __call__(self, tensors: Sequence[Any], device: Any) -> Any:
        from smalt._torch import operations

        if self._backward is None:
            made = operations.run(self._forward, tensors, device)
        else:
            made = operations.differentiable(
                self._forward, self._backward, self._pull_again, self._gradients, self._floats, self._count, tensors, device
            )
        return jax.tree.unflatten(self._shape, made[: self._count])


def _program(
    name: str, fn: Callable[..., Any], structs: Sequence[Any], names: Sequence[str], stores: Sequence[int] = (), copies: bool = False
) -> tuple[Program, Sequence[Any]]:
    """A traced function, and its results' types. The last of its results are what the tensors of `stores` are left with."""
    from smalt._torch.program import Program

    with _config.enabled(True):
        closed = jax.make_jaxpr(fn)(*structs)
        results = len(closed.out_avals)
        program = Program(name, closed, names, {a: results - len(stores) + k for k, a in enumerate(stores)}, copies)
    return program, closed.out_avals
