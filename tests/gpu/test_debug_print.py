"""What kernels print on the GPU is what they print in the emulator, whatever XLA does with their launches."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

from smalt import _native
from tests import ROOT
from tests.suites.prints.cases import CASES


def run(*arguments: str, **env: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in env}
    environment |= {"PYTHONPATH": f"{ROOT}/jax_plugin:{ROOT}", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **env}
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def texts() -> dict[str, dict[str, str]]:
    """By platform and case."""
    return {platform: json.loads(run("-m", "tests.suites.prints", "--json", JAX_PLATFORMS=platform).splitlines()[-1]) for platform in ("cuda", "cpu")}


@pytest.mark.parametrize("name", CASES)
def test_gpu_and_emulator_print_the_same(texts: dict[str, dict[str, str]], name: str) -> None:
    assert texts["cuda"][name] == texts["cpu"][name] == CASES[name].expected


_CHAIN = """
    import os, sys
    import jax, jax.numpy as jnp, numpy as np, smalt
    import jax.experimental.pallas as pl
    from jax import lax
    from tests.corpus.case import kernel, like
    smalt.enable()
    assert jax.default_backend() == "gpu"
    def add(x, o):
        o[...] = x[...] + 1
    def tell(x, o):
        pl.debug_print("x {}", x[0])
        o[...] = x[...] + 1
    plain, prints = (kernel(body, like((128,))) for body in (add, tell))
"""


def script(text: str, **env: str) -> list[str]:
    code = textwrap.dedent(_CHAIN) + textwrap.dedent(text)
    return run("-c", code, JAX_PLATFORMS="cuda", **env).splitlines()


def test_beside_kernels_that_are_recorded() -> None:
    """XLA records the plain ones into graphs, and replays them; the prints come at each run all the same."""
    lines = script(
        """
        f = jax.jit(lambda x: plain(plain(jnp.tanh(prints(plain(plain(x))) * 0)) + plain(x)))
        for i in range(5):
            print(float(f(jnp.full(128, i, jnp.float32))[0]), flush=True)
        """,
        XLA_FLAGS="--xla_gpu_graph_min_graph_size=1",
    )
    assert lines == [line for i in range(5) for line in (f"x {i + 2.0}", str(float(i + 3)))]


def test_many_launches_in_flight() -> None:
    lines = script(
        """
        f = jax.jit(lambda x: lax.fori_loop(0, 100, lambda _, v: prints(v), x))
        y = x = jnp.zeros(128)
        for _ in range(10):
            y = f(y)
        assert (np.asarray(y) == 1000).all()
        """
    )
    assert lines == [f"x {float(i)}" for i in range(1000)]


def test_more_launches_than_a_stream_holds() -> None:
    """The host is held back in the driver while streams wait for what is printed; now and then a launch prints nothing."""
    lines = script(
        """
        def body(x, o):
            pl.when(lax.rem(x[0].astype(jnp.int32), 3) != 1)(lambda: pl.debug_print("x {}", x[0]))
            o[...] = x[...] + 1
        f = jax.jit(kernel(body, like((128,))))
        y = jnp.zeros(128)
        for _ in range(5000):
            y = f(y)
        assert (np.asarray(y) == 5000).all()
        """
    )
    assert lines == [f"x {float(i)}" for i in range(5000) if i % 3 != 1]


def test_text_is_out_before_anything_goes_on() -> None:
    """Kernels that print first and then take a while, and some that print nothing: lines of the host's stand where they belong."""
    lines = script(
        """
        def body(x, n, o):
            pl.when(x[0] > 0)(lambda: pl.debug_print("x {}", x[0]))
            o[...] = lax.fori_loop(0, n[0], lambda i, v: v + x[...] * 0, x[...])
        f = jax.jit(kernel(body, like((128,))))
        for i in range(600):
            jax.block_until_ready(f(jnp.full(128, i % 4, jnp.float32), jnp.full(1, 10 ** (i % 6), jnp.int32)))
            sys.stdout.write(f"host {i}\\n")
        """
    )
    assert lines == [line for i in range(600) for line in ([f"x {float(i % 4)}"] if i % 4 else []) + [f"host {i}"]]


def test_a_process_that_leaves_at_once_has_printed_everything() -> None:
    lines = script(
        """
        def body(x, n, o):
            pl.debug_print("x {}", x[0])
            o[...] = lax.fori_loop(0, n[0], lambda i, v: v + 1, x[...])
        f = jax.jit(kernel(body, like((128,))))
        y, n = jnp.zeros(128), jnp.full(1, 1000000, jnp.int32)
        for _ in range(20):
            y = f(y, n)
        """
    )
    assert len(lines) == 20


def test_nothing_is_lost_where_threads_launch_the_same_kernel() -> None:
    lines = script(
        """
        import threading
        f = jax.jit(prints)
        def launch(k):
            for i in range(200):
                jax.block_until_ready(f(jnp.full(128, 1000 * k + i, jnp.float32)))
        threads = [threading.Thread(target=launch, args=(k,)) for k in range(4)]
        [t.start() for t in threads], [t.join() for t in threads]
        """
    )
    assert sorted(lines) == sorted(f"x {float(1000 * k + i)}" for k in range(4) for i in range(200))


def test_devices_that_wait_for_each_other() -> None:
    """Two devices meet in each launch; where one prints, its stream waits for the host, and the other's goes on."""
    devices = _native.doctor()["devices"]
    assert isinstance(devices, list)
    if len(devices) < 2:
        pytest.skip(f"needs two GPUs; here: {len(devices)}")
    lines = script(
        """
        from tests.suites.multi_gpu import suite
        def local(x):
            def body(x, o, sem):
                i = x[0, 0]
                pl.when(lax.rem(i + suite.me(), 3) == 0)(lambda: pl.debug_print("{} is there", i))
                pl.semaphore_signal(sem, 1, device_id=suite.right(2))
                pl.semaphore_wait(sem, 1)
                o[0, 0] = i + 1
            return suite.kernel(body, suite.like((1, 1), jnp.int32), suite.REGULAR)(x)
        f = jax.jit(suite.over(local, suite.line(2)))
        y = np.zeros((2, 1), np.int32)
        for _ in range(900):
            y = f(y)
        assert (np.asarray(y) == 900).all()
        """
    )
    for device in range(2):
        said = [line for line in lines if line.startswith(f"[device {device}] ")]
        assert said == [f"[device {device}] {i} is there" for i in range(900) if (i + device) % 3 == 0]
    assert len(lines) == 600


def test_what_does_not_fit_is_counted_at_each_launch() -> None:
    lines = script(
        """
        def body(x, o):
            def step(i, _):
                pl.debug_print("{}", i)
            lax.fori_loop(0, 12, step, None)
            o[...] = x[...]
        f = jax.jit(kernel(body, like((128,))))
        for _ in range(3):
            jax.block_until_ready(f(jnp.zeros(128)))
        """,
        SMALT_PRINT_BYTES="256",
    )
    dropped = "smalt: 4 prints of `body` were dropped: a launch's buffer has 256 bytes (set SMALT_PRINT_BYTES to more)"
    assert lines == [*map(str, range(8)), dropped] * 3


def test_call_sites_come_and_go() -> None:
    """A mailbox serves another call site once nobody prints to it."""
    lines = script(
        """
        for i in range(20):
            def body(x, o, i=i):
                pl.debug_print(f"kernel {i}: {{}}", x[0])
                o[...] = x[...] + i
            f = jax.jit(kernel(body, like((128,))))
            jax.block_until_ready(f(jnp.full(128, i, jnp.float32)))
            del f
            jax.clear_caches()
        """
    )
    assert lines == [f"kernel {i}: {float(i)}" for i in range(20)]


def test_file_descriptor_1_without_pythons_output() -> None:
    lines = script(
        """
        sys.stdout = None
        jax.block_until_ready(jax.jit(prints)(jnp.zeros(128)))
        """
    )
    assert lines == ["x 0.0"]


def test_a_kernel_by_itself_prints(tmp_path: pathlib.Path) -> None:
    script(
        "jax.block_until_ready(jax.jit(prints)(jnp.zeros(128)))",
        SMALT_DUMP="descriptor",
        SMALT_DUMP_DIR=str(tmp_path),
    )
    (dumped,) = tmp_path.glob("tell-*.smalt")
    emulated, on_gpu = (run("-m", "smalt", "run", str(dumped), *where) for where in ((), ("--device", "0")))
    first = next(line for line in emulated.splitlines() if line.startswith("x "))
    assert first in on_gpu.splitlines()


def test_a_check_that_fails_is_an_error_with_its_words() -> None:
    """It ends the process's use of the GPU, and says why; what was printed before is printed."""
    lines = script(
        """
        from jax.experimental import checkify
        def body(x, o):
            i = lax.axis_index("i")
            pl.debug_print("before")
            checkify.check((i != 2) | (x[0] < 5), "x[0] is {:.1f} in block {}", x[0], i)
            o[i] = x[...]
        f = jax.jit(kernel(body, like((4, 128)), grid=(4,), grid_names=("i",)))
        assert float(np.asarray(f(jnp.ones(128)))[3, 3]) == 1
        try:
            jax.block_until_ready(f(jnp.full(128, 6.5)))
        except smalt.ExecutionError as e:
            sys.stdout.flush()
            os.write(1, f"{e.what}; {e.got}\\n".encode())
        os._exit(0)
        """
    )
    assert lines[:4] == [f"[block {i}] before" for i in range(4)]
    assert "a check failed: x[0] is 6.5 in block 2; in block 2" in lines
    assert "[block 2] before" in lines[4:]


def test_debug_checks_that_hold() -> None:
    lines = script(
        """
        def body(x, o):
            pl.debug_check(x[0] < 5, "too large")
            o[...] = x[...]
        with pl.enable_debug_checks(True):
            print(float(np.asarray(jax.jit(kernel(body, like((128,))))(jnp.ones(128)))[5]))
        """
    )
    assert lines == ["1.0"]
