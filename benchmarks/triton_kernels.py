"""Kernels in Triton itself, for what Pallas:Triton has no operations for; with PyTorch, whose tensors share the arrays' memory.

Imported only where both are installed. A row is sorted by one program; where places are asked for they ride along in the lower half
of 64-bit words, whose upper half is the number's bits in an order that integers have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.common import Launch


@triton.jit
def _ordered(x):  # type: ignore[no-untyped-def]
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _sort(x_ptr, o_ptr, N: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(o_ptr + at, tl.sort(tl.load(x_ptr + at)))


@triton.jit
def _argsort(x_ptr, o_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.arange(0, N)
    at = tl.program_id(0) * N + column
    words = (_ordered(tl.load(x_ptr + at)).to(tl.int64) << 32) | column.to(tl.int64)
    tl.store(o_ptr + at, tl.sort(words).to(tl.int32))


@triton.jit
def _top_k(x_ptr, values_ptr, places_ptr, N: tl.constexpr, K: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    column = tl.arange(0, N)
    # The first of equal numbers counts as the largest.
    words = (_ordered(tl.load(x_ptr + row * N + column)).to(tl.int64) << 32) | (N - 1 - column).to(tl.int64)
    best = tl.topk(words, K)
    bits = (best >> 32).to(tl.int32)
    values = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
    at = row * K + tl.arange(0, K)
    tl.store(values_ptr + at, values)
    tl.store(places_ptr + at, N - 1 - best.to(tl.int32))


def sort(x: torch.Tensor, rows: int, warps: int) -> Callable[[], Any]:
    out = torch.empty_like(x)

    def launch() -> Any:
        _sort[(x.shape[0] // rows,)](x, out, N=x.shape[1], ROWS=rows, num_warps=warps)
        return out

    return launch


def argsort(x: torch.Tensor, warps: int) -> Callable[[], Any]:
    out = torch.empty(x.shape, dtype=torch.int32, device=x.device)

    def launch() -> Any:
        _argsort[(x.shape[0],)](x, out, N=x.shape[1], num_warps=warps)
        return out

    return launch


def top_k(x: torch.Tensor, warps: int) -> Callable[[], Any]:
    values = torch.empty((x.shape[0], 8), dtype=torch.float32, device=x.device)
    places = torch.empty((x.shape[0], 8), dtype=torch.int32, device=x.device)

    def launch() -> Any:
        _top_k[(x.shape[0],)](x, values, places, N=x.shape[1], K=8, num_warps=warps)
        return values, places

    return launch


CONFIGURATIONS: dict[str, dict[str, dict[str, int]]] = {
    "sort": {f"{r} rows, {w} warps": {"rows": r, "warps": w} for r, w in ((1, 1), (1, 2), (1, 4), (1, 8), (4, 8))},
    "argsort": {f"{w} warps": {"warps": w} for w in (2, 4, 8)},
    "top_k": {f"{w} warps": {"warps": w} for w in (2, 4, 8, 16)},
}


def prepare(call: Callable[..., Callable[[], Any]], arguments: Sequence[Any]) -> Launch:
    """Launches on the arrays' own memory."""
    tensors = [torch.from_dlpack(x) for x in arguments]
    launch = call(*tensors)
    return Launch(launch, torch.cuda.synchronize, lambda out: out.cpu().numpy())
