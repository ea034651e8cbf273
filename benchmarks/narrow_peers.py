"""Products with narrow weights in Triton itself, for `benchmarks.narrow`; imported only where PyTorch and Triton are installed.

Two 4-bit numbers share a byte, neighbours along K, the lower one first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
import triton
import triton.language as tl

from benchmarks.common import Launch

W4A16, W8A8, FP8_INT4, FP8_BLOCKS, MXFP4 = range(5)
_KINDS = {"w4a16": W4A16, "w8a8": W8A8, "fp8 x int4": FP8_INT4, "fp8, 128 x 128 scales": FP8_BLOCKS, "mxfp4": MXFP4}


@triton.jit
def _nibbles(b):  # type: ignore[no-untyped-def]
    return tl.join((b << 4) >> 4, b >> 4)


@triton.jit
def _matmul(  # type: ignore[no-untyped-def]
    x_ptr, w_ptr, s_ptr, t_ptr, o_ptr, M, N, K,
    KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    # Programs in groups of eight rows of blocks, as in Triton's tutorial.
    pid, rows, columns = tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (8 * columns) * 8
    size = min(rows - first, 8)
    m = first + pid % (8 * columns) % size
    n = pid % (8 * columns) // size
    rm, rn, rk = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN), tl.arange(0, BK)
    half = tl.arange(0, BK // 2)
    acc = tl.zeros((BM, BN), tl.int32 if KIND == 1 else tl.float32)
    for k in range(0, K, BK):
        x = tl.load(x_ptr + rm[:, None] * K + (k + rk)[None, :])
        if KIND == 0:  # (K / 2, N)
            b = tl.load(w_ptr + (k // 2 + half)[:, None] * N + rn[None, :])
            w = tl.reshape(tl.permute(_nibbles(b), (0, 2, 1)), (BK, BN)).to(tl.bfloat16)
            s = tl.load(s_ptr + k // GROUP * N + rn)
            acc = tl.dot(x, w * s[None, :], acc)
        elif KIND == 1:  # (N, K)
            w = tl.load(w_ptr + rn[None, :] * K + (k + rk)[:, None])
            acc = tl.dot(x, w, acc)
        elif KIND == 2:  # (N, K / 2)
            b = tl.load(w_ptr + rn[:, None] * (K // 2) + (k // 2 + half)[None, :])
            w = tl.reshape(_nibbles(b), (BN, BK)).to(tl.float16).to(tl.float8e4nv)
            acc = tl.dot(x, tl.trans(w), acc)
        elif KIND == 3:  # (N, K)
            w = tl.load(w_ptr + rn[None, :] * K + (k + rk)[:, None])
            s = tl.load(s_ptr + k // GROUP * M + rm)
            t = tl.load(t_ptr + k // GROUP * (N // GROUP) + rn // GROUP)
            acc += tl.dot(x, w) * s[:, None] * t[None, :]
        else:  # (K / 2, N), scales (N, K / 32)
            b = tl.load(w_ptr + (k // 2 + half)[:, None] * N + rn[None, :])
            s = tl.load(s_ptr + rn[:, None] * (K // 32) + (k // 32 + tl.arange(0, BK // 32))[None, :])
            acc = tl.dot_scaled(x, None, "bf16", b, s, "e2m1", acc)
    if KIND == 1:
        acc = acc.to(tl.float32) * tl.load(s_ptr + rm)[:, None] * tl.load(t_ptr + rn)[None, :]
    if KIND == 2:
        acc = acc * tl.load(s_ptr + rn)[None, :]
    tl.store(o_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))


def _packed(w: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    bits = w.astype(np.int8).view(np.uint8) if w.dtype == ml_dtypes.int4 else w.view(np.uint8)
    bits = np.moveaxis(bits & 15, axis, 0)
    return np.ascontiguousarray(np.moveaxis(bits[::2] | bits[1::2] << 4, 0, axis)).view(np.int8)


def _tensor(a: np.ndarray[Any, Any]) -> torch.Tensor:
    kinds = {"bfloat16": (np.int16, torch.bfloat16), "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn)}
    stored, dtype = kinds.get(a.dtype.name, (None, None))
    t = torch.from_numpy(np.ascontiguousarray(a if stored is None else a.view(stored))).cuda()
    return t if dtype is None else t.view(dtype)


def launches(name: str, args: Sequence[Any]) -> Iterator[tuple[str, Launch]]:
    """Configurations, each as a launch."""
    kind = _KINDS[name]
    x, w, *scales = map(np.asarray, args)
    m, k = x.shape
    n = w.shape[0] if kind in (W8A8, FP8_INT4, FP8_BLOCKS) else w.shape[1]
    if kind in (W4A16, MXFP4):
        w = _packed(w, 0)
    if kind == FP8_INT4:
        w = _packed(w, 1)
    if kind == MXFP4:
        w, scales = w.view(np.uint8), [np.ascontiguousarray(scales[0].view(np.uint8).T)]
    tensors = [_tensor(a) for a in (x, w, *scales)]
    tensors += [tensors[-1]] * (4 - len(tensors))
    out = torch.empty((m, n), dtype=torch.bfloat16, device="cuda")
    if m > 64:
        tiles = [(128, 128, 8), (128, 256, 8)]
    else:
        tiles = [(16, 32, 4), (16, 64, 4), (16, 128, 4), (16, 128, 8)]
    if kind == FP8_BLOCKS:
        tiles = [(64, 128, 4), (128, 128, 8)] if m > 64 else [t for t in tiles if t[1] == 128]
    for (bm, bn, warps), bk, stages in itertools.product(tiles, (128,) if kind == FP8_BLOCKS else (64, 128), (3, 4)):
        grid = (triton.cdiv(m, bm) * triton.cdiv(n, bn),)
        meta = dict(KIND=kind, BM=bm, BN=bn, BK=bk, GROUP=128, num_warps=warps, num_stages=stages)

        def launch(grid: Any = grid, meta: Any = meta) -> Any:
            _matmul[grid](*tensors, out, m, n, k, **meta)
            return out

        yield f"{(bm, bn, bk)}, {warps} warps, {stages} stages", Launch(launch, torch.cuda.synchronize, _to_numpy)


def _to_numpy(t: torch.Tensor) -> Any:
    return t.float().cpu().numpy()


