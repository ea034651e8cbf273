"""How `torch.compile` comes by a call: imported by whoever it traces, or by whoever is called where it may trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from smalt import _torch
from smalt._errors import Error
from smalt._pytorch import torch


def plain(function: Callable[..., Any], args: Any) -> Any:
    """A call of which PyTorch reads none of the Python code."""
    return function(*args)


def untraced(function: Callable[..., Any], args: Any) -> Any:
    """The same, for 10 µs less where this thread runs nothing that PyTorch compiled."""
    return function(*args) if _reader and _reader() is None else plain(function, args)


def traced(name: str, args: Any) -> Any:
    """A call of the function with this name in a program that PyTorch traces: what it does to tensors that have no numbers is what the program has."""
    try:
        return plain(_torch.FUNCTIONS[name], args)
    except Error as e:
        warnings.warn(str(e), stacklevel=1)  # what PyTorch raises instead does not say it
        raise


#: Who reads Python code in this thread; it has no public name.
_reader = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)
plain = torch.compiler.disable(plain)
traced = getattr(torch.compiler, "nonstrict_trace", torch._dynamo.nonstrict_trace)(traced)  # a name of its own since 2.12
