"""A matmul and attention in Triton itself, as its tutorials' readers write them; imported only where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _matmul(a_ptr, b_ptr, o_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    # Blocks that run at the same time share rows and columns.
    program, columns = tl.program_id(0), tl.cdiv(N, BN)
    per_group = GROUP * columns
    first = program // per_group * GROUP
    rows = min(tl.cdiv(M, BM) - first, GROUP)
    i = first + program % per_group % rows
    j = program % per_group // rows
    m, n, k = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    a_at = a_ptr + m[:, None] * K + k[None, :]
    b_at = b_ptr + k[:, None] * N + n[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(a_at), tl.load(b_at), acc)
        a_at += BK
        b_at += BK * N
    tl.store(o_ptr + m[:, None] * N + n[None, :], acc.to(tl.float16))


@triton.jit
def _attention(q_ptr, k_ptr, v_ptr, o_ptr, LENGTH, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    head = tl.program_id(1) * LENGTH * D
    m, n, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    q = tl.load(q_ptr + head + m[:, None] * D + d[None, :])
    k_at = k_ptr + head + n[None, :] * D + d[:, None]
    v_at = v_ptr + head + n[:, None] * D + d[None, :]
    most = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for _ in range(0, LENGTH, BN):
        s = tl.dot(q, tl.load(k_at)) * (scale * 1.4426950408889634)
        now = tl.maximum(most, tl.max(s, 1))
        p = tl.exp2(s - now[:, None])
        kept = tl.exp2(most - now)
        total = total * kept + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.float16), tl.load(v_at), acc * kept[:, None])
        most = now
        k_at += BN * D
        v_at += BN * D
    tl.store(o_ptr + head + m[:, None] * D + d[None, :], (acc / total[:, None]).to(tl.float16))


def matmul(a: torch.Tensor, b: torch.Tensor, blocks: tuple[int, int, int], warps: int, stages: int) -> Callable[[], Any]:
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    bm, bn, bk = blocks

    def launch() -> Any:
        _matmul[(triton.cdiv(m, bm) * triton.cdiv(n, bn),)](a, b, out, m, n, k, BM=bm, BN=bn, BK=bk, GROUP=8, num_warps=warps, num_stages=stages)
        return out

    return launch


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: tuple[int, int], warps: int, stages: int
) -> Callable[[], Any]:
    heads, length, d = q.shape
    out = torch.empty_like(q)
    bm, bn = blocks

    def launch() -> Any:
        grid = (length // bm, heads)
        _attention[grid](q, k, v, out, length, d**-0.5, D=d, BM=bm, BN=bn, num_warps=warps, num_stages=stages)
        return out

    return launch


CONFIGURATIONS: dict[str, list[dict[str, Any]]] = {
    "matmul": [
        {"blocks": blocks, "warps": warps, "stages": stages}
        for blocks, warps in (((128, 128, 32), 4), ((128, 256, 32), 8), ((128, 128, 64), 8), ((256, 128, 32), 8), ((128, 64, 64), 4))
        for stages in (3, 4)
    ],
    "attention": [
        {"blocks": blocks, "warps": warps, "stages": stages} for blocks, warps in (((128, 64), 4), ((128, 64), 8), ((64, 64), 4), ((128, 128), 8)) for stages in (2, 3, 4)
    ],
}


def compile_for(capability: int) -> None:
    """Triton compiles for this architecture, whatever the GPU is; what it makes is assembled for the GPU."""
    from triton.backends.nvidia import compiler

    here = torch.cuda.get_device_capability()
    name = f"sm_{here[0]}{here[1]}a"
    backend = compiler.CUDABackend
    own_options, own_cubin = backend.parse_options, backend.make_cubin

    def options(self: Any, given: dict[str, Any]) -> Any:
        return own_options(self, {**given, "arch": f"sm{capability}"})

    def cubin(self: Any, source: Any, metadata: Any, options: Any, _: int) -> Any:
        return own_cubin(self, source, metadata, options, 10 * here[0] + here[1])

    compiler.sm_arch_from_capability = lambda _: name
    backend.parse_options, backend.make_cubin = options, cubin
