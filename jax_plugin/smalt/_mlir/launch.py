"""The launch context that functions of `plgpu.inline_mgpu` get: JAX's own, where tensor maps are operands of the text.

JAX makes a tensor map on the host, in a module of its own. Here a text has some, each over one of its references to device memory, and what
JAX needs is the address of one. All else about a copy is as JAX builds it: indices, predicates, instructions.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from smalt import _versions
from smalt._errors import InvalidKernel, Unsupported

#: What of JAX's own context has a meaning here.
_KNOWN = ("async_copy", "async_prefetch", "await_async_copy", "await_cp_async_copy", "named_region")
_OFFERED = "cluster_size, " + ", ".join(_KNOWN)


@dataclasses.dataclass(frozen=True)
class TensorMap:
    """A tensor map over reference number `of` of a text: sizes with the minor dimension first, strides in bytes of the others."""

    of: int
    element: Any
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


class LaunchContext(_versions.StockLaunchContext):  # type: ignore[misc]  # JAX has no types
    """`cluster`: its extents along x, y, z. `add_map` gives the MLIR value of a map's address, `number_of` the number of a reference."""

    def __init__(self, cluster: Sequence[int], number_of: Callable[[Any], int | None], add_map: Callable[[TensorMap], Any]) -> None:
        self.cluster_size = tuple(cluster)
        self._number_of = number_of
        self._add_map = add_map

    @contextlib.contextmanager
    def named_region(self, *_: Any, **__: Any) -> Iterator[None]:
        yield

    def async_copy(self, *, src_ref: Any, dst_ref: Any, **others: Any) -> Any:
        self._check_argument(src_ref, dst_ref)
        return super().async_copy(src_ref=src_ref, dst_ref=dst_ref, **others)

    def async_prefetch(self, *, gmem_ref: Any, **others: Any) -> Any:
        self._check_argument(gmem_ref)
        return super().async_prefetch(gmem_ref=gmem_ref, **others)

    def _check_argument(self, *refs: Any) -> None:
        """JAX has tensor maps of whole arrays, and slices in the copy."""
        if any(_versions.is_device_memref(x) and self._number_of(x) is None for x in refs):
            raise InvalidKernel(
                "a copy of device memory\n  expected: a reference that is an argument of the function, as it came\n  got: one that was made of it"
                "\n  remedy: slice it in the copy (gmem_slice=), or before the call"
            )

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name not in _KNOWN and name != "cluster_size":
            raise _refused(name)
        return super().__getattribute__(name)

    def _get_tma_desc(
        self, gmem_ref: Any, gmem_transform: Any, gmem_peer_id: Any, transformed_slice_shape: Any, swizzle: Any, reduction_op: Any, **others: Any
    ) -> Any:
        if gmem_peer_id is not None:
            raise _refused("async_copy(gmem_peer_id=…)")
        if any(x is not None for x in others.values()):
            raise _refused("async_copy_im2col")
        of = self._number_of(gmem_ref)
        assert of is not None, "looked at before"
        shape, strides, element = _versions.transformed_memref(gmem_ref, gmem_transform)
        bits = element.itemsize * 8
        if not strides or strides[-1] != 1:
            raise InvalidKernel(
                "a copy of device memory\n  expected: neighbours along the last dimension that are neighbours in memory"
                f"\n  got: strides {tuple(strides)} after gmem_transform\n  remedy: keep the last dimension last: hardware does not transpose it"
            )
        return self._add_map(
            TensorMap(
                of,
                _counted(element, reduction_op),
                tuple(reversed(shape)),
                tuple(int(s) * bits // 8 for s in reversed(strides[:-1])),
                tuple(int(n) for n in reversed(transformed_slice_shape)),
                0 if swizzle is None or int(swizzle) <= 16 else int(swizzle),
            )
        )


def _counted(element: Any, reduction_op: Any) -> Any:
    """The type by which a reduction compares: MLIR's integers have no sign, its operations have."""
    if element.kind not in "iu" or element.itemsize < 4:
        return element
    signed = reduction_op in ("smin", "smax")
    return np.dtype(f"{'i' if signed else 'u'}{element.itemsize}")


def _refused(name: str) -> Unsupported:
    return Unsupported(
        f"`{name}` of the launch context\n  expected: {_OFFERED}"
        f"\n  got: ctx.{name}\n  remedy: other devices, waits and barriers are plgpu's operations, outside of the function"
    )
