"""Functions of PyTorch's, with the shapes that they are compiled for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

#: A function, what makes its arguments, and how far results may be apart.
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[Callable[[], torch.Tensor]], float]] = {}


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(shape).to(dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    return lambda: torch.rand(shape).to(dtype) + 0.1


def below(high: int, *shape: int, dtype: torch.dtype = torch.int64, low: int = 0) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(low, high, shape, dtype=dtype)


def mask(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.rand(shape) > 0.4


def add(name: str, f: Callable[..., Any], *make: Callable[[], torch.Tensor], within: float = 1e-4) -> None:
    assert name not in FUNCTIONS
    FUNCTIONS[name] = (f, list(make), within)


def add_gradient(name: str, f: Callable[..., Any], *make: Callable[[], torch.Tensor], within: float = 1e-3) -> None:
    def gradient(*args: torch.Tensor) -> Any:
        args = tuple(x.detach().requires_grad_() if x.dtype.is_floating_point else x for x in args)
        return torch.autograd.grad(f(*args).sum(), [x for x in args if x.requires_grad])

    add(name, gradient, *make, within=within)


def rotated(q: Any, c: Any, s: Any) -> Any:
    a, b = q.chunk(2, -1)
    return torch.cat([a * c - b * s, a * s + b * c], -1)


def rms(x: Any, w: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def put(x: Any, i: Any, v: Any) -> Any:
    y = x.clone()
    y[i] = v
    return y


def in_place(x: Any) -> Any:
    x.add_(1)
    return x * 2


M, N = normal(64, 128), normal(37, 53)

add("pointwise", lambda x, y: torch.sin(x) * y + x.exp() / (1 + y.abs()), M, M)
add("tail", lambda x: x * 2 + 1, normal(1000))
add("long tail", lambda x: x.tanh() + 1, normal(20003))
add("row broadcast", lambda x, b: F.gelu(x + b), N, normal(53))
add("column broadcast", lambda x, b: F.silu(x * b), N, normal(37, 1))
add("middle broadcast", lambda x, b: torch.tanh(x - b), normal(16, 8, 32), normal(8, 1))
add("one element", lambda x: x * 3, normal(1))
add("rank 0", lambda x, y: x * y + 1, normal(), normal())
add("special functions", lambda x: torch.erf(x) + torch.lgamma(x.abs() + 1) + torch.expm1(x) + torch.atan2(x, x + 2), normal(128))
add("logarithms", lambda x: x.log2() + x.log10() + x.log1p() + x.rsqrt() + x.reciprocal() + x.exp2() + torch.special.i0e(x), positive(64))
add("rounding", lambda x: (x * 3).round() + (x * 3).floor() - (x * 5).ceil() + (x * 7).trunc() + x.frac(), normal(64))
add("activations", lambda x: F.hardswish(x) + F.mish(x) + F.softplus(x) + F.elu(x) + F.hardtanh(x) + F.leaky_relu(x), normal(30, 40))
add("NaN and infinity", lambda x: torch.nan_to_num(torch.log(x)) + torch.isnan(torch.sqrt(x)).float(), normal(128))
add("power and clamp", lambda x: (x.abs() ** 1.5).clamp(0.1, 2.0), normal(50))
add("extremes of two", lambda x, y: torch.fmax(x, y) + torch.minimum(x, y).clamp(min=-0.5), normal(40), normal(40))
add("remainders", lambda x, y: torch.fmod(x, y) + torch.remainder(x, y.abs() + 0.1), normal(30), normal(30))
add("signs", lambda x, y: torch.hypot(x, y) + torch.copysign(x, y) + torch.sign(y), normal(30), normal(30))
add("bf16", lambda x, y: x * y + x, normal(64, 128, dtype=torch.bfloat16), normal(64, 128, dtype=torch.bfloat16), within=2e-2)
add("f64", lambda x: (x.sin() * x).sum(1), normal(10, 12, dtype=torch.float64), within=1e-9)
add("int32", lambda x, y: (x // y) + (x % y) * (x ^ y), below(100, 300, dtype=torch.int32), below(100, 300, dtype=torch.int32, low=1))
add("int64", lambda x, y: (x * y + 7) >> 2, below(1000, 257), below(100, 257, low=1))
add("uint8", lambda x: x.float() / 255, below(256, 100, dtype=torch.uint8))
add("bool", lambda a, b: (a & b) | (~a ^ b), mask(64, 64), mask(64, 64))
add("comparisons", lambda a, b: (a > b).long() * 2 + (a == b).int(), below(20, 64), below(20, 64))
add("where", lambda x, m: torch.where(m, x, torch.zeros_like(x)) - 1, M, mask(64, 128))
add("in place", in_place, normal(100))
add("two results", lambda x, y: (x + y, x - y), normal(30, 20), normal(30, 20))

add("row sums", lambda x: x.sum(dim=1), M)
add("column means", lambda x: x.mean(dim=0), M)
add("sum of all", lambda x: (x * x).sum(), normal(33, 70))
add("extremes", lambda x: (x.amax(dim=-1), x.amin(dim=-1)), normal(64, 100))
add("argmax", lambda x: x.argmax(dim=1), normal(20, 100))
add("any, all", lambda x: ((x > 1).any(1), (x > -2).all(1)), normal(64, 3))
add("products of rows", lambda x: x.prod(2), normal(4, 5, 6))
add("middle sums", lambda x: (x.sum(1), x.amax((0, 2))), normal(4, 5, 6))
add("variance and mean", lambda x: torch.var_mean(x, dim=1), normal(30, 40))
add("standardised", lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True), normal(64, 20))
add("logsumexp", lambda x: torch.logsumexp(x, 1), normal(17, 19))
add("softmax", lambda x: torch.softmax(x, -1), M)
add("f16 softmax", lambda x: torch.softmax(x, -1), normal(64, 128, dtype=torch.float16), within=5e-3)
add("long softmax", lambda x: torch.softmax(x, -1), normal(32, 1024))
add("log softmax", lambda x: torch.log_softmax(x, -1), normal(33, 77))
add("layer norm", lambda x, w, b: F.layer_norm(x, (128,), w, b), M, positive(128), normal(128))
add("RMS norm", rms, normal(30, 96), positive(96))
add("bf16 RMS norm", rms, normal(16, 33, dtype=torch.bfloat16), positive(33, dtype=torch.bfloat16), within=3e-2)
add("batch norm", lambda x, *a: F.batch_norm(x, *a), normal(4, 6, 8, 8), normal(6), positive(6), positive(6), normal(6))
add("group norm", lambda x, w, b: F.group_norm(x, 4, w, b), normal(4, 8, 6, 6), positive(8), normal(8))
add("cross entropy", lambda x, t: F.cross_entropy(x, t), normal(300, 700), below(700, 300))
add("squared error", lambda x, y: F.mse_loss(x, y), normal(64), normal(64))

add("rows by indices", lambda t, i: t[i], normal(50, 16), below(50, 24))
add("embedding", lambda t, i: F.embedding(i, t) * 2, normal(1000, 64), below(1000, 4, 10))
add("elements by indices", lambda x, i: x[i] + 1, normal(100), below(100, 30))
add("pairs of indices", lambda x, i, j: x[i, j] * 2, normal(10, 6), below(10, 8), below(6, 8))
add("gather", lambda x, i: torch.gather(x, 1, i), normal(16, 40), below(40, 16, 5))
add("index_put", put, normal(20, 16), below(20, 7), normal(16))
add("scatter", lambda x, i, v: x.scatter(0, i, v), normal(20), lambda: torch.randperm(20)[:7], normal(7))
add("scatter_add", lambda x, i, v: x.scatter_add(0, i, v), normal(20, 16), below(20, 9, 16), normal(9, 16))
add("many to scatter_add", lambda x, i, v: x.scatter_add(0, i, v), normal(5000), below(5000, 3000), normal(3000))
add("index_add", lambda x, i, v: x.index_add(0, i, v), normal(20, 16), below(20, 9), normal(9, 16))
add("bucketize", lambda x, b: torch.bucketize(x, b) + 1, normal(33), lambda: torch.linspace(-1, 1, 8))

add("transposed", lambda x: x.t().contiguous() + 1, normal(32, 48))
add("transposed argument", lambda x, y: x * y, lambda: torch.randn(48, 32).t(), normal(32, 48))
add("one transposed of two", lambda x, y: x + y.t() * 2, normal(32, 48), normal(48, 32))
add("strided argument", lambda x: x.relu() + 1, lambda: torch.randn(64, 64)[::2, ::2])
add("strided slice", lambda x: x[::2, 1::3] * 3, normal(64, 64))
add("permuted", lambda x: (x.permute(2, 0, 1) * 2).contiguous(), normal(8, 16, 24))
add("concatenated columns", lambda x, y: torch.cat([x, y], 1) * 2, normal(16, 24), normal(16, 8))
add("concatenated rows", lambda x, y: torch.cat([x.sin(), y.cos()], 0), normal(16, 24), normal(10, 24))
add("stacked", lambda x: torch.stack([x[:, 0], x[:, 1] * 2, x[:, 2] ** 2], 1), normal(16, 3, 8))
add("flipped", lambda x: x.flip(1) + 0, normal(16, 32))
add("rolled", lambda x: torch.roll(x, 5, 1) * 2, normal(16, 32))
add("triangle", lambda x: torch.tril(x) + 1, normal(40, 40))
add("diagonal", lambda x: x * torch.eye(25, 31), normal(25, 31))
add("unfolded", lambda x: x.unfold(1, 4, 2) * 1.5, normal(8, 20))
add("range", lambda: torch.arange(50) * 3 + 1)
add("padded", lambda x: F.pad(x, (1, 2, 3, 1), value=0.5), normal(2, 3, 8, 10))
add("reflected", lambda x: F.pad(x, (2, 2), mode="reflect"), normal(2, 6, 6))
add("max pool", lambda x: F.max_pool2d(x, 2), normal(4, 3, 16, 16))
add("average pool", lambda x: F.avg_pool2d(x, 3, stride=2, padding=1), normal(2, 3, 12, 12))
add("adaptive pool", lambda x: F.adaptive_avg_pool2d(x, 3), normal(2, 3, 9, 9))
add("nearest", lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), normal(2, 3, 8, 8))
add("bilinear", lambda x: F.interpolate(x, size=(13, 11), mode="bilinear"), normal(2, 3, 8, 8))
add("pixel shuffle", lambda x: F.pixel_shuffle(x, 2) + 1, normal(2, 4, 6, 6))

add("linear, gelu", lambda x, w, b: F.gelu(x @ w + b), normal(32, 64), normal(64, 48), normal(48), within=1e-2)
add("scaled batch of products", lambda x, w: torch.bmm(x, w) * 0.5, normal(4, 32, 64), normal(4, 64, 48), within=1e-2)
add("addmm, relu, sum", lambda x, y, z: torch.relu(torch.addmm(z, x, y)).sum(1), normal(64, 16), normal(16, 64), normal(64, 64), within=1e-2)
add("gated unit", lambda x: F.glu(x, -1), normal(24, 64))
add("rotary", rotated, normal(2, 4, 16, 8), normal(16, 4), normal(16, 4))

add_gradient("gradient of gelu", lambda x: F.gelu(x) * x, normal(32, 48))
add_gradient("gradient of layer norm", lambda x, w, b: F.layer_norm(x, (48,), w, b) ** 2, normal(32, 48), positive(48), normal(48))
add_gradient("gradient of softmax", lambda x: torch.softmax(x, -1) ** 2, normal(32, 48))
add_gradient("gradient of cross entropy", lambda x, t: F.cross_entropy(x, t), normal(32, 10), below(10, 32))
add_gradient("gradient of linear", lambda x, w, b: F.relu(x @ w + b), normal(16, 32), normal(32, 24), normal(24), within=1e-2)
add_gradient("gradient of max pool", lambda x: F.max_pool2d(x, 2) ** 2, normal(2, 3, 8, 8))
add_gradient("gradient of smooth L1", lambda x, y: F.smooth_l1_loss(x, y), normal(64), normal(64))
