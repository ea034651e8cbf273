"""Tables of functions by names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F")


def into(table: dict[str, F]) -> Callable[..., Callable[[F], F]]:
    """A decorator for the functions of a table: `@rule("a", "b")` enters one under these names."""

    def named(*names: str) -> Callable[[F], F]:
        def enter(function: F) -> F:
            table.update(dict.fromkeys(names, function))
            return function

        return enter

    return named
