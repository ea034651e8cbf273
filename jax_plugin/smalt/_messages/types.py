"""JAX's types, literals and layouts as messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smalt import _versions
from smalt._errors import InvalidKernel, Unsupported
from smalt._messages.wire import Message, message

_DTYPES = {
    "bool": "BOOL",
    "int2": "I2",
    "int4": "I4",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint2": "U2",
    "uint4": "U4",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8E4M3FN",
    "float8_e5m2": "F8E5M2",
    "float8_e8m0fnu": "F8E8M0FNU",
    "float4_e2m1fn": "F4E2M1FN",
    "float8_e4m3b11fnuz": "F8E4M3B11FNUZ",
    "float8_e4m3fnuz": "F8E4M3FNUZ",
    "float8_e5m2fnuz": "F8E5M2FNUZ",
    "float8_e3m4": "F8E3M4",
    "float8_e4m3": "F8E4M3",
    "float6_e2m3fn": "F6E2M3FN",
    "float6_e3m2fn": "F6E3M2FN",
    "complex64": "C64",
    "complex128": "C128",
    "float0": "FLOAT0",
}

AxisId = Callable[[Any], int]


def is_complex(aval: Any) -> bool:
    """Whether an array (not a reference) is of complex numbers: two values of a descriptor."""
    return _is_array(aval) and _has_parts(aval)


def is_complex_ref(aval: Any) -> bool:
    """Whether a reference is to complex numbers."""
    return _versions.is_ref_aval(aval) and _has_parts(aval)


def _has_parts(aval: Any) -> bool:
    return getattr(aval.dtype, "kind", "") == "c"


def is_key(aval: Any) -> bool:
    """Whether an array is of random keys: `u32[..., 2]` in a descriptor."""
    return _is_array(aval) and type(aval.dtype).__name__ == "KeyTy"


def _is_array(aval: Any) -> bool:
    return hasattr(aval, "dtype") and hasattr(aval, "shape") and not _versions.is_ref_aval(aval)


def physical(aval: Any) -> tuple[Any, ...]:
    """The types of the values that stand for a value of this type."""
    if is_complex(aval):
        return (_versions.physical_aval(aval.shape, np.dtype(f"f{aval.dtype.itemsize // 2}"), bool(getattr(aval, "weak_type", False))),) * 2
    if is_key(aval):
        return (_versions.physical_aval((*aval.shape, *aval.dtype._impl.key_shape), np.dtype(np.uint32), False),)
    return (aval,)


def parts(element: Any) -> tuple[str, int] | None:
    """What the last dimension of a stored array is made of, where it is not an element: `stored`."""
    if type(element).__name__ == "KeyTy":
        return "key", element._impl.key_shape[-1]
    return ("complex", 2) if isinstance(element, np.dtype) and element.kind == "c" else None


def stored(element: Any, shape: Sequence[int]) -> tuple[Any, tuple[int, ...]]:
    """Element type and shape of a reference as it lies in memory: of complex numbers and keys with a dimension of parts."""
    if type(element).__name__ == "KeyTy":
        return np.dtype(np.uint32), (*shape, *element._impl.key_shape)
    if isinstance(element, np.dtype) and element.kind == "c":
        return np.dtype(f"f{element.itemsize // 2}"), (*shape, 2)
    return element, tuple(shape)


def dtype(x: Any) -> str:
    """The DType member of a NumPy or extended dtype."""
    name = getattr(x, "name", None) or np.dtype(x).name
    if name in _DTYPES:
        return _DTYPES[name]
    if type(x).__name__ == "KeyTy":
        return "KEY"
    raise Unsupported(f"elements of type {x}\n  remedy: numbers, bools, or keys; bitcast others to integers of their size outside of the kernel")


def is_dtype(x: Any) -> bool:
    return isinstance(x, np.dtype) or isinstance(x, type) and issubclass(x, np.generic)


def flat_axes(names: Any) -> list[Any]:
    """Axis names given as one name, a sequence, or nested sequences; None is no axis."""
    if names is None:
        return []
    if isinstance(names, (tuple, list)):
        return [axis for name in names for axis in flat_axes(name)]
    return [names]


def array_type(shape: Sequence[int], element: Any, weak: bool = False) -> Message:
    kind = dtype(element)
    impl = element._impl.tag if kind == "KEY" else None
    return message("ArrayType", dtype=kind, shape=[_extent(n) for n in shape], weak=weak, key_impl=impl)


def _extent(n: Any) -> int:
    try:
        return int(n)
    except Exception as e:
        raise Unsupported(f"dimension {n}, which is not a number\n  remedy: static shapes; pass the extent as a scalar, and mask what is beyond") from e


def memory_space(aval: Any, default: str = "GMEM") -> str:
    """Where a reference's memory is: GMEM, SMEM, TMEM or REGS."""
    return _space(aval, default)


_SPACES = {"gmem": "GMEM", "smem": "SMEM", "tmem": "TMEM", "regs": "REGS"}
#: A TPU's memories that mean the same: of arrays that are computed with.
_TPU_SPACES = {"vmem": "SMEM"}


def _space(aval: Any, default: str) -> str:
    space = aval.memory_space
    name = getattr(space, "name", None) or str(space)
    if space is None or name.lower() in ("default", "any", "device", "hbm"):
        return default
    if is_semaphore_of_copies(aval):
        return "SMEM"
    if "semaphore" in name.lower() and type(aval.inner_aval.dtype).__name__ in _COUNTING:
        return "GMEM"
    try:
        return (_SPACES | _TPU_SPACES)[name.lower()]
    except KeyError:
        raise Unsupported(
            f"not supported yet: the memory space {space}\n  expected: one of a GPU's: {', '.join(_SPACES)}\n  got: {space}"
            "\n  remedy: plgpu.SMEM(shape, dtype) for scratch, plgpu.GMEM for arrays that stay in device memory"
        ) from None


#: Types of semaphores that count signals, by their kinds.
_COUNTING = {"Semaphore": "REGULAR", "SemaphoreTy": "REGULAR", "BarrierSemaphore": "BARRIER", "BarrierSemaphoreTy": "BARRIER"}


#: Of semaphores of a TPU's copies.
_OF_COPIES = {"DmaSemaphore", "DMASemaphore", "DmaSemaphoreTy", "dma_semaphore"}


def is_semaphore_of_copies(aval: Any) -> bool:
    return type(getattr(getattr(aval, "inner_aval", None), "dtype", None)).__name__ in _OF_COPIES


def _element(element: Any, axis_id: AxisId) -> dict[str, Any]:
    match type(element).__name__:
        case "BarrierType":
            kind = message(
                "BarrierType", num_arrivals=element.num_arrivals, orders_tensor_core=element.orders_tensor_core
            )
            return {"barrier": kind}
        case "ClusterBarrierType":
            groups = [message("Axes", ids=[axis_id(n) for n in flat_axes(g)]) for g in element.collective_axes]
            kind = message(
                "ClusterBarrierType",
                collective_axes=groups,
                num_arrivals=element.num_arrivals,
                orders_tensor_core=element.orders_tensor_core,
                leader_tracked=getattr(element, "leader_tracked", False),
            )
            return {"cluster_barrier": kind}
        case name if name in _COUNTING:
            return {"semaphore": message("SemaphoreType", kind=_COUNTING[name])}
        case name if name in _OF_COPIES:  # nothing counts it (`_rules/dma.py`)
            return {"dtype": "I32"}
        case _:
            return {"dtype": dtype(element)}


def ref_type(aval: Any, axis_id: AxisId, default_space: str = "GMEM") -> Message:
    element, shape = stored(aval.inner_aval.dtype, aval.inner_aval.shape)
    fields = _element(element, axis_id)
    space = _space(aval, default_space)
    if space == "TMEM":
        tmem = getattr(aval, "layout", None)
        fields["tmem_layout"] = None if tmem is None else layout(tmem)
        fields["tmem_collective"] = bool(getattr(aval, "collective", False))
    accumulator = _versions.is_accumulator_aval(aval)
    return message("RefType", space=space, shape=[_extent(n) for n in shape], accumulator=accumulator, **fields)


def type_of(aval: Any, axis_id: AxisId, default_space: str = "GMEM") -> Message:
    if _versions.is_ref_aval(aval):
        return message("Type", ref=ref_type(aval, axis_id, default_space))
    if not hasattr(aval, "dtype"):
        raise Unsupported(f"a value of type {aval} in a kernel\n  remedy: pass arrays and scalars, and references to them")
    return message("Type", array=array_type(aval.shape, aval.dtype, bool(getattr(aval, "weak_type", False))))


def literal(value: Any, element: Any = None, weak: bool = False) -> Message:
    """A scalar or a NumPy array."""
    array = np.asarray(value, dtype=element)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return message("Literal", type=array_type(array.shape, array.dtype, weak), data=array.tobytes())


# ------------------------------------------------------------------------------------------ layouts


def layout(x: Any) -> Message:
    """A `plgpu.Layout`, `TMEMLayout`, or one of Mosaic's own layout objects."""
    name, args = _layout_name(x)
    explicit = x
    if hasattr(x, "to_mgpu"):
        try:
            explicit = x.to_mgpu()
        except TypeError:  # it needs arguments that were not given
            return message("Layout", name=name, named=name)
        except (ValueError, NotImplementedError) as e:  # Mosaic's own check of the arguments
            raise InvalidKernel(
                f"layout {name}\n  expected: arguments that fit Mosaic GPU's definition of it\n  got: {_layout_text(x)}"
                "\n  remedy: give it another shape or vector size (a warpgroup has 128 threads), or leave the layout to smalt"
            ) from e
    match _versions.layout_kind(explicit):
        case "strided":
            kind = message("StridedLayout", shape=list(explicit.shape), vec=explicit.vec_size)
            return message("Layout", name=name, strided=kind, args=args)
        case "splat":
            return message("Layout", name=name, splat=message("SplatLayout", shape=list(explicit.shape)), args=args)
        case "tiled":
            return message("Layout", name=name, tiled=_tiled(explicit), args=args)
        case _:
            raise Unsupported(f"layout {_layout_text(x)}, which is of a kind that smalt does not know\n  remedy: a plgpu.Layout: WGMMA, WG_STRIDED, TILED, …")


def _layout_text(x: Any) -> str:
    """A layout as one writes it: `WG_STRIDED((100,), 1)`."""
    if _versions.layout_kind(x) != "parameterized":
        return _layout_name(x)[0] or type(x).__name__
    keywords = [f"{name}={value!r}" for name, value in dict(x.kwargs).items()]
    return f"{x.layout_cls.name}({', '.join([*map(repr, x.args), *keywords])})"


def _layout_name(x: Any) -> tuple[str, list[Message]]:
    match _versions.layout_kind(x):
        case "parameterized":
            return x.layout_cls.name, []
        case "reduced":
            inner, _ = _layout_name(x.layout)
            axes = x.axes if isinstance(x.axes, (tuple, list)) else (x.axes,)
            return f"{inner}.reduce({', '.join(str(a) for a in axes)})", []
        case "named":
            return x.name, []
        case _:
            return "", []


def _tiled(x: Any) -> Message:
    return message(
        "TiledLayout",
        tiling=[message("Ints", values=list(tile)) for tile in x.tiling.tiles],
        warp_dims=[_layout_dim(d) for d in x.warp_dims],
        lane_dims=[_layout_dim(d) for d in x.lane_dims],
        vector_dim=x.vector_dim,
    )


def _layout_dim(d: Any) -> Message:
    if isinstance(d, int):
        return message("LayoutDim", dim=d)
    if type(d).__name__ == "Replicated":
        return message("LayoutDim", replicated=d.times)
    raise Unsupported(f"the layout digit {d}\n  remedy: dimensions as negative numbers, and plgpu.Replicated(n)")
