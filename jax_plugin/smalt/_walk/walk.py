"""Walks a jaxpr and writes regions.

`Walker` holds what is numbered over the whole kernel (values, ops, axes) and knows how operands, refs with
transforms and regions are written; `_rules/rules.py` has the primitives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from smalt import _messages, _versions
from smalt._errors import Error, Internal, InvalidKernel, Unsupported
from smalt._messages import Axes, Message, message
from smalt._walk import from_end, signs

ABSENT = message("Operand", absent=message("Absent"))
#: Writes an op: its name, operands, the type of its result (None: it has none) and attributes.
Emit = Callable[..., Message]


@dataclasses.dataclass(frozen=True)
class Binding:
    """What a jaxpr variable stands for: a value of the kernel or a literal."""

    operand: Message
    value: int  # 0: a literal
    is_ref: bool
    prefix: tuple[Message, ...] = ()  # transforms that come before those of each use …
    strip: int = 0  # … instead of so many of its own
    imaginary: Binding | None = None  # of a complex value, whose real part this is
    parts: tuple[str, int] | None = None  # of a reference to complex numbers ("complex", 2) or keys ("key", rank of their data)
    space: str = ""  # of a reference
    #: A block that may reach outside of its array: along each dimension of that where it begins, its size (None: one index), and the array's.
    window: tuple[tuple[Message, int | None, int], ...] = ()
    strides: tuple[int, ...] | None = None  # in elements, of a reference to row-major memory seen through `prefix`
    is_natural: bool = False  # integers none of which is negative


class Leaf:
    """A dynamic leaf of a PyTree of transforms: an operand of the equation."""

    __slots__ = ("atom",)

    def __init__(self, atom: Any) -> None:
        self.atom = atom


@dataclasses.dataclass
class OpParts:
    """A rule's result for one equation."""

    operands: Sequence[Message] = ()
    attrs: Sequence[Message] = ()
    regions: Sequence[Message] = ()
    primitive: str | None = None  # the descriptor's name, where it is not `_versions.primitive_name`
    results: Sequence[Any] | None = None  # the equation's outvars that are results; None: all


def values(binding: Binding) -> tuple[Binding, ...]:
    """The values that a binding stands for: a complex one's two parts."""
    return (binding,) if binding.imaginary is None else (dataclasses.replace(binding, imaginary=None), binding.imaginary)


def _check_index(index: Any) -> None:
    """An index of a reference is of whole numbers."""
    dtype = getattr(getattr(getattr(index, "atom", index), "aval", index), "dtype", None)
    if dtype is None or _versions.is_integer(dtype):
        return
    what, remedy = "an index", "convert it: index.astype(jnp.int32)"
    if dtype == np.bool_:
        what, remedy = "a mask", "load the array, and choose with jnp.where"
    raise InvalidKernel(f"{what} of type {dtype} in a reference's index\n  expected: integers\n  got: {dtype}\n  remedy: {remedy}")

#: What devices do together.
_COLLECTIVES = frozenset("psum psum_invariant pmax pmin all_gather all_gather_invariant all_to_all ppermute reduce_scatter".split())


@dataclasses.dataclass(frozen=True)
class FarIndex:
    """A parameter that the user did not write: the device's index along an axis of the mesh."""

    axis: Any

    @property
    def aval(self) -> Any:
        return _versions.array_aval((), np.dtype(np.int32))


class Walker:
    """Writes the body of one kernel."""

    def __init__(self, rules: Callable[[Walker, str, Any], OpParts], call_site: Sequence[Any] = (), profiles: bool = False) -> None:
        self._rules = rules
        self.debug = _messages.DebugTable(call_site)
        self._chain: tuple[int, ...] = ()  # frames of the op being written
        self._function: _messages.Position | None = None  # the user's, whose jaxpr is being walked
        self._axes: dict[Any, int] = {}
        self._values = 0
        self._ops = 0
        self._from_end: Mapping[Any, Message] = {}  # of the access being written: arrays of indices into so many, from the start
        self._naturals: list[bool] = []  # which results of the region walked last are never negative
        self._env: dict[Any, Binding] = {}  # of the jaxpr being walked
        self._used: frozenset[Any] = frozenset()  # variables that it uses
        self._types: dict[Any, Message] = {}
        self.grid_indices: Sequence[Binding] | None = None  # inside the body of a pallas_call
        self.grid_sizes: Mapping[int, Binding] = {}  # of its axes of traced size
        self.grid_names: tuple[Any, ...] = ()  # its grid axes, if they have names
        self.cluster: tuple[int, ...] = ()  # the extents of its axes
        self.mesh_axes: dict[Any, int] = {}  # of the device mesh, also those that an axis of the kernel hides
        self.far_axes: Sequence[Any] = ()  # axes of the device mesh along which there are devices that are not reached
        self.far_devices = "", "", ""  # what these are, what others lie within, and what to do about it
        self.far_indices: dict[Any, Binding] = {}  # the device's indices along them, which are parameters
        self.talks = False  # to other devices
        self.chooses_transforms = False  # of buffers that have none, by the functions that take them (Warpgroup semantics)
        self.bulk_copies: frozenset[int] = frozenset()  # equations of a TPU's copies that run beside what follows (`_rules/dma.py`)
        #: The user's names of the arguments of a jaxpr that does not have them.
        self.argument_names: dict[Any, Sequence[str]] = {}
        self._profiles = profiles  # named scopes become ranges
        self._expanding = False  # in a jaxpr of ours, whose equations have no lines of the user's

    # ---------------------------------------------------------------- axes

    def intern_axis(self, name: Any) -> int:
        return self._axes.setdefault(name, len(self._axes) + 1)

    def intern_mesh_axis(self, name: Any) -> int:
        """An axis of the device mesh: axes of the kernel, which come first, hide it where they have its name."""
        key = ("device mesh", name) if name in self._axes else name
        return self.mesh_axes.setdefault(name, self.intern_axis(key))

    def mesh_axis_ids(self, names: Any) -> list[int]:
        """Axes of the device mesh by name (one, several, nested)."""
        flat = _messages.flat_axes(names)
        self.talks = True
        for name in flat:
            self._check_near(name)
        others = ", ".join(repr(name) for name in flat if name not in self.mesh_axes)
        if others:
            known = ", ".join(repr(name) for name in self.mesh_axes) or "none: call the kernel under jax.shard_map"
            raise InvalidKernel(
                f"axes along which there are other devices\n  expected: axes of the device mesh: {known}\n  got: {others}"
                "\n  remedy: grid, cluster and thread axes are not among them"
            )
        return [self.mesh_axes[name] for name in flat]

    def far_queries(self, jaxpr: Any) -> list[FarIndex]:
        """The axes of far devices along which a kernel queries its index."""
        eqns = (eqn for eqn in _versions.all_equations(jaxpr) if self.far_axes and eqn.primitive.name == "axis_index")
        queried = {eqn.params["axis_name"] for eqn in eqns} - set(self._axes)
        return [FarIndex(name) for name in self.far_axes if name in queried]

    def _check_near(self, name: Any) -> None:
        if name in self.far_axes:
            raise self.too_far(f"along the axis {name!r}")

    def too_far(self, how: str) -> Unsupported:
        near = ", ".join(repr(name) for name in self.mesh_axes if isinstance(name, str)) or "none of this mesh"
        what, where, remedy = self.far_devices
        return Unsupported(
            f"a kernel that talks to {what} {how}"
            f"\n  expected: axes of the mesh that lie within {where}: {near}, by name: {{axis: index}}"
            f"\n  got: {', '.join(map(repr, self.far_axes))}, which does not"
            f"\n  remedy: {remedy}; XLA's collectives go along others"
        )

    def axis_id(self, name: Any) -> int:
        if name not in self._axes:
            self._check_near(name)
        try:
            return self._axes[name]
        except KeyError:
            known = ", ".join(str(n) for n in self._axes if isinstance(n, str)) or "none"
            raise InvalidKernel(
                f"the axis {name!r}\n  expected: an axis of the kernel or of the device mesh\n  got: {name!r}, where the axes are: {known}"
                "\n  remedy: name it in grid_names, cluster_names or thread_name of the kernel"
            ) from None

    def axes(self, names: Any) -> Axes | None:
        """Axis names (one, several, nested; None or empty: none) as an attribute's value."""
        ids = tuple(self.axis_id(n) for n in _messages.flat_axes(names))
        return Axes(ids) if ids else None

    def mesh_axes_of(self, names: Any) -> Axes:
        """Axes of the device mesh as an attribute's value."""
        return Axes(tuple(self.mesh_axis_ids(names)))

    # ---------------------------------------------------------------- values

    def _type(self, aval: Any, default_space: str) -> Message:
        try:
            key = (aval, getattr(aval, "weak_type", None), default_space)
            return self._types[key]
        except (KeyError, TypeError):
            out = _messages.type_of(aval, self.axis_id, default_space)
            try:
                self._types[key] = out
            except TypeError:
                pass
            return out

    def define_all(self, aval: Any, default_space: str = "GMEM") -> tuple[list[Message], Binding]:
        """Numbers the values that stand for a variable: two for a complex one."""
        first, *rest = _messages.physical(aval)
        definition, binding = self.define(first, default_space)
        definitions = [definition]
        for part in rest:
            definition, imaginary = self.define(part, default_space)
            definitions.append(definition)
            binding = dataclasses.replace(binding, imaginary=imaginary)
        return definitions, binding

    def define(self, aval: Any, default_space: str = "GMEM") -> tuple[Message, Binding]:
        """Numbers a new value: its definition, and what follows from its uses."""
        if self.bulk_copies and _messages.is_semaphore_of_copies(aval):
            aval = _versions.as_barrier(aval)
        self._values += 1
        number = self._values
        definition = message("Value", id=number, type=self._type(aval, default_space))
        if _versions.is_ref_aval(aval):
            operand = message("Operand", ref=message("RefUse", value=number))
            element, shape = _messages.stored(aval.inner_aval.dtype, aval.inner_aval.shape)
            strides = _versions.row_major(shape) if _messages.is_dtype(element) else None
            space = _messages.memory_space(aval, default_space) if _messages.is_dtype(element) else ""
            return definition, Binding(operand, number, True, parts=_messages.parts(aval.inner_aval.dtype), space=space, strides=strides)
        return definition, Binding(message("Operand", value=number), number, False, is_natural=signs.of_type(aval))

    def binding(self, atom: Any) -> Binding:
        if _versions.is_literal(atom):
            if _messages.is_complex(atom.aval):
                return self.constant(np.asarray(_versions.literal_value(atom), atom.aval.dtype))
            return Binding(message("Operand", literal=self._literal(atom)), 0, False, is_natural=self.is_natural(atom))
        try:
            return self._env[atom]
        except KeyError:
            raise Internal(f"variable {atom} is used before it is defined") from None

    def _literal(self, atom: Any) -> Message:
        aval = atom.aval
        return _messages.literal(_versions.literal_value(atom), aval.dtype, bool(getattr(aval, "weak_type", False)))

    def constant(self, value: Any) -> Binding:
        """A value that a jaxpr closes over."""
        if _messages.is_key(value):
            value = _versions.key_data(value)
        if isinstance(value, complex) or getattr(getattr(value, "dtype", None), "kind", "") == "c":
            value = np.asarray(value)
            return dataclasses.replace(self.constant(value.real), imaginary=self.constant(value.imag))
        weak = isinstance(value, (bool, int, float))
        literal = message("Operand", literal=_messages.literal(value, getattr(value, "dtype", None), weak))
        return Binding(literal, 0, False, is_natural=signs.of_value(value))

    def is_used(self, var: Any) -> bool:
        return not _versions.is_dropped(var) and var in self._used

    # ---------------------------------------------------------------- operands

    def operand(self, atom: Any) -> Message:
        binding = self.binding(atom)
        if binding.imaginary is not None:
            raise Unsupported(
                f"not supported yet: a complex operand ({atom.aval.str_short()})"
                "\n  remedy: pass the real and imaginary parts (jnp.real, jnp.imag) by themselves"
            )
        return binding.operand

    def operands(self, atoms: Sequence[Any]) -> list[Message]:
        """Of a complex value both parts."""
        return [part.operand for atom in atoms for part in values(self.binding(atom))]

    def optional(self, atom: Any) -> Message:
        return ABSENT if atom is None else self.operand(atom)

    def leaves(self, tree: Any, atoms: Sequence[Any]) -> Any:
        """A PyTree with the equation's operands at its leaves."""
        return tree.unflatten([Leaf(atom) for atom in atoms])

    def ref(self, atom: Any, transforms: Any = ()) -> Message:
        """An operand: a ref with its (unflattened) transforms."""
        binding = self.binding(atom)
        if binding.window:
            raise Internal("a block that may reach outside of its array, not as a load or a store")
        if not transforms:
            return binding.operand
        if not binding.is_ref:
            raise Unsupported("transforms of a value that is no reference\n  remedy: index the array itself: x[...]")
        chain = [*binding.prefix, *(self.transform(t, binding.parts) for t in transforms[binding.strip :])]
        return message("Operand", ref=message("RefUse", value=binding.value, transforms=chain))

    def is_whole(self, atom: Any) -> bool:
        """Whether a ref is the buffer of its type, and no part of one."""
        binding = self.binding(atom)
        return binding.is_ref and not binding.prefix and not binding.strip

    def dynamic(self, x: Any) -> Message:
        """An operand at a leaf of an unflattened PyTree: a Leaf, a number, or a ref with transforms."""
        match x:
            case Leaf():
                return self.operand(x.atom)
            case int() | bool():
                return self.constant(x).operand
            case _ if hasattr(x, "ref") and hasattr(x, "transforms"):
                return self.ref(x.ref.atom, x.transforms)
            case _ if hasattr(x, "dtype"):
                return self.constant(x).operand
            case _:
                raise Unsupported(f"an operand of type {type(x).__name__}\n  remedy: arrays, scalars and references")

    def device_id(self, x: Any, kind: str) -> Message:
        """The PyTree of a device id as a DeviceId; `kind` as JAX's `DeviceIdType` has it: MESH or LOGICAL."""
        self._check_device_id(x, kind)
        match x:
            case tuple() | list():
                return message("DeviceId", mesh=message("DeviceIdList", ids=[self.dynamic(i) for i in x]))
            case dict():
                entries = [
                    message("DeviceIdEntry", axes=self.mesh_axis_ids(axes), id=self.dynamic(i))
                    for axes, i in x.items()
                ]
                return message("DeviceId", axes=message("DeviceIdDict", entries=sorted(entries)))
            case _:
                return message("DeviceId", logical=self.dynamic(x))

    def _check_device_id(self, x: Any, kind: str) -> None:
        names = ", ".join(repr(name) for name in self.mesh_axes)
        if not self.mesh_axes and not self.far_axes:
            raise InvalidKernel(
                "a device id in a kernel that runs on one device\n  expected: a device mesh around the kernel"
                "\n  remedy: call the kernel under jax.shard_map over a mesh of the devices"
            )
        self.talks = True
        if self.far_axes and not isinstance(x, dict):
            raise self.too_far("by a position in the whole mesh")
        if isinstance(x, dict):
            if kind != "MESH":
                raise InvalidKernel(
                    f"a device id by axes\n  expected: device_id_type MESH\n  got: {kind}\n  remedy: leave out device_id_type"
                )
            return
        given = len(x) if isinstance(x, tuple | list) else 1
        wanted = 1 if kind == "LOGICAL" else len(self.mesh_axes)
        if given != wanted:
            raise InvalidKernel(
                f"a device id of {given} number{'s' if given > 1 else ''}\n  expected: "
                + ("one number, the position in the mesh" if kind == "LOGICAL" else f"one number for each axis of the device mesh: {names}")
                + f"\n  got: {given}\n  remedy: pass all coordinates, or only those that differ by name: {{axis: index}}"
            )

    def view(self, atom: Any, transforms: Sequence[Any], strip: int) -> Binding:
        """A ref seen through transforms, as what a variable stands for whose uses start with `strip` of their own."""
        base = self.binding(atom)
        prefix = (*base.prefix, *(self.transform(t, base.parts) for t in transforms[base.strip :]))
        operand = message("Operand", ref=message("RefUse", value=base.value, transforms=prefix))
        strides = self._strides(base, transforms)
        return Binding(operand, base.value, True, prefix, strip, parts=base.parts, space=base.space, strides=strides)

    def place(self, atom: Any, transforms: Sequence[Any]) -> tuple[str, tuple[int, ...] | None]:
        """Where the memory of a ref with transforms is, and how many elements are between neighbours; None if it is more than slices."""
        binding = self.binding(atom)
        return binding.space, self._strides(binding, transforms)

    @staticmethod
    def _strides(base: Binding, transforms: Sequence[Any]) -> tuple[int, ...] | None:
        if base.strides is None:
            return None
        return _versions.element_strides(base.strides, transforms[base.strip :])

    def windowed(self, atom: Any, starts: Sequence[Any], sizes: Sequence[int | None]) -> Binding:
        """A block of an array that may reach outside of it."""
        window = tuple((self.operand(start), size, n) for start, size, n in zip(starts, sizes, atom.aval.shape, strict=True))
        return dataclasses.replace(self.binding(atom), window=window, space="", strides=None)

    def is_window(self, atom: Any) -> bool:
        return bool(self.binding(atom).window)

    def in_window(self, atom: Any, transforms: Sequence[Any], emit: Emit) -> tuple[Message, tuple[int, ...]]:
        """An operand: part of such a block, and its shape, in which a number as an index is an extent of 1."""
        binding = self.binding(atom)
        given = iter(_versions.indices_of(transforms))
        i32 = _versions.array_aval((), np.dtype(np.int32))

        def plus(start: Message, x: Any) -> Message:
            if isinstance(x, (int, np.integer)):
                return start if x == 0 else emit("add", [start, self.constant(np.int32(x)).operand], i32)
            _check_index(x)
            operand = self.dynamic(x)
            if x.atom.aval.dtype != np.int32:
                operand = emit("convert_element_type", [operand], i32, _messages.attributes({"new_dtype": np.dtype(np.int32)}))
            return emit("add", [start, operand], i32)

        dims, shape = [], []
        for start, size, _ in binding.window:
            if size is None:
                dims.append(message("DimIndex", at=start))
                continue
            index = next(given, None)
            if index is not None and _versions.is_slice(index):
                start, size = plus(start, index.start), index.size
            elif index is not None:
                start, size = plus(start, self._from_start(index, size)), 1
            shape.append(size)
            part = message("Slice", dynamic_start=start, static_size=size, stride=1, window=True)
            dims.append(message("DimIndex", slice=part))
        chain = [message("Transform", index=message("Index", shape=[n for *_, n in binding.window], dims=dims, int_indexer_shape=[]))]
        return message("Operand", ref=message("RefUse", value=binding.value, transforms=chain)), tuple(shape)

    def window(self, atom: Any, starts: Sequence[Any], sizes: Sequence[int | None]) -> Message:
        """An operand: part of a ref that may reach outside of it; a size of None is one index."""
        dims = []
        for start, size in zip(starts, sizes):
            if size is None:
                dims.append(message("DimIndex", at=self.operand(start)))
            else:
                part = message("Slice", dynamic_start=self.operand(start), static_size=size, stride=1, window=True)
                dims.append(message("DimIndex", slice=part))
        binding = self.binding(atom)
        if binding.parts is not None:
            what = "complex numbers" if binding.parts[0] == "complex" else "keys"
            raise Unsupported(
                f"not supported yet: blocks of {what} that reach outside of their array\n"
                f"  got: {what} of shape {list(atom.aval.shape)}\n"
                "  remedy: choose blocks that divide the array, or pad it"
            )
        index = message("Index", shape=list(atom.aval.shape), dims=dims, int_indexer_shape=[])
        chain = [*binding.prefix, message("Transform", index=index)]
        return message("Operand", ref=message("RefUse", value=binding.value, transforms=chain))

    def part(self, atom: Any, transforms: Sequence[Any], number: int) -> Message:
        """The real (0) or imaginary (1) parts of a view of complex numbers."""
        binding = self.binding(atom)
        chain = [*binding.prefix, *(self.transform(t, binding.parts) for t in transforms[binding.strip :])]
        shape = _versions.view_shape(atom.aval, transforms)
        whole = [message("DimIndex", slice=message("Slice", stride=1, static_start=0, static_size=n)) for n in shape]
        dims = [*whole, message("DimIndex", at=self.constant(np.int32(number)).operand)]
        chain.append(message("Transform", index=message("Index", shape=[*shape, 2], dims=dims, int_indexer_shape=[])))
        return message("Operand", ref=message("RefUse", value=binding.value, transforms=chain))

    def emitter(self, ops: list[Message], eqn: Any = None) -> Emit:
        """What writes ops behind these; `eqn`: at whose line they are."""

        def emit(name: str, operands: Sequence[Message], aval: Any = None, attrs: Sequence[Message] = ()) -> Message:
            """Writes an op; returns its result as an operand (ABSENT where `aval`, its type, is None)."""
            self._ops += 1
            number = self._ops
            self.debug.add(None if eqn is None or self._expanding else eqn.source_info.traceback, self._chain, self._function)
            definitions, result = [], ABSENT
            if aval is not None:
                definition, binding = self.define(aval)
                definitions.append(definition)
                result = binding.operand
            ops.append(message("Op", id=number, primitive=name, operands=operands, results=definitions, attrs=attrs, regions=[]))
            return result

        return emit

    def written(self, write: Callable[[Emit], Sequence[Message]]) -> Message:
        """A region of the ops that `write` emits, and whose results are what it returns."""
        ops: list[Message] = []
        results = write(self.emitter(ops))
        return message("Region", params=[], ops=ops, results=results)

    # ---------------------------------------------------------------- transforms

    def transform(self, t: Any, parts: tuple[str, int] | None = None) -> Message:
        """`parts` as in `Binding`: a view of complex numbers or keys keeps the dimension of their parts."""
        name = type(t).__name__
        if parts is not None and name not in ("NDIndexer", "PeerMemRef"):
            raise Unsupported(
                f"not supported yet: {name} of a reference to {'complex numbers' if parts[0] == 'complex' else 'keys'}"
                "\n  remedy: index it only, and change the array that is loaded"
            )
        match name:
            case "NDIndexer":
                field, body = "index", self._index(t, parts)
            case "ExtractAliasedRef":
                layout = None if t.layout is None else _messages.layout(t.layout)
                body = message(
                    "ExtractAlias",
                    dtype=_messages.dtype(t.dtype),
                    shape=list(t.shape),
                    offset=t.offset,
                    group=t.alias_group_idx,
                    tmem_layout=layout,
                )
                field = "extract_alias"
            case "UnswizzleRef":
                field, body = "unswizzle", message("Unswizzle", bytes=t.swizzle)
            case "UntilingTransform":
                field, body = "untile", message("Untile", tiling=list(t.tiling))
            case "TransposeTransform":
                field, body = "transpose", message("Transpose", permutation=list(t.permutation))
            case "ReshapeTransform" | "RefReshaper":
                field, body = "reshape", message("Reshape", shape=list(t.shape))
            case "BitcastTransform" | "RefBitcaster":
                field, body = "bitcast", message("Bitcast", dtype=_messages.dtype(t.dtype))
            case "ExpandLeadingBatchDimensionsTransform":
                field, body = "expand_leading_batch", message("ExpandLeadingBatch", shape=list(t.batch_shape))
            case "PeerMemRef":
                kind = t.device_id_type.name.upper()
                field, body = "peer", message("Peer", type=kind, device=self.device_id(t.device_id, kind))
            case "MulticastRef":
                field, body = "multicast", message("Multicast", axes=self.mesh_axis_ids(t.collective_axes))
            case "ClusterRefTransform":
                dims = [self.axis_id(n) for n in _messages.flat_axes(t.dims)]
                field, body = "cluster", message("Cluster", axes=dims, indices=[self.dynamic(i) for i in t.idxs])
            case "Im2ColTransform":
                padding = [message("PaddingPair", lo=lo, hi=hi) for lo, hi in t.padding]
                field, body = "im2col", message("Im2Col", window=list(t.window_shape), padding=padding)
            case "TilingTransform":
                field, body = "tile", message("Tile", tiling=list(t.tiling))
            case "SwizzleTransform":
                field, body = "swizzle", message("Swizzle", bytes=t.swizzle)
            case "IdentityTransform":
                field, body = "identity", message("Identity")
            case "CollapseLeadingBatchDimensionsTransform":
                field, body = "collapse_leading_batch", message("CollapseLeadingBatch")
            case _:
                raise Unsupported(f"the reference's transform {name}\n  remedy: index, slice, transpose, reshape or bitcast it")
        return message("Transform", **{field: body})

    def _index(self, t: Any, parts: tuple[str, int] | None) -> Message:
        dims = [self._dim_index(index, extent) for index, extent in zip(t.indices, t.shape)]
        inner = [int(n) for n in t.int_indexer_shape]
        shape = list(t.shape)
        if parts is not None:
            shape.append(parts[1])
            dims.append(message("DimIndex", slice=message("Slice", stride=1, static_start=0, static_size=parts[1])))
        return message("Index", shape=shape, dims=dims, int_indexer_shape=inner)

    def _dim_index(self, index: Any, extent: int) -> Message:
        if type(index).__name__ == "Slice":
            if index.stride == 0:
                raise Unsupported(
                    f"not supported yet: a slice of stride 0 of which more than a load is made\n  expected: strides of 1 and more"
                    f"\n  got: {index.size} times one position\n  remedy: index the position, and broadcast or reduce the array"
                )
            fields: dict[str, Any] = {"stride": index.stride}
            for part in ("start", "size"):
                x = getattr(index, part)
                if isinstance(x, (int, np.integer)):
                    fields[f"static_{part}"] = int(x)
                else:
                    _check_index(x)
                    fields[f"dynamic_{part}"] = self.dynamic(x)
            return message("DimIndex", slice=message("Slice", **fields))
        _check_index(index)
        index = self._from_start(index, extent)
        if self._shape(index):
            counted = self._from_end.get((index.atom, extent)) if isinstance(index, Leaf) else None
            return message("DimIndex", gather=self.dynamic(index) if counted is None else counted)
        return message("DimIndex", at=self.dynamic(index))

    @staticmethod
    def _from_start(index: Any, extent: int) -> Any:
        """A number as an index, counted from the start: a constant that is negative counts from the end, as NumPy has it."""
        number = _versions.literal_value(index.atom) if isinstance(index, Leaf) and _versions.is_literal(index.atom) else index
        return np.int32(int(number) + extent) if isinstance(number, (int, np.integer)) and -extent <= number < 0 else index

    def _shape(self, x: Any) -> tuple[int, ...]:
        if isinstance(x, Leaf):
            return tuple(x.atom.aval.shape)
        if hasattr(x, "ref") and hasattr(x, "transforms"):
            return (1,)  # an index array in memory
        return tuple(getattr(x, "shape", ()))

    # ---------------------------------------------------------------- regions

    def region(
        self,
        jaxpr: Any,
        bound: Mapping[Any, Binding] | None = None,
        params: Sequence[Any] = (),
        default_space: str = "GMEM",
        ranges: bool = True,
        naturals: Sequence[Any] = (),
    ) -> Message:
        """Walks a jaxpr (open or closed) as a region; `ranges`: whether its named scopes may become ranges of a profile.

        `bound` are its variables that stand for values outside, `params` those that become region parameters, `naturals` those of them that are
        never negative.
        Constvars that the jaxpr holds values for and `bound` does not name become literals.
        """
        jaxpr, consts = _versions.open_jaxpr(jaxpr)
        env = dict(bound or {})
        if len(consts) == len(jaxpr.constvars):
            for var, const in zip(jaxpr.constvars, consts):
                if var not in env:
                    env[var] = self.constant(const)
        definitions = []
        known = (self.argument_names.get(jaxpr) or _versions.argument_names(jaxpr)) if params else ()
        names = dict(zip(jaxpr.invars, known))
        for var in params:
            defined, env[var] = self.define_all(var.aval, default_space)
            definitions += defined
            if any(var is v for v in naturals):
                env[var] = dataclasses.replace(env[var], is_natural=True)
            if isinstance(var, FarIndex):
                self.far_indices[var.axis] = env[var]
            if env[var].is_ref and names.get(var):
                self.debug.name(env[var].value, names[var])
        outer = self._env, self._used, self._function
        self._env, self._used = env, _versions.used_variables(jaxpr)
        self._function = _versions.traced_function(jaxpr) or self._function
        try:
            ops = self._op_list((eqn for eqn in jaxpr.eqns if not self._is_known(eqn)), ranges)
            results = self.operands(jaxpr.outvars)
            self._naturals = [self.is_natural(atom) for atom in jaxpr.outvars]
        finally:
            self._env, self._used, self._function = outer
        return message("Region", params=definitions, ops=ops, results=results)

    def _op_list(self, eqns: Iterable[Any], ranges: bool) -> list[Message]:
        if not (self._profiles and ranges) or self._expanding:
            return [op for eqn in eqns for op in self._op(eqn)]
        ops: list[Message] = []
        open_scopes: list[str] = []
        eqn = None
        for eqn in eqns:
            scopes = _versions.scopes(eqn)
            ops += self._marks(eqn, open_scopes, scopes)
            ops += self._op(eqn)
            open_scopes = scopes
        return ops + self._marks(eqn, open_scopes, [])

    def _marks(self, eqn: Any, before: list[str], after: list[str]) -> list[Message]:
        """Ends the named scopes that are left and begins those that are entered, in front of an equation or behind the last one."""
        same = 0
        while same < min(len(before), len(after)) and before[same] == after[same]:
            same += 1
        marks = [(name, True) for name in reversed(before[same:])] + [(name, False) for name in after[same:]]
        ops = []
        for name, ends in marks:
            self._ops += 1
            self.debug.add(eqn.source_info.traceback, self._chain, self._function)
            attrs = _messages.attributes({"ends": ends or None, "name": name})
            ops.append(message("Op", id=self._ops, primitive="profile_mark", operands=[], results=[], attrs=attrs, regions=[]))
        return ops

    def expansion(self, closed: Any, atoms: Sequence[Any]) -> Message:
        """Walks a jaxpr of ours, whose inputs are the physical values of these operands."""
        jaxpr, _ = _versions.open_jaxpr(closed)
        bindings = [part for atom in atoms for part in values(self.binding(atom))]
        outer, self._expanding = self._expanding, True
        try:
            return self.region(closed, dict(zip(jaxpr.invars, bindings, strict=True)))
        finally:
            self._expanding = outer

    def bind(self, variables: Sequence[Any], atoms: Sequence[Any]) -> dict[Any, Binding]:
        """Variables of an inner jaxpr that stand for operands of the equation being walked."""
        if len(variables) != len(atoms):
            raise Internal(f"{len(atoms)} operands for {len(variables)} variables of a nested jaxpr")
        return {var: self.binding(atom) for var, atom in zip(variables, atoms)}

    def alias(self, var: Any, atom: Any) -> None:
        """Makes a result of the equation being walked another name of an operand."""
        self._env[var] = self.binding(atom)

    def _is_known(self, eqn: Any) -> bool:
        """Whether the equation queries an index of a `pallas_call`'s grid, or a traced size, which are operands of its body; or the index along
        an axis of far devices."""
        if eqn.primitive.name == "axis_index" and (binding := self.far_indices.get(eqn.params["axis_name"])) is not None:
            self._env[eqn.outvars[0]] = binding
            return True
        if self.grid_indices is None:
            return False
        if eqn.primitive.name == "num_programs":  # JAX makes a number of any other one
            self._env[eqn.outvars[0]] = self.grid_sizes[eqn.params["axis"]]
            return True
        if eqn.primitive.name == "program_id":
            axis = eqn.params["axis"]
        elif eqn.primitive.name == "axis_index" and eqn.params["axis_name"] in self.grid_names:
            axis = self.grid_names.index(eqn.params["axis_name"])
        else:
            return False
        self._env[eqn.outvars[0]] = self.grid_indices[axis]
        return True

    def _check_collective(self, name: str, params: dict[str, Any]) -> None:
        """Steps of a grid are no devices: they have memory in common, and nothing else."""
        if name not in _COLLECTIVES:
            return
        queried = _messages.flat_axes(params.get("axes", params.get("axis_name")))
        own = [axis for axis in queried if axis in self.grid_names or axis in self._axes and axis not in self.mesh_axes]
        if own:
            raise Unsupported(
                f"not supported yet: `{name}` along an axis of the grid"
                f"\n  expected: an axis of the device mesh, or what each step does by itself\n  got: {own[0]!r}"
                "\n  remedy: add to a block of a result that all steps have, or to scratch that lasts: o_ref[...] += x"
            )

    def _op(self, eqn: Any) -> list[Message]:
        """An equation's op, behind those that it needs."""
        name = _versions.primitive_name(eqn)
        before: list[Message] = []
        self._from_end = from_end.indices(self, name, eqn, self.emitter(before, eqn))
        self._ops += 1
        number = self._ops
        outer = self._chain
        self._chain = self.debug.add(None if self._expanding else eqn.source_info.traceback, outer, self._function)
        try:
            self._check_collective(name, eqn.params)
            parts = self._rules(self, name, eqn)
            results = []
            for var in eqn.outvars if parts.results is None else parts.results:
                defined, binding = self.define_all(var.aval)
                results += defined
                if not _versions.is_dropped(var):
                    natural = self._is_natural(name, eqn, var)
                    self._env[var] = dataclasses.replace(binding, is_natural=True) if natural else binding
        except Error as e:
            if not getattr(e, "_located", False):
                e.args = (f"smalt: {name}: {e}{self.debug.where()}",)
                e._located = True  # type: ignore[attr-defined]
            raise
        except Exception as e:  # the equation is not as this version of the plugin expects it
            what = f"internal error of smalt (please report it): {name}: {type(e).__name__}: {e}"
            located = Internal(f"smalt: {what}{self.debug.where()}")
            located._located = True  # type: ignore[attr-defined]
            raise located from e
        self._chain = outer
        op = message(
            "Op",
            id=number,
            primitive=parts.primitive or name,
            operands=parts.operands,
            results=results,
            attrs=parts.attrs,
            regions=parts.regions,
        )
        return [*before, op]

    def _is_natural(self, name: str, eqn: Any, var: Any) -> bool:
        """Whether a result of an equation is never negative."""
        dtype = getattr(var.aval, "dtype", None)
        if not isinstance(dtype, np.dtype) or dtype.kind != "i":
            return signs.of_type(var.aval)
        if name in _versions.CALLS and len(self._naturals) == len(eqn.outvars):
            return self._naturals[list(eqn.outvars).index(var)]
        return signs.of_result(name, eqn, [self.is_natural(atom) for atom in eqn.invars])

    def is_natural(self, atom: Any) -> bool:
        """Whether an operand is integers none of which is negative."""
        return signs.of_value(_versions.literal_value(atom)) if _versions.is_literal(atom) else self._env[atom].is_natural
