"""The way of `torch.compile` to a call: imported by what it traces, or by what is called where it may trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from smalt._errors import Error
from smalt._torch import calls
from smalt._torch.pytorch import torch


def plain(function: Callable[..., Any], args: Any) -> Any:
    """A call of which PyTorch reads none of the Python code."""
    return function(*args)


def untraced(function: Callable[..., Any], args: Any) -> Any:
    """The same, for 10 µs less where this thread runs nothing that PyTorch compiled."""
    return function(*args) if _reader and _reader() is None else plain(function, args)


def traced(name: str, args: Any) -> tuple[Any, int]:
    """A call of the function with this name in a program that PyTorch traces: what it does to tensors that have no numbers is what the program has. There
    None stands for nothing (PyTorch 2.11): it is 0, and behind the results there is always something."""
    try:
        return torch.utils._pytree.tree_map(lambda x: 0 if x is None else x, plain(calls.FUNCTIONS[name], args)), 0
    except Error as e:
        warnings.warn(str(e), stacklevel=1)  # what PyTorch raises instead does not have it
        raise


def results_of(made: tuple[Any, int]) -> Any:
    """Of what `traced` gives."""
    return torch.utils._pytree.tree_map(lambda x: x if isinstance(x, torch.Tensor) else None, made[0])


#: Who reads Python code in this thread; it has no public name.
_reader = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)
plain = torch.compiler.disable(plain)
traced = getattr(torch.compiler, "nonstrict_trace", torch._dynamo.nonstrict_trace)(traced)  # a name of its own since 2.12
