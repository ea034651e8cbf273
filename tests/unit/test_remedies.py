"""What errors advise works: for each row of `src/descriptor/remedies.rs` a kernel that follows it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

import smalt

from tests import ROOT

TABLE = ROOT / "src" / "descriptor" / "remedies.rs"
X = np.arange(128, dtype=np.float32)
F32 = jax.ShapeDtypeStruct((128,), jnp.float32)


def run(body: Callable[..., None], *args: Any, out: Any = F32, **options: Any) -> np.ndarray[Any, Any]:
    with smalt.enabled(True):
        return np.asarray(plgpu.kernel(body, out_type=out, **options)(*args))


def element_wise(f: Callable[[Any], Any]) -> Callable[[], Any]:
    """A kernel that applies `f` to X; what it must give is `f` outside."""

    def check() -> None:
        def body(x: Any, o: Any) -> None:
            o[...] = f(x[...]).astype(o.dtype)

        np.testing.assert_allclose(run(body, X), np.asarray(f(jnp.asarray(X))).astype(np.float32), rtol=1e-6)

    return check


def persistent() -> None:
    def body(x: Any, o: Any) -> None:
        @plgpu.nd_loop((10,), collective_axes="sm")
        def _(info: Any) -> None:
            (i,) = info.index
            o[i] = x[i] + 1

    with smalt.emulated("H100"):
        cores = jax.devices()[0].core_count or 132
    x = np.arange(1280, dtype=np.float32).reshape(10, 128)
    out = run(body, x, out=jax.ShapeDtypeStruct((10, 128), jnp.float32), grid=(min(cores, 4),), grid_names=("sm",))
    np.testing.assert_array_equal(out, x + 1)


def copies() -> None:
    def body(x: Any, o: Any, buf: Any, bar: Any) -> None:
        plgpu.copy_gmem_to_smem(x, buf, bar)
        plgpu.barrier_wait(bar)
        buf[...] = buf[...] + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buf, o)
        plgpu.wait_smem_to_gmem(0)

    out = run(body, X, scratch_types=[plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()])
    np.testing.assert_array_equal(out, X + 1)


def random_numbers() -> None:
    data = jnp.array([1, 2], jnp.uint32)

    def body(data: Any, o: Any) -> None:
        o[...] = jax.random.bits(jax.random.wrap_key_data(data[...]), (128,))

    out = run(body, data, out=jax.ShapeDtypeStruct((128,), jnp.uint32))
    np.testing.assert_array_equal(out, jax.random.bits(jax.random.wrap_key_data(data), (128,)))


def product() -> None:
    a = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16)

    def body(a: Any, b: Any, o: Any, sa: Any, sb: Any, bar: Any) -> None:
        plgpu.copy_gmem_to_smem(a, sa, bar)
        plgpu.copy_gmem_to_smem(b, sb, bar)
        plgpu.barrier_wait(bar)

        def scope(acc: Any) -> Any:
            plgpu.wgmma(acc, sa, sb)
            return acc[...]

        o[...] = pl.run_scoped(scope, plgpu.ACC((64, 64), jnp.float32))

    tiles = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    smem = plgpu.SMEM((64, 64), jnp.float16, transforms=tiles)
    out = run(body, a, a, out=jax.ShapeDtypeStruct((64, 64), jnp.float32), scratch_types=[smem, smem, plgpu.Barrier(num_arrivals=2)])
    np.testing.assert_allclose(out, a.astype(np.float32) @ a.astype(np.float32), rtol=1e-2, atol=1e-2)


def outside() -> None:
    """A kernel in a jitted function that does the rest."""
    seen: list[Any] = []

    def body(x: Any, o: Any) -> None:
        o[...] = x[...] * 2

    @jax.jit
    def f(x: Any) -> Any:
        y = plgpu.kernel(body, out_type=F32)(x)
        jax.debug.callback(seen.append, y[3])
        return jax.pure_callback(lambda v: np.asarray(v) + 1, F32, y)

    with smalt.enabled(True):
        np.testing.assert_array_equal(f(X), 2 * X + 1)
        jax.effects_barrier()
    assert float(seen[0]) == 6


def sharded() -> None:
    """A kernel on each device, and the exchange between them around it."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    spec = jax.sharding.PartitionSpec("d")

    def body(x: Any, o: Any) -> None:
        o[...] = x[...] * 2

    def f(x: Any) -> Any:
        y = plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((64,), jnp.float32))(x)
        return lax.psum(y, "d")

    if len(jax.devices()) < 2:
        pytest.skip("one device")
    with smalt.enabled(True):
        out = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=jax.sharding.PartitionSpec(), check_vma=False))(X)
    np.testing.assert_array_equal(out, 2 * (X[:64] + X[64:]))


KERNELS: dict[str, Callable[[], None]] = {
    "debug_callback": outside,
    "*callback": outside,
    "ffi_call": outside,
    "dma_start": copies,
    "dma_wait": copies,
    "prng_seed": random_numbers,
    "prng_random_bits": random_numbers,
    "roll": element_wise(lambda x: jnp.roll(x, 3, 0)),
    "repeat": element_wise(lambda x: jnp.repeat(x[:64], 2, 0)),
    "bitcast": element_wise(lambda x: x.view(jnp.int32) & 0xFF),
    "fft": outside,
    "psum": sharded,
    "all_gather": sharded,
    "all_to_all": sharded,
    "ppermute": sharded,
    "rng_bit_generator": random_numbers,
    "async_copy_scales_to_tmem": product,
    "async_copy_sparse_metadata_to_tmem": product,
    "*cluster_cancel": persistent,
}


def rows() -> list[str]:
    table = TABLE.read_text().split("const REMEDIES")[1].split("];")[0]
    return re.findall(r'\(\s*"([^"]+)",', table)


def test_every_row_has_a_kernel() -> None:
    assert set(rows()) == set(KERNELS)


@pytest.mark.parametrize("check", sorted(set(KERNELS.values()), key=lambda f: list(KERNELS.values()).index(f)))
def test_what_is_advised_works(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("name", ["ffi_call", "pure_callback", "psum"])
def test_the_error_gives_the_advice_and_the_line(name: str) -> None:
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x: x)

    def body(x: Any, o: Any) -> None:
        o[...] = primitive.bind(x[...])

    with pytest.raises(smalt.Unsupported) as caught:
        run(body, X)
    assert f"the primitive `{name}`" in str(caught.value) and caught.value.remedy
    assert str(caught.value.where).startswith(__file__)


def test_memory_spaces_of_other_machines() -> None:
    def body(x: Any, o: Any, buf: Any) -> None:
        o[...] = x[...]

    from jax.experimental.pallas import tpu as pltpu

    with pytest.raises(smalt.Unsupported, match=r"(?s)memory space.*cmem.*remedy: plgpu.SMEM\(shape, dtype\)"):
        run(body, X, scratch_types=[pltpu.CMEM((8, 128), jnp.float32)])


def _bare(code: str) -> list[int]:
    """Lines in which an error is made whose text has no remedy."""

    def text(node: ast.AST) -> str:
        return "".join(n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))

    calls = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    return [n.lineno for n in calls if n.func.id == "Unsupported" and "remedy: " not in text(n)]  # type: ignore[attr-defined]


def test_refusals_of_the_front_end_have_remedies() -> None:
    files = sorted((ROOT / "jax_plugin" / "smalt").rglob("*.py"))
    assert sum(f.read_text().count("raise Unsupported(") for f in files) > 30
    bare = {f.name: lines for f in files if (lines := _bare(f.read_text()))}
    assert not bare, bare


def test_the_finder_of_bare_refusals_finds() -> None:
    assert _bare("raise Unsupported(f'a {x}')\nraise Unsupported(f'b {x}' '\\n  remedy: c')") == [1]
