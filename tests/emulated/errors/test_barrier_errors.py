"""Misuse of barriers that authors count, of fences, and of ordered accesses: each is one clear error, at the user's line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt

from tests.corpus.case import kernel, like

X = like((128,), jnp.int32)
SMEM = plgpu.SMEM((128,), jnp.int32)

#: What is called in a kernel with an input `x`, an output `o`, shared memory `s`, a barrier `b` and four `bs`; and what the error says.
MISUSES: list[tuple[Callable[[Any, Any, Any, Any, Any], Any], str, list[str]]] = [
    (lambda x, o, s, b, bs: smalt.mbarrier_wait(x[...], 0), "no barrier", ["expected: a plgpu.Barrier"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_wait(3, 0), "no barrier", ["got: int"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_wait(s, 0), "of something else", ["expected: a barrier"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_arrive(o), "of something else", ["expected: a barrier"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_wait(bs, 0), "on several barriers", ["remedy"]),
    (lambda x, o, s, b, bs: smalt.expect_bytes(bs, 16), "on several barriers", ["remedy"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_wait(bs.at[4], 0), "index", ["4"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_wait(b, 0.5), "`phase`", ["expected: an integer", "float"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_wait(b, x[...]), "`phase`", ["expected: an integer", "128"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_wait(b, "0"), "an operand", ["got: str"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_wait(b, 0, order="release"), "`order`", ["'acquire' or 'relaxed'"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_wait(b, 0, scope="gpu"), "`scope`", ["'cta', 'cluster' or None"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_arrive(b, 0), "`count`", ["1 to 1048575", "got: 0"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_arrive(b, -3), "`count`", ["got: -3"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_arrive(b, 2**20), "`count`", ["got: 1048576"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_arrive(b, True), "`count`", ["expected: an integer"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_arrive(b, threads="lanes"), "`threads`", ["'one', 'warps' or 'all'"]),
    (lambda x, o, s, b, bs: smalt.mbarrier_arrive(b, order="acquire"), "`order`", ["'release' or 'relaxed'"]),
    (lambda x, o, s, b, bs: smalt.expect_bytes(b, -1), "`nbytes`", ["0 to 1048575"]),
    (lambda x, o, s, b, bs: smalt.expect_bytes(b, 2**21), "`nbytes`", ["0 to 1048575"]),
    (lambda x, o, s, b, bs: smalt.fence("seq_cst"), "`order`", ["'acq_rel'", "'seq_cst'"]),
    (lambda x, o, s, b, bs: smalt.fence("acquire", "device"), "`scope`", ["'gpu'", "'device'"]),
    (lambda x, o, s, b, bs: smalt.fence("acq_rel", "cluster", shared_only=True), "`shared_only`", ["'acquire' or 'release'", "remedy"]),
    (lambda x, o, s, b, bs: smalt.fence("acquire", "cta", shared_only=True), "`shared_only`", ["scope 'cluster'"]),
    (lambda x, o, s, b, bs: smalt.fence_proxy_async("smem"), "`space`", ["'shared::cta'"]),
    (lambda x, o, s, b, bs: smalt.load(x[...]), "no reference", ["remedy: pass the reference itself"]),
    (lambda x, o, s, b, bs: smalt.load(b), "smalt.load of something else", ["expected: numbers of 8 to 64 bits", "remedy"]),
    (lambda x, o, s, b, bs: smalt.load(o.at[0], order="release"), "`order`", ["'relaxed', 'acquire', 'volatile'"]),
    (lambda x, o, s, b, bs: smalt.load(o.at[0], scope="block"), "`scope`", ["'cta'"]),
    (lambda x, o, s, b, bs: smalt.load(s), "an array in shared memory", ["remedy: ref.at[i]"]),
    (lambda x, o, s, b, bs: smalt.store(o.at[0], 1, order="acquire"), "`order`", ["'release'"]),
    (lambda x, o, s, b, bs: smalt.store(o.at[0], jnp.float32(1)), "a value of another type", ["expected: int32", "astype"]),
    (lambda x, o, s, b, bs: smalt.store(o.at[0], x[...]), "a value of another shape", ["expected: []", "got: [128]", "remedy: pass the value of one element"]),
    (lambda x, o, s, b, bs: smalt.store(o, jnp.zeros(64, jnp.int32)), "a value of another shape", ["expected: [128]", "remedy: jnp.broadcast_to"]),
    (lambda x, o, s, b, bs: smalt.atomic_add(o.at[0], x[...]), "smalt.atomic_add: a value of another shape", ["got: [128]", "remedy"]),
    (lambda x, o, s, b, bs: smalt.store(o.at[0], 2.7), "a value of another type", ["expected: int32", "got: 2.7", "remedy"]),
    (lambda x, o, s, b, bs: smalt.atomic_add(o.at[0], 1 << 40), "a value of another type", ["got: 1099511627776", "remedy"]),
    (lambda x, o, s, b, bs: smalt.load(o.at[:].reshape(2, 64)), "smalt.load of a view that is no slice", ["expected: a reference to GMEM", "remedy"]),
    (lambda x, o, s, b, bs: smalt.store(x.at[0], 1), "`smalt.store` to", ["which is an input", "remedy"]),
    (lambda x, o, s, b, bs: smalt.atomic_add(x, 1), "`smalt.atomic_add` to", ["which is an input", "remedy"]),
    (lambda x, o, s, b, bs: smalt.atomic_add(x.at[0], 1), "`smalt.atomic_add` to", ["which is an input", "remedy"]),
    (lambda x, o, s, b, bs: smalt.inline_ptx("st.global.b32 [{0}], 1;", (), x), "`inline_ptx` to", ["which is an input", "remedy"]),
    (lambda x, o, s, b, bs: smalt.atomic_add(o.at[0], 1, order="seq"), "`order`", ["'acq_rel'"]),
    (lambda x, o, s, b, bs: smalt.inline_ptx("mov.b32 {0}, {1};", X, x[...], once=True), "one lane with arrays", ["scalars and references"]),
    (lambda x, o, s, b, bs: smalt.inline_ptx("bar.warp.sync -1;", once=True), "lanes that have parted", ["remedy"]),
    (lambda x, o, s, b, bs: smalt.inline_ptx("mbarrier.arrive.shared::cta.b64 _, [{0}], 1;", (), bs), "several barriers", ["got: 4 of them"]),
]


@pytest.mark.parametrize("at", range(len(MISUSES)))
def test_misuse(at: int) -> None:
    call, says, parts = MISUSES[at]

    def body(x: Any, o: Any, s: Any, b: Any, bs: Any) -> None:
        call(x, o, s, b, bs)
        o[...] = x[...]

    with smalt.emulated("H100"), pytest.raises((smalt.InvalidKernel, smalt.Unsupported)) as raised:
        jax.jit(kernel(body, X, SMEM, plgpu.Barrier(), plgpu.Barrier(num_barriers=4))).lower(X)
    message = str(raised.value)
    for text in [says, *parts]:
        assert text in message, message
    # Where smalt knows the line it is the call's, and traced errors come from there anyway.
    line = inspect.getsourcelines(call)[1]
    where = raised.value.where
    assert where is None or where.endswith(f"test_barrier_errors.py:{line}"), f"{where}, line {line}"


ATOMICS = {
    "atomic_and of float32": (lambda o: smalt.atomic_and(o.at[0], jnp.float32(1)), np.float32),
    "atomic_min of float16": (lambda o: smalt.atomic_min(o.at[0], jnp.float16(1)), np.float16),
    "atomic_add of int8": (lambda o: smalt.atomic_add(o.at[0], jnp.int8(1)), np.int8),
    "atomic_exchange of float16": (lambda o: smalt.atomic_exchange(o.at[0], jnp.float16(1)), np.float16),
    "atomic_cas of uint16": (lambda o: smalt.atomic_cas(o.at[0], jnp.uint16(1), jnp.uint16(1)), np.uint16),
}


@pytest.mark.parametrize("name", ATOMICS)
def test_types_that_an_atomic_does_not_have(name: str) -> None:
    call, dtype = ATOMICS[name]

    def body(o: Any) -> None:
        call(o)
        o[...] = jnp.zeros((128,), dtype)

    with smalt.emulated("H100"), pytest.raises(smalt.InvalidKernel, match=name + r"(?s:.*)expected: one of(?s:.*)got: a reference to"):
        jax.jit(kernel(body, like((128,), dtype))).lower()


def test_outside_of_a_kernel() -> None:
    if jax.__version_info__ >= (0, 11):
        with pytest.raises(smalt.InvalidKernel, match="outside of a kernel"):
            smalt.load(jax.new_ref(jnp.int32(0)))
    with pytest.raises(smalt.InvalidKernel, match="outside of a kernel"):
        smalt.fence()


def test_too_many_arrivals_for_a_phase() -> None:
    """The emulator reports arrivals that a phase has no room for."""

    def body(x: Any, o: Any, b: Any) -> None:
        smalt.mbarrier_arrive(b, 3)
        o[...] = x[...]

    with smalt.emulated("H100"), pytest.raises(jax.errors.JaxRuntimeError, match="at most 2 more arrivals"):
        np.asarray(jax.jit(kernel(body, X, plgpu.Barrier(num_arrivals=2)))(np.zeros(128, np.int32)))


def test_stores_into_peers_that_have_no_form() -> None:
    if not hasattr(plgpu, "async_store_smem"):
        pytest.skip("this JAX has none")

    def body(x: Any, o: Any, s: Any, b: Any, *, atomic: Any = None, dtype: Any = jnp.int32) -> None:
        layout = plgpu.Layout.WG_STRIDED((128,), vec_size=1)
        value = plgpu.layout_cast(x[...].astype(dtype), layout)
        plgpu.async_store_smem(value, s, b, cluster_idx=jnp.int32(0), cluster_dim="c", atomic=atomic)
        o[...] = x[...]

    def lower(buffer: Any, **kwargs: Any) -> None:
        with smalt.emulated("H100"):
            call = kernel(lambda *args: body(*args, **kwargs), X, buffer, plgpu.Barrier(), cluster=(2,), cluster_names=("c",))
            jax.jit(call).lower(X)

    for dtype, op, words in [(jnp.float32, "add", "add of f32"), (jnp.int16, "max", "max of i16"), (jnp.float16, "min", "min of f16")]:
        match = rf"reductions into another block's shared memory: {words}(?s:.*)expected: int32 or uint32(?s:.*)remedy"
        with pytest.raises(smalt.Unsupported, match=match):
            lower(plgpu.SMEM((128,), dtype), atomic=op, dtype=dtype)
    with pytest.raises(smalt.Unsupported, match="stores of less than 4 bytes(?s:.*)layout_cast"):
        lower(plgpu.SMEM((128,), jnp.int8), dtype=jnp.int8)


def test_a_body_that_waits_in_vain_says_where() -> None:
    def body(x: Any, o: Any, b: Any) -> None:
        smalt.mbarrier_wait(b, 0)
        o[...] = x[...]

    line = inspect.getsourcelines(body)[1] + 1
    with smalt.emulated("H100"), pytest.raises(jax.errors.JaxRuntimeError, match=rf"(?s)deadlock.*test_barrier_errors.py:{line}"):
        np.asarray(jax.jit(kernel(body, X, plgpu.Barrier()))(np.zeros(128, np.int32)))


def few_at_a_named_barrier(x: Any, s: Any, b: Any) -> None:
    pl.when(jax.lax.axis_index("wg") == 0)(lambda: smalt.named_barrier_sync(9, 256))


def bytes_that_no_copy_brings(x: Any, s: Any, b: Any) -> None:
    @pl.when(jax.lax.axis_index("wg") == 0)
    def one() -> None:
        smalt.expect_bytes(b, 1024)
        plgpu.copy_gmem_to_smem(x, s, b)
        smalt.mbarrier_wait(b, 0)


def one_waits_for_each(x: Any, s: Any, b: Any) -> None:
    first = jax.lax.axis_index("wg") == 0
    pl.when(first)(lambda: smalt.mbarrier_wait(b, 0))
    pl.when(jnp.logical_not(first))(lambda: smalt.named_barrier_sync(9, 256))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (few_at_a_named_barrier, ["barrier 9: 128 of 256 threads have arrived", "a named barrier as its count says", "remedy: look for warps that do not reach it"]),
        (bytes_that_no_copy_brings, ["512 bytes to come", "as many bytes as are expected", "expect the bytes of all copies"]),
        (one_waits_for_each, ["num_arrivals", "a named barrier as its count says"]),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_deadlock_says_what_would_have_ended_it(wrong: Any, says: list[str]) -> None:
    def body(x: Any, o: Any, s: Any, b: Any) -> None:
        wrong(x, s, b)
        o[...] = x[...]

    with smalt.emulated("H100"), pytest.raises(jax.errors.JaxRuntimeError, match="deadlock") as raised:
        np.asarray(jax.jit(kernel(body, X, SMEM, plgpu.Barrier(), num_threads=2, thread_name="wg"))(np.zeros(128, np.int32)))
    message = str(raised.value)
    assert not [part for part in says if part not in message], message
    # What is no matter here is not spoken of.
    assert ("num_arrivals" in message) == (wrong is not few_at_a_named_barrier), message


def test_there_are_enough() -> None:
    assert len(MISUSES) >= 35
