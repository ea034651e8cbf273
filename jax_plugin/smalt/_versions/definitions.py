"""Primitives that JAX defines by others: the functions by which it lowers them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jax._src.interpreters import mlir as _mlir
from jax._src.lax import special as lax_special


def defined_by_jax(eqn: Any) -> Callable[..., Any] | None:
    """The function by which JAX lowers a primitive on every platform that has no rule of its own; None if it is no function."""
    function = _definitions().get(eqn.primitive.name)
    return None if function is None else functools.partial(function, **eqn.params)


def defined_by_primitive(name: str, params: dict[str, Any]) -> Callable[..., Any] | None:
    function = _definitions().get(name)
    if function is None and hasattr(lax_special, f"{name}_impl"):
        own = getattr(lax_special, f"{name}_impl")
        return lambda *xs: own(*xs, dtype=xs[0].dtype)
    return None if function is None else functools.partial(function, **params)


#: What JAX defines by others and smalt has itself, or what is a call or a loop of the kernel.
_OWN = frozenset({
    "argmax", "argmin", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "logistic", "one_minus_square", "run_state", "scan",
    "custom_vmap_call",
})  # fmt: skip


@functools.cache
def _definitions() -> dict[str, Callable[..., Any]]:
    found = {}
    for primitive, entry in _mlir._lowerings.items():
        if (function := lowered_function(entry.rule)) is not None:
            found[primitive.name] = function
    return found


def lowered_function(rule: Any) -> Callable[..., Any] | None:
    """The function that a rule lowers: `mlir.lower_fun(f)` is a closure over `f`; None for other rules."""
    while isinstance(rule, functools.partial):
        rule = rule.func
    code = getattr(rule, "__code__", None)
    if code is None or "lower_fun" not in rule.__qualname__ or "fun" not in code.co_freevars:
        return None
    return rule.__closure__[code.co_freevars.index("fun")].cell_contents  # type: ignore[no-any-return]


def has_definition(name: str) -> bool:
    return name in _definitions() and name not in _OWN
