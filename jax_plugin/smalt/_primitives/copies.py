"""Copies that the threads of a warpgroup make themselves (`cp.async`), counted in the order in which they begin: what JAX has from 0.11.1 on as
copies without a barrier, and takes on its own machines only. For kernels that smalt writes."""

from __future__ import annotations

from typing import Any

import jax

from smalt import _versions
from smalt._primitives import texts

copy_p = texts.new("copy_gmem_to_smem", "copy_by_threads")
wait_p = texts.new("wait_gmem_to_smem", "await_copies")


@copy_p.def_effectful_abstract_eval  # type: ignore[untyped-decorator]
def _copy_eval(source: Any, target: Any, *_: Any, **__: Any) -> Any:
    return (), _versions.effects_of_memory([source, target])


@wait_p.def_effectful_abstract_eval  # type: ignore[untyped-decorator]
def _wait_eval(**_: Any) -> Any:
    return (), _versions.effects_of_memory([])


def copy_by_threads(source: Any, target: Any, when: Any = True) -> None:
    """Begins to copy a part of an array, which is all inside, to shared memory. It counts as a copy where `when` does not hold, too."""
    refs, leaves, trees = [], [], {}
    for name, ref in (("src", source), ("dst", target)):
        base, chain = _versions.ref_and_transforms(ref)
        found, tree = jax.tree.flatten(chain)
        refs.append(base)
        leaves += found
        trees[f"{name}_transforms_treedef"] = tree
    params = {"barrier_transforms_treedef": None, "collective_axes": None, "oob_mode": "promise_in_bounds", "has_barrier": False}
    predicate = [] if when is True else [when]
    copy_p.bind(*refs, *leaves, *predicate, **trees, **params, has_user_predicate=bool(predicate))


def await_copies(left: int) -> None:
    """Waits until at most so many of the warpgroup's last copies are left. All of its threads see what the others have copied."""
    wait_p.bind(n=left)
