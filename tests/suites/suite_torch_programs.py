"""Functions of several kernels on PyTorch's tensors: what is written in place, what stands between kernels, gradients, `torch.compile`."""

from __future__ import annotations

import gc
import itertools
import random
import warnings
import weakref
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt

from tests.corpus.case import kernel
from tests.machine import ON_GPU

torch: Any = pytest.importorskip("torch")
DEVICE = "cuda" if ON_GPU else "cpu"
COMPILERS = ["aot_eager", "inductor"]


@pytest.fixture(autouse=True)
def enabled() -> Any:
    torch.compiler.reset()
    with smalt.enabled():
        yield


def normal(*shape: int, seed: int = 0, grad: bool = False) -> Any:
    made = torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).to(DEVICE)
    return made.requires_grad_() if grad else made


def like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def rowwise(body: Any, *xs: Any, outs: int = 1, **params: Any) -> Any:
    """A `pl.pallas_call` over blocks of 8 rows."""
    spec = pl.BlockSpec((8, xs[0].shape[1]), lambda i: (i, 0))
    shapes, specs = [like(xs[0])] * outs, [spec] * outs
    call = pl.pallas_call(body, out_shape=shapes, grid=(xs[0].shape[0] // 8,), in_specs=[spec] * len(xs), out_specs=specs, **params)
    found = call(*xs)
    return found[0] if outs == 1 else found


#: There JAX traces no `plgpu.kernel` of references that the same trace made.
needs_references = pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="JAX 0.10")


def add(x: Any, y: Any) -> Any:
    def body(x: Any, y: Any, o: Any) -> None:
        o[...] = x[...] + y[...]

    return rowwise(body, x, y)


def add_in_place(x: Any, y: Any) -> Any:
    """x + y, in x's memory."""

    def body(x: Any, y: Any, o: Any) -> None:
        o[...] = x[...] + y[...]

    return rowwise(body, x, y, input_output_aliases={0: 0})


def accumulate(total: Any, x: Any) -> None:
    """Adds x to what a reference holds."""

    def body(total: Any, x: Any) -> None:
        total[...] = total[...] + x[...]

    kernel(body, ())(total, x)


# ------------------------------------------------------------------------------------------ kernels and what is between them


def test_pallas_calls_and_elementary_operations() -> None:
    """Results of kernels go to kernels, in other shapes, types, and parts."""

    def fn(x: Any, n: Any) -> Any:
        a = add(x, x * 2)
        b = add(a.reshape(32, 64).astype(jnp.float16).astype(jnp.float32), jnp.ones((32, 64)))
        c = jnp.concatenate([b[:16].T.reshape(16, 64), -b[16:]])
        return {"sum": jnp.sum(c, axis=1), "kept": jnp.where(c > 0, c, 0), "n": n + 1, "a": a, "again": a}

    x, n = normal(16, 128), torch.tensor(3, dtype=torch.int32, device=DEVICE)
    got = smalt.as_torch_kernel(fn)(x, n)
    expected = jax.tree.map(np.asarray, fn(jnp.asarray(x.cpu().numpy()), jnp.int32(3)))
    assert got.keys() == expected.keys() and got["a"] is got["again"]
    for name, value in expected.items():
        assert got[name].is_contiguous()
        np.testing.assert_allclose(got[name].cpu().numpy(), value, rtol=1e-5, atol=1e-5, err_msg=name)


OPERATIONS: dict[str, Any] = {
    "arithmetic": lambda x, i: (x + 1, 1 - x, x * x, x / 3, jnp.maximum(x, 0.5), jnp.minimum(x, i), -x, abs(x), jnp.sign(x)),
    "integers": lambda x, i: (i // 3, jax.lax.div(i, jnp.int32(3)), jax.lax.rem(i, jnp.int32(3)), i & 5, i | 8, i ^ 3, ~i, i % 7),
    "comparisons": lambda x, i: (x > 0, x >= i, x < 0, x <= 0.5, i == 3, i != 3, jnp.isfinite(x), ~(x > 0), (x > 0) & (i > 0)),
    "powers": lambda x, i: (x**2, x**3, x**7, x**1, (x * x + 1) ** -2, jnp.sqrt(abs(x)), jax.lax.rsqrt(abs(x) + 1), jnp.square(x), abs(x) ** 1.5),
    "functions": lambda x, i: (jnp.exp(x), jnp.log(abs(x) + 1), jnp.log1p(abs(x)), jnp.expm1(x), jnp.sin(x), jnp.cos(x), jnp.tanh(x), jax.nn.sigmoid(x)),
    "conversions": lambda x, i: (i.astype(jnp.float32), (x * 100).astype(jnp.int32), (x * 1e12).astype(jnp.int32), (x * 100).astype(jnp.int8), x.astype(bool)),
    "not a number": lambda x, i: (jnp.where(x > 0, jnp.nan, x).astype(jnp.int32), jnp.maximum(jnp.where(x > 0, jnp.nan, x), 0)),
    "reductions": lambda x, i: (x.sum(), x.sum(1), i.sum(0), x.max(1), i.min(0), i.prod(1), (i > 0).all(0), (i > 0).any(), x.mean(0)),
    "shapes": lambda x, i: (x.T, x.reshape(-1), x[None], x[2:7, 1::3], x[::-1], jnp.broadcast_to(x, (3, *x.shape)), jnp.squeeze(x[:1]), x.swapaxes(0, 1)[3:]),
    "padding": lambda x, i: (jnp.pad(x, 2), jax.lax.pad(x, 7.0, ((1, -2, 0), (-1, 3, 2))), jax.lax.pad(i, jnp.int32(9), ((0, 0, 3), (0, 0, 0)))),
    "by others": lambda x, i: (jnp.tile(x, (2, 3)), jnp.repeat(x, 2, 1), jnp.roll(x, 1, 0), jnp.stack([x, -x], 1), jnp.linalg.norm(x), jax.nn.gelu(x)),
    "parts": lambda x, i: (*jnp.split(x, 2), jnp.concatenate([x, x * 2], 1), jnp.cumsum(x, 1), jax.lax.cumsum(i, 0, reverse=True), jnp.clip(x, -0.5, 0.5)),
    "products": lambda x, i: (
        x @ x.T, jnp.einsum("ab,ac->bc", x, x), jnp.einsum("ab,ab->a", x, x), x @ x[0], jnp.stack([x, x]) @ x.T,
        jnp.einsum("abc,dab->acd", x.reshape(8, 3, 4), x.reshape(4, 8, 3), precision="highest"),
        jnp.dot(x.astype(jnp.bfloat16), x.astype(jnp.bfloat16).T, preferred_element_type=jnp.float32),
    ),
    "choices": lambda x, i: (jnp.where(x > 0, x, -x), jax.lax.select_n(jnp.clip(i, 0, 2), i, i * 2, i * 3)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_elementary_operations(name: str) -> None:
    rng = np.random.default_rng(1)
    x, i = rng.standard_normal((8, 12)).astype(np.float32), rng.integers(-9, 9, (8, 12)).astype(np.int32)
    got = smalt.as_torch_kernel(OPERATIONS[name])(*(torch.from_numpy(v).to(DEVICE) for v in (x, i)))
    with jax.default_device(jax.devices("cpu")[0]):
        expected = OPERATIONS[name](jnp.asarray(x), jnp.asarray(i))
    assert len(got) == len(expected) > 1
    for k, (g, e) in enumerate(zip(got, expected)):
        assert str(g.dtype).removeprefix("torch.") == e.dtype.name and g.is_contiguous(), k
        np.testing.assert_allclose(g.cpu().numpy(), np.asarray(e), rtol=3e-6, atol=3e-6, err_msg=str(k))


def test_results_are_tensors_of_their_own() -> None:
    """Neither constants nor arguments change when a caller writes to a result; two results are not one."""
    call = smalt.as_torch_kernel(lambda x: (jnp.arange(128.0), x.reshape(64, 2), x.reshape(2, 64), add(x.reshape(8, 16), jnp.ones((8, 16)))))
    x = normal(128)
    before = x.clone()
    for _ in range(2):
        table, a, b, total = call(x)
        assert torch.equal(table.cpu(), torch.arange(128.0)) and torch.equal(a.reshape(-1), before) and torch.equal(total.reshape(-1), before + 1)
        for made in (table, a, b, total):
            made.fill_(7)
        assert torch.equal(x, before)


# ------------------------------------------------------------------------------------------ in place


def test_what_is_written_in_place() -> None:
    x, y = normal(16, 128), normal(16, 128, seed=1)
    before, version = x.clone(), x._version
    got = smalt.as_torch_kernel(add_in_place)(x, y)
    assert got is x and torch.equal(x, before + y) and x._version > version


def test_who_reads_the_old_value_has_it() -> None:
    """JAX's values do not change: what an argument was is read behind the kernel that writes to it, by kernels, views, and as a result."""

    def fn(x: Any, y: Any) -> Any:
        flat = x.reshape(-1)
        one = add_in_place(x, y)
        two = add_in_place(x, one)
        return one, two, add(x, x), flat, x

    x, y = normal(16, 128), normal(16, 128, seed=1)
    old = x.clone()
    one, two, three, flat, same = smalt.as_torch_kernel(fn)(x, y)
    assert one is x and torch.equal(one, old + y)
    assert torch.equal(two, old + (old + y)) and torch.equal(three, old + old) and torch.equal(flat, old.reshape(-1)) and torch.equal(same, old)


def test_one_after_the_other_in_one_place() -> None:
    def fn(x: Any, y: Any) -> Any:
        for _ in range(3):
            x = add_in_place(x, y)
        return x

    x, y = normal(16, 128), normal(16, 128, seed=1)
    expected = x + y + y + y
    where = x.data_ptr()
    got = smalt.as_torch_kernel(fn)(x, y)
    assert got is x and x.data_ptr() == where and torch.equal(x, expected)


def test_constants_and_shared_operands_are_not_written() -> None:
    call = smalt.as_torch_kernel(lambda x: (add_in_place(jnp.ones(x.shape), x), add_in_place(add(x, x), x)))
    x = normal(16, 128)
    before = x.clone()
    for _ in range(3):
        one, two = call(x)
        assert torch.equal(one, before + 1) and torch.equal(two, before + before + before) and torch.equal(x, before)
    doubled = smalt.as_torch_kernel(lambda x: add_in_place(x, x))
    assert doubled(x) is x and torch.equal(x, before + before)


def test_inputs_that_a_call_keeps_for_itself() -> None:
    """An input that steps store to is the call's own copy, as in JAX."""

    def body(x: Any, o: Any) -> None:
        x[...] = x[...] * 2
        o[...] = x[...]

    def fn(x: Any) -> Any:
        spec = pl.BlockSpec((8, 128), lambda i: (i // 2, 0))
        return pl.pallas_call(body, out_shape=like(x), grid=(4,), in_specs=[spec], out_specs=spec)(x)

    x = normal(16, 128)
    before = x.clone()
    expected = np.asarray(fn(jnp.asarray(x.cpu().numpy())))
    got = smalt.as_torch_kernel(fn)(x)
    np.testing.assert_array_equal(got.cpu().numpy(), expected)
    assert torch.equal(x, before)


@needs_references
def test_references_within() -> None:
    def fn(x: Any) -> Any:
        total = jax.new_ref(x)
        accumulate(total, x)
        accumulate(total, x)
        return total[...]

    x = normal(16, 128)
    before = x.clone()
    got = smalt.as_torch_kernel(jax.jit(fn))(x)
    assert torch.equal(got, before + before + before)


@needs_references
@pytest.mark.parametrize("jit", [False, True])
def test_arguments_as_references(jit: bool) -> None:
    def fn(total: Any, x: Any) -> Any:
        old = total[...]
        accumulate(total, x)
        accumulate(total, x)
        return old

    call = smalt.as_torch_kernel(jax.jit(fn) if jit else fn, ref_argnums=0)
    total, x = normal(16, 128), normal(16, 128, seed=1)
    where = total.data_ptr()
    for _ in range(2):
        before = total.clone()
        old = call(total, x)
        assert torch.equal(old, before) and torch.equal(total, before + x + x) and total.data_ptr() == where


def test_a_reference_that_is_stored_as_a_whole() -> None:
    def fn(out: Any, x: Any) -> None:
        out[...] = add(x, x)

    out, x = normal(16, 128), normal(16, 128, seed=1)
    assert smalt.as_torch_kernel(fn, ref_argnums=(0,))(out, x) is None
    assert torch.equal(out, x + x)


def random_program(seed: int) -> tuple[Any, set[int]]:
    """A function of three arrays: kernels, some of them in place, on arguments, constants, results, and the same in other shapes; it gives some of all
    values. And the arguments that are written to."""
    rng = random.Random(seed)
    steps = [(rng.choice(["add", "in place", "in place", "view", "scale"]), rng.random(), rng.random()) for _ in range(rng.randint(2, 9))]
    chosen = [rng.random() for _ in range(rng.randint(1, 4))]

    def fn(*args: Any) -> Any:
        values = [*args, jnp.ones((16, 128))]
        for what, a, b in steps:
            x, y = values[int(a * len(values))], values[int(b * len(values))]
            if what == "view":
                values.append(x.reshape((8, 256) if x.shape == (16, 128) else (16, 128)))
            elif what == "scale":
                values.append(x * 2)
            else:
                values.append((add if what == "add" else add_in_place)(x, y.reshape(x.shape)))
        return [values[int(c * len(values))] for c in chosen]

    memory: list[int | None] = [0, 1, 2, None]  # of which argument a value is in
    written = set()
    for what, a, _ in steps:
        memory.append(memory[int(a * len(memory))] if what == "in place" else None)
        written.add(memory[-1])
    return fn, {i for i in written if i is not None}


@pytest.mark.parametrize("seed", range(30))
def test_random_programs(seed: int) -> None:
    """Values are JAX's, whatever is written where; an argument that no kernel writes to stays, a constant does always."""
    fn, written = random_program(seed)
    call = smalt.as_torch_kernel(fn)
    for turn in range(2):
        tensors = [normal(16, 128, seed=turn * 3 + i) for i in range(3)]
        before = [t.clone() for t in tensors]
        want = fn(*(jnp.asarray(t.cpu().numpy()) for t in tensors))
        got = call(*tensors)
        for g, e in zip(got, want, strict=True):
            np.testing.assert_array_equal(g.cpu().numpy(), np.asarray(e))
        for i, (t, old) in enumerate(zip(tensors, before)):
            assert torch.equal(t, old) or i in written


# ------------------------------------------------------------------------------------------ gradients


def cubed(x: Any) -> Any:
    def body(x: Any, o: Any) -> None:
        o[...] = x[...] * x[...] * x[...]

    return rowwise(body, x)


@jax.custom_vjp
def sine(x: Any, y: Any) -> Any:
    return sine_forward(x, y)[0]


def sine_forward(x: Any, y: Any) -> Any:
    def body(x: Any, y: Any, o: Any, cos: Any) -> None:
        o[...] = jnp.sin(x[...]) * y[...]
        cos[...] = jnp.cos(x[...])

    o, cos = kernel(body, (like(x), like(x)))(x, y)
    return o, (x, y, cos)


def sine_backward(kept: Any, ct: Any) -> Any:
    def body(x: Any, y: Any, cos: Any, ct: Any, dx: Any, dy: Any) -> None:
        dx[...] = cos[...] * y[...] * ct[...]
        dy[...] = jnp.sin(x[...]) * ct[...]

    return kernel(body, (like(ct), like(ct)))(*kept, ct)


sine.defvjp(sine_forward, sine_backward)


def weighted(x: Any, w: Any) -> Any:
    """A block of w that all steps share: its cotangent is a sum."""

    def body(x: Any, w: Any, o: Any) -> None:
        o[...] = x[...] * w[...]

    rows, one = pl.BlockSpec((8, 128), lambda i: (i, 0)), pl.BlockSpec((1, 128), lambda i: (0, 0))
    return pl.pallas_call(body, out_shape=like(x), grid=(x.shape[0] // 8,), in_specs=[rows, one], out_specs=rows)(x, w)


GRADIENTS: dict[str, tuple[Any, Any]] = {
    "pallas_call": (lambda x, y: cubed(x) + y, lambda x, y: x**3 + y),
    "custom_vjp": (sine, lambda x, y: torch.sin(x) * y),
    "several": (lambda x, y: cubed(sine(x, y)) * 2, lambda x, y: (torch.sin(x) * y) ** 3 * 2),
    "jit": (jax.jit(lambda x, y: sine(cubed(x), y)), lambda x, y: torch.sin(x**3) * y),
    "shared": (lambda x, y: weighted(x, y[:1]), lambda x, y: x * y[:1]),
    "unused": (lambda x, y: cubed(x), lambda x, y: x**3),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    fn, reference = GRADIENTS[name]
    call = smalt.as_torch_kernel(fn)
    for wanted in itertools.product([True, False], repeat=2):
        x, y = (normal(16, 128, seed=i, grad=w) for i, w in enumerate(wanted))
        got, expected, ct = call(x, y), reference(x, y), normal(16, 128, seed=2)
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5) and got.requires_grad == any(wanted)
        some = [t for t in (x, y) if t.requires_grad]
        if expected.requires_grad:
            for g, e in zip(*(torch.autograd.grad(out, some, ct, allow_unused=True) for out in (got, expected))):
                assert torch.allclose(g, torch.zeros_like(g) if e is None else e, rtol=1e-4, atol=1e-4)


def test_gradients_within_a_network() -> None:
    call = smalt.as_torch_kernel(lambda x, w: (sine(x, w), cubed(x), x, (x > 0).astype(jnp.int32)))

    def loss(f: Any, x: Any, w: Any) -> Any:
        a, b, same, counts = f(x * 2, w)
        return ((a + b).t()[::2] * same.t()[::2] * counts.t()[::2]).sum()

    def reference(x: Any, w: Any) -> Any:
        return torch.sin(x) * w, x**3, x, (x > 0).int()

    grads = []
    for f in (call, reference):
        x, w = torch.nn.Parameter(normal(16, 128)), torch.nn.Parameter(normal(16, 128, seed=1))
        loss(f, x, w).backward()
        grads.append((x.grad, w.grad))
    for g, e in zip(*grads):
        assert torch.allclose(g, e, rtol=1e-4, atol=1e-4)


def test_no_gradients_where_nobody_wants_them() -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = x[...] * 2

    x = normal(16, 128, grad=True)
    call = smalt.as_torch_kernel(kernel(body, like(x.detach().cpu().numpy())))
    with torch.no_grad():
        assert torch.equal(call(x), x * 2) and not call(x).requires_grad


@jax.custom_vjp
def counted(x: Any, y: Any) -> Any:
    return add_in_place(x, y)


counted.defvjp(lambda x, y: (add_in_place(x, y), (x, y)), lambda kept, ct: (ct * kept[1], ct * kept[0]))


def test_gradients_of_what_is_written_in_place() -> None:
    """What the derivative keeps of an argument is what it was."""
    leaf, y = normal(16, 128, grad=True), normal(16, 128, seed=1, grad=True)
    x = leaf * 1
    old = x.detach().clone()
    got = smalt.as_torch_kernel(counted)(x, y)
    assert got.data_ptr() == x.data_ptr() and torch.equal(got, old + y)
    dx, dy = torch.autograd.grad(got.sum(), (leaf, y))
    assert torch.equal(dx, y) and torch.equal(dy, old)
    with pytest.raises(RuntimeError, match="leaf"):
        smalt.as_torch_kernel(counted)(leaf, y)


def test_a_transformers_layer() -> None:
    """Kernels with derivatives of their own, with what JAX computes between them, against JAX's own gradients."""
    from examples.gpt import attention, matmul, rows

    def layer(qkv: Any, gain: Any, w: Any, residual: Any) -> Any:
        x = attention.attention(qkv)
        x = rows.rms_norm(x.reshape(x.shape[0] * x.shape[1], -1), gain)
        return matmul.linear_onto(x, w, residual)

    rng = np.random.default_rng(0)
    shapes = [((1, 128, 3, 2, 64), "bfloat16"), ((128,), "float32"), ((128, 128), "float32"), ((128, 128), "bfloat16")]
    arrays = [jnp.asarray(rng.standard_normal(shape) * 0.5, dtype) for shape, dtype in shapes]
    tensors = [torch.from_numpy(np.asarray(x, np.float32)).to(getattr(torch, t)).to(DEVICE).requires_grad_() for x, (_, t) in zip(arrays, shapes)]
    out = smalt.as_torch_kernel(layer)(*tensors)
    expected, pull = jax.vjp(layer, *arrays)
    got = [out, *torch.autograd.grad(out, tensors, torch.ones_like(out))]
    for g, e in zip(got, [expected, *pull(jnp.ones_like(expected))], strict=True):
        np.testing.assert_allclose(g.detach().float().cpu().numpy(), np.asarray(e, np.float32), rtol=1e-2, atol=1e-2)


# ------------------------------------------------------------------------------------------ torch.compile


@pytest.mark.parametrize("backend", COMPILERS)
def test_compiled(backend: str) -> None:
    ours = smalt.as_torch_kernel(lambda pair: {"s": sine(pair["x"], pair["y"]), "c": cubed(pair["x"])})

    def program(x: Any, y: Any) -> Any:
        made = ours({"x": x + 1, "y": y})
        return made["s"] * 2 + made["c"].relu()

    compiled = torch.compile(program, backend=backend, fullgraph=True)
    for rows in (16, 32, 16):
        x, y = normal(rows, 128), normal(rows, 128, seed=1)
        assert torch.allclose(compiled(x, y), program(x, y), rtol=1e-5, atol=1e-5)


def test_compiled_with_results_that_are_not_there() -> None:
    call = smalt.as_torch_kernel(lambda x: {"a": add(x, x), "nothing": None, "more": [None, x]})
    x = normal(16, 128)
    got = torch.compile(lambda x: call(x), backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(got["a"], x + x) and got["nothing"] is None and got["more"][0] is None and torch.equal(got["more"][1], x)


@pytest.mark.parametrize("backend", COMPILERS)
def test_compiled_with_gradients(backend: str) -> None:
    ours = smalt.as_torch_kernel(sine)

    def program(x: Any, y: Any) -> Any:
        return (ours(x * 2, y) ** 2).sum()

    found = []
    for f in (program, torch.compile(program, backend=backend, fullgraph=True)):
        x, y = normal(16, 128, grad=True), normal(16, 128, seed=1, grad=True)
        value = f(x, y)
        found.append([value, *torch.autograd.grad(value, (x, y))])
    for g, e in zip(*found):
        assert torch.allclose(g, e, rtol=1e-4, atol=1e-4)


@needs_references
@pytest.mark.parametrize("backend", COMPILERS)
def test_compiled_in_place(backend: str) -> None:
    """A program of PyTorch's sees what is written, before and behind."""
    ours, held = smalt.as_torch_kernel(add_in_place), smalt.as_torch_kernel(lambda total, x: accumulate(total, x), ref_argnums=0)

    def program(x: Any, y: Any) -> Any:
        a = x + 1
        b = a * 2
        ours(a, y)
        held(x, b)
        return a, b, x.sum()

    results = []
    for f in (program, torch.compile(program, backend=backend, fullgraph=True)):
        x, y = normal(16, 128), normal(16, 128, seed=1)
        results.append((*f(x, y), x))
    for g, e in zip(*results):
        assert torch.allclose(g, e, rtol=1e-5, atol=1e-5)


def test_operations_have_shapes_and_one_name() -> None:
    """What PyTorch traces has the operation, by name, with the shapes of its results; equal functions are one operation."""
    from torch.fx.experimental.proxy_tensor import make_fx

    names = set()
    for _ in range(2):
        call = smalt.as_torch_kernel(lambda x: (cubed(x), cubed(x).sum(0)))
        graph = make_fx(call, tracing_mode="fake")(normal(16, 128))
        (node,) = [n for n in graph.graph.nodes if "smalt" in str(n.target)]
        names.add(str(node.target))
        assert [tuple(t.shape) for t in node.meta["val"]] == [(16, 128), (128,)]
        x = normal(16, 128, seed=3)
        for g, e in zip(graph(x), call(x)):
            assert torch.equal(g, e)
    assert len(names) == 1


def test_operations_are_what_they_say() -> None:
    """PyTorch's own checks of custom operations: schema, shapes, aliases."""
    from smalt._torch import operations

    before = set(operations._OPERATIONS)
    torch.compile(smalt.as_torch_kernel(add_in_place), backend="aot_eager", fullgraph=True)(normal(24, 128), normal(24, 128))
    torch.compile(smalt.as_torch_kernel(lambda x, y: (add(x, y), x)), backend="aot_eager", fullgraph=True)(normal(24, 128), normal(24, 128))
    made = [op for key, op in operations._OPERATIONS.items() if key not in before]
    assert len(made) == 2
    for op in made:
        torch.library.opcheck(op, (normal(24, 128), normal(24, 128, seed=1)), test_utils=("test_schema", "test_faketensor"))


# ------------------------------------------------------------------------------------------ derivatives of derivatives


@jax.custom_vjp
def twice_by_hand(x: Any) -> Any:
    return kernel(lambda x, o: o.__setitem__(..., x[...] * 2), like(x))(x)


twice_by_hand.defvjp(lambda x: (twice_by_hand(x), x), lambda x, ct: (kernel(lambda c, x, o: o.__setitem__(..., c[...] * 2 + 0 * x[...]), like(x))(ct, x),))


@jax.custom_vjp
def squared_in_place(x: Any) -> Any:
    return rowwise(lambda x, o: o.__setitem__(..., o[...] * o[...]), x, input_output_aliases={0: 0})


squared_in_place.defvjp(lambda x: (squared_in_place(x), add(x, x)), lambda kept, ct: (add(ct * kept, jnp.zeros_like(kept)),))


@jax.custom_vjp
def root(x: Any) -> Any:
    """Its derivative needs the result alone."""
    return rowwise(lambda x, o: o.__setitem__(..., jnp.sqrt(x[...])), x)


def _root_forward(x: Any) -> Any:
    y = root(x)
    return y, y


root.defvjp(_root_forward, lambda y, ct: (rowwise(lambda y, ct, o: o.__setitem__(..., ct[...] * 0.5 / y[...]), y, ct),))


def wave(x: Any, y: Any) -> Any:
    return rowwise(lambda x, y, o: o.__setitem__(..., jnp.sin(x[...]) * y[...]), x, y)


def penalty(f: Any) -> Any:
    """A loss of a gradient, as of those who bound it."""

    def loss(*args: Any) -> Any:
        some = [t for t in args if t.requires_grad]
        grads = torch.autograd.grad((f(*args) ** 2).sum(), some, create_graph=True)
        return sum((g**2).sum() for g in grads)

    return loss


TWICE: dict[str, tuple[Any, Any, int]] = {
    "one operand": (cubed, lambda x: x**3, 1),
    "two": (wave, lambda x, y: torch.sin(x) * y, 2),
    "what its derivative does not need": (lambda x: root(x * x + 1), lambda x: torch.sqrt(x * x + 1), 1),
    "several kernels": (lambda x, y: cubed(wave(x, y)) + x, lambda x, y: (torch.sin(x) * y) ** 3 + x, 2),
}


@pytest.mark.parametrize("name", TWICE)
def test_gradients_of_gradients(name: str) -> None:
    fn, reference, count = TWICE[name]
    call = smalt.as_torch_kernel(fn)
    for grads in ((True,) * count, (True,) * (count - 1) + (False,)):
        if not any(grads):
            continue
        args = [normal(16, 128, seed=i, grad=g) for i, g in enumerate(grads)]
        some = [t for t in args if t.requires_grad]
        got = torch.autograd.grad(penalty(call)(*args), some)
        for g, e in zip(got, torch.autograd.grad(penalty(reference)(*args), some)):
            assert torch.allclose(g, e, rtol=1e-3, atol=1e-3 * float(e.abs().max()))


def test_third_derivatives_and_torch_func() -> None:
    call, x = smalt.as_torch_kernel(cubed), normal(16, 128, grad=True)
    found = call(x)
    for factor in (3 * x**2, 6 * x, 6 * torch.ones_like(x)):
        (found,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        assert torch.allclose(found, factor, rtol=1e-4, atol=1e-4)

    def twice(f: Any) -> Any:
        return torch.func.grad(lambda x: torch.func.grad(lambda x: f(x).sum())(x).sum())

    plain = x.detach()
    assert torch.allclose(twice(call)(plain), 6 * plain, rtol=1e-4, atol=1e-4)


def test_what_a_derivative_does_not_need_is_not_kept() -> None:
    """For the sake of second derivatives, that is."""
    x = normal(16, 128, grad=True)
    between = x * x + 1
    gone = weakref.ref(between)
    y = smalt.as_torch_kernel(root)(between)
    del between
    gc.collect()
    assert gone() is None
    y.sum().backward()
    assert torch.allclose(x.grad, (x / torch.sqrt(x * x + 1)).detach(), rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------ misuse


def fails(error: type[Exception], says: str, fn: Any, *args: Any, **how: Any) -> None:
    with pytest.raises(error, match=says):
        smalt.as_torch_kernel(fn, **how)(*args)


def test_misuse() -> None:
    x = normal(16, 128)
    shape = like(x.cpu().numpy())
    doubled = kernel(lambda x, o: o.__setitem__(..., x[...] * 2), shape)
    fails(smalt.Unsupported, r"jax.grad of a plgpu.kernel(?s:.*)remedy: write the backward kernel(?s:.*)jax.custom_vjp", doubled, normal(16, 128, grad=True))
    wide = torch.zeros(20, 128, device=DEVICE)
    fails(smalt.InvalidKernel, r"argument 0 of a kernel(?s:.*)writes to it(?s:.*)memory of argument 1(?s:.*)t.clone\(\)", add_in_place, wide[:16], wide[4:])
    fails(smalt.InvalidKernel, r"argument 0 of(?s:.*)as a reference(?s:.*)no gradient(?s:.*)t.detach", accumulate, normal(16, 128, grad=True), x, ref_argnums=0)
    fails(smalt.InvalidArgument, r"ref_argnums=\(2,\)(?s:.*)expected: numbers of arguments: 2(?s:.*)got: 2", accumulate, x, x, ref_argnums=2)
    whole = torch.ones(16, 16, dtype=torch.int32, device=DEVICE)
    fails(smalt.Unsupported, r"`dot_general` of tensors(?s:.*)compute that with PyTorch(?s:.*)suite_torch_programs", lambda x: x @ x, whole)
    fails(smalt.InvalidKernel, r"argument 1\['a'\](?s:.*)contiguous", lambda x, d: add(x, d["a"]), x, {"a": normal(128, 16).t()})
    interpreted = pl.pallas_call(lambda x, o: o.__setitem__(..., x[...]), out_shape=shape, interpret=True, name="mine")
    fails(smalt.Unsupported, r"does not compile(?s:.*)not interpreted(?s:.*)got: mine(?s:.*)interpret=", interpreted, x)

    def stores(x: Any, o: Any) -> None:
        x[...] = o[...] = x[...]

    fails(smalt.InvalidKernel, r"argument 0 of the kernel(?s:.*)which is an input(?s:.*)mutable reference", kernel(stores, shape), x)


def test_errors_while_pytorch_compiles() -> None:
    """PyTorch has an error of its own for whatever fails there: ours is a warning before it; without `fullgraph` it is the error of the call."""
    call = smalt.as_torch_kernel(lambda x: jnp.sort(cubed(x)))
    with pytest.warns(UserWarning, match=r"`sort` of tensors, beside kernels(?s:.*)remedy"), pytest.raises(RuntimeError):
        torch.compile(call, backend="aot_eager", fullgraph=True)(normal(16, 128))
    with pytest.warns(UserWarning, match="`sort` of tensors"), pytest.raises(smalt.Unsupported, match="`sort` of tensors"):
        torch.compile(lambda x: call(x) + 1, backend="aot_eager")(normal(16, 128))


def test_derivatives_of_derivatives_that_there_are_not() -> None:
    """Where the user asks for them, and not where they are only possible."""
    x, once = normal(16, 128, grad=True), smalt.as_torch_kernel(twice_by_hand)
    y = once(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert torch.allclose(g, 2 * torch.ones_like(x))
    with pytest.raises(smalt.Unsupported, match=r"jax.grad of a plgpu.kernel(?s:.*)remedy: write the backward kernel(?s:.*)jax.custom_vjp"):
        torch.autograd.grad((g * g).sum(), x)

    says = r"derivatives of derivatives of a kernel for PyTorch \(\w+\)(?s:.*)"
    z = normal(16, 128, grad=True)
    (g,) = torch.autograd.grad((smalt.as_torch_kernel(squared_in_place)(z * 1) ** 2).sum(), z, create_graph=True)
    with pytest.raises(smalt.Unsupported, match=rf"{says}writes to none of its arguments(?s:.*)argument 0(?s:.*)as a result"):
        torch.autograd.grad(g.sum(), z)

    keeps_nothing = smalt.as_torch_kernel(root)
    for spoil, got in ((lambda t: None, "which is gone(?s:.*)keep it"), (lambda t: t.add_(1), r"was written to since(?s:.*)t.clone\(\)")):
        a = normal(16, 128, grad=True)
        between = a * a + 1
        y = keeps_nothing(between)
        spoil(between.detach())
        if "gone" in got:
            del between
        (g,) = torch.autograd.grad(y.sum(), a, create_graph=True)
        with pytest.raises(smalt.Unsupported, match=says + got):
            torch.autograd.grad(g.sum(), a)


def test_functions_of_torch_func() -> None:
    """Gradients; a batch, for which PyTorch calls the operation once for each element."""
    call, x, y = smalt.as_torch_kernel(sine), normal(16, 128), normal(16, 128, seed=1)
    got = torch.func.grad(lambda x, y: (call(x, y) ** 2).sum(), (0, 1))(x, y)
    expected = torch.func.grad(lambda x, y: ((torch.sin(x) * y) ** 2).sum(), (0, 1))(x, y)
    for g, e in zip(got, expected):
        assert torch.allclose(g, e, rtol=1e-4, atol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions say that this takes longer
        made = torch.func.vmap(call)(torch.stack([x, y]), torch.stack([y, x]))
    assert torch.equal(made, torch.stack([call(x, y), call(y, x)]))
