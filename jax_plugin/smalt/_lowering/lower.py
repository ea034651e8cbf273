"""The lowering rule: a kernel's equation -> descriptor -> artifact -> custom call."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.export

from smalt import _blocks, _config, _derivatives, _devices, _messages, _native, _partition, _versions
from smalt._errors import CompileError, Error, Internal, InvalidKernel, Unsupported
from smalt._lowering import ffi, runtime_errors
from smalt._lowering.ffi import TARGET_NAME, UNCAPTURED_TARGET_NAME
from smalt._rules import Kernel, serialize

_LOCAL = threading.local()


def begin() -> None:
    """At import: that is enough to load an exported program, and JAX is as it was. The rest is for the first enabling."""
    with contextlib.suppress(ImportError):  # the library is not built: reported when a kernel is lowered
        ffi.register()
    _config.take_over(
        rules=[(_versions.mpmd_map_p, _mpmd_map_rule), (_versions.pallas_call_p, _pallas_call_rule)],
        derivatives=_derivatives.rules(),
        others=[
            _versions.give_barriers_tangents,
            functools.partial(_versions.chain_pipelines, _blocks.heeding_stays),
            functools.partial(_versions.describe_as_tpus, _devices.KINDS),
        ],
        first=_prepare_jax,
    )


def _prepare_jax() -> None:
    """What compiled programs need for as long as they live, and `jax.export` of them."""
    _versions.check()
    _versions.heed_grids_in_traces(_unknown_size)
    # The descriptor has a version, and older ones stay readable (proto/descriptor.proto): that is the promise that JAX requires.
    _versions.promise_stable((TARGET_NAME, UNCAPTURED_TARGET_NAME))
    _versions.heed_calls_from_python(lambda program: TARGET_NAME.encode() in program, _native.waiting_for_runs)
    runtime_errors.install()


def _mpmd_map_rule(before: Callable[..., Any], ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
    wanted = _capturing() or _config.is_enabled(params["compiler_params"])
    if wanted and _versions.platforms(ctx) == ("cpu",):  # no other compiler takes kernels there
        _check_mesh(params)
    if not (wanted and _versions.is_gpu_kernel(params)):
        return before(ctx, *args, **params)  # type: ignore[no-any-return]
    _check_params("plgpu.kernel", params["compiler_params"])
    _check_shapes([*ctx.avals_in, *ctx.avals_out])
    _prepare(ctx)
    call = _versions.kernel_call(len(args), params)
    axis_context = ctx.module_context.axis_context
    start = time.perf_counter()
    kernel = serialize(call, _versions.device_mesh(axis_context), _versions.lowering_tracebacks())
    within = _devices.within(axis_context, _versions.platforms(ctx), _where) if kernel.talks else None
    if within is not None:
        kernel = serialize(call, (), _versions.lowering_tracebacks(), within)
    target = choose_target(call.compiler_params, ctx)
    blocks = getattr(_LOCAL, "blocks", ())
    kernel = dataclasses.replace(
        kernel, target=target, seconds=time.perf_counter() - start, blocks=blocks, results=tuple(ctx.avals_out), aliases=tuple(call.aliases)
    )
    if not blocks:  # of a pallas_call that was looked at before
        shared = {out for _, out in call.aliases}
        numbers = range(len(call.jaxpr.invars) - call.num_inputs)
        outputs = {call.num_inputs + i: f"output {i}" for i in numbers if i not in shared}
        _blocks.warn_of_outputs_never_stored(call.jaxpr, outputs, _blocks.uses(call.jaxpr))
    if (captured := getattr(_LOCAL, "captured", None)) is not None:
        if blocks and _LOCAL.compiles:  # if it does not fit, its blocks go other ways
            _native.compile(kernel.descriptor, kernel.debug, target)
        captured.append(kernel)
        extra = None
    else:
        extra = _compile(kernel, target, _versions.platforms(ctx))
    operands = list(zip(args, ctx.avals_in))
    if kernel.far_indices:
        _check_manual(ctx)
        operands += [_versions.device_index(ctx, within, axis) for axis in kernel.far_indices]
    results = list(ctx.avals_out)
    aliases = dict(call.aliases)
    for size in extra.scratch if extra else ():
        aliases[len(operands)] = len(results)
        value, aval = _versions.zeros(ctx, size)
        operands.append((value, aval))
        results.append(aval)
    if extra and extra.position:
        _check_manual(ctx)
        operands.append(_versions.device_position(ctx, within))
    # Behind everything else, the tokens that order prints of several kernels.
    tokens = _versions.tokens_in(ctx)
    operands += tokens
    results += [aval for _, aval in tokens]
    attributes = {
        "descriptor": kernel.descriptor,
        "debug": kernel.debug,
        "hash": kernel.hash,
        "target": target,
        "flags": _devices.emulation_flags() | (_versions.mesh_number(axis_context) if within is None else within.number) << 8,
    }
    effects = _versions.has_effects(call) or _config.profile_space(call.compiler_params) > 0 or getattr(_LOCAL, "has_side_effects", False)
    name = UNCAPTURED_TARGET_NAME if extra and extra.is_read else TARGET_NAME
    if "cpu" in _versions.platforms(ctx):
        _versions.call_from_python(ctx)
    out = _versions.custom_call(ctx, name, operands, results, attributes, aliases, effects)
    _versions.set_tokens_out(ctx, out[len(out) - len(tokens) :])
    return out[: len(ctx.avals_out)]


def _pallas_call_rule(before: Callable[..., Any], ctx: Any, *args: Any, **params: Any) -> Any:
    if not _takes_pallas_call(ctx, params):
        return before(ctx, *args, **params)

    _prepare(ctx)
    is_symbolic = _partition.is_symbolic([*ctx.avals_in, *ctx.avals_out])

    machine = _machine(params["compiler_params"], ctx)
    room = machine.shared_memory - _blocks.BESIDE
    means = _blocks.Means("wgmma" in machine.features, machine.producers)

    def traced(*arrays: Any, budget: int = room) -> list[Any]:
        if is_symbolic:
            return _partition.symbolic_calls(params)(*arrays)
        _LOCAL.has_side_effects = _versions.has_side_effects(params["compiler_params"])
        results, _LOCAL.blocks = _blocks.kernel(arrays, params, budget, means)
        return results

    try:
        try:
            return _versions.lower_function(ctx, traced, *args)
        except InvalidKernel as first:
            if first.what != "shared memory":
                raise
            try:  # what the body takes for itself is not known before
                return _versions.lower_function(ctx, functools.partial(traced, budget=0), *args)
            except Error:
                raise first from None
    except Error as e:
        if not str(e).startswith("smalt: "):
            e.args = (f"smalt: {e}{_where()}",)
        if not _may_leave(e, ctx, params):
            raise
        lines = str(e).replace("\n", "\n  ")
        warnings.warn(f"smalt leaves a pl.pallas_call to the compiler that JAX has for it:\n  {lines}", stacklevel=2)
        return before(ctx, *args, **params)
    finally:
        _LOCAL.blocks, _LOCAL.has_side_effects = (), False


def _may_leave(e: Error, ctx: Any, params: dict[str, Any]) -> bool:
    """Whether what smalt lacks is left to JAX's own compiler: only of calls that name none, or that one, and where there is one."""
    compiler_params = params["compiler_params"]
    is_free = (compiler_params is None or _versions.is_triton_compiler_params(compiler_params)) and not _capturing()
    return is_free and isinstance(e, Unsupported) and "cpu" not in _versions.platforms(ctx)


def _prepare(ctx: Any) -> None:
    """What a kernel for a GPU will need is looked for while it is traced."""
    if "cuda" in _versions.platforms(ctx) and not _capturing():
        with contextlib.suppress(ImportError):  # not built: reported when the kernel is compiled
            _native.look_for_assembler()


def _where() -> str:
    """The call being lowered, as errors end with it."""
    return _messages.DebugTable(_versions.lowering_tracebacks()).where()


def _takes_pallas_call(ctx: Any, params: dict[str, Any]) -> bool:
    compiler_params, interpret = params["compiler_params"], params["interpret"]
    enabled = _capturing() or _config.is_enabled(compiler_params)
    taken = _blocks.is_wanted(compiler_params, interpret, enabled)
    is_foreign = not (taken or interpret or compiler_params is None or _versions.is_triton_compiler_params(compiler_params))
    if enabled and is_foreign and _versions.platforms(ctx) == ("cpu",):  # no other compiler takes them there
        _check_params("pl.pallas_call", compiler_params)
    return taken


def _check_mesh(params: dict[str, Any]) -> None:
    if params["interpret"] or _versions.is_gpu_kernel(params):
        return
    meshes = ", ".join(type(mesh).__qualname__ for mesh in params["meshes"])
    raise Unsupported(
        "smalt: not supported yet: a kernel over the mesh of another backend\n  expected: one plgpu.Mesh (jax.experimental.pallas.mosaic_gpu)"
        f"\n  got: {meshes}\n  remedy: write it with plgpu.kernel, or run it in JAX's interpreter (interpret=){_where()}"
    )


def _check_params(what: str, compiler_params: Any) -> None:
    if compiler_params is None or _versions.is_gpu_compiler_params(compiler_params):
        return
    kind = type(compiler_params)
    raise Unsupported(
        f"smalt: not supported yet: {what} with the compiler parameters of another backend"
        "\n  expected: plgpu.CompilerParams (jax.experimental.pallas.mosaic_gpu) or smalt.CompilerParams"
        f"{', or plt.CompilerParams (jax.experimental.pallas.triton)' if what == 'pl.pallas_call' else ''}"
        f"\n  got: {kind.__module__}.{kind.__qualname__}"
        f"\n  remedy: pass smalt.CompilerParams(), or leave smalt disabled for this call{_where()}"
    )


def _check_shapes(avals: Sequence[Any]) -> None:
    if _partition.is_symbolic(avals):
        dim = next(n for aval in avals for n in aval.shape if not isinstance(n, int))
        raise _symbolic_kernel(f"a dimension of {dim}", dim, _where())


def _symbolic_kernel(what: str, got: Any, where: str) -> Unsupported:
    return Unsupported(
        f"smalt: not supported yet: symbolic shapes in a plgpu.kernel: {what}\n  expected: dimensions of known size"
        f"\n  got: {got}\n  remedy: smalt.partition(f, \"rows _ -> rows _\") of the function f that calls it, with the rule by which parts of its results"
        f" follow from parts of its arguments; or a pl.pallas_call over blocks{where}"
    )


def _unknown_size(size: Any) -> Unsupported:
    """Of an axis of the grid of a `plgpu.kernel`, while it is traced."""
    if jax.export.is_symbolic_dim(size):
        return _symbolic_kernel(f"{size} steps along an axis of its grid", size, _versions.here())
    return Unsupported(
        "smalt: not supported yet: a plgpu.kernel whose grid has a traced size\n  expected: numbers that are known when it is traced"
        f"\n  got: {size}\n  remedy: a pl.pallas_call, whose grid may have one; or a grid of the most steps, and a condition in the body{_versions.here()}"
    )


def _check_manual(ctx: Any) -> None:
    """XLA numbers the devices of programs whose every axis is manual; in others a partition has no position."""
    left = _versions.automatic_axes(ctx.module_context.axis_context)
    if left:
        raise Unsupported(
            "smalt: not supported yet: a kernel that talks to other devices, or asks for its own, where XLA splits axes of the mesh"
            f"\n  expected: jax.shard_map over all axes of the mesh\n  got: {', '.join(repr(a) for a in left)} left to XLA"
            f"\n  remedy: leave out shard_map's axis_names; specs need not mention every axis{_where()}"
        )


def _compile(kernel: Kernel, target: str, platforms: tuple[str, ...]) -> _native.ExtraOperands:
    """Compiles for real; returns what the launch needs besides the kernel's operands."""
    ffi.register(platforms)
    try:
        artifact = _native.compile(kernel.descriptor, kernel.debug, target)
    except CompileError as e:
        if e.fault != "InvalidDescriptor":
            raise
        # This package alone wrote the descriptor: what is wrong with it is no fault of the user's.
        raise Internal(f"smalt: internal error of smalt (please report it): {str(e).removeprefix('smalt: ')}") from e
    if "cuda" in platforms:
        artifact.assemble_in_background()  # while XLA compiles the rest of the program
    return artifact.extra_operands


def choose_target(compiler_params: Any, ctx: Any = None) -> str:
    """The machine that runs the kernel: the lowering's device's, else that of the emulated or abstract one. Without any: what the kernel is
    compiled for (`CompilerParams.target`, else SMALT_TARGET), else sm_90a."""
    capabilities: list[Any] = []
    if ctx is not None:
        capabilities += [getattr(d, "compute_capability", None) for d in _versions.lowering_devices(ctx)[:1]]
    if (device := _devices.emulated_device()) is not None:
        return device.target
    capabilities.append(getattr(_versions.abstract_device(), "compute_capability", None))
    for capability in capabilities:
        if isinstance(capability, str) and (numbers := re.fullmatch(r"(\d+)\.(\d+)", capability)):
            return _native.target_of((int(numbers[1]), int(numbers[2])))
    return _config.target_of(compiler_params) or _config.DEFAULT_TARGET


def _machine(compiler_params: Any, ctx: Any) -> _native.Machine:
    """What a kernel is compiled for. One that there is not is reported when it is compiled."""
    machines = _native.machines()
    name = _config.target_of(compiler_params) or choose_target(compiler_params, ctx)
    return machines.get(name) or machines[_config.DEFAULT_TARGET]


# ------------------------------------------------------------------------------------------ tracing only


def _capturing() -> bool:
    return getattr(_LOCAL, "captured", None) is not None


@contextlib.contextmanager
def capture(compiles: bool = False) -> Iterator[list[Kernel]]:
    """Within the scope, kernels that this thread lowers are serialised, listed, and not called. `compiles`: what a `pl.pallas_call` becomes
    if it is to fit; else what is tried first."""
    outer = getattr(_LOCAL, "captured", None), getattr(_LOCAL, "compiles", False)
    kernels: list[Kernel] = []
    _config.hold()
    _LOCAL.captured, _LOCAL.compiles = kernels, compiles
    try:
        yield kernels
    finally:
        _LOCAL.captured, _LOCAL.compiles = outer
        _config.release()


def descriptor(f: Callable[..., Any], *args: Any, **kwargs: Any) -> list[tuple[str, bytes, bytes]]:
    """(name, descriptor, debug table) of each kernel in `f(*args)`, by tracing and lowering alone.

    Arguments may be arrays or `jax.ShapeDtypeStruct`s. Nothing is compiled or run, and no GPU is needed.
    """

    return [(k.name, k.descriptor, k.debug) for k in captured(f, *args, **kwargs)]


def captured(f: Callable[..., Any], *args: Any, platform: str = "cuda", compiles: bool = False, **kwargs: Any) -> list[Kernel]:
    """The kernels in `f(*args)`, by tracing and lowering alone; `compiles`: as of `capture`."""

    def fresh(*args: Any, **kwargs: Any) -> Any:  # a new function: no cache may answer in our place
        return f(*args, **kwargs)

    with capture(compiles) as kernels:
        jax.jit(fresh).trace(*args, **kwargs).lower(lowering_platforms=(platform,))
    return kernels


__all__ = ["Error", "begin", "capture", "choose_target", "descriptor"]
