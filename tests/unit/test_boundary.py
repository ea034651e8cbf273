"""The border between Python and the library: errors as exceptions, interrupts, limits, JAX's configuration, export."""

from __future__ import annotations

import functools
import inspect
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.export
import jax.ffi
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from jax import lax
from smalt import _native
from smalt._lowering import ffi
from tests import ROOT
from tests.corpus.case import called, kernel, like
from tests.fresh import run_script
from tests.suites.asynchrony.kernels import exchange
from tests.suites.asynchrony.subject import load_all
from tests.unit.test_ffi import SHAPE, attributes, call, x

_, BROKEN = load_all()
JaxError = jax.errors.JaxRuntimeError


# ------------------------------------------------------------------------------------------ JAX's configuration


@pytest.mark.parametrize("how", ["parse_flags_with_absl", "config_with_absl"])
def test_jax_may_become_absl_flags(how: str) -> None:
    pytest.importorskip("absl")
    done = run_script(f"import jax, smalt; smalt.enable(); jax.config.{how}(); print('fine')")
    assert done.stdout == "fine\n", done.stderr


def test_no_environment_variable_stands_for_the_settings() -> None:
    done = run_script("import smalt; from smalt import _config; print(_config.settings().enabled)", SMALT_SETTINGS="1")
    assert done.stdout == "False\n", done.stderr


def test_the_choice_is_part_of_the_jit_key() -> None:
    traces = []

    @jax.jit
    def f(v: Any) -> Any:
        traces.append(1)
        return v + 1

    scopes: list[Callable[[], Any]] = [
        lambda: smalt.enabled(False),
        lambda: smalt.enabled(True),
        lambda: smalt.emulated("H100"),
        lambda: smalt.emulated("H100", check="warn"),
    ]
    for number, scope in enumerate(scopes, 1):
        for _ in range(2):
            with scope():
                f(1.0)
        assert len(traces) == number
    smalt.enable()
    try:
        f(1.0)
        assert len(traces) == 4, "as in the second scope"
    finally:
        smalt.disable()


# ------------------------------------------------------------------------------------------ errors of runs


def bad_load(v: Any) -> Any:
    def body(v, o):
        i = lax.axis_index("i")
        o[i] = v[i * 100]  # BAD

    return kernel(body, like((3,)), grid=(3,), grid_names=("i",))(v)


def bad_line() -> str:
    lines, first = inspect.getsourcelines(bad_load)
    return f"{__file__}:{first + next(i for i, text in enumerate(lines) if text.endswith('# BAD' + chr(10)))}"


def later(f: Callable[..., Any]) -> Callable[..., Any]:
    """The result is waited for long after the call."""

    def run(v: Any) -> Any:
        out = f(v)
        time.sleep(0.2)
        return out

    return run


WAYS = {
    "eager": bad_load,
    "jitted": jax.jit(bad_load),
    "jitted, with more around": jax.jit(lambda v: jnp.sum(bad_load(v * 2)) + 1),
    "asynchronous": later(jax.jit(bad_load)),
    "in a scan": jax.jit(lambda v: lax.scan(lambda c, _: (c + jnp.sum(bad_load(v)), None), 0.0, None, length=2)[0]),
}


@pytest.mark.parametrize("wait", [jax.block_until_ready, np.asarray, lambda out: out.block_until_ready()], ids=["jax", "numpy", "array"])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_run_finds_is_an_error_of_smalts(way: str, wait: Callable[..., Any]) -> None:
    with smalt.emulated("H100"):
        try:
            wait(WAYS[way](np.zeros(128, np.float32)))
        except smalt.Error as e:
            error = e
        else:
            pytest.fail("no error")
    assert isinstance(error, smalt.ExecutionError) and isinstance(error, JaxError) and not isinstance(error, smalt.Internal)
    assert error.fault == "Execution" and error.where == bad_line()
    assert error.what.startswith("an index outside of its dimension") and error.expected and error.remedy
    assert error.got and f"of {called('v')}buffer 0 (input f32[128])" in error.got
    assert error.frames[0].line == int(bad_line().rsplit(":", 1)[1]) and error.frames[0].function.endswith("body")
    assert str(error).startswith("FAILED_PRECONDITION: smalt: an index outside of its dimension"), "what JAX prints stays as it is"
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, smalt.ExecutionError) and again.where == error.where


def load_at(v: Any, at: Any) -> Any:
    def body(v, at, o):
        o[0] = v[at[0]]

    return kernel(body, like((1,)))(v, at)


def compiled(v: Any, at: Any) -> Any:
    return jax.jit(load_at).lower(v, at).compile()


def exported(v: Any, at: Any) -> Any:
    program = jax.export.export(jax.jit(load_at), platforms=["cpu"])(v, at)
    return jax.jit(jax.export.deserialize(program.serialize()).call)


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "jitted": lambda *_: jax.jit(load_at),
    "a part of a program": lambda *_: jax.jit(lambda v, at: jnp.sum(load_at(v * 2, at)) + 1),
    "donated": lambda *_: jax.jit(load_at, donate_argnums=1),
    "mapped": lambda *_: jax.vmap(jax.jit(load_at), in_axes=(None, None), axis_size=2),
    "compiled ahead": compiled,
    "exported": exported,
}


@pytest.mark.parametrize("how", CALLS)
def test_later_calls_of_one_function_raise_the_same(how: str) -> None:
    """JAX's C++, which calls what was called before, would make a plain ValueError of it."""
    v = jnp.arange(128, dtype=jnp.float32)
    with smalt.emulated("H100"):
        f = CALLS[how](v, jnp.zeros(1, jnp.int32))
        for at in (1, 2, 200, 200, 3, 200):
            try:
                jax.block_until_ready(f(v, jnp.full(1, at, jnp.int32)))
            except smalt.ExecutionError as e:
                assert at == 200 and e.what.startswith("an index outside of its dimension") and e.where and e.remedy
                assert isinstance(e, JaxError)
            else:
                assert at != 200


FAULTS = {
    "error_in_run": (smalt.ExecutionError, "FAILED_PRECONDITION", "Execution"),
    "invalid_in_run": (smalt.InvalidKernel, "INVALID_ARGUMENT", "InvalidKernel"),
    "timeout_in_run": (smalt.Timeout, "DEADLINE_EXCEEDED", "Timeout"),
    "interrupted_in_run": (smalt.Interrupted, "CANCELLED", "Interrupted"),
    "panic_in_run": (smalt.Internal, "INTERNAL", "Internal"),
    "environment_in_run": (smalt.CompileError, "FAILED_PRECONDITION", "Environment"),
    "no_such_kernel": (smalt.Unsupported, "UNIMPLEMENTED", "Unsupported"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_class_and_its_status(name: str) -> None:
    kind, code, fault = FAULTS[name]
    with pytest.raises(kind) as caught:
        jax.block_until_ready(jax.jit(lambda v: call(name, v))(x()))
    assert caught.value.fault == fault and isinstance(caught.value, JaxError)
    assert str(caught.value).startswith(f"{code}: smalt: ")
    assert isinstance(caught.value, smalt.Internal) == (fault == "Internal")


def test_errors_of_others_stay_theirs() -> None:
    with pytest.raises(JaxError) as caught:
        jax.block_until_ready(jax.jit(lambda v: jax.ffi.ffi_call(ffi.TARGET_NAME, SHAPE)(v, **attributes("add_one", more=b"")))(x()))
    assert type(caught.value) is JaxError
    assert type(JaxError("INTERNAL: smalt: words that no kernel said")) is JaxError


def test_errors_of_lowering_have_the_same_fields() -> None:
    def body(v, o):
        o[...] = jnp.fft.fft(v[...]).real  # BAD

    with smalt.emulated("H100"), pytest.raises(smalt.Unsupported) as caught:
        kernel(body, like((16, 16)))(jnp.zeros((16, 16)))
    error = caught.value
    assert "fft" in error.what and error.fault == "Unsupported" and error.remedy
    assert error.where is not None and error.where.startswith(__file__ + ":")


# ------------------------------------------------------------------------------------------ panics


@pytest.mark.parametrize(
    ("place", "use"),
    [
        ("compile", lambda make: make()),
        ("report", lambda make: make().report()),
        ("report", lambda make: make().extra_operands),
        ("ptx", lambda make: make().ptx),
        ("assemble", lambda make: make().assemble()),
        ("run", lambda make: make().run([np.zeros(1024, np.float32), np.zeros(1024, np.float32)])),
        ("run", lambda make: make().emulate([np.zeros(1024, np.float32), np.zeros(1024, np.float32)])),
    ],
)
def test_a_panic_is_an_internal_error(place: str, use: Callable[..., Any]) -> None:
    with pytest.raises(smalt.Internal, match=f"a test panics in {place}") as caught:
        use(lambda: _native.compile(f"smalt-test:panic_in_{place}".encode(), b"", "sm_90a"))
    assert caught.value.fault == "Internal" and "panics" in caught.value.what


def test_a_panic_while_a_kernel_is_released_is_kept() -> None:
    artifact = _native.compile(b"smalt-test:panic_in_release", b"", "sm_90a")
    artifact.__del__()
    artifact._handle = None
    assert _native.cache_stats()["kept"] > 0


# ------------------------------------------------------------------------------------------ the checker's findings


def findings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("smalt: warning: ")]


def forgotten(flaw: str | None = "no barrier_wait") -> tuple[Callable[..., Any], np.ndarray[Any, Any]]:
    """A new kernel each time (what has been reported is remembered by kernel and line)."""
    value = next(_VALUES)

    def run(v: Any) -> Any:
        return exchange(v + value, flaw)

    return jax.jit(run), np.arange(256, dtype=np.float32).reshape(2, 128)


_VALUES = iter(range(1000))


def test_findings_are_errors_unless_somebody_says_otherwise() -> None:
    f, v = forgotten()
    for scope in (smalt.emulated("H100"), smalt.emulated("H100", check="error")):
        with scope, pytest.raises(smalt.ExecutionError, match="nothing orders the two") as caught:
            jax.block_until_ready(f(v))
        assert caught.value.where is not None and caught.value.where.startswith(str(ROOT / "tests/suites/asynchrony/kernels.py:"))


CHECK_SCRIPT = """
    import jax, numpy as np, smalt, sys
    from tests.suites.asynchrony.kernels import exchange
    v = np.arange(256, dtype=np.float32).reshape(2, 128)
    check = None if sys.argv[1] == "environment" else sys.argv[1]
    with smalt.emulated("H100", check=check):
        for f in (jax.jit(lambda v: exchange(v, "no barrier_wait")), jax.jit(lambda v: exchange(v, "no barrier_wait") * 2)):
            for _ in range(2):
                print(f(v).shape)
"""


@pytest.mark.parametrize(
    ("argument", "environment", "reported"),
    [("warn", {}, 2), ("off", {}, 0), ("environment", {"SMALT_CHECK": "warn"}, 2), ("off", {"SMALT_CHECK": "warn"}, 0), ("warn", {"SMALT_CHECK": "error"}, 2)],
)
def test_findings_as_warnings_or_not_at_all(argument: str, environment: dict[str, str], reported: int) -> None:
    done = run_script(CHECK_SCRIPT, argument, **environment)
    assert done.stdout == "(2, 128)\n" * 4, done.stderr
    seen = findings(done.stderr)
    assert len(seen) == reported, done.stderr
    if reported:
        # From both sides, once for each line.
        assert "a store to shared memory that another warp read" in seen[0]
        assert "a load of shared memory that another warp wrote, and nothing orders the two" in seen[1]
        assert "tests/suites/asynchrony/kernels.py:" in done.stderr and "expected: a barrier between the store by warp" in done.stderr


def test_a_wrong_choice_of_check() -> None:
    with pytest.raises(ValueError, match="`check`\n  expected: one of 'error', 'warn', 'off'\n  got: 'never'\n  remedy: check='error'"):
        with smalt.emulated("H100", check="never"):
            pass
    done = run_script(CHECK_SCRIPT, "environment", SMALT_CHECK="never")
    assert "SMALT_CHECK" in done.stderr and "expected: error, warn or off" in done.stderr


@pytest.mark.parametrize("name", [name for name, twin in BROKEN.items() if twin.shows is not None])
def test_the_machine_goes_on_after_any_finding(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Each twin with a flaw runs to its end, unless what is wrong is no matter of the checker's (a deadlock)."""
    twin = BROKEN[name]
    for schedule in ("latest", "earliest"):
        diagnosed: smalt.Error | None = None
        try:
            twin.emulate(schedule=schedule, check="error")
        except smalt.Error as e:
            diagnosed = e
        for check in ("warn", "off"):
            capfd.readouterr()
            try:
                twin.emulate(schedule=schedule, check=check)
            except smalt.Error as e:
                assert not isinstance(e, smalt.Internal), e
                assert not any(word in str(e) for word in CHECKERS_WORDS), e
            else:
                assert diagnosed is None or any(word in str(diagnosed) for word in CHECKERS_WORDS), diagnosed
            if check == "off":
                assert not findings(capfd.readouterr().err)


# What only the checker says (src/emulate/check/, overwrite.rs, agents.rs).
CHECKERS_WORDS = (
    "a `barrier_wait` is missing",
    "nothing orders",
    "that a bulk load in flight writes",
    "without having waited for it",
    "that the generic proxy wrote",
    "that is still read",
    "may still be reading",
    "which is not known to be complete",
    "which may not see that it was initialised",
    "two lanes of one store have different values",
    "ends while a bulk load",
)


# ------------------------------------------------------------------------------------------ endless kernels

ENDLESS = """
    import os, signal, sys, threading, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that runs in the background ignores it, and so would we
    import jax, jax.numpy as jnp, numpy as np, smalt
    from jax import lax
    from tests.corpus.case import kernel, like

    def body(v, o):
        def step(n):
            return jnp.where(v[0] > 0, n + 1, n)
        n = lax.while_loop(lambda n: n >= 0, step, jnp.int32(0))
        o[...] = jnp.broadcast_to(n, (128,))

    f = kernel(body, like((128,), jnp.int32))
    v = np.zeros(128, np.float32)
"""

INTERRUPTS = {
    "eager": "f(v).block_until_ready()",
    "jitted": "jax.jit(f)(v).block_until_ready()",
    "numpy": "np.asarray(jax.jit(f)(v))",
    "host": "smalt._native.compile(*smalt.descriptor(f, v)[0][1:], 'sm_90a').run([v.copy(), np.zeros(128, np.int32)])",
}


@pytest.mark.parametrize("way", INTERRUPTS)
def test_ctrl_c_ends_an_endless_kernel(way: str) -> None:
    script = ENDLESS + f"""
    import smalt._native
    threading.Timer(1.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with smalt.emulated("H100"):
        try:
            {INTERRUPTS[way]}
        except KeyboardInterrupt:
            print("interrupted", True)
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    print(np.asarray(jax.jit(lambda a: a + 1)(v))[0])
    """
    done = run_script(script)
    assert done.stdout == "interrupted True\nTrue\n1.0\n", done.stdout + done.stderr


#: How a program asks to be stopped: what sets that up, and the exception that comes of it.
SIGNALS = {
    "alarm": ("signal.signal(signal.SIGALRM, fail); signal.setitimer(signal.ITIMER_REAL, 1.2)", "Stopped"),
    "term": ("signal.signal(signal.SIGTERM, fail); threading.Timer(1.2, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()", "Stopped"),
    "interrupt": ("signal.signal(signal.SIGINT, fail); threading.Timer(1.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()", "Stopped"),
    "after others": (
        "signal.signal(signal.SIGUSR1, seen); signal.signal(signal.SIGINT, seen); signal.signal(signal.SIGALRM, fail);"
        "[threading.Timer(0.8, lambda which=which: os.kill(os.getpid(), which)).start() for which in (signal.SIGUSR1, signal.SIGINT)];"
        "signal.setitimer(signal.ITIMER_REAL, 2)",
        "Stopped",
    ),
}

RUNS = INTERRUPTS | {
    # XLA executes it on a thread of its own.
    "asynchronous": "jax.jit(lambda v, w: f(v + jnp.sum(w @ w)))(v, np.zeros((1024, 1024), np.float32)).block_until_ready()",
    # The emulator does, too.
    "several blocks": "jax.jit(many)(v).block_until_ready()",
}


@pytest.mark.parametrize("how, way", [("alarm", way) for way in RUNS] + [(how, "jitted") for how in SIGNALS if how != "alarm"])
def test_handlers_of_signals_are_called_while_a_kernel_runs(how: str, way: str) -> None:
    """A handler that raises ends the run; one that does not, does not."""
    setting, raised = SIGNALS[how]
    script = ENDLESS + f"""
    import smalt._native
    class Stopped(BaseException):
        pass
    def fail(number, frame):
        raise Stopped(number)
    calls = []
    def seen(number, frame):
        calls.append(number)
    many = kernel(body, like((128,), jnp.int32), grid=(4,), grid_names=("i",))
    with smalt.emulated("H100"):
        {setting}
        try:
            {RUNS[way]}
        except BaseException as e:
            print(type(e).__name__)
    print(sorted(calls) == sorted([signal.SIGUSR1, signal.SIGINT]) if {how!r} == "after others" else not calls)
    print(np.asarray(jax.jit(lambda a: a + 1)(v))[0])
    """
    done = run_script(script)
    assert done.stdout == f"{raised}\nTrue\n1.0\n", done.stdout + done.stderr


def test_another_thread_is_told_that_it_was_interrupted() -> None:
    script = ENDLESS + """
    def work():
        try:
            with smalt.emulated("H100"):
                jax.jit(f)(v).block_until_ready()
        except smalt.Error as e:
            print(type(e).__name__, e.fault, e.where.rsplit(":", 1)[0])
    worker = threading.Thread(target=work)
    worker.start()
    time.sleep(1.2)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    except KeyboardInterrupt:
        print("main")
    worker.join()
    """
    done = run_script(script)
    assert done.stdout == "main\nInterrupted Interrupted <string>\n", done.stdout + done.stderr


@pytest.mark.parametrize("set_later", [False, True])
def test_a_limit_on_the_emulators_time(set_later: bool) -> None:
    """One that is set after the library has read its variables, too."""
    script = ENDLESS + """
    with smalt.emulated("H100"):
        if sys.argv[1] == "True":
            np.asarray(jax.jit(kernel(lambda v, o: o.__setitem__(..., v[...]), like((128,), jnp.float32)))(v))
            os.environ["SMALT_TIMEOUT"] = "1.5"
        try:
            jax.jit(f)(v).block_until_ready()
        except smalt.Timeout as e:
            print(e.where, e.expected)
            assert "million instructions" in e.got and "CTA (0, 0, 0)" in e.got, e.got
    """
    done = run_script(script, str(set_later), **({} if set_later else {"SMALT_TIMEOUT": "1.5"}))
    assert done.stdout.startswith("<string>:") and done.stdout.endswith("to end within SMALT_TIMEOUT=1.5 s\n"), done.stdout + done.stderr


@pytest.mark.shared
def test_a_long_run_says_where_it_is() -> None:
    script = ENDLESS + """
    with smalt.emulated("H100"):
        try:
            jax.jit(f)(v).block_until_ready()
        except smalt.Timeout:
            pass
    """
    done = run_script(script, SMALT_TIMEOUT="4.5")
    # Every 10 s; 3 in a library for tests.
    reported = [line for line in done.stderr.splitlines() if line.startswith("smalt: `body` has run in the emulator for 3 s: ")]
    assert len(reported) == 1 and "million instructions" in reported[0] and " is at <string>:" in reported[0], done.stderr


def test_wait_timeout_bounds_a_wait_while_others_run() -> None:
    def body(v, o, bar):
        wg = lax.axis_index("wg")

        @plgpu_when(wg == 0)
        def _():
            plgpu.barrier_wait(bar)  # BAD

        @plgpu_when(wg == 1)
        def _():
            n = lax.while_loop(lambda n: n >= 0, lambda n: jnp.where(v[0] > 0, n + 1, n), jnp.int32(0))
            o[...] = jnp.broadcast_to(n, (128,))

    from jax.experimental.pallas import when as plgpu_when

    params = smalt.CompilerParams(wait_timeout_ns=1_000_000)
    f = kernel(body, like((128,), jnp.int32), plgpu.Barrier(), params=params, num_threads=2, thread_name="wg")
    with smalt.emulated("H100"), pytest.raises(smalt.Timeout, match="longer than wait_timeout_ns") as caught:
        jax.block_until_ready(jax.jit(f)(np.zeros(128, np.float32)))
    assert caught.value.where is not None and caught.value.where.startswith(__file__)
    assert caught.value.got is not None and "(`bar`, number 0 of 1 barrier of 1 arrival" in caught.value.got


# ------------------------------------------------------------------------------------------ exported programs

EXPORTED = ROOT / "tests/data/exported_by_jax_0.10.2.bin"

EXPORT_SCRIPT = """
    import jax, jax.export, jax.numpy as jnp, numpy as np, pathlib, smalt, sys
    from tests.corpus.case import kernel, like

    def body(x, o):
        i = jax.lax.axis_index("i")
        o[i] = x[i] * 2 + 1

    def program(x):
        return jnp.sum(kernel(body, like((4, 64)), grid=(4,), grid_names=("i",))(x), axis=0)

    with smalt.emulated("H100"):
        exported = jax.export.export(jax.jit(program))(jax.ShapeDtypeStruct((4, 64), np.float32))
    pathlib.Path(sys.argv[1]).write_bytes(exported.serialize())
"""

LOAD_SCRIPT = """
    import jax, jax.export, numpy as np, pathlib, smalt, sys
    program = jax.export.deserialize(bytearray(pathlib.Path(sys.argv[1]).read_bytes()))
    x = np.arange(256, dtype=np.float32).reshape(4, 64)
    got = np.asarray(jax.jit(program.call)(x))
    assert (got == (x * 2 + 1).sum(axis=0)).all()
    print("right", jax.__version__)
"""


def interpreters() -> dict[str, str]:
    """The virtual environments of `make venvs`, and the Python that runs."""
    found = {path.parent.parent.name: str(path) for path in sorted(ROOT.glob(".venv-ci-3.*/bin/python"))}
    return found or {"this": sys.executable}


def run_in(python: str, script: str, *args: str) -> subprocess.CompletedProcess[str]:
    if python == interpreters().get(pathlib.Path(sys.prefix).name):
        return run_script(script, *args)
    env = dict(os.environ, SMALT_LIBRARY=str(_native.library_path()), PYTHONPATH=f"{ROOT / 'jax_plugin'}:{ROOT}")
    return subprocess.run([python, "-c", textwrap.dedent(script), *args], env=env, capture_output=True, text=True, timeout=300)


# By age. What a newer JAX wrote, an older one need not read: StableHLO is kept readable forwards.
PAIRS = [(writer, reader) for writer in interpreters() for reader in interpreters() if writer <= reader]


@pytest.fixture(scope="module")
def exported_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pathlib.Path]:
    @functools.cache
    def write(writer: str) -> pathlib.Path:
        file = tmp_path_factory.mktemp("exported") / "program.bin"
        done = run_in(interpreters()[writer], EXPORT_SCRIPT, str(file))
        assert done.returncode == 0, done.stderr
        return file

    return write


# Whichever of them has pytest: one of them asks all.
@pytest.mark.shared("exported")
@pytest.mark.xdist_group("exported")
@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_a_program_is_exported_by_one_process_and_called_by_another(writer: str, reader: str, exported_by: Callable[[str], pathlib.Path]) -> None:
    done = run_in(interpreters()[reader], LOAD_SCRIPT, str(exported_by(writer)))
    assert done.stdout.startswith("right"), done.stderr


def test_an_old_program_is_still_understood() -> None:
    done = run_script(LOAD_SCRIPT, str(EXPORTED))
    assert done.stdout.startswith("right"), done.stderr


PROFILED = """
    import jax, jax.export, jax.experimental.pallas.mosaic_gpu as plgpu, numpy as np, pathlib, smalt, sys
    from tests.corpus.case import like

    def body(x, o):
        with jax.named_scope("work"):
            o[...] = x[...] * 2

    file, folder = map(pathlib.Path, sys.argv[1:])
    params = smalt.CompilerParams(profile_space=8, profile_dir=str(folder))
    f = jax.jit(plgpu.kernel(body, out_type=like((128,)), compiler_params=params))
    x = np.arange(128, dtype=np.float32)
    with smalt.emulated("H100"):
        file.write_bytes(jax.export.export(f)(x).serialize())
        assert not list(folder.iterdir())
        assert (f(x) == 2 * x).all() and len(list(folder.iterdir())) == 1
    print("right")
"""

LOAD_PROFILED = """
    import jax, jax.export, numpy as np, pathlib, smalt, sys
    program = jax.export.deserialize(bytearray(pathlib.Path(sys.argv[1]).read_bytes()))
    x = np.arange(128, dtype=np.float32)
    for _ in range(2):
        assert (np.asarray(jax.jit(program.call)(x)) == 2 * x).all()
    print("right")
"""


def test_an_artefact_does_not_choose_where_files_are_written(tmp_path: pathlib.Path) -> None:
    """Whoever lowers a kernel names its profiles' folder; who only runs it has SMALT_PROFILE_DIR."""
    artefact, folder, own = tmp_path / "program.bin", tmp_path / "folder", tmp_path / "own"
    folder.mkdir()
    own.mkdir()
    done = run_script(PROFILED, str(artefact), str(folder))
    assert done.stdout == "right\n", done.stderr
    before = sorted(folder.iterdir())
    done = run_script(LOAD_PROFILED, str(artefact))
    assert done.stdout == "right\n", done.stderr
    assert sorted(folder.iterdir()) == before
    assert done.stderr.count("is not written") == 1 and str(folder) in done.stderr and "SMALT_PROFILE_DIR" in done.stderr, done.stderr
    done = run_script(LOAD_PROFILED, str(artefact), SMALT_PROFILE_DIR=str(own))
    assert done.stdout == "right\n" and "is not written" not in done.stderr, done.stderr
    assert sorted(folder.iterdir()) == before and len(list(own.iterdir())) == 2
