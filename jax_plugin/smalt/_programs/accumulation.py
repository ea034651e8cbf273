"""Sums of products that a loop carries, as products that run while the loop goes on.

`acc = acc + a @ b` in a loop that nothing else looks at is what `wgmma` does to an accumulator by itself: a step's product is issued, the one before
it is waited for, and what the next step converts and scales is computed meanwhile. Operands that lie in a ring are read there, and their slots are
given back a step later.

A right operand that a step computes is, of the transposed product, the left one, and those are multiplied from registers: each warpgroup computes its
columns of the result, and converts their weights slice by slice, one while the product of the one before it runs. What a thread has of a column of
tiles are neighbours, so that it loads narrow numbers by the word: which of the result's columns is which row of the transposed product is free.

Where that does not fit, it is computed by all warpgroups together, each its part, in one of three buffers: when a warpgroup begins to fill one, the
others may still read the one before, but none the one of two steps before.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import numpy as np

from smalt import _primitives, _versions
from smalt._programs import dimensions, division
from smalt._programs.dimensions import Split
from smalt._programs.division import Demands
from smalt._programs.program import Node, Value

#: Buffers of a computed operand.
BUFFERS = 3
#: Columns of a `wgmma`.
MAX_COLUMNS = 256
#: The named barrier of the warpgroups that compute an operand.
BARRIER = 14
#: Positions of a part of a computed operand.
LEAST_PART = 16
#: Of the contracted dimension what a `wgmma` of 16-bit numbers takes, and rows of its left operand.
SLICE = 16
TILE_ROWS = 64


@dataclasses.dataclass(eq=False)
class Sum:
    """A sum of products that a loop carries."""

    loop: Node
    product: Node
    add: Node
    #: Which carried value of the loop it is.
    at: int
    #: The right operand, before it is transposed, and whether its first dimension is the contracted one.
    right: Value
    is_along_n: bool
    #: Whether the right operand is computed in registers, as the left one of the transposed product.
    is_in_registers: bool = False

    def in_registers(self) -> Sum | None:
        """The transposed product; None: its left operand would be one that is loaded as it is."""
        is_wide = _versions.bits_of(self.right.aval.dtype) == 16
        return dataclasses.replace(self, is_in_registers=True) if self.is_in_buffer and is_wide else None

    @property
    def in_memory(self) -> Value | None:
        """The operand that lies in a ring and is read there; None: the right one goes through a buffer, and the left one may be either."""
        if self.is_in_registers:
            return self.product.operands[0]
        return None if self.is_in_buffer else self.right

    @property
    def contracted(self) -> int:
        """The right operand's dimension, before it is transposed."""
        return 0 if self.is_along_n else 1

    @property
    def is_turned(self) -> bool:
        """Whether it has to be turned: `wgmma` has 8-bit numbers along what is contracted."""
        return self.is_along_n and _versions.bits_of(self.right.aval.dtype) == 8

    @property
    def is_in_buffer(self) -> bool:
        """Whether the right operand goes through a buffer: a step computes it, or it has to be turned."""
        if self.is_in_registers:
            return False
        node = self.right.node
        return node is None or node.name not in division.LOADS or self.is_turned

    def shared(self, parts: int) -> Split:
        """The dimension of a computed right operand of which each warpgroup computes its part; None: there is none."""
        columns = 1 if self.is_along_n else 0
        for d in (columns, 1 - columns):
            if self.right.shape[d] % (parts * LEAST_PART) == 0:
                return d
        return None


@dataclasses.dataclass(eq=False)
class Accumulation:
    """A sum, and how warpgroups share it."""

    sum: Sum
    parts: int
    split: Split
    #: Of both operands.
    splits: list[Split]
    #: Of the right one, where it is computed.
    part_of_right: Split

    @property
    def sums(self) -> Any:
        """The type of a warpgroup's sums."""
        return plgpu.ACC(self.shape[::-1] if self.sum.is_in_registers else self.shape, self.sum.product.results[0].aval.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a warpgroup's part of the result."""
        return dimensions.part_of(self.sum.product.results[0].shape, self.split, self.parts)

    def columns(self, part: Any) -> Any:
        """A slice of a computed right operand as rows of the transposed product. A thread has of each tile two rows, of each warp's sixteen: they and
        those of all tiles are neighbouring columns."""
        rows = part.T if self.sum.is_along_n else part
        n, k = rows.shape
        return rows.reshape(4, 8, n // TILE_ROWS, 2, k).transpose(2, 0, 3, 1, 4).reshape(n, k)

    def result(self, sums: Any) -> Any:
        """A warpgroup's part of the result."""
        if not self.sum.is_in_registers:
            return sums
        rows, columns = self.shape
        return sums.reshape(columns // TILE_ROWS, 4, 2, 8, rows).transpose(4, 1, 3, 0, 2).reshape(rows, columns)

    @property
    def bytes(self) -> int:
        return BUFFERS * math.prod(self.sum.right.shape) * _versions.bits_of(self.sum.right.aval.dtype) // 8

    @property
    def buffers(self) -> Any:
        shape = self.sum.right.shape
        return plgpu.SMEM((BUFFERS, *(shape[::-1] if self.sum.is_turned else shape)), self.sum.right.aval.dtype)

    def transforms(self, shape: Sequence[int], dtype: Any) -> tuple[Any, ...]:
        """Of a slot from which a warpgroup loads its columns: rows of them, swizzled, so that threads of several rows have no bank conflicts."""
        parts = 1 if self.split is None or self.sum.contracted == 1 else self.parts
        if not self.sum.is_in_registers or shape != self.sum.right.shape:
            return ()
        return swizzled(shape, dtype, parts)

    def multiply(self, sums: Any, left: Any, right: Any) -> None:
        """Issues a product, and waits for the one before it. `left`: an array, or memory; `right`: memory, (contracted, columns)."""
        plgpu.wgmma(sums, left, right)
        plgpu.wgmma_wait(1)

    def store(self, buffer: Any, value: Any, part: Any) -> Any:
        """Stores a warpgroup's part of a computed right operand to a buffer: the memory that the product reads, of which it needs its part."""
        at = self.part_of_right
        own = buffer
        if at is not None:
            size = self.sum.right.shape[at] // self.parts
            index = [pl.ds(part * size, size) if d == at else slice(None) for d in range(2)]
            own = buffer.at[tuple(index[::-1] if self.sum.is_turned else index)]
        own[...] = value.T if self.sum.is_turned else value
        plgpu.commit_smem()
        if self.parts > 1:
            _primitives.named_barrier_sync(BARRIER, 128 * self.parts)
        is_right = self.sum.is_along_n and not self.sum.is_turned
        matrix = buffer if is_right else _versions.transposed_ref(buffer, (1, 0))
        if self.splits[1] is None:
            return matrix
        columns = matrix.shape[1] // self.parts
        return matrix.at[:, pl.ds(part * columns, columns)]


def swizzled(shape: Sequence[int], dtype: Any, parts: int = 1) -> tuple[Any, ...]:
    """The transforms of a matrix of which rows are read, or so many parts of the columns."""
    bits = _versions.bits_of(dtype)
    width = next((w for w in (128, 64, 32) if shape[-1] // parts * bits % (8 * w) == 0), None)
    if len(shape) != 2 or shape[0] % 8 or width is None:
        return ()
    return plgpu.TilingTransform((8, 8 * width // bits)), plgpu.SwizzleTransform(width)


def find(loop: Node) -> Sum | None:
    """The one sum of products of a loop."""
    body = loop.blocks[-1]
    products = [n for block in loop.blocks for n in block.all_nodes() if n.name == "dot_general"]
    if len(products) != 1 or products[0].block is not body:
        return None
    product, (result,) = products[0], products[0].results
    users = _users(loop, result)
    if len(users) != 1 or users[0].name != "add" or users[0].block is not body or result in body.results:
        return None
    add = users[0]
    others = [v for v in add.operands if v is not result]
    if len(others) != 1 or others[0] not in body.params:
        return None
    at = body.params.index(others[0])
    carried = [block.params[at] for block in loop.blocks]
    if body.results[at] is not add.results[0] or body.results.count(add.results[0]) != 1:
        return None
    if any(_users(loop, v) not in ([], [add]) for v in carried) or _users(loop, add.results[0]) or not _is_legal(product, add):
        return None
    right, is_along_n = product.operands[1], product.eqn.params["dimension_numbers"][0][1] == (0,)
    while right.node is not None and right.node.name == "transpose" and right.node.block is body:
        if len(_users(loop, right)) != 1:
            break
        right, is_along_n = right.node.operands[0], not is_along_n
    return Sum(loop, product, add, at, right, is_along_n)


def divided(found: Sum, demands: Demands, parts: int) -> Accumulation | None:
    """How it is shared, if `wgmma` takes a warpgroup's part."""
    splits = demands.get(found.product.results[0], set())
    if len(splits) != 1:
        return None
    (split,) = splits
    of_operands: list[Split] = [None, None] if split is None else division.operand_splits(found.product, split)
    of_right = demands.get(found.right, set())
    made = Accumulation(found, parts, split, of_operands, next(iter(of_right)) if len(of_right) == 1 else None)
    rows, columns = made.sums.shape
    if found.is_in_registers and (split == 0 or found.right.shape[found.contracted] % SLICE):
        return None
    return made if rows % 64 == 0 and columns % 8 == 0 and columns <= MAX_COLUMNS else None


def _users(loop: Node, value: Value) -> list[Node]:
    return [n for block in loop.blocks for n in block.all_nodes() if value in n.operands or any(value in b.results for b in n.blocks)]


def _is_legal(product: Node, add: Node) -> bool:
    """Whether `wgmma` has the types, and the operands are matrices."""
    (contracted, batch), aval = product.eqn.params["dimension_numbers"], product.results[0].aval
    left, right = (v.aval for v in product.operands)
    if batch != ((), ()) or any(len(v.shape) != 2 for v in (left, right)) or any(len(c) != 1 for c in contracted):
        return False
    if contracted[0] != (1,) or aval.dtype != add.results[0].aval.dtype:
        return False
    if not _versions.is_fast_precision(product.eqn.params.get("precision")):
        return False
    names = {np.dtype(left.dtype).name, np.dtype(right.dtype).name}
    sums = np.dtype(aval.dtype).name
    bits = _versions.bits_of(left.dtype)
    is_float = sums == "float32" and (names in ({"float16"}, {"bfloat16"}) or names <= {"float8_e4m3fn", "float8_e5m2"})
    is_integer = sums == "int32" and names in ({"int8"}, {"uint8"})
    return (is_float or is_integer) and left.shape[1] * bits % 256 == 0


