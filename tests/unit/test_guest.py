"""smalt beside other plugins in one process: what it changes in JAX, when, and what it gives back. Each test is a process of its own."""

from __future__ import annotations

import os
import pathlib
import textwrap

import pytest

from smalt import _native
from tests.fresh import run_script

PRELUDE = r"""
    import inspect, re, threading
    import jax, jax.export, jax.numpy as jnp, numpy as np
    import jax.experimental.pallas as pl
    import jax.experimental.pallas.mosaic_gpu as plgpu
    from jax._src import pjit
    from jax._src.export import _export
    from jax._src.interpreters import ad, mlir, partial_eval as pe, pxla
    from jax._src.pallas import core as pallas_core, mpmd, pallas_call
    from jax._src.pallas.mosaic_gpu import core as gpu_core

    X = jax.ShapeDtypeStruct((128,), jnp.float32)
    PLATFORMS = ("cpu", "cuda")
    PRIMITIVES = {"kernel": mpmd.mpmd_map_p, "call": pallas_call.pallas_call_p}

    def body(x, o):
        o[...] = x[...] + 1

    OUT = "out_type" if "out_type" in inspect.signature(plgpu.kernel).parameters else "out_shape"
    PROGRAMS = {
        "kernel": lambda x: plgpu.kernel(body, **{OUT: X})(x),
        "call": lambda x: pl.pallas_call(body, out_shape=X, compiler_params=plgpu.CompilerParams())(x),
        "plain": lambda x: pl.pallas_call(body, out_shape=X)(x),
        "interpreted": lambda x: pl.pallas_call(body, out_shape=X, interpret=True)(x),
    }

    def lowered(name, *platforms):
        f = PROGRAMS[name]
        try:
            text = jax.jit(lambda x: f(x)).trace(X).lower(lowering_platforms=platforms or ("cuda",)).as_text()
        except Exception as e:  # stock lowering of a pallas_call wants a GPU
            return f"{type(e).__name__}: {e}"
        return re.sub('(kernel_hash|module) = "[^"]*"', "", text)  # Mosaic's module, which is another text each time

    def who(name, *platforms):
        text = lowered(name, *platforms)
        found = [tag for tag in ("plugin_of_ours", "smalt_kernel", "mosaic_gpu") if f"@{tag}" in text]
        return "+".join(found) or text.split("\n")[0]

    def patches():
        return {
            "errors": jax.errors.JaxRuntimeError.__new__,
            "fast path": pjit._get_fastpath_data,
            "calls": pxla.MeshExecutable.__dict__["create_cpp_call"],
            "exported": mlir._lowerings[_export.call_exported_p],
            "torch": plgpu.as_torch_kernel,
            "stable": frozenset(_export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE),
        }

    def lowerings():
        return {(p, n): mlir._platform_specific_lowerings[p].get(q) for p in PLATFORMS for n, q in PRIMITIVES.items()}

    def rules():
        return lowerings() | {"derivatives": [dict(table) for table in DERIVATIVES], "others": others()}

    DERIVATIVES = (
        ad.primitive_jvps, ad.primitive_linearizations, ad.primitive_transposes, pe.custom_partial_eval_rules, pe.partial_eval_jaxpr_custom_rules
    )

    def others():
        types = (gpu_core.BarrierType._rules, gpu_core.ClusterBarrierType._rules, hasattr(pallas_core.AbstractSemaphoreTyRules, "tangent_dtype"))
        return plgpu.emit_pipeline, plgpu.emit_pipeline_warp_specialized, *types

    def plugin(name, answers=True, platforms=PLATFORMS):
        "Another backend's rule, which marks what it compiles, and asks who was there before where it answers nothing."
        for p in platforms:
            there = mlir._platform_specific_lowerings[p].get(PRIMITIVES[name])

            def rule(ctx, *args, **params):
                if not answers:
                    return (there or mlir._lowerings[PRIMITIVES[name]]).rule(ctx, *args, **params)
                types = [x.type for x in args]
                return list(mlir.custom_call("plugin_of_ours", result_types=types, operands=list(args)).results)

            mlir.register_lowering(PRIMITIVES[name], rule, platform=p)
"""


def run(script: str, **env: str) -> str:
    unset = {name: "" for name in os.environ if name.startswith("SMALT_")}
    code = textwrap.dedent(PRELUDE) + textwrap.dedent(script)
    done = run_script(code, **{**unset, "SMALT_LIBRARY": str(_native.library_path()), **env})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_changes_nothing_in_jax() -> None:
    run("""
        before = patches(), rules()
        texts = {(name, p): lowered(name, *p) for name in PROGRAMS for p in (("cpu",), ("cuda",), ("cpu", "cuda"))}
        import smalt
        from smalt import _native
        assert (patches(), rules()) == before
        assert texts == {(name, p): lowered(name, *p) for name, p in texts}
    """)


def test_jax_s_tables_are_as_before_when_nothing_is_enabled() -> None:
    """What is lowered then is, letter by letter, what was lowered before smalt was there."""
    run("""
        before = rules()
        texts = {(name, p): lowered(name, *p) for name in PROGRAMS for p in (("cpu",), ("cuda",), ("cpu", "cuda"))}
        import smalt

        def check():
            assert rules() == before
            assert texts == {(name, p): lowered(name, *p) for name, p in texts}

        check()
        smalt.enable()
        smalt.enable(pallas_call=False)
        with smalt.enabled(True), smalt.emulated("H100"), smalt.enabled(False), smalt.enabled(True):
            assert who("kernel") == "smalt_kernel"
        assert rules() != before
        smalt.disable()
        smalt.disable()
        check()
        with smalt.enabled(True):
            assert who("kernel") == who("call") == who("plain") == "smalt_kernel"
        check()
        try:
            with smalt.enabled(True):
                raise KeyError
        except KeyError:
            pass
        check()
        assert [name for name, _, _ in smalt.descriptor(PROGRAMS["kernel"], X)] == ["body"]
        check()
        with smalt.enabled(False):
            check()
        scope = smalt.enabled(True)
        with scope:
            smalt.enable()
        assert who("kernel") == "smalt_kernel"
        smalt.disable()
        check()
    """)


def test_a_scope_of_another_thread_leaves_the_rules_to_this_one() -> None:
    run("""
        import smalt
        before = rules()
        inside, leave = threading.Event(), threading.Event()

        def scope():
            with smalt.enabled(True):
                inside.set()
                leave.wait()

        thread = threading.Thread(target=scope)
        with smalt.enabled(True):
            thread.start()
            inside.wait()
        assert rules() != before and who("kernel") == "mosaic_gpu"
        with smalt.enabled(True):
            leave.set()
            thread.join()
            assert who("kernel") == "smalt_kernel"
        assert rules() == before
    """)


def test_a_choice_of_one_kernel_needs_no_enabling() -> None:
    run("""
        import smalt
        def f(x):
            return pl.pallas_call(body, out_shape=X, compiler_params=smalt.CompilerParams(enabled=True))(x)
        PROGRAMS["chosen"] = f
        assert who("chosen") == "smalt_kernel" and who("kernel") == "mosaic_gpu"
        smalt.enable()
        smalt.disable()
        assert who("chosen", "cpu") == "smalt_kernel" and who("kernel") == "mosaic_gpu"
    """)


@pytest.mark.parametrize("when", ["before", "after", "enabled"])
def test_another_plugin_s_rule(when: str) -> None:
    """One that was there before smalt answers while smalt is disabled; one that comes later stands before smalt's until the next enabling."""
    run(f"""
        when = {when!r}
        jaxs = {{name: who(name) for name in PRIMITIVES}}
        if when != "before":
            import smalt

        def check(name, answers):
            (other,) = PRIMITIVES.keys() - {{name}}
            disabled = "plugin_of_ours" if answers else jaxs[name]
            if when != "enabled":
                plugin(name, answers)
                assert who(name) == disabled
            import smalt
            for again in (False, True):
                with smalt.enabled(True):
                    if when == "enabled" and not again:
                        plugin(name, answers)
                        # Last come, first asked; one that passes on what it does not want passes it on to smalt.
                        assert who(name) == ("plugin_of_ours" if answers else "smalt_kernel"), who(name)
                        with smalt.enabled(True):
                            assert who(name) == "smalt_kernel"
                    assert who(name) == "smalt_kernel", who(name)
                    with smalt.enabled(False):
                        assert who(name) == disabled, who(name)
                    assert who(other) == "smalt_kernel"
                assert who(name) == disabled, who(name)
                assert who(other) == jaxs[other]

        for name in PRIMITIVES:
            for answers in (True, False):
                there = lowerings()
                check(name, answers)
                for (p, n), entry in there.items():  # the plugin is gone
                    mlir._platform_specific_lowerings[p].pop(PRIMITIVES[n], None)
                    if entry is not None:
                        mlir._platform_specific_lowerings[p][PRIMITIVES[n]] = entry
    """)


def test_a_rule_for_one_platform_keeps_its_platform() -> None:
    run("""
        plugin("kernel", platforms=("cpu",))
        before = rules()
        import smalt
        for _ in range(2):
            with smalt.enabled(True):
                assert who("kernel", "cpu") == who("kernel", "cuda") == "smalt_kernel"
            assert who("kernel", "cpu") == "plugin_of_ours" and who("kernel", "cuda") == "mosaic_gpu"
            assert rules() == before
    """)


def test_what_stays_is_transparent() -> None:
    """Errors, fast paths and exported programs of others, once smalt has been enabled."""
    run("""
        import smalt
        with smalt.enabled(True):
            pass
        error = jax.errors.JaxRuntimeError("INTERNAL: something else")
        assert type(error) is jax.errors.JaxRuntimeError and str(error) == "INTERNAL: something else"
        f = jax.jit(lambda x: x + 1)
        f(1.0), f(1.0)
        assert f._cache_size() == 1
        program = jax.export.export(jax.jit(lambda x: x * 2), platforms=["cpu"])(X)
        loaded = jax.export.deserialize(program.serialize())
        assert np.asarray(jax.jit(loaded.call)(np.ones(128, np.float32))).sum() == 256
    """)


EXPORT = """
    import smalt, pathlib, sys
    with smalt.emulated("H100"):
        exported = jax.export.export(jax.jit(PROGRAMS["kernel"]), platforms=["cpu", "cuda"])(X)
    pathlib.Path("{path}").write_bytes(exported.serialize())
"""


def test_an_exported_program_needs_no_more_than_the_import(tmp_path: pathlib.Path) -> None:
    run(EXPORT.format(path=tmp_path / "program"))
    assert run(f"""
        import pathlib
        before = patches(), rules()
        import smalt
        program = jax.export.deserialize(bytearray(pathlib.Path("{tmp_path / 'program'}").read_bytes()))
        f = jax.jit(program.call)
        for _ in range(3):
            print(np.asarray(f(np.arange(128, dtype=np.float32))).sum())
        assert (patches(), rules()) == before
    """).split() == ["8256.0"] * 3


def test_the_variable_enables_at_import() -> None:
    run("""
        before = rules()
        import smalt
        assert who("kernel") == "smalt_kernel" and rules() != before
        smalt.disable()
        assert who("kernel") == "mosaic_gpu" and rules() == before
    """, SMALT_ENABLE="1")
