"""Programs as PyTorch knows them: operations of its own (`torch.ops.smalt`), with the shapes of their results, and functions with gradients.

Tensors that hold numbers go to a program at once. Where PyTorch traces (`torch.compile`, `torch.export`, `make_fx`), a program is a custom operation,
whose name is a digest of what it does: what PyTorch keeps of a trace, on disk too, names the same program in every process.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from smalt import _pytorch
from smalt._errors import Unsupported
from smalt._pytorch import torch

if TYPE_CHECKING:
    from smalt._torch_program import Program

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
    """Whether somebody wants to see operations: there may be no numbers in the tensors."""
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
    return torch.zeros(of[0], dtype=_pytorch.dtype(of[1]), device=device)


def _as_schema(made: list[Any]) -> Any:
    return tuple(made) if len(made) > 1 else made[0] if made else None


# ------------------------------------------------------------------------------------------ gradients


class _Once(torch.autograd.Function):  # type: ignore[misc]
    """Some tensors as they are; they depend on others in a way that nobody differentiates."""

    @staticmethod
    def forward(name: str, count: int, *tensors: Any) -> Any:
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, made: Any) -> None:
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Unsupported(
            f"smalt: not supported yet: derivatives of derivatives of a kernel for PyTorch ({ctx.name})\n  expected: one derivative"
            "\n  got: another one\n  remedy: differentiate twice in JAX (jax.grad), and make that function PyTorch's"
        )


def differentiable(
    program: Program, pull: Program, gradients: Sequence[int], floats: Sequence[int], count: int, tensors: Sequence[Any], device: Any
) -> list[Any]:
    """The results of `program`, of which `count` are its function's own, and the others what `pull` needs. To that go also cotangents of the
    results `floats`; it gives those of the arguments `gradients`. A result that is an argument as it came is PyTorch's own business."""
    fresh = len(program.fresh)
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
            ctx.save_for_backward(*program.assemble(inputs, made[:fresh])[count:])

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            types = pull.types[len(ctx.saved_tensors) :]
            given = [cotangents[output[i]].contiguous() if i in output else _zeros(of, device) for i, of in zip(floats, types)]
            with torch.no_grad():
                made = run(pull, [*ctx.saved_tensors, *given], device)
            if torch.is_grad_enabled():  # somebody may differentiate them again
                made = _Once.apply(program.name, len(made), *made, *ctx.saved_tensors, *cotangents)
            found = dict(zip(gradients, made))
            return tuple(found.get(i) for i in range(len(tensors)))

    made = Call.apply(*tensors)
    return program.assemble(tensors, made[:fresh])
