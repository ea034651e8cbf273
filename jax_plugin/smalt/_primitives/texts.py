"""JAX primitives of smalt's own, for kernels.

They may be used in every kernel that smalt compiles, beside `plgpu`'s and `jax.numpy`'s. JAX's own compiler does not have them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from smalt import _versions
from smalt._errors import InvalidKernel
from smalt._primitives import batching


def new(name: str, called: str | None = None) -> Any:
    """A primitive with several results that means something in kernels only; `called`: the function, if it has another name."""
    primitive = _versions.new_primitive(f"smalt_{name}")

    def outside(*_: Any, **__: Any) -> Any:
        raise InvalidKernel(
            f"smalt.{called or name} outside of a kernel\n  expected: a call inside of a `plgpu.kernel` or `pl.pallas_call` that smalt compiles"
            "\n  remedy: call it in the kernel's body, and smalt.enable() before the kernel is compiled"
        )

    primitive.def_impl(outside)
    _versions.register_lowering(primitive, outside)
    batching.register(primitive, called or name)
    return primitive


inline_ptx_p = new("inline_ptx")


@inline_ptx_p.def_effectful_abstract_eval  # type: ignore[untyped-decorator]
def _inline_ptx_abstract_eval(*avals: Any, num_args: int, out_types: Sequence[tuple[tuple[int, ...], Any]], **_: Any) -> Any:
    return tuple(_versions.array_aval(shape, dtype) for shape, dtype in out_types), _versions.effects_of_memory(avals[:num_args])


def _batch(size: int, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    return batching.inline_ptx(inline_ptx_p, size, args, dims, params)


batching.register(inline_ptx_p, "inline_ptx", _batch)


def inline_ptx(
    text: str,
    out_types: Any = (),
    *args: Any,
    pack: int = 1,
    once: bool = False,
    whole: bool = False,
    arg_layouts: Sequence[Any] = (),
    unchecked: bool | str = False,
) -> Any:
    """PTX in a kernel: every lane runs `text`, once for each element that it has of the arrays.

    `{0}`, `{1}`, … in the text stand for registers: the results, in the order of their types, and then the operands. The text may
    declare registers of its own (`.reg .b32 t;`) and branch to its labels. Its instructions become part of the kernel's program:
    they are checked when the kernel is compiled, and emulated where there is no GPU.

        y = smalt.inline_ptx("ex2.approx.ftz.f32 {0}, {1};", x, x)                     # y is like x
        lane = smalt.inline_ptx("mov.u32 {0}, %laneid;", jax.ShapeDtypeStruct((128,), jnp.int32))

    * Arrays among operands and results have one shape. A scalar operand goes to all elements; a scalar result must be made of what
      is equal in all lanes. Where there is no array, every lane runs the text once.
    * A register has the element's width: 16 bits for 16-bit types, a predicate for bool; narrower numbers are the low bits of a
      32-bit register, sign- or zero-extended. With `pack=n` it holds `n` neighbouring elements of each array, the first in its low
      bits: 16, 32 or 64 bits in all.
    * Which lane has which elements is the arrays' layout (`plgpu.layout_cast` chooses it). Where the text looks at other lanes, or
      does more than compute (memory, synchronisation, clocks), each element must be in one lane.
    * A reference (SMEM or GMEM) is the address of its first element: a 32-bit shared address or a 64-bit global one. smalt
      orders the text after earlier accesses to it and before later ones; whatever else it touches is the author's to order.
    * A barrier (`plgpu.Barrier`) is its shared address. Then `num_arrivals` is what its phases count: an arrival of
      `plgpu.barrier_arrive` is one, and so is a copy that completes on it.
    * With `once=True` the threads of the warpgroup (of the warp in a warp region) pass a barrier, and one of them runs the text, on scalars and
      references; all get its scalar results.
    * With `whole=True` every lane runs the text once, on all that it has: `{k}` is the list of an array's registers (`{r, r, …}`, as
      matrix instructions take them), `{k.i}` one of them. They are in the order of the layout's registers, in words: of types of less
      than 32 bits as many elements as fill one. `wgmma` is written so, with accumulators and operands in registers.
    * Under `jax.vmap` a text that computes each element from its operands, of arrays and scalars, gets an axis more.

    Args:
        text: The instructions, each with its semicolon.
        out_types: A PyTree of `jax.ShapeDtypeStruct`s, arrays of which the result has the type, or dtypes (scalars). The layout of a
            `plgpu.ShapeDtypeStruct` is the result's.
        args: Arrays, scalars and references.
        pack: Elements of an array in one register.
        once: Whether one thread runs it for its warpgroup or warp.
        whole: Whether a lane runs it once for all its elements. Arrays may then have any shapes; the layouts of results stand in
            `out_types`.
        arg_layouts: Of a text that is `whole`: the layouts of operands, in order; None of scalars and references. An operand is brought
            into its layout.
        unchecked: Hands the text to the assembler as it is, also what smalt does not support; a version ("8.6") is the PTX ISA that it needs.
            Nothing of it is read but braces and `{k}`, it is taken to do anything, and the emulator refuses it. Its scalar results
            need `once`.

    Returns:
        The results, as a PyTree like `out_types`.

    Raises:
        InvalidKernel: When the kernel is compiled, for a text that is wrong: at this line, with the text's line.
    """
    return run_ptx(
        text, out_types, *args, pack=pack, once=once, unchecked=_isa(unchecked), layouts=_layouts(whole, arg_layouts, len(args), pack, once)
    )


def _layouts(whole: bool, arg_layouts: Sequence[Any], num_args: int, pack: int, once: bool) -> tuple[Any, ...] | None:
    """The layouts of the operands of a text that is whole; None: it is not."""
    layouts = tuple(arg_layouts)
    wrong = [("layouts of operands (arg_layouts)", layouts and not whole), (f"pack={pack}", whole and pack != 1), ("once=True", whole and once)]
    for what, is_wrong in wrong:
        if is_wrong:
            raise InvalidKernel(
                f"inline PTX: {what} of a text that is {'' if whole else 'not '}whole\n  expected: arg_layouts with whole=True; pack and once without"
                f"\n  got: whole={whole}, {what}\n  remedy: whole=True runs it once for all elements, in words of 32 bits; without it, it runs for each"
            )
    if not whole:
        return None
    if len(layouts) not in (0, num_args):
        raise InvalidKernel(
            f"inline PTX: layouts of operands\n  expected: {num_args}, None of scalars and references\n  got: {len(layouts)}"
            "\n  remedy: an entry of arg_layouts for each operand"
        )
    return layouts or (None,) * num_args


def _isa(unchecked: Any) -> int:
    """The PTX ISA that an unchecked text needs, 83 for 8.3; 0: the text is checked."""
    if isinstance(unchecked, (bool, np.bool_)):
        return 80 if unchecked else 0
    match = re.fullmatch(r"([8-9])\.(\d)", unchecked) if isinstance(unchecked, str) else None
    if match is None:
        raise InvalidKernel(f"inline PTX: `unchecked`\n  expected: True, or the PTX ISA that the text asks for, '8.0' to '9.9'\n  got: {unchecked!r}")
    return 10 * int(match[1]) + int(match[2])


def run_ptx(
    text: str,
    out_types: Any = (),
    *args: Any,
    pack: int = 1,
    once: bool = False,
    barriers: tuple[int, int] | None = None,
    called: str | None = None,
    unchecked: int = 0,
    layouts: tuple[Any, ...] | None = None,
) -> Any:
    """`inline_ptx`; `layouts`: those of operands of a text that is whole; `barriers`: the first and last named barrier that it may use by a number in a register; `called`: what messages speak of."""
    if not isinstance(text, str):
        raise InvalidKernel(f"inline PTX that is no text\n  expected: a string of instructions\n  got: {type(text).__name__}")
    leaves, tree = jax.tree.flatten(out_types)
    types, out_layouts = [], []
    for leaf in leaves:
        types.append(_out_type(leaf))
        out_layouts.append(_versions.register_layout(leaf))
    flat, transforms = [], []
    for arg in args:
        ref, chain = _versions.split_ref(arg)
        flat.append(operand(ref) if chain is None else ref)
        transforms.append(chain)
    chains, chains_tree = jax.tree.flatten(transforms)
    results = inline_ptx_p.bind(
        *flat,
        *chains,
        text=text,
        pack=int(pack),
        once=bool(once),
        barriers=barriers,
        called=called,
        unchecked=unchecked,
        layouts=layouts if layouts is None else (layouts, tuple(out_layouts)),
        num_args=len(flat),
        laid_out=any(layout is not None for layout in out_layouts),
        out_types=tuple(types),
        transforms_tree=chains_tree,
    )
    laid_out = [x if layout is None else _versions.layout_cast(x, layout) for x, layout in zip(results, out_layouts)]
    return jax.tree.unflatten(tree, laid_out)


def _out_type(leaf: Any) -> tuple[tuple[int, ...], Any]:
    try:
        is_shaped = not isinstance(leaf, (type, np.dtype)) and hasattr(leaf, "shape") and hasattr(leaf, "dtype")
        shape = tuple(int(n) for n in leaf.shape) if is_shaped else ()
        dtype = np.dtype(leaf.dtype if is_shaped else leaf)
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise InvalidKernel(
                f"inline PTX: a result of 64 bits\n  expected: types of up to 32 bits, as JAX is set up\n  got: {dtype}"
                "\n  remedy: jax.config.update('jax_enable_x64', True)"
            )
        return shape, dtype
    except TypeError:
        raise InvalidKernel(
            "inline PTX: a type of a result\n  expected: jax.ShapeDtypeStruct(shape, dtype), an array like the result, or a dtype for a scalar"
            f"\n  got: {leaf!r}"
        ) from None


def operand(x: Any) -> Any:
    try:
        return jax.numpy.asarray(x)
    except TypeError:
        raise InvalidKernel(
            f"an operand\n  expected: an array, a scalar, or a reference\n  got: {type(x).__name__}"
        ) from None
