"""Programs registered with PyTorch: operations of its own (`torch.ops.smalt`), with the shapes of their results, and functions with gradients.

Tensors that hold numbers go to a program at once. Where PyTorch traces (`torch.compile`, `torch.export`, `make_fx`), a program is a custom operation,
whose name is a digest of what it does: what PyTorch keeps of a trace, on disk too, names the same program in every process.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from smalt._errors import Unsupported
from smalt._torch import pytorch
from smalt._torch.pytorch import torch

if TYPE_CHECKING:
    from smalt._torch.program import Program
    from smalt._torch.pulls import Pull

_OPERATIONS: dict[str, Any] = {}
_PLAIN = torch.Tensor, torch.nn.Parameter
#: Whether a tensor is one of `torch.func`'s; it has no public name.
_is_wrapped = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", lambda t: False)


def run(program: Program, tensors: Sequence[Any], device: Any) -> list[Any]:
    """The program's results, some of them its arguments perhaps; called where no gradient flows."""
    return program.assemble(tensors, _fresh(program, tensors, device))


def _fresh(program: Program, tensors: Sequence[Any], device: Any) -> list[Any]:
    if _is_traced(tensors):
        out = _operation(program)(*tensors) if tensors else _operation(program)(device)
        return list(out) if isinstance(out, (list, tuple)) else [] if out is None else [out]
    made = _launched(program, tensors, device)
    for i in program.written:
        torch.autograd.graph.increment_version(tensors[i])
    return made


def _is_traced(tensors: Sequence[Any]) -> bool:
    """Whether operations are being traced: there may be no numbers in the tensors."""
    for t in tensors:
        if type(t) not in _PLAIN or _is_wrapped(t):
            return True
    return bool(torch.utils._python_dispatch.is_in_torch_dispatch_mode())


def _launched(program: Program, tensors: Sequence[Any], device: Any) -> list[Any]:
    elsewhere = device.type == "cuda" and torch.cuda.current_device() != device.index
    with torch.cuda.device(device) if elsewhere else contextlib.nullcontext():
        return program.run(tensors, device)


def _operation(program: Program) -> Any:
    """`torch.ops.smalt.…`: it writes to the arguments that the program writes to, and gives the tensors that it makes."""
    if program.key not in _OPERATIONS:
        name = f"smalt::{re.sub(r'[^0-9A-Za-z_]', '_', program.name)}_{program.key[:24]}"
        count = len(program.names)
        arguments = [f"Tensor({f'a{i}!' if i in program.written else ''}) x{i}".replace("()", "") for i in range(count)] or ["Device device"]
        results = ", ".join(["Tensor"] * len(program.fresh))

        def real(*tensors: Any) -> Any:
            device = tensors[0].device if count else tensors[0]
            return _as_schema(_launched(program, tensors if count else (), device))

        def fake(*tensors: Any) -> Any:
            device = tensors[0].device if count else tensors[0]
            return _as_schema([_zeros(of, device) for of in program.fresh])

        made = torch.library.custom_op(
            name,
            real,
            mutates_args=tuple(f"x{i}" for i in program.written),
            schema=f"({', '.join(arguments)}) -> {results if len(program.fresh) == 1 else f'({results})'}",
        )
        made.register_fake(fake)
        _OPERATIONS[program.key] = made
    return _OPERATIONS[program.key]


def _zeros(of: tuple[Sequence[int], Any], device: Any) -> Any:
    return torch.zeros(of[0], dtype=pytorch.dtype(of[1]), device=device)


def _as_schema(made: list[Any]) -> Any:
    return tuple(made) if len(made) > 1 else made[0] if made else None


# ------------------------------------------------------------------------------------------ gradients


class _Again(torch.autograd.Function):  # type: ignore[misc]
    """Some tensors as they are: what `pull` makes of others."""

    @staticmethod
    def forward(pull: Pull, device: Any, count: int, *tensors: Any) -> Any:
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, made: Any) -> None:
        ctx.pull, ctx.device, ctx.count, *_ = inputs
        ctx.save_for_backward(*inputs[3 + ctx.count :])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        first = 3 + ctx.count
        wanted = [i for i, t in enumerate(ctx.saved_tensors) if ctx.needs_input_grad[first + i] and t.is_floating_point()]
        pull, given = ctx.pull.derivative(wanted), [*ctx.saved_tensors, *(ct.contiguous() for ct in cotangents)]
        with torch.no_grad():
            made = run(pull.program, given, ctx.device)
        if torch.is_grad_enabled():
            made = _Again.apply(pull, ctx.device, len(made), *made, *given)
        found = dict(zip(wanted, made))
        return (*[None] * first, *(found.get(i) for i in range(len(ctx.saved_tensors))))


class _Once(torch.autograd.Function):  # type: ignore[misc]
    """Some tensors as they are; they depend on others in a way that is not differentiated."""

    @staticmethod
    def forward(name: str, problem: tuple[str, str, str], count: int, *tensors: Any) -> Any:
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, made: Any) -> None:
        ctx.name, ctx.problem, *_ = inputs

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        expected, got, remedy = ctx.problem
        raise Unsupported(
            f"smalt: not supported yet: derivatives of derivatives of a kernel for PyTorch ({ctx.name})\n  expected: {expected}\n  got: {got}"
            f"\n  remedy: {remedy}"
        )


class _Arguments:
    """A call's arguments, for who differentiates its derivative. Those that the derivative does not need are not kept alive for that."""

    def __init__(self, program: Program, tensors: Sequence[Any], saved: Sequence[Any]) -> None:
        self._written = [program.names[i] for i in program.written]
        self._names = program.names
        places = {id(t): k for k, t in enumerate(saved)}
        is_kept = any(_is_wrapped(t) for t in tensors)  # of `torch.func`, whose tensors are others when they come back
        self.kept = [] if self._written or not is_kept else list(tensors)
        self._first = len(saved)
        self._own = [self._first + i if is_kept else places.get(id(t), (weakref.ref(t), t._version)) for i, t in enumerate(tensors)]

    def found(self, saved: Sequence[Any]) -> tuple[list[Any], tuple[str, str, str] | None]:
        """The tensors, of what was saved; or what is wrong, what there is, and what to do about it."""
        if self._written:
            return [], ("a call that writes to none of its arguments", f"one that writes to {self._written[0]}", "give it the new value as a result")
        tensors = []
        for own, name in zip(self._own, self._names):
            if isinstance(own, int):
                tensors.append(saved[own])
                continue
            t = own[0]()
            if t is None or t._version != own[1]:
                what = "which is gone" if t is None else "which was written to since"
                remedy = "keep it until then" if t is None else "t.clone()"
                return [], ("arguments as they were", f"{name}, {what}", remedy)
            tensors.append(t)
        return tensors, None


def differentiable(
    program: Program, pull: Program, again: Pull, gradients: Sequence[int], floats: Sequence[int], count: int, tensors: Sequence[Any], device: Any
) -> list[Any]:
    """The results of `program`, of which `count` are its function's own, and the others what `pull` needs. To that go also cotangents of the
    results `floats`; it gives those of the arguments `gradients`. A result that is an argument as it came is PyTorch's own business. `again`: `pull` as a
    function of the arguments."""
    fresh, arguments = len(program.fresh), len(tensors)  # which the tape does not keep alive for their number
    output: dict[int, int] = {}  # by result: which output of PyTorch's function has its cotangent
    for i in floats:
        is_argument, at = program.places[i]
        if not is_argument or at in program.written:
            at = fresh + program.written.index(at) if is_argument else at
            if at not in output.values():
                output[i] = at

    class Call(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(*given: Any) -> Any:
            return (*_fresh(program, given, device), *(given[i] for i in program.written))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, made: Any) -> None:
            ctx.mark_dirty(*(inputs[i] for i in program.written))
            ctx.mark_non_differentiable(*(x for at, x in enumerate(made) if at not in output.values()))
            saved = program.assemble(inputs, made[:fresh])[count:]
            ctx.arguments, ctx.count = _Arguments(program, inputs, saved), len(saved)
            ctx.save_for_backward(*saved, *ctx.arguments.kept)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            saved, types = ctx.saved_tensors[: ctx.count], pull.types[ctx.count :]
            given = [cotangents[output[i]].contiguous() if i in output else _zeros(of, device) for i, of in zip(floats, types)]
            with torch.no_grad():
                made = run(pull, [*saved, *given], device)
            if torch.is_grad_enabled():  # they may be differentiated again
                own, problem = ctx.arguments.found(ctx.saved_tensors)
                if problem is None:
                    made = _Again.apply(again, device, len(made), *made, *own, *given)
                else:
                    made = _Once.apply(program.name, problem, len(made), *made, *saved, *cotangents)
            found = dict(zip(gradients, made))
            return tuple(found.get(i) for i in range(arguments))

    made = Call.apply(*tensors)
    return program.assemble(tensors, made[:fresh])
