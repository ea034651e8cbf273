"""JAX's pipelines: they are those for Hopper on every GPU, and what they make of an output whose block stays for several steps.

`plgpu.emit_pipeline` stores an output's block in the first step that has it, and a later one only if the block is another. What the
steps in between leave in it is lost: a warning names the spec. An index map that uses no index of the grid is stored at the end, and right.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from smalt import _config, _versions
from smalt._blocks import blocks


def heeding_stays(own: Callable[..., Any]) -> Callable[..., Any]:
    """A function of JAX's that makes a pipeline, with the warning."""

    @functools.wraps(own)
    def emit(*args: Any, **how: Any) -> Any:
        if not _config.settings().enabled:
            return own(*args, **how)
        specs = jax.tree.leaves(how.get("out_specs", ()), is_leaf=_versions.is_block_spec)
        for number, spec in enumerate(specs):
            if (stays := _longest_stay(spec, how.get("grid", ()))) > 1:
                warnings.warn(_text(own.__name__, number, stays), UserWarning, stacklevel=2)
        with _versions.as_hopper():
            return own(*args, **how)

    return emit


def _text(name: str, number: int, stays: int) -> str:
    return (
        f"smalt: plgpu.{name}: an output whose block stays for several steps (out_specs[{number}]): JAX stores what the first of them leaves there"
        "\n  expected: an index map that gives another block in each step, or one that uses no index of the grid"
        f"\n  got: one block for up to {stays} steps in a row"
        "\n  remedy: take the axes that the block does not depend on out of the pipeline's grid, and loop over them in the body"
    )


def _longest_stay(spec: Any, grid: Sequence[Any]) -> int:
    """The most steps in a row that have the same block; 1 where that is not known."""
    if not all(isinstance(n, int) for n in grid) or not _versions.is_stored_in_turn(spec, grid):
        return 1
    closed = jax.make_jaxpr(spec.index_map)(*(jnp.int32(0) for _ in grid))
    if any(isinstance(c, jax.core.Tracer) for c in _versions.open_jaxpr(closed)[1]):
        return 1
    forms = blocks.forms_of(closed, [blocks.Form(factors=((a, 1),)) for a in range(len(grid))], grid)
    at = blocks.points(closed, forms, grid)
    if at is None or len(at) == 0:
        return 1
    longest = run = 1
    for same in (at[1:] == at[:-1]).all(axis=1):
        run = run + 1 if same else 1
        longest = max(longest, run)
    return longest
