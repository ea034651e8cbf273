"""The lowering rule, the choice of backend, its cache keys, parameters and the emulated device."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.experimental.pallas as pl
import jax.export
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.triton as plt
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from jax import lax
from smalt import _config, _native, _versions
from smalt._lowering import lower as _register
from tests import ROOT
from tests.corpus.case import kernel, like
from tests.corpus.decode import decode, show

X = jax.ShapeDtypeStruct((128,), jnp.float32)


def add_one(x, **params):
    def body(x, o):
        o[...] = x[...] + 1

    params = smalt.CompilerParams(**params) if params else None
    return kernel(body, like((128,)), params=params)(x)


@pytest.fixture
def compiled(monkeypatch):
    """Kernels that the rule would have compiled; the compiler answers `compiled.scratch`."""

    class Compiled(list):
        scratch: list[int] = []

    out = Compiled()

    def fake(kernel, target, platforms):
        out.append((kernel, target, platforms))
        return _native.ExtraOperands(out.scratch, False, False)

    monkeypatch.setattr(_register, "_compile", fake)
    return out


@pytest.fixture(autouse=True)
def disabled_again():
    yield
    smalt.disable()


def lower(f, *args, platforms=("cuda",)):
    return jax.jit(lambda *a: f(*a)).trace(*args).lower(lowering_platforms=platforms)


# ------------------------------------------------------------------------------------------ who compiles


def test_disabled_is_stock(compiled):
    text = lower(add_one, X).as_text()
    assert "mosaic_gpu" in text and "smalt_kernel" not in text
    assert not compiled


def test_enable_and_disable(compiled):
    smalt.enable()
    assert "smalt_kernel" in lower(add_one, X).as_text()
    smalt.disable()
    assert "mosaic_gpu" in lower(add_one, X).as_text()
    assert len(compiled) == 1


def test_enabled_is_scoped(compiled):
    with smalt.enabled(True):
        assert "smalt_kernel" in lower(add_one, X).as_text()
        with smalt.enabled(False):
            assert "mosaic_gpu" in lower(add_one, X).as_text()
        assert "smalt_kernel" in lower(add_one, X).as_text()
    assert "mosaic_gpu" in lower(add_one, X).as_text()


def test_params_choose_for_one_kernel(compiled):
    def both(x):
        return add_one(add_one(x, enabled=True), enabled=False)

    for outer in (False, True):
        with smalt.enabled(outer):
            text = lower(both, X).as_text()
        assert "smalt_kernel" in text and "mosaic_gpu" in text


def test_the_choice_is_part_of_the_cache_key(compiled):
    traces = []

    @jax.jit
    def f(x):
        traces.append(_config.settings().enabled)
        return add_one(x)

    def text():
        return f.trace(X).lower(lowering_platforms=("cuda",)).as_text()

    assert "mosaic_gpu" in text()
    smalt.enable()
    assert "smalt_kernel" in text()
    assert "smalt_kernel" in text()
    smalt.disable()
    assert "mosaic_gpu" in text()
    with smalt.enabled(True):
        assert "smalt_kernel" in text()
    assert traces == [False, True]  # each setting is traced once, and found again


def test_a_choice_in_one_thread_is_not_another_s(compiled):
    import threading

    seen = []
    with smalt.enabled(True):
        thread = threading.Thread(target=lambda: seen.append(_config.settings().enabled))
        thread.start()
        thread.join()
    smalt.enable()
    thread = threading.Thread(target=lambda: seen.append(_config.settings().enabled))
    thread.start()
    thread.join()
    assert seen == [False, True]


@pytest.mark.parametrize("value, enabled", [("1", True), ("0", False), ("", False), ("yes please", None)])
def test_environment_variable(value, enabled):
    code = "import smalt; from smalt import _config; print(_config.settings().enabled)"
    environment = dict(os.environ, SMALT_ENABLE=value, PYTHONPATH=str(ROOT / "jax_plugin"))
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if enabled is None:
        assert run.returncode and "variable SMALT_ENABLE\n  expected: 0 or 1\n  got: 'yes please'" in run.stderr
    else:
        assert run.stdout.strip() == str(enabled)


def test_interpret_mode_is_delegated(compiled):
    if not hasattr(plgpu, "InterpretGPUParams"):
        from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams
    else:
        InterpretGPUParams = plgpu.InterpretGPUParams

    def f(x):
        def body(x, o):
            o[...] = x[...] + 1

        return kernel(body, like((128,)), interpret=InterpretGPUParams())(x)

    x = np.arange(128, dtype=np.float32)
    with smalt.enabled(True):
        np.testing.assert_array_equal(jax.jit(f)(x), x + 1)
    assert not compiled


def test_several_platforms_in_one_lowering(compiled):
    with smalt.enabled(True):
        text = lower(add_one, X, platforms=("cpu", "cuda")).as_text()
    assert "@smalt_kernel" in text and "mosaic_gpu" not in text
    assert {p for _, _, platforms in compiled for p in platforms} == {"cpu", "cuda"}


# ------------------------------------------------------------------------------------------ the custom call


def test_custom_call(compiled):
    compiled.scratch = [64, 4]
    with smalt.enabled(True):
        text = lower(add_one, X).as_text()
    (kernel, target, platforms) = compiled[0]
    assert (target, platforms) == ("sm_90a", ("cuda",))
    call = next(line for line in text.split("\n") if "@smalt_kernel" in line)
    assert "mhlo.backend_config = {" in call  # how JAX spells the typed FFI
    assert f'hash = "{kernel.hash}"' in call
    assert 'target = "sm_90a"' in call
    assert "flags = 0 : i64" in call
    assert "output_tuple_indices = [1], operand_index = 1" in call
    assert "output_tuple_indices = [2], operand_index = 2" in call
    types = call.rsplit(" : ", 1)[1]
    assert types == "(tensor<128xf32>, tensor<64xui8>, tensor<4xui8>) -> (tensor<128xf32>, tensor<64xui8>, tensor<4xui8>)"
    assert "stablehlo.constant dense<0> : tensor<ui8>" in text or "dense<0> : tensor<64xui8>" in text
    assert "has_side_effect = true" not in call


def test_layouts_are_row_major(compiled):
    def body(x, o):
        o[...] = x[...]

    with smalt.enabled(True):
        text = lower(kernel(body, like((4, 8, 16))), jax.ShapeDtypeStruct((4, 8, 16), jnp.float32)).as_text()
    call = next(line for line in text.split("\n") if "@smalt_kernel" in line)
    assert "operand_layouts = [dense<[2, 1, 0]> : tensor<3xindex>]" in call
    assert "result_layouts = [dense<[2, 1, 0]> : tensor<3xindex>]" in call


def test_mutable_refs_are_aliased(compiled):
    from tests.corpus.memory import mutable_ref_by_core_map

    with smalt.enabled(True):
        text = lower(mutable_ref_by_core_map, X).as_text()
    call = next(line for line in text.split("\n") if "@smalt_kernel" in line)
    assert re.search(r"output_tuple_indices = \[\d?\], operand_index = 0", call)
    params = decode("KernelDescriptor", compiled[0][0].descriptor)["params"]
    (mutable,) = [p for p in params if p["role"] == "MUTABLE"]
    assert params[mutable["aliased_output"] - 1]["role"] == "OUTPUT"


def test_effects_are_kept(compiled):
    def body(x, o):
        pl.debug_print("hello")
        o[...] = x[...]

    with smalt.enabled(True):
        text = lower(kernel(body, like((128,))), X).as_text()
    assert "has_side_effect = true" in text


def test_closed_over_scalar_is_an_operand(compiled):
    def f(x, s):
        def body(x, o):
            o[...] = x[...] * (s + 1)

        return kernel(body, like((128,)))(x)

    with smalt.enabled(True):
        lower(f, X, jax.ShapeDtypeStruct((), jnp.float32))
    params = decode("KernelDescriptor", compiled[0][0].descriptor)["params"]
    assert [p["role"] for p in params] == ["INPUT", "SCALAR", "OUTPUT"]


# ------------------------------------------------------------------------------------------ parameters


def test_compiler_params_keep_all_of_mosaic_s():
    ours = {f.name: f.default for f in dataclasses.fields(smalt.CompilerParams)}
    stock = {f.name: f.default for f in dataclasses.fields(plgpu.CompilerParams)}
    assert stock.items() <= ours.items()
    assert set(ours) - set(stock) == {"enabled", "fp_contract", "precise_division", "accumulate_products", "target", "wait_timeout_ns"}


def test_compiler_params_reach_the_descriptor(compiled):
    params = dict(approx_math=True, fp_contract=False, target="sm_100a", wait_timeout_ns=5, unsafe_no_auto_barriers=True)
    with smalt.enabled(True):
        text = lower(lambda x: add_one(x, **params), X).as_text()
    assert 'target = "sm_100a"' in text
    got = decode("KernelDescriptor", compiled[0][0].descriptor)["compiler_params"]
    assert got == {
        "approx_math": True,
        "unsafe_no_auto_barriers": True,
        "reduction_scratch_bytes": 2048,
        "fp_contract": "FP_CONTRACT_OFF",
        "target": "sm_100a",
        "wait_timeout_ns": 5,
    }


def test_compiler_params_are_checked():
    with pytest.raises(ValueError, match="`wait_timeout_ns`\n  expected: .*\n  got: -1"):
        smalt.CompilerParams(wait_timeout_ns=-1)
    with pytest.raises(ValueError, match="`target`\n  expected: an architecture like 'sm_90a'\n  got: 'H100'"):
        smalt.CompilerParams(target="H100")
    assert hash(smalt.CompilerParams()) == hash(smalt.CompilerParams())
    assert smalt.CompilerParams().replace(fp_contract=False).fp_contract is False


# ------------------------------------------------------------------------------------------ the emulated device


def test_emulated_device_answers():
    device = jax.devices()[0]
    with pytest.raises(AttributeError):
        device.core_count
    with smalt.emulated("H100"):
        assert jax.sharding.get_abstract_mesh().abstract_device.num_cores == 132
        assert jax.devices()[0].core_count == 132
        assert device.compute_capability == "9.0"
        assert _config.settings().enabled
        with smalt.emulated("B200"):
            assert device.core_count == 148
        assert device.core_count == 132
    with pytest.raises(AttributeError):
        device.core_count
    assert not _config.settings().enabled


def test_libraries_see_a_gpu_and_jax_sees_the_cpu():
    from jax.extend import backend

    x = jnp.arange(4.0)
    own = vars(type(jax.devices()[0]))["platform"]
    with smalt.emulated("H100"):
        for device in (backend.get_default_device(), *jax.devices(), *x.devices()):
            assert (device.platform, device.compute_capability, device.core_count) == ("gpu", "9.0", 132)
            assert "NVIDIA" in device.device_kind and device.shared_memory_per_block_optin == 232448
            assert device.client.platform == "cpu" and repr(device).startswith("CpuDevice")
        # What JAX compiles, moves and exports is the CPU's.
        y = jax.jit(lambda x: jnp.sort(x)[::-1] + jax.random.normal(jax.random.key(0), (4,)))(x)
        np.testing.assert_array_equal(np.from_dlpack(jax.device_put(x, jax.devices()[1]) * 2), np.arange(4) * 2.0)
        assert jax.default_backend() == "cpu" and jnp.asarray(np.asarray(y), device=jax.devices()[0]).shape == (4,)
        mesh = jax.make_mesh((8,), ("d",))
        put = jax.device_put(jnp.arange(16.0), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")))
        assert float(jax.jit(jnp.sum)(put)) == 120
        assert jax.export.export(jax.jit(lambda x: x + 1))(x).platforms == ("cpu",)
        assert jax.sharding.get_abstract_mesh().abstract_device.platform == "cuda"
        with smalt.emulated("B200"):
            assert "B200" in jax.devices()[0].device_kind
        with smalt.enabled(False):
            assert jax.devices()[0].platform == "gpu"
    assert (jax.devices()[0].platform, jax.devices()[0].device_kind) == ("cpu", "cpu")
    assert vars(type(jax.devices()[0]))["platform"] is own and not hasattr(jax.devices()[0], "shared_memory_per_block_optin")


def test_emulated_device_is_seen_in_its_thread_only():
    import threading

    seen = []
    with smalt.emulated("H100"):
        thread = threading.Thread(target=lambda: seen.append(hasattr(jax.devices()[0], "core_count")))
        thread.start()
        thread.join()
    assert seen == [False]


def test_emulated_device_gives_the_target(compiled):
    with smalt.emulated("B200"):
        lower(add_one, X)
    with smalt.emulated("H200"):
        lower(add_one, X)
    assert [target for _, target, _ in compiled] == ["sm_100a", "sm_90a"]


@pytest.mark.parametrize("arguments, got", [(("V100",), "'V100'"), (("TPU",), "'TPU'"), (("H100", "loud"), "'loud'"), ((None,), "None")])
def test_what_cannot_be_emulated(arguments, got):
    device, *check = arguments
    with pytest.raises(ValueError) as e:
        with smalt.emulated(device, **({"check": check[0]} if check else {})):
            pass
    assert isinstance(e.value, smalt.InvalidArgument) and e.value.fault == "InvalidArgument"
    assert e.value.got == got and e.value.expected.startswith("one of '")
    name, value = e.value.remedy.split("=")
    with smalt.emulated(**{"device": "H100", name: value.strip("'")}):  # the remedy works
        pass


def test_target_from_the_environment(compiled, monkeypatch):
    monkeypatch.setenv("SMALT_TARGET", "sm_103a")
    with smalt.enabled(True):
        lower(add_one, X)
    assert compiled[0][1] == "sm_103a"


# ------------------------------------------------------------------------------------------ pallas_call


def double(x, params=None, **kwargs):
    def twice(x, o):
        o[...] = x[...] * 2

    return pl.pallas_call(twice, out_shape=like((128,)), compiler_params=params, **kwargs)(x)


@pytest.mark.parametrize("params", [plgpu.CompilerParams(), smalt.CompilerParams()])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_pallas_call_with_parameters_is_taken(compiled, params, platform):
    with smalt.enabled(True):
        text = lower(lambda x: double(x, params), X, platforms=(platform,)).as_text()
    assert "@smalt_kernel" in text
    assert decode("KernelDescriptor", compiled[0][0].descriptor)["name"] == "twice"


@pytest.fixture
def stock(monkeypatch):
    """JAX's own rule for `pl.pallas_call` on CUDA, which would want a GPU: it marks what it lowers."""
    from jax._src.interpreters import mlir

    own = mlir._lowerings[_versions.pallas_call_p]

    def rule(ctx, *args, **params):
        if "cpu" in _versions.platforms(ctx):
            return own.rule(ctx, *args, **params)
        return list(mlir.custom_call("stock_pallas_call", result_types=[x.type for x in args], operands=list(args)).results)

    monkeypatch.setitem(mlir._lowerings, _versions.pallas_call_p, dataclasses.replace(own, rule=rule))


#: What a `pl.pallas_call` is compiled by on a CPU and on CUDA, by the choice and its parameters.
WHO = {
    (True, None): "smalt",
    (True, plgpu.CompilerParams()): "smalt",
    (True, smalt.CompilerParams()): "smalt",
    (True, smalt.CompilerParams(enabled=False)): "stock",
    (False, None): "stock",
    (False, plgpu.CompilerParams()): "smalt",
    (False, smalt.CompilerParams()): "smalt",
}


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("scope", ["enable", "enabled", "SMALT_PALLAS_CALL"])
def test_enabling_means_the_same_on_every_platform(compiled, stock, scope, platform, monkeypatch):
    for (taken, params), who in WHO.items():
        if scope == "SMALT_PALLAS_CALL":
            monkeypatch.setenv("SMALT_PALLAS_CALL", str(int(taken)))
            monkeypatch.setattr(_config.choice, "_DEFAULT", _config.choice._from_environment())
            smalt.enable()
            choice = contextlib.nullcontext()
        elif scope == "enable":
            smalt.enable(pallas_call=taken)
            choice = contextlib.nullcontext()
        else:
            smalt.disable()
            choice = smalt.enabled(True, pallas_call=taken)
        with choice:
            if who == "smalt":
                assert "@smalt_kernel" in lower(lambda x: double(x, params), X, platforms=(platform,)).as_text()
            elif platform == "cpu":
                with pytest.raises(ValueError, match="Only interpret mode is supported on CPU backend"):
                    lower(lambda x: double(x, params), X, platforms=(platform,))
            else:
                text = lower(lambda x: double(x, params), X, platforms=(platform,)).as_text()
                assert "smalt_kernel" not in text and "@stock_pallas_call" in text


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("scope", ["enable", "enabled", "SMALT_TRITON"])
@pytest.mark.parametrize("taken", [True, False])
def test_calls_with_parameters_of_triton(compiled, stock, taken, scope, platform, monkeypatch):
    """A choice of its own, beside that of calls with no parameters."""
    choice = contextlib.nullcontext()
    if scope == "SMALT_TRITON":
        monkeypatch.setenv("SMALT_TRITON", str(int(taken)))
        monkeypatch.setattr(_config.choice, "_DEFAULT", _config.choice._from_environment())
        smalt.enable(pallas_call=not taken)
    elif scope == "enable":
        smalt.enable(triton=taken, pallas_call=not taken)
    else:
        smalt.disable()
        choice = smalt.enabled(True, triton=taken, pallas_call=not taken)
    params = plt.CompilerParams(num_warps=8, num_stages=2)
    with choice:
        if not taken and platform == "cpu":
            with pytest.raises(ValueError, match="Only interpret mode is supported on CPU backend"):
                lower(lambda x: double(x, params), X, platforms=(platform,))
            return
        text = lower(lambda x: double(x, params), X, platforms=(platform,)).as_text()
        assert ("@smalt_kernel" in text) == taken and ("@stock_pallas_call" in text) != taken


@pytest.mark.parametrize("switch", ["pallas_call", "triton"])
def test_calls_are_taken_unless_told_otherwise(switch):
    def chosen():
        return getattr(_config.settings(), switch)

    assert getattr(_config.choice.Settings(), switch)
    smalt.enable(**{switch: False})
    assert not chosen()
    smalt.enable()
    assert chosen()
    with smalt.enabled(True, **{switch: False}):
        with smalt.enabled(True):
            assert not chosen()
        with smalt.enabled(False):
            assert chosen()


@pytest.mark.parametrize("free", [None, plt.CompilerParams()], ids=["none", "triton"])
def test_what_smalt_lacks_goes_to_the_compiler_that_was_there_on_cuda(compiled, stock, monkeypatch, free):
    """Only calls that name no compiler, or that one, and only what is Unsupported; elsewhere it is an error."""

    def refusing(arrays, params, budget, wgmma):
        raise error

    def call(params):
        return lambda x: double(x, params)

    error = smalt.Unsupported("not supported yet: this")
    monkeypatch.setattr(_register._blocks, "kernel", refusing)
    with smalt.enabled(True):
        with pytest.warns(UserWarning, match="(?s)leaves a pl.pallas_call to .*not supported yet: this.*test_plugin.py") as caught:
            text = lower(call(free), X).as_text()
        assert len(caught) == 1
        assert "@stock_pallas_call" in text and "smalt_kernel" not in text
        for params, platforms in ((free, ("cpu",)), (free, ("cpu", "cuda")), (plgpu.CompilerParams(), ("cuda",))):
            with pytest.raises(smalt.Unsupported, match="this"):
                lower(call(params), X, platforms=platforms)
        error = smalt.InvalidKernel("a mistake")
        with pytest.raises(smalt.InvalidKernel, match="a mistake"):
            lower(call(free), X)
        with pytest.raises(smalt.InvalidKernel), _register.capture():
            lower(call(free), X)


def test_pallas_call_is_stock_while_disabled(compiled):
    with pytest.raises(ValueError, match="Only interpret mode is supported on CPU backend"):
        lower(double, X, platforms=("cpu",))
    x = np.arange(128, dtype=np.float32)
    np.testing.assert_array_equal(double(x, interpret=True), x * 2)
    with smalt.enabled(True):
        np.testing.assert_array_equal(double(x, interpret=True), x * 2)
    assert not compiled


def test_pallas_call_says_what_it_lacks(compiled):
    def over_traced_sizes(n, x):
        params = plgpu.CompilerParams(dimension_semantics=["parallel"])
        return pl.pallas_call(lambda x, o: None, out_shape=like((128,)), compiler_params=params, grid=(n,))(x)

    with smalt.enabled(True), pytest.raises(smalt.InvalidKernel, match='of a traced size\n  remedy: dimension_semantics "sequential"'):
        lower(over_traced_sizes, 3, X, platforms=("cpu",))


def test_aliases_of_a_pallas_call(compiled):
    with smalt.enabled(True):
        text = lower(lambda x: double(x, input_output_aliases={0: 0}), X, platforms=("cpu",)).as_text()
    assert "operand_index = 0" in text


def test_pallas_call_checks_dimension_semantics(compiled):
    params = plgpu.CompilerParams(dimension_semantics=["parallel", "sequential"])
    with smalt.enabled(True), pytest.raises(smalt.InvalidKernel, match="one for each of 1 grid axes\n  got: 2"):
        lower(lambda x: double(x, params, grid=(1,)), X, platforms=("cpu",))


@pytest.mark.parametrize("semantics", [None, ["parallel", "sequential"], ["sequential", "parallel"]])
@pytest.mark.parametrize("vmapped", [False, True])
def test_axes_of_a_grid_have_names(semantics, vmapped):
    def body(x, o):
        def step(_, total):
            return total + 100 * lax.axis_index("rows") + lax.axis_index("columns")

        o[...] = x[...] + lax.fori_loop(0, 3, step, jnp.int32(0)) + 10_000 * lax.axis_size("columns")

    params = plgpu.CompilerParams(dimension_semantics=semantics)
    spec = pl.BlockSpec((8, 32), lambda i, j: (i, j))
    grid, shape = (("rows", 2), ("columns", 4)), like((16, 128), jnp.int32)
    call = pl.pallas_call(body, out_shape=shape, grid=grid, in_specs=[spec], out_specs=spec, compiler_params=params)
    x = np.arange(3 * 16 * 128, dtype=np.int32).reshape(3, 16, 128)
    with smalt.emulated():
        got = jax.vmap(call)(x) if vmapped else call(x[0])
    rows, columns = np.indices((16, 128)) // np.array([8, 32])[:, None, None]
    expected = x + 3 * (100 * rows + columns) + 40_000
    np.testing.assert_array_equal(got, expected if vmapped else expected[0])


def test_pallas_call_body_sees_the_pipeline_s_slots():
    def body(x, o):
        o[...] = x[...] + pl.program_id(1).astype(jnp.float32)

    spec = pl.BlockSpec((64, 64), lambda i, j: (i, j))
    call = pl.pallas_call(
        body,
        out_shape=like((128, 256)),
        grid=(2, 4),
        in_specs=[spec],
        out_specs=spec,
        compiler_params=plgpu.CompilerParams(dimension_semantics=["parallel", "sequential"], max_concurrent_steps=2),
    )
    d, _ = descriptor(call, jax.ShapeDtypeStruct((128, 256), jnp.float32))
    inner = next(op for op in ops(d["body"]) if op["primitive"] == "call" and op["attrs"][0].get("text", "").startswith("pallas_call"))
    load, *_, store = inner["regions"][0]["ops"]
    assert (load["primitive"], store["primitive"]) == ("load", "store")
    for op in (load, store):
        (view,) = op["operands"][0]["ref"]["transforms"]
        first, *rest = view["index"]["dims"]
        assert "at" in first and all("slice" in dim for dim in rest)
    assert not any(op["primitive"] == "program_id" for op in ops(d["body"]))


# ------------------------------------------------------------------------------------------ the walker


def descriptor(f, *args):
    ((_, data, debug),) = smalt.descriptor(f, *args)
    return decode("KernelDescriptor", data), decode("DebugTable", debug)


def ops(region):
    for op in region.get("ops", []):
        yield op
        for inner in op.get("regions", []):
            yield from ops(inner)


def test_locations_reach_the_user_s_lines():
    def helper(x):
        return x * 2  # LINE helper

    def body(x, o):
        def step(i, _):
            o[...] = helper(x[...])  # LINE step

        lax.fori_loop(0, 3, step, None)

    k = kernel(body, like((128,)))
    _, table = descriptor(lambda x: k(x), X)  # LINE call
    lines = {m: i + 1 for i, text in enumerate(pathlib.Path(__file__).read_text().split("\n")) for m in re.findall(r"# LINE (\w+)$", text)}
    chains = [[table["frames"][i] for i in chain.get("frames", [])] for chain in table["op_frames"]]
    here = table["strings"].index(__file__)
    assert chains[0][0]["file"] == here and chains[0][0]["line"] == lines["call"]
    functions = [[table["strings"][f["function"]].rsplit(".", 1)[-1] for f in chain] for chain in chains]
    assert ["helper", "step", "body"] in functions
    (multiply,) = [c for c, f in zip(chains, functions) if f == ["helper", "step", "body"]]
    assert [f["line"] for f in multiply][:2] == [lines["helper"], lines["step"]]


def test_equal_kernels_at_two_lines_share_bytes_not_locations():
    def f(x):
        def body(x, o):
            o[...] = x[...] + 1

        a = kernel(body, like((128,)))(x)

        def body(x, o):
            o[...] = x[...] + 1

        return kernel(body, like((128,)))(a)

    first, second = smalt.descriptor(f, X)
    assert first[1] == second[1]
    assert first[2] != second[2]


def test_captures_are_substituted_and_refs_are_never_region_parameters():
    def body(x, o, buf, bar):
        scale = x[0]

        def step(i, total):
            plgpu.copy_gmem_to_smem(x, buf, bar)
            plgpu.barrier_wait(bar)
            return total + buf[...] * scale

        o[...] = lax.fori_loop(0, 4, step, jnp.zeros((128,), jnp.float32))

    d, _ = descriptor(kernel(body, like((128,)), plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()), X)
    loop = next(op for op in ops(d["body"]) if op["primitive"] == "scan")
    assert len(loop["operands"]) == 2  # counter and total
    (region,) = loop["regions"]
    assert ["array" in v["type"] for v in region["params"]] == [True, True]


def test_dropped_swap_is_a_store():
    d, _ = descriptor(add_one, X)
    assert [op["primitive"] for op in ops(d["body"])] == ["run_scoped", "load", "add", "store"]


def test_optional_operands_keep_their_positions():
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x, buf, bar)
        plgpu.barrier_wait(bar)
        plgpu.copy_smem_to_gmem(buf, o)

    d, _ = descriptor(kernel(body, like((128,)), plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()), X)
    copies = [op for op in ops(d["body"]) if op["primitive"].startswith("copy")]
    assert [[next(iter(o)) for o in op["operands"]] for op in copies] == [["ref", "ref", "ref", "absent"], ["ref", "ref", "absent"]]


def test_semantics_of_the_version():
    d, _ = descriptor(add_one, X)
    new = hasattr(plgpu, "barrier_arrive_and_wait")
    old = not hasattr(plgpu, "wait_gmem_to_smem")
    expected = {"lowering": "LANE" if old else "WARPGROUP"}
    if new:
        expected |= dict.fromkeys(
            ["false_predicate_suppresses_arrival", "tensor_core_barrier_tracks_copies", "leader_tracked_last_axis_only"], True
        )
    assert d["semantics"] == expected


def test_axes_are_interned_in_order():
    def body(x, o):
        o[lax.axis_index("j")] = x[...] + lax.axis_index("wg") + lax.axis_index("c") + lax.axis_index("i")

    f = kernel(
        body,
        like((4,), jnp.int32),
        grid=(3, 4),
        grid_names=("i", "j"),
        cluster=(2,),
        cluster_names=("c",),
        num_threads=2,
        thread_name="wg",
    )
    d, _ = descriptor(jax.vmap(f), jax.ShapeDtypeStruct((5,), jnp.int32))
    assert [(a["id"], a.get("name", ""), a["size"]) for a in d["grid"]] == [(1, "", 5), (2, "i", 3), (3, "j", 4)]
    assert d["cluster"] == [{"id": 4, "name": "c", "size": 2}]
    assert (d["thread_axis"], d["num_threads"]) == (5, 2)


def test_unknown_axis_names_the_user_s_line():
    from smalt import _versions

    class Mesh:
        grid, grid_names, cluster, cluster_names = (), (), (), ()
        num_threads = thread_name = kernel_name = None

        @staticmethod
        def discharges_effect(e):
            return True

    jaxpr = jax.make_jaxpr(lambda: lax.axis_index("nowhere"), axis_env=[("nowhere", 2)])().jaxpr
    call = _versions.KernelCall("k", Mesh(), jaxpr, 0, (), None)
    from smalt._rules.descriptor import serialize

    with pytest.raises(smalt.InvalidKernel) as e:
        serialize(call)
    assert "axis_index: the axis 'nowhere'" in str(e.value) and "remedy: name it" in str(e.value)
    assert f"{__file__}:" in str(e.value)


def test_a_rule_s_own_failure_names_the_user_s_line(monkeypatch):
    from smalt._rules import rules

    def broken(w, eqn):
        raise KeyError("new_parameter")

    monkeypatch.setitem(rules._RULES, "load", broken)
    with pytest.raises(smalt.Internal) as e:
        smalt.descriptor(add_one, X)
    assert "load: KeyError: 'new_parameter'" in str(e.value)
    assert f"{__file__}:" in str(e.value) and "(add_one.<locals>.body)" in str(e.value)


def test_errors_are_classified():
    assert issubclass(smalt.Unsupported, smalt.Error) and issubclass(smalt.Unsupported, NotImplementedError)
    assert issubclass(smalt.InvalidKernel, smalt.Error) and issubclass(smalt.InvalidKernel, ValueError)
    assert issubclass(smalt.Internal, smalt.Error)
    assert issubclass(smalt.CompileError, smalt.Error)


def test_only_one_package_knows_jax_s_internals():
    package = ROOT / "jax_plugin" / "smalt"
    for path in package.rglob("*.py"):
        if path.parent != package / "_versions":
            text = path.read_text()
            assert "jax._src" not in text and "jax.__version" not in text, path.name


def test_what_is_known_of_versions_is_in_rooms_and_what_they_list_is_used():
    rooms = ROOT / "jax_plugin" / "smalt" / "_versions"
    assert all(len(path.read_text().splitlines()) <= 400 for path in rooms.rglob("*.py"))
    listed = {name for name in vars(_versions) if not name.startswith("_")} - {path.stem for path in rooms.glob("*.py")}
    others = [p for folder in ("jax_plugin", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py") if p.parent != rooms]
    text = "\n".join(p.read_text() for p in others if "_versions" in p.read_text())
    assert {name for name in listed if not re.search(rf"\b{name}\b", text)} == set()


def test_show_is_readable():
    ((_, data, _),) = smalt.descriptor(add_one, X)
    assert "store %2, %4" in show(data)


def test_walking_is_linear_in_the_number_of_ops():
    """10 times the ops take less than 20 times as long."""
    import time

    from smalt._lowering import lower as r

    def run(n):
        def body(x, o):
            v = x[...]
            for _ in range(n):
                v = v * 2 + 1
            o[...] = v

        times = []
        original = r.serialize

        def timed(*a):
            start = time.perf_counter()
            out = original(*a)
            times.append(time.perf_counter() - start)
            return out

        r.serialize = timed
        try:
            smalt.descriptor(kernel(body, like((128,))), X)
            smalt.descriptor(kernel(body, like((128,))), X)
        finally:
            r.serialize = original
        return min(times)

    assert run(3000) < 20 * run(300)
