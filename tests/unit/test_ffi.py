"""The wire: jax.jit -> custom call -> FFI handlers -> a kernel, on CPU, for each JAX version.

The kernels are the library's own test kernels (feature `test-handlers`), so that the wire is tested apart from the
compiler.
"""

from __future__ import annotations

import concurrent.futures
import hashlib

import jax
import jax.export
import jax.ffi
import jax.numpy as jnp
import numpy as np
import pytest

from smalt import _native
from smalt._lowering import ffi
from tests.fresh import run_script

SHAPE = jax.ShapeDtypeStruct((1024,), np.float32)


def attributes(kernel: str, debug: bytes = b"", **changed):
    descriptor = f"smalt-test:{kernel}".encode()
    digest = hashlib.sha256(descriptor).hexdigest()
    return {"descriptor": descriptor, "debug": debug, "hash": digest, "target": "sm_90a", "flags": np.int64(0)} | changed


def call(kernel: str, *args, out=SHAPE, aliases=None, target=ffi.TARGET_NAME, **changed):
    ffi.register(["cpu"])
    run = jax.ffi.ffi_call(target, out, input_output_aliases=aliases)
    return run(*args, **attributes(kernel, **changed))


@pytest.fixture(scope="module", autouse=True)
def library_with_test_kernels():
    try:
        _native.compile(b"smalt-test:add_one", b"", "sm_90a")
    except Exception as error:
        pytest.fail(f"{_native.library_path()} has no test kernels: build it with --features test-handlers ({error})")


def x(start=0.0):
    return jnp.arange(1024, dtype=jnp.float32) + start


@pytest.mark.parametrize("target", [ffi.TARGET_NAME, ffi.UNCAPTURED_TARGET_NAME])
def test_inside_jit_with_xla_ops_around(target):
    f = jax.jit(lambda v: jnp.sum(call("add_one", v * 2, target=target)))
    np.testing.assert_array_equal(f(x()), np.sum(np.arange(1024, dtype=np.float32) * 2 + 1))


def test_registering_twice_and_before_any_backend():
    script = """
        from smalt._lowering import ffi
        ffi.register(["cpu", "cuda"])
        ffi._registered.clear()
        ffi.register(["cpu", "cuda"])
        import jax.numpy as jnp, jax
        print(jnp.arange(3).sum())
    """
    assert run_python(script).strip() == "3"


def test_two_call_sites_share_one_artifact():
    before = _native.cache_stats()["compiled"]
    f = jax.jit(lambda v: call("add_one#shared", call("add_one#shared", v) * 3))
    np.testing.assert_array_equal(f(x()), (np.arange(1024, dtype=np.float32) + 1) * 3 + 1)
    assert _native.cache_stats()["compiled"] == before + 1


def test_exported_program_runs_in_another_process(tmp_path):
    f = jax.jit(lambda v: call("add_one", v) * 2)
    exported = jax.export.export(
        f, disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(ffi.TARGET_NAME)]
    )(SHAPE)
    (tmp_path / "program").write_bytes(exported.serialize())
    script = f"""
        import pathlib, jax, jax.export, numpy as np
        from smalt._lowering import ffi
        ffi.register(["cpu"])
        program = jax.export.deserialize(pathlib.Path({str(tmp_path / "program")!r}).read_bytes())
        print(np.asarray(program.call(np.full(1024, 4, np.float32)))[-1])
    """
    assert run_python(script).strip() == "10.0"


def test_donated_operand_is_modified_in_place():
    f = jax.jit(lambda v: call("add_one_in_place", v, aliases={0: 0}), donate_argnums=0)
    for v in (x(), x(5.0)):
        want, address = np.asarray(v) + 1, v.unsafe_buffer_pointer()
        got = f(v)
        np.testing.assert_array_equal(got, want)
        assert got.unsafe_buffer_pointer() == address


def test_undonated_operand_is_kept():
    f = jax.jit(lambda v: call("add_one_in_place", v, aliases={0: 0}))
    v = x()
    np.testing.assert_array_equal(f(v), np.asarray(x()) + 1)
    np.testing.assert_array_equal(v, x())


def test_many_threads():
    f = jax.jit(lambda v, k: call("add_one", v) * k)

    def work(n):
        for i in range(20):
            np.testing.assert_array_equal(f(x(n), float(i)), (np.arange(1024, dtype=np.float32) + n + 1) * i)
        return n

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(16))) == list(range(16))


def test_many_threads_compile_one_kernel_once():
    before = _native.cache_stats()["compiled"]

    def work(_):
        return len(_native.compile(b"smalt-test:add_one#once", b"", "sm_90a").ptx)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(work, range(64)))) == 1
    assert _native.cache_stats()["compiled"] == before + 1


def test_in_a_scan():
    def step(carry, _):
        return call("add_one", carry), None

    f = jax.jit(lambda v: jax.lax.scan(step, v, None, length=50)[0])
    np.testing.assert_array_equal(f(x()), np.asarray(x()) + 50)


ERRORS = {
    "compile error": (attributes("no_such_kernel"), "not supported yet: the test kernel `no_such_kernel`"),
    "panic in compile": (attributes("panic_in_compile"), "internal error of smalt.*a test panics in compile"),
    "panic in run": (attributes("panic_in_run"), "internal error of smalt.*a test panics in run"),
    "error in run": (attributes("error_in_run"), "reads out of bounds\n  expected: index < 64\n  got: 64"),
    "wrong hash": (attributes("add_one", hash="0" * 64), "does not have the hash"),
    "newer flags": (attributes("add_one", flags=np.int64(4)), "flags 0x4.*newer version"),
    "wrong target": (attributes("add_one#target", target="gfx942"), "the target gfx942"),
    "unknown attribute": (attributes("add_one", more=b""), "Wrong number of attributes.*more"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_text_arrives_and_the_process_computes_right_afterwards(name):
    changed, pattern = ERRORS[name]
    ffi.register(["cpu"])
    with pytest.raises(Exception, match=f"(?s){pattern}") as caught:
        jax.block_until_ready(jax.jit(lambda v: jax.ffi.ffi_call(ffi.TARGET_NAME, SHAPE)(v, **changed))(x()))
    assert isinstance(caught.value, jax.errors.JaxRuntimeError)
    np.testing.assert_array_equal(jax.jit(lambda v: call("add_one", v))(x()), np.asarray(x()) + 1)


def test_errors_name_the_users_line():
    debug = debug_table()
    with pytest.raises(Exception, match=r"(?s)out of bounds.*at /home/user/kernel.py:12 \(body\).*called from main.py:40"):
        jax.block_until_ready(jax.jit(lambda v: call("error_in_run", v, debug=debug))(x()))
    # Two call sites of one kernel, each with its own lines.
    with pytest.raises(Exception, match=r"at /home/user/kernel.py:99"):
        jax.block_until_ready(jax.jit(lambda v: call("error_in_run", v, debug=debug_table(line=99)))(x()))


def debug_table(line=12):
    """A DebugTable (proto/descriptor.proto) by hand: op 1 at kernel.py:`line`, called from main.py:40."""

    def field(number, payload):
        return bytes([number << 3 | 2, len(payload)]) + payload

    strings = b"".join(field(1, s) for s in (b"", b"/home/user/kernel.py", b"body", b"main.py"))
    frames = field(2, b"") + field(2, bytes([8, 1, 16, 2, 24, line])) + field(2, bytes([8, 3, 24, 40]))
    chains = field(3, b"\x0a\x01\x02") + field(3, b"\x0a\x02\x01\x02")
    return strings + frames + chains


WRONG_CALLS = {
    "a further result": (lambda v: call("add_one", v, out=(SHAPE, SHAPE)), "operands and 1 results.*got: 1 operands and 2"),
    "a further operand": (lambda v: call("add_one", v, v), "got: 2 operands and 1 results"),
    "a small result": (lambda v: call("add_one", v, out=jax.ShapeDtypeStruct((1000,), np.float32)), "4096 bytes.*4000"),
    "a sub-byte operand": (lambda v: call("add_one", v.astype(jnp.int4)), "4096 bytes.*got: 512 bytes"),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_buffers_are_refused(name):
    f, pattern = WRONG_CALLS[name]
    with pytest.raises(Exception, match=f"(?s){pattern}"):
        jax.block_until_ready(jax.jit(lambda v: [f(v)])(x()))


def test_a_kernel_in_place_runs_in_its_results_memory_where_the_alias_was_lost():
    """As XLA:GPU loses them where it fuses slices with calls; the operand stays as it is."""
    operand = x()
    before = np.asarray(operand).copy()
    np.testing.assert_array_equal(jax.jit(lambda v: call("add_one_in_place", v))(operand), before + 1)
    np.testing.assert_array_equal(operand, before)


def test_sub_byte_and_odd_sized_operands_pass():
    # 8192 int4 are 4096 bytes.
    f = jax.jit(lambda v: call("add_one", v))
    np.testing.assert_array_equal(f(x()), np.asarray(x()) + 1)
    ints = jnp.zeros(8192, jnp.int4)
    assert jax.jit(lambda v: call("add_one", v))(ints).shape == (1024,)


def run_python(script: str) -> str:
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    return done.stdout
