"""What smalt changes in JAX: nothing at import; from the first enabling on, and given back where it can be.

The rules of lowering and of derivatives are in JAX's tables while they are held: by `smalt.enable()` until `smalt.disable()`, a scope of `smalt.enabled()`
until its end, by `CompilerParams(enabled=True)` from then on. What was in the tables before answers for every kernel that is not smalt's, and
stands there again afterwards, another plugin's rules included.

What programs need that were compiled while smalt was enabled (their errors' classes, calls that Python makes) stays: it does something
for those programs only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from smalt import _versions

#: (primitive, rule)
_RULES: list[tuple[object, _versions.ChainedRule]] = []
#: (kind, primitive, rule) of derivatives.
_DERIVATIVES: list[tuple[str, object, Callable[..., object]]] = []
#: Other changes: each is made by a function that returns the steps that take it away again.
_OTHERS: list[Callable[[], list[Callable[[], None]]]] = []
#: What is done once, at the first enabling.
_FIRST: list[Callable[[], None]] = []
_PLATFORMS = ("cpu", "cuda")

_lock = threading.RLock()
_holders = 0
_is_first = True
_is_permanent = False
_restore: list[Callable[[], None]] = []


def take_over(
    rules: Iterable[tuple[object, _versions.ChainedRule]] = (),
    derivatives: Iterable[tuple[str, object, Callable[..., object]]] = (),
    others: Iterable[Callable[[], list[Callable[[], None]]]] = (),
    first: Callable[[], None] | None = None,
) -> None:
    """Enters what a package wants changed while smalt is enabled, and what it does `first`, once."""
    _RULES.extend(rules)
    _DERIVATIVES.extend(derivatives)
    _OTHERS.extend(others)
    _FIRST.extend([first] if first else [])


def hold() -> None:
    """Registers the rules in JAX's tables, above whatever came there meanwhile."""
    global _holders, _is_first
    with _lock:
        if _is_first:
            for prepare in _FIRST:
                prepare()
            _is_first = False
        for primitive, rule in _RULES:
            _restore.extend(_versions.chain_rule(primitive, rule, _PLATFORMS))
        for kind, primitive, derivative in _DERIVATIVES:
            _restore.extend(_versions.chain_derivative(kind, primitive, derivative))
        for change in _OTHERS:
            _restore.extend(change())
        _holders += 1


def release() -> None:
    """Ends one `hold`; behind the last one, JAX's tables are as before the first."""
    global _holders
    with _lock:
        _holders -= 1
        if _holders == 0:
            while _restore:
                _restore.pop()()


def hold_permanently() -> None:
    """For a choice that an object carries: it may be used at any time."""
    global _is_permanent
    with _lock:
        if not _is_permanent:
            hold()
            _is_permanent = True
