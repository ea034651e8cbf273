"""Kernels written for JAX's Pallas:Triton backend (`jax.experimental.pallas.triton`, `plt`).

A program of Triton's is a step of the grid, in any order: arrays without a block are the kernel's own business, as pointers are
(`_blocks/pallas_call.py`). What only that backend has is here: its parameters, and its primitives, each as a function of references and arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

from smalt import _expand, _primitives, _registry, _versions
from smalt._errors import InvalidKernel, Unsupported
from smalt._walk import OpParts, Walker

# ------------------------------------------------------------------------------------------ parameters

#: Slots of a ring by default.
TRITON_STAGES = 2
#: What a block of the GPU has at most.
_MAX_WARPS = 32


def triton_parameters(params: Any) -> Any:
    """Triton's parameters as Mosaic GPU's. `num_stages` is how many steps of a sequential axis have their blocks in shared memory;
    `num_warps` is a hint: a block has a warpgroup, of four warps."""
    warps, stages = params.num_warps, params.num_stages
    powers = [1 << k for k in range(_MAX_WARPS.bit_length())]
    if warps is not None and (not _is_number(warps) or warps not in powers):
        raise _wrong("num_warps", f"a power of two up to {_MAX_WARPS}, or None", warps, "4, or leave it out: a block has four warps whatever it says")
    if stages is not None and (not _is_number(stages) or stages < 1):
        raise _wrong("num_stages", "1 and more, or None", stages, "1, or leave it out")
    return plgpu.CompilerParams(max_concurrent_steps=1 if stages is None else int(stages))


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _wrong(name: str, expected: str, got: object, remedy: str) -> InvalidKernel:
    return InvalidKernel(f"plt.CompilerParams: `{name}`\n  expected: {expected}\n  got: {got!r}\n  remedy: {remedy}")


# ------------------------------------------------------------------------------------------ primitives

#: Threads of a block.
_LANES = 128

Function = Callable[..., Any]
RULES: dict[str, Callable[[Walker, Any], OpParts]] = {}


def _rule(*names: str) -> Callable[[Callable[[Any], Function]], Callable[[Any], Function]]:
    """Enters a function of an equation, which gives one of its operands."""

    def enter(function: Callable[[Any], Function]) -> Callable[[Any], Function]:
        def rule(w: Walker, eqn: Any) -> OpParts:
            return _expand.call(w, eqn, function(eqn))

        _rule_of(*names)(rule)
        return function

    return enter


_rule_of = _registry.into(RULES)


@_rule("max_contiguous")
def _max_contiguous(eqn: Any) -> Function:
    return lambda x: x


@_rule_of("debug_barrier")
def _debug_barrier(w: Walker, eqn: Any) -> OpParts:
    """All threads of the block, which has one warpgroup."""
    if w.grid_indices is None:
        raise InvalidKernel(
            "plt.debug_barrier in a plgpu.kernel\n  expected: a call in the body of a pl.pallas_call, of one warpgroup"
            "\n  got: a kernel that may have several\n  remedy: smalt.named_barrier_sync(15, threads), or a plgpu.Barrier"
        )

    def sync() -> tuple[()]:
        _primitives.named_barrier_sync(15, _LANES)  # nothing else uses the last one
        return ()

    return _expand.call(w, eqn, sync)


def _known(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """The operands, numbers in place of constant integers: of those that index, negative ones count from the end."""
    found = []
    for atom, x in zip(eqn.invars, operands, strict=True):
        value = _versions.literal_value(atom) if _versions.is_literal(atom) else None
        found.append(int(value) if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)) else x)
    return found


def volatile_load(eqn: Any) -> Function:
    """A `masked_load` that sees what others store meanwhile."""

    def load(*operands: Any) -> Any:
        ref, transforms, mask, other = eqn.params["args_tree"].unflatten(_known(eqn, operands))
        found = _primitives.volatile_load("plt.load", _versions.seen_through(ref, transforms), mask)
        return found if mask is None or other is None else jnp.where(mask, found, other)

    return load


def exchange(eqn: Any) -> Function:
    """A `masked_swap` whose result is used: the stored value itself where the mask is false."""

    def swap(*operands: Any) -> Any:
        ref, transforms, value, mask = eqn.params["args_tree"].unflatten(_known(eqn, operands))
        view = _versions.seen_through(ref, transforms)
        found = _versions.masked_load(view, mask, value)
        _versions.masked_swap(view, value, mask)
        return found

    return swap


def beyond(eqn: Any) -> Function | None:
    """A masked access to slices of more than the reference has, where the mask selects: by arrays of indices. None: it has none."""
    tree, is_load = eqn.params["args_tree"], eqn.primitive.name == "masked_load"
    transforms = tree.unflatten(eqn.invars)[1]
    indices = _versions.indices_of(transforms)
    if not any(_versions.is_slice(i) and (i.size - 1) * i.stride >= n for i, n in zip(indices, transforms[-1].shape if indices else ())):
        return None

    def access(*operands: Any) -> Any:
        ref, transforms, *rest = tree.unflatten(_known(eqn, operands))
        shape = _versions.seen_through(ref, transforms).shape
        view = _versions.seen_through(ref, transforms[:-1]).at[_primitives.positions(transforms[-1], shape)]
        return _versions.masked_load(view, *rest) if is_load else _versions.masked_swap(view, *rest)

    return access


#: Its atomics, by what PTX calls them.
_ATOMICS = {"xchg": "exch"}


@_rule("atomic_rmw")
def _atomic_rmw(eqn: Any) -> Function:
    op, tree = str(eqn.params["atomic_type"].value), eqn.params["args_tree"]

    def update(*operands: Any) -> Any:
        ref, transforms, value, mask = tree.unflatten(_known(eqn, operands))
        view = _versions.seen_through(ref, transforms)
        return _primitives.atomic(f"plt.atomic_{op}", _ATOMICS.get(op, op), view, [value], "acq_rel", "gpu", mask)

    return update


@_rule("atomic_cas")
def _atomic_cas(eqn: Any) -> Function:
    return lambda ref, expected, value: _primitives.atomic("plt.atomic_cas", "cas", ref, [expected, value], "acq_rel", "gpu")


# ------------------------------------------------------------------------------------------ assembly

#: Bits of a register, by LLVM's constraint.
_WIDTHS = {"h": 16, "r": 32, "f": 32, "l": 64, "d": 64}
#: Registers of smalt's own that a text of more than one element is given have at most so many bits.
_MAX_BITS = 64
_OPERAND = re.compile(r"\$(?:(\$)|(\d+)|\{(\d+)(?::\w+)?\})")


@_rule("elementwise_inline_asm")
def _elementwise_inline_asm(eqn: Any) -> Function:
    params = eqn.params
    pack = params["pack"]
    results = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
    assembly = _Assembly(params["asm"], params["constraints"], pack, [*results, *(a.aval for a in eqn.invars)], len(results))

    def run(*args: Any) -> Any:
        shape = results[0].shape
        count = int(np.prod(shape))
        if pack == 1 or count == 0:
            return assembly.run(args, shape)
        whole = -(-count // (_LANES * pack)) * _LANES * pack
        flat = [jnp.pad(x.reshape(count), (0, whole - count)) for x in args]
        return [x[:count].reshape(shape) for x in assembly.run(flat, (whole,))]

    return run


class _Assembly:
    """A text with LLVM's constraints, as a text of `smalt.inline_ptx`.

    LLVM's operands are results, then arguments. `pack` elements of an array are in registers of 32 bits as far as they fit, the first
    in the low bits; others have a register each.
    """

    def __init__(self, asm: str, constraints: str, pack: Any, arrays: Sequence[Any], num_results: int) -> None:
        self.asm, self.arrays, self.num_results = asm, arrays, num_results
        if not _is_number(pack) or pack < 1:
            raise self._wrong("pack", "a number of elements", pack, "pack=1: the text is for one element")
        self.pack = int(pack)
        self.bits = [_versions.bits_of(a.dtype) for a in arrays]
        for array, bits in zip(arrays, self.bits):
            if array.shape != arrays[0].shape:
                shapes = " and ".join(sorted({str(list(a.shape)) for a in arrays}))
                raise self._wrong("shapes", "results and arguments of one shape", shapes, "jnp.broadcast_to")
            if bits < 8 or np.dtype(array.dtype) == np.bool_:
                raise self._wrong("types", "numbers of 8 bits and more", str(array.dtype), "convert it: x.astype(jnp.int32)")
        #: Of each array how many registers it has, and of how many bits they are.
        self.counts = [self.pack // self._in_register(b) for b in self.bits]
        self.sizes = [b * self._in_register(b) for b in self.bits]
        self.constraints = self._constraints(constraints)

    def _in_register(self, bits: int) -> int:
        n = max(1, min(32 // bits, self.pack))
        if self.pack % n:
            raise self._wrong("pack", f"a multiple of {n}, which fill a register of 32 bits", self.pack, f"pack={n}")
        return n

    def _wrong(self, what: str, expected: str, got: object, remedy: str) -> InvalidKernel:
        return InvalidKernel(f"plt.elementwise_inline_asm: {what}\n  expected: {expected}\n  got: {got}\n  remedy: {remedy}")

    def _constraints(self, text: str) -> list[str]:
        """One for each register: a letter, or the number of the result whose register it is."""
        given = [c.strip() for c in text.split(",") if c.strip()]
        outputs, inputs = sum(self.counts[: self.num_results]), sum(self.counts[self.num_results :])
        if len(given) != outputs + inputs:
            expected = f"{outputs} for the results (=r), and {inputs} for the arguments: pack={self.pack} elements of each are in registers of 32 bits"
            raise self._wrong("constraints", expected, repr(text), "a constraint for each register")
        found = []
        for i, c in enumerate(given):
            is_output = i < outputs
            letter = c.removeprefix("=").removeprefix("&") if is_output else c
            tied = not is_output and letter.isdigit() and int(letter) < outputs
            if c.startswith("=") != is_output or not (letter in _WIDTHS or tied):
                kinds = ", ".join(("=" if is_output else "") + k for k in _WIDTHS)
                raise self._wrong(f"constraint {i}", f"one of {kinds}", repr(c), "registers of 16, 32 and 64 bits; results first")
            found.append(letter)
        return found

    def run(self, args: Sequence[Any], shape: tuple[int, ...]) -> list[Any]:
        totals = [b * self.pack for b in self.bits]
        types = [jax.ShapeDtypeStruct(shape, a.dtype) for a in self.arrays[: self.num_results]]
        if max(totals) <= _MAX_BITS:
            text = self._text([[f"{{{k}}}"] for k in range(len(self.arrays))])
            return list(_primitives.run_ptx(text, types, *args, pack=self.pack, called="plt.elementwise_inline_asm"))
        if min(totals) < 32:
            least = 32 // min(self.bits)
            raise Unsupported(
                f"not supported yet: plt.elementwise_inline_asm of {max(totals)} bits of one array and {min(totals)} of another"
                f"\n  expected: at most {_MAX_BITS} bits of each, or at least 32\n  got: pack={self.pack}\n  remedy: pack={least}"
            )
        # More than fits a register: a lane's elements as words, `pack` neighbours after the other.
        layout = plgpu.Layout.WG_STRIDED(shape, vec_size=self.pack)
        texts = []
        for group in range(shape[0] // (_LANES * self.pack)):
            words = [total // 32 for total in totals]
            texts.append(self._text([[f"{{{k}.{group * n + i}}}" for i in range(n)] for k, n in enumerate(words)]))
        laid_out = [plgpu.ShapeDtypeStruct(t.shape, t.dtype, layout=layout) for t in types]
        return list(_primitives.inline_ptx(" ".join(texts), laid_out, *args, whole=True, arg_layouts=[layout] * len(args)))

    def _text(self, given: Sequence[Sequence[str]]) -> str:
        """The text for `pack` elements, of which each array has these registers of smalt's."""
        before: list[str] = []
        after: list[str] = []
        names: list[str] = []
        for k, registers in enumerate(given):
            names += self._registers(k, registers, self.constraints[len(names) :], before, after, names)

        def named(match: re.Match[str]) -> str:
            if match[1]:
                return "$"
            number = int(match[2] or match[3])
            if number >= len(names):
                raise self._wrong(f"`{match[0]}`", f"operands $0 to ${len(names) - 1}", match[0], "results are counted first")
            return names[number]

        body = _OPERAND.sub(named, self.asm)
        return "{ " + " ".join([*before, body.rstrip().rstrip(";") + ";", *after]) + " }"

    def _registers(
        self, k: int, given: Sequence[str], constraints: Sequence[str], before: list[str], after: list[str], results: Sequence[str]
    ) -> list[str]:
        """What LLVM's operands of array `k` are called; what the text needs before and behind it for that is added."""
        count, size, is_result = self.counts[k], self.sizes[k], k < self.num_results
        own = max(size, 32) if self.pack == 1 and size == 8 else size  # of one byte smalt has a register of 32 bits
        names: list[str] = []
        pieces = list(given)
        if len(given) != count:  # one of 64 bits is two of the other side's
            pieces = [f"part{k}_{i}" for i in range(count)]
            before.append(f".reg .b{own} {', '.join(pieces)};")
            wide, narrow = (given, pieces) if count > len(given) else (pieces, given)
            joins = is_result == (wide is given)
            each = len(narrow) // len(wide)
            for i, register in enumerate(wide):
                halves = f"{{{', '.join(narrow[i * each : (i + 1) * each])}}}"
                (after if is_result else before).append(f"mov.b64 {register}, {halves};" if joins else f"mov.b64 {halves}, {register};")
        for i, (piece, constraint) in enumerate(zip(pieces, constraints)):
            if constraint.isdigit():
                before.append(f"mov.b{own} {results[int(constraint)]}, {piece};")
                names.append(results[int(constraint)])
                continue
            width = _WIDTHS[constraint]
            if width == own:
                names.append(piece)
                continue
            name = f"wide{k}_{i}"
            before.append(f".reg .b{width} {name};")
            if is_result:
                after.insert(0, f"cvt.u{own}.u{width} {piece}, {name};")
            else:
                before.append(f"cvt.u{width}.u{own} {name}, {piece};")
            names.append(name)
        return names
