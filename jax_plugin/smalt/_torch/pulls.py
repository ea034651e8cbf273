"""Derivatives of derivatives, for PyTorch: each is a function of JAX like the one that it is of, and becomes a program when it is needed.

What PyTorch's tape needs at once is in `calls.py`: there a call keeps what its derivative needs. A derivative of that derivative computes it again from the
call's arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:  # imports PyTorch
    from smalt._torch.program import Program


class Pull:
    """The cotangents of some operands of a function, as a function of all its operands and of cotangents of some of its results."""

    def __init__(
        self, name: str, fn: Callable[..., Sequence[Any]], operands: Sequence[Any], results: Sequence[Any], wanted: Sequence[int], given: Sequence[int],
        program: Callable[..., tuple[Program, Any]],
    ) -> None:  # fmt: skip
        """`operands`, `results`: types; `wanted`, `given`: by number. `program`: what traces a function."""
        self.name, self._fn, self._wanted, self._given, self._trace = name, fn, list(wanted), list(given), program
        self._count = len(operands)
        self.operands = [*operands, *(results[i] for i in given)]
        self._made = [operands[i] for i in wanted]
        self._derivatives: dict[tuple[int, ...], Pull] = {}

    def __call__(self, *args: Any) -> list[Any]:
        own, cotangents = args[: self._count], args[self._count :]

        def some(*xs: Any) -> list[Any]:
            now = list(own)
            for i, x in zip(self._wanted, xs):
                now[i] = x
            results = self._fn(*now)
            return [results[i] for i in self._given]

        return list(jax.vjp(some, *(own[i] for i in self._wanted))[1](list(cotangents)))

    @functools.cached_property
    def program(self) -> Program:
        names = [f"operand {i} of {self.name}" for i in range(len(self.operands))]
        return self._trace(self.name, self, self.operands, names, copies=True)[0]

    def derivative(self, wanted: Sequence[int]) -> Pull:
        """Of itself, with respect to some of its operands."""
        key = tuple(wanted)
        if key not in self._derivatives:
            made = self._made
            self._derivatives[key] = Pull(f"{self.name}_backward", self, self.operands, made, key, range(len(made)), self._trace)
        return self._derivatives[key]
