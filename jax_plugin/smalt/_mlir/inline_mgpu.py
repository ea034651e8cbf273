"""`plgpu.inline_mgpu`: the user's function builds MLIR, of which one text of inline PTX is made.

Every lane runs the text once. `{k.i}` is a register with element i that a lane has of array k (results first), in the order of JAX's
`FragmentedArray`; `{k}` is a scalar, or the address of a reference, which lies in memory as the text says.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from smalt import _messages, _versions
from smalt._errors import Error, InvalidKernel, Unsupported
from smalt._messages import Message
from smalt._mlir.launch import LaunchContext, TensorMap
from smalt._mlir.memory import Buffer
from smalt._mlir.ptx import Translator
from smalt._mlir.text import Text, kind_of


#: The compute capability that functions query: smalt's.
_ARCH = (9, 0)


@dataclasses.dataclass(frozen=True)
class Array:
    """An array or a scalar: its type, and the layout that JAX's function sees it in."""

    shape: tuple[int, ...]
    dtype: Any
    layout: Any  # Mosaic's own; of a scalar a splat

    @property
    def is_scalar(self) -> bool:
        return self.shape == ()


@dataclasses.dataclass(frozen=True)
class Reference:
    """A reference as it lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    shared: bool
    tiling: tuple[int, ...]
    swizzle: int


@dataclasses.dataclass(frozen=True)
class Barrier:
    """A barrier, of the block or of another one of its cluster."""

    far: bool


def translate(
    function: Any,
    args: Sequence[Array | Reference | Barrier],
    tree: Any,
    results: Sequence[Array],
    result_tree: Any,
    cluster: Sequence[int],
) -> tuple[str, list[TensorMap]]:
    """The text of a function of these arguments, and the tensor maps that it has behind them. `cluster`: its extents along x, y, z."""
    text = Text()
    cx = Translator(text)
    maps: dict[TensorMap, Any] = {}
    with _versions.mlir_function(_ARCH) as enter:
        _check_types([x for x in (*args, *results) if not isinstance(x, Barrier)])
        types = [ty for arg in args for ty in _mlir_types(arg)]
        block = enter(types)
        values = iter(list(block.arguments))
        given: list[Any] = []
        numbers: dict[Any, int] = {}
        count = 0
        for k, arg in enumerate(args, len(results)):
            mine = [next(values) for _ in _mlir_types(arg)]
            names = _names(k, arg)
            if isinstance(arg, Barrier):
                cx.set(mine[0], (names[0],))
                given.append(_versions.barrier_reference(mine[0]))
                count += 1
                continue
            if isinstance(arg, Reference):
                cx.set(mine[0], Buffer(names[0], "shared" if arg.shared else "global"))
                given.append(mine[0] if arg.shared else _versions.kernel_argument(mine[0]))
                numbers[given[-1]] = count
                count += 1
                continue
            at = 0
            for value in mine:
                n = int(np.prod(_versions.mlir_shape(value.type), dtype=np.int64))
                cx.set(value, tuple(names[at : at + n]))
                at += n
            given.append(_versions.fragmented_array(mine, arg.layout, arg.shape, arg.dtype))

        def add_map(tensor_map: TensorMap) -> Any:
            if tensor_map not in maps:
                maps[tensor_map] = _versions.add_pointer(block)
                cx.set(maps[tensor_map], (f"{{{len(results) + len(args) + len(maps) - 1}}}",))
            return maps[tensor_map]

        returned = _call(function, LaunchContext(cluster, numbers.get, add_map), jax.tree.unflatten(tree, given))
        made = _checked(function, returned, results, result_tree)
        cx.block(block)
        for k, (array, result) in enumerate(zip(made, results, strict=True)):
            to = iter(_names(k, result))
            for value in array.registers.flat:
                cls = kind_of(_versions.mlir_element(value.type)).cls
                for reg in cx.get(value):
                    text.emit(f"mov.{cls} {next(to)}, {reg};")
    return text.finish(), list(maps)


def attributes(args: Sequence[Array | Reference | Barrier], results: Sequence[Array], text: str, maps: Sequence[TensorMap]) -> list[Message]:
    """Those of the descriptor's `inline_ptx`."""
    refs = [x for x in args if not isinstance(x, Array)]
    lies = [(list(r.tiling), r.swizzle) if isinstance(r, Reference) else ([], 0) for r in refs]
    places = [_messages.named_attributes({"tiling": tiling, "swizzle": swizzle}) for tiling, swizzle in lies]
    over = [
        _messages.named_attributes({
            "of": m.of, "element": m.element, "dims": list(m.dims), "strides": list(m.strides), "box": list(m.box), "swizzle": m.swizzle,
        })
        for m in maps
    ]  # fmt: skip
    return _messages.attributes({
        "text": text,
        "whole": True,
        "arrays": arrays([x for x in (*args, *results) if isinstance(x, Array)]),
        "refs": _messages.numbered_attributes(places) if places else None,
        "maps": _messages.numbered_attributes(over) if over else None,
        "called": "inline_mgpu",
    })  # fmt: skip


def arrays(values: Sequence[Array]) -> Any:
    """The descriptor's `arrays`: how those that are none of scalars lie in lanes."""
    layouts = [_messages.named_attributes({"layout": _messages.layout(a.layout), "order": _registers(a)}) for a in values if not a.is_scalar]
    return _messages.numbered_attributes(layouts) if layouts else None


def array(shape: Sequence[int], dtype: Any, layout: Any, what: str) -> Array:
    """`layout`: a `plgpu.Layout`, or None for a scalar."""
    shape = tuple(int(n) for n in shape)
    if layout is None and shape:
        raise InvalidKernel(
            f"{what} has no layout\n  expected: plgpu.ShapeDtypeStruct(shape, dtype, layout=…)\n  got: {np.dtype(dtype).name}{list(shape)}"
            "\n  remedy: name the layout in which the function returns it"
        )
    try:
        own = _versions.splat_layout(shape) if shape == () else layout.to_mgpu()
        own.registers_shape(shape)
        _versions.first_lane(own, shape)
    except (TypeError, ValueError, NotImplementedError, AssertionError) as e:
        raise InvalidKernel(
            f"the layout of {what}\n  expected: a layout that fits {np.dtype(dtype).name}{list(shape)}\n  got: {layout}: {e}"
            "\n  remedy: another layout, or another shape"
        ) from e
    return Array(shape, dtype, own)


def _registers(x: Array | Reference | Barrier) -> list[int]:
    return _versions.first_lane(x.layout, x.shape) if isinstance(x, Array) else [0]


def _names(k: int, x: Array | Reference | Barrier) -> list[str]:
    """What the text calls the registers of result or operand `k`."""
    n = len(_registers(x))
    return [f"{{{k}}}"] if n == 1 else [f"{{{k}.{i}}}" for i in range(n)]


def _check_types(values: Sequence[Array | Reference]) -> None:
    for x in values:
        try:
            kind_of(_versions.mlir_type(x.dtype))
        except (TypeError, ValueError, KeyError, NotImplementedError):
            raise Unsupported(
                f"a value of type {x.dtype}\n  expected: integers, floats and booleans that MLIR has\n  got: {x.dtype}"
                "\n  remedy: bitcast it to an integer of as many bits (jax.lax.bitcast_convert_type)"
            ) from None


def _mlir_types(x: Array | Reference | Barrier) -> list[Any]:
    if isinstance(x, Barrier):
        return [_versions.mlir_shared_pointer(x.far)]
    if isinstance(x, Reference):
        return [_versions.mlir_memref_type(x.shape, x.strides, _versions.mlir_type(x.dtype), x.shared)]
    return _versions.fragment_types(x.layout, x.shape, x.dtype)


# ------------------------------------------------------------------------------------------ the function


def _call(function: Any, context: LaunchContext, args: Any) -> Any:
    try:
        return function(context, *args)
    except Error:
        raise
    except Exception as e:
        place = ""
        for frame in traceback.extract_tb(e.__traceback__):
            if frame.filename == getattr(getattr(function, "__code__", None), "co_filename", None):
                place = f" (line {frame.lineno}: {frame.line})"
        raise InvalidKernel(
            f"{_name(function)} failed\n  expected: a function that builds MLIR of its arguments\n  got: {type(e).__name__}: {e}{place}"
            "\n  remedy: mend the function; it is called once, with the launch context and its arguments"
        ) from e


def _name(function: Any) -> str:
    return f"`{getattr(function, '__name__', 'the function')}`"


def _checked(function: Any, returned: Any, results: Sequence[Array], tree: Any) -> list[Any]:
    """What the function returned, as in `return_type`."""
    leaves: list[Any]
    leaves, own = jax.tree.flatten(returned, is_leaf=lambda x: isinstance(x, _versions.FragmentedArray))
    if own != tree:
        raise InvalidKernel(
            f"what {_name(function)} returns\n  expected: {tree}, as return_type\n  got: {own}"
            "\n  remedy: return a FragmentedArray for each plgpu.ShapeDtypeStruct of return_type"
        )
    for i, (leaf, result) in enumerate(zip(leaves, results)):
        _check_result(f"result {i} of {_name(function)}", leaf, result)
    return leaves


def _check_result(what: str, x: Any, result: Array) -> None:
    def wrong(expected: str, got: str) -> None:
        raise InvalidKernel(
            f"{what}\n  expected: {expected}, as in return_type\n  got: {got}"
            "\n  remedy: return what return_type says (astype, to_layout, broadcast_in_dim), or say what is returned"
        )

    if not isinstance(x, _versions.FragmentedArray):
        wrong("a FragmentedArray", type(x).__name__)
    if x.mlir_dtype != _versions.mlir_type(result.dtype):
        wrong(f"elements of type {_versions.mlir_type(result.dtype)}", str(x.mlir_dtype))
    if tuple(x.shape) != result.shape:
        wrong(f"the shape {result.shape}", str(tuple(x.shape)))
    if x.layout != result.layout:
        wrong(f"the layout {result.layout}", str(x.layout))


# ------------------------------------------------------------------------------------------ references


@dataclasses.dataclass
class _Dim:
    size: int
    stride: int
    tile: int = 0  # 0: not tiled
    tile_stride: int = 0


def reference(shape: Sequence[int], dtype: Any, shared: bool, chain: Sequence[Any], declared: Sequence[Any]) -> Reference:
    """How memory of this shape lies after the transforms of `chain`, where `declared` are those of the function's `RefType`."""
    dims = _dense(shape)
    tiling: tuple[int, ...] = ()  # the allocation's own: what lies otherwise is its view
    transposed = False
    swizzle = 0
    for t in chain:
        if isinstance(t, Chosen):
            tiling, swizzle = t.tiling, t.swizzle
            dims = _untiled(_dense(t.shape), tiling) if tiling else dims
            continue
        match type(t).__name__:
            case "ExtractAliasedRef":
                dims, dtype = _dense(t.shape), t.dtype
            case "UntilingTransform":
                tiling = tiling if transposed else tuple(t.tiling)
                dims = _untiled(dims, tuple(t.tiling))
            case "UnswizzleRef":
                swizzle = int(t.swizzle)
            case "NDIndexer":
                dims = _sliced(dims, t)
            case "TransposeTransform":
                transposed = True
                dims = [dims[i] for i in t.permutation]
            case "PeerMemRef" | "ClusterRefTransform":
                pass
            case name:
                raise _unfit(f"a reference seen through {name}", "apply it in the function (mgpu.memref_slice, memref_reshape, memref_transpose)")
    lies, wanted_swizzle = _as_declared(dims, declared)
    if lies is None or max(swizzle, 16) != max(wanted_swizzle, 16):
        raise InvalidKernel(
            f"the transforms of a reference\n  expected: those of its RefType: {_words_of(declared)}"
            f"\n  got: {_words([d.tile for d in dims if d.tile], swizzle)}{', transposed' if transposed else ''}"
            "\n  remedy: give the buffer (plgpu.SMEM, plgpu.BlockSpec) and its plgpu.RefType the same transforms"
        )
    return Reference(tuple(d.size for d in lies), tuple(d.stride for d in lies), dtype, shared, tiling, swizzle)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Transforms that a buffer has because a function takes it so: `shape` is what they make of the buffer's."""

    shape: tuple[int, ...]
    tiling: tuple[int, ...]
    swizzle: int


def chosen(shape: Sequence[int], chain: Sequence[Any], declared: Sequence[Any]) -> Sequence[Any]:
    """`chain` with the transforms of a `RefType` in front of what is done to the buffer, which has none of its own.

    As they are where the chain or the shape does not allow it: then `reference` reports what differs.
    """
    front = 0
    if chain and type(chain[0]).__name__ == "ExtractAliasedRef":
        front, shape = 1, chain[0].shape
    tilings = [tuple(int(n) for n in t.tiling) for t in declared if type(t).__name__ == "TilingTransform"]
    swizzles = [int(t.swizzle) for t in declared if type(t).__name__ == "SwizzleTransform"]
    if not declared or len(tilings) > 1 or len(swizzles) > 1 or len(tilings) + len(swizzles) != len(declared):
        return chain
    tiling = tilings[0] if tilings else ()
    outer = len(shape) - len(tiling)
    if outer < 0 or any(n % t for n, t in zip(shape[outer:], tiling)):
        return chain
    for t in chain[front:]:
        # The dimensions that are tiled stay the last ones.
        if type(t).__name__ != "NDIndexer" or any(type(i).__name__ != "Slice" for i in t.indices[len(t.indices) - len(tiling) :]):
            return chain
    counts = [n // t for n, t in zip(shape[outer:], tiling)]
    made = Chosen((*shape[:outer], *counts, *tiling), tiling, swizzles[0] if swizzles else 0)
    return [*chain[:front], made, *chain[front:]]


def _as_declared(dims: list[_Dim], declared: Sequence[Any]) -> tuple[list[_Dim] | None, int]:
    """The dimensions as transforms leave them, None where those are of tiles that are not there; and the swizzle."""
    swizzle = 0
    for t in declared:
        match type(t).__name__:
            case "TilingTransform":
                last = len(dims) - len(t.tiling)
                if last < 0 or [d.tile for d in dims[last:]] != list(t.tiling):
                    return None, swizzle
                dims = [*(_Dim(d.size, d.stride) for d in dims), *(_Dim(d.tile, d.tile_stride) for d in dims[last:])]
            case "TransposeTransform":
                if sorted(t.permutation) != list(range(len(dims))):
                    return None, swizzle
                dims = [dims[i] for i in t.permutation]
            case "SwizzleTransform":
                swizzle = int(t.swizzle)
            case name:
                raise _unfit(f"the transform {name} of a RefType", "plgpu.TilingTransform, TransposeTransform and plgpu.SwizzleTransform")
    return None if any(d.tile for d in dims) else dims, swizzle


def _words(tiling: Sequence[int], swizzle: int) -> str:
    parts = [f"tiling {tuple(tiling)}"] * bool(tiling) + [f"swizzle {swizzle}"] * (swizzle > 16)
    return ", ".join(parts) or "none"


def _words_of(declared: Sequence[Any]) -> str:
    names = {"TilingTransform": "tiling", "SwizzleTransform": "swizzle", "TransposeTransform": "transposition"}
    parts = []
    for t in declared:
        value = next((getattr(t, name) for name in ("tiling", "swizzle", "permutation") if hasattr(t, name)), "")
        parts.append(f"{names.get(type(t).__name__, type(t).__name__)} {value}")
    return ", ".join(parts) or "none"


def _unfit(what: str, remedy: str) -> Unsupported:
    return Unsupported(f"{what}\n  expected: slices of whole tiles of a buffer\n  got: {what}\n  remedy: {remedy}")


def _dense(shape: Sequence[int]) -> list[_Dim]:
    dims, stride = [], 1
    for n in reversed(shape):
        dims.append(_Dim(int(n), stride))
        stride *= int(n)
    return dims[::-1]


def _untiled(dims: list[_Dim], tiling: Sequence[int]) -> list[_Dim]:
    k = len(tiling)
    outer, tiles = dims[: len(dims) - k], dims[len(dims) - k :]
    rest, counts = outer[: len(outer) - k], outer[len(outer) - k :]
    return [*rest, *(_Dim(c.size, c.stride, t.size, t.stride) for c, t in zip(counts, tiles))]


def _sliced(dims: list[_Dim], t: Any) -> list[_Dim]:
    out = []
    if tuple(t.int_indexer_shape):
        raise _unfit("a reference indexed by arrays", "load it outside of the function")
    for dim, index in zip(dims, t.indices, strict=True):
        if type(index).__name__ != "Slice":
            if dim.tile:
                raise _unfit("a row of a tiled reference", "slice whole tiles, and index in the function")
            continue
        if not isinstance(index.size, int):
            raise _unfit("a slice whose size is computed", "slices of a known size")
        if not dim.tile:
            out.append(_Dim(index.size, dim.stride * index.stride))
            continue
        start = index.start if isinstance(index.start, int) else 0
        if index.stride != 1 or index.size % dim.tile or start % dim.tile:
            raise _unfit(f"a slice of {index.size} from {index.start} on of tiles of {dim.tile}", "slices of whole tiles")
        out.append(_Dim(index.size // dim.tile, dim.stride, dim.tile, dim.tile_stride))
    return out
