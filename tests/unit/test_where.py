"""Where errors say that they are: the user's line, also in a backward pass, in a helper of JAX's, and in an installed package."""

from __future__ import annotations

import pathlib
import sys
import textwrap
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from jax import lax
from smalt import _errors
from tests.corpus.case import kernel, like

pytestmark = pytest.mark.shared

X = np.ones((128,), np.float32)


@pytest.fixture(autouse=True)
def no_traces_of_other_tests():
    """JAX keeps what it traced of `jnp.sort`, with the lines of whoever called it first."""
    jax.clear_caches()


def line_of(mark: str) -> str:
    (number,) = (i for i, text in enumerate(pathlib.Path(__file__).read_text().split("\n"), 1) if text.endswith(f"# {mark}"))
    return f"{__file__}:{number}"


def unsupported(x: Any) -> Any:
    return jnp.sort(x.astype(jnp.complex64)).real


def copies(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def plain(g_ref, o_ref):  # PLAIN
    o_ref[...] = unsupported(g_ref[...])


def looping(g_ref, o_ref):  # LOOPING
    def step(i, _):  # STEP
        o_ref[...] = unsupported(g_ref[...])

    lax.fori_loop(0, 2, step, None)


BODIES = {"plain": (plain, ["PLAIN"]), "looping": (looping, ["STEP", "LOOPING"])}


def by_kernel(body):
    return kernel(body, like((128,)))


def by_pallas_call(body):
    return pl.pallas_call(body, out_shape=like((128,)))


def in_backward_pass(call, body):
    @jax.custom_vjp
    def f(x):
        return call(copies)(x)

    f.defvjp(lambda x: (f(x), None), lambda _, g: (call(body)(g),))

    def loss(x):
        return f(x).sum()  # FORWARD

    return jax.grad(loss)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("call", [by_kernel, by_pallas_call])
@pytest.mark.parametrize("name", BODIES)
def test_a_kernel_in_a_backward_pass(name: str, call: Any, jitted: bool) -> None:
    """JAX gives all of it the line of the call in the forward pass; the kernel's function is known, and the call is reported behind it."""
    body, marks = BODIES[name]
    f = in_backward_pass(call, body)
    with smalt.emulated(), pytest.raises(smalt.Unsupported) as e:
        (jax.jit(f) if jitted else f)(X)
    wanted = [line_of(mark) for mark in marks]
    assert [f"{f.file}:{f.line}" for f in e.value.frames[: len(wanted)]] == wanted, e.value
    assert e.value.where == wanted[0]
    assert f"\n  at {wanted[0]} (" in str(e.value) and f"called from {line_of('FORWARD')}" in str(e.value)


def test_a_run_of_a_kernel_in_a_backward_pass() -> None:
    def body(g_ref, o_ref, buf, bar):  # RUN
        plgpu.copy_gmem_to_smem(g_ref, buf, bar)
        plgpu.barrier_wait(bar)
        plgpu.barrier_wait(bar)
        o_ref[...] = buf[...]

    call = lambda body: kernel(body, like((128,)), *([] if body is copies else [plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()]))  # noqa: E731
    with smalt.emulated(), pytest.raises(smalt.Timeout) as e:
        jax.block_until_ready(in_backward_pass(call, body)(X))
    assert e.value.where == line_of("RUN"), e.value


def test_a_kernel_elsewhere_keeps_its_lines() -> None:
    def body(x_ref, o_ref):
        def step(i, _):
            o_ref[...] = jnp.sort(  # CALL IN STEP
                x_ref[...].astype(jnp.complex64)
            ).real

        lax.fori_loop(0, 2, step, None)  # LOOP

    for call in (by_kernel, by_pallas_call):
        with smalt.emulated(), pytest.raises(smalt.Unsupported) as e:
            jax.jit(call(body))(X)
        assert [f"{f.file}:{f.line}" for f in e.value.frames[:2]] == [line_of("CALL IN STEP"), line_of("LOOP")], e.value


def test_a_step_of_a_pipeline_of_jax_s() -> None:
    """`where` is the user's line; the frames have JAX's, too."""

    def body(x_ref, o_ref):
        def step(indices, x, o):
            o[...] = x[...]

        spec = plgpu.BlockSpec((7,), lambda i: (i,))
        plgpu.emit_pipeline(step, grid=(18,), in_specs=[spec], out_specs=[spec], max_concurrent_steps=2)(x_ref, o_ref)  # PIPELINE

    with smalt.emulated(), pytest.raises(smalt.Error) as e:
        jax.jit(by_kernel(body))(X)
    assert e.value.where is not None and e.value.where.startswith(f"{__file__}:"), e.value


def test_an_installed_package_is_not_the_user_s(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lib" / "site-packages" / "library_of_kernels.py"
    package.parent.mkdir(parents=True)
    package.write_text(
        textwrap.dedent("""
        import jax.numpy as jnp
        from tests.corpus.case import kernel, like

        def body(x_ref, o_ref):
            o_ref[...] = jnp.sort(x_ref[...].astype(jnp.complex64)).real

        def call(x):
            return kernel(body, like((128,)))(x)
        """)
    )
    monkeypatch.syspath_prepend(str(package.parent))
    import library_of_kernels  # type: ignore[import-not-found]

    with smalt.emulated(), pytest.raises(smalt.Unsupported) as e:
        library_of_kernels.call(X)  # OURS
    assert e.value.where == line_of("OURS")
    assert e.value.frames[0].file == str(package) and e.value.frames[0].line == 6


@pytest.mark.parametrize(
    ("file", "installed"),
    [
        ("/venv/lib/python3.12/site-packages/tokamax/kernel.py", True),
        ("/usr/lib/python3/dist-packages/x.py", True),
        (str(pathlib.Path(jax.__file__).parent / "_src/pallas/mosaic_gpu/pipeline.py"), True),
        (str(pathlib.Path(smalt.__file__).parent / "_walk" / "walk.py"), True),
        ("/home/me/jax_experiments/site-packages.py", False),
        (str(pathlib.Path(jax.__file__).parent) + "_of_mine/x.py", False),
        ("<stdin>", False),
        (__file__, False),
    ],
)
def test_what_is_installed(file: str, installed: bool) -> None:
    inside_venv = any(p in pathlib.PurePath(file).parts for p in ("site-packages", "dist-packages"))
    assert _errors.is_installed(file) == (installed or inside_venv)


def test_where_of_an_error_without_a_line_of_the_user_s() -> None:
    inner = pathlib.Path(jax.__file__).parent / "x.py"
    assert smalt.Unsupported(f"smalt: no\n  at {inner}:3 (f)\n  called from /mine.py:4 (g)").where == "/mine.py:4"
    assert smalt.Unsupported(f"smalt: no\n  at {inner}:3 (f)").where == f"{inner}:3"
    assert smalt.Unsupported("smalt: no").where is None
    assert sys.modules["smalt"] is smalt
