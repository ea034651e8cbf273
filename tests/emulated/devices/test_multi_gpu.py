"""Communicating kernels on emulated devices: right on 2, 4 and 8, the same bits under other schedules; mistakes are found."""

from __future__ import annotations

import functools
import pathlib
import re
import types

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import numpy as np
import pytest

import smalt
from smalt import _versions
from smalt._devices import directory
from tests.fresh import run_script
from tests.suites.multi_gpu.suite import REGULAR, grid, kernel, like, logical, over
from tests.suites.multi_gpu.supervise import ROOT, Result, as_it_must_be, environment, line, supervise


#: Other orders of what the hardware leaves open than `latest`, in which the first run is: one, and seeds. A kernel has one of them.
SCHEDULES = ("earliest", "1", "2")
PARTS = 3


@pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.shared(part)) for part in range(PARTS)])
@pytest.mark.parametrize("devices", [2, 4])
def test_right_on(devices: int, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two devices under two schedules, for the same bits."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for variable in ("SMALT_SCHEDULE", "SMALT_SEED"):
        monkeypatch.delenv(variable, raising=False)
    again = [f"--schedule={SCHEDULES[part]}"] if devices == 2 else []
    found = supervise("tests.suites.multi_gpu", devices, limit=200, more=again, part=f"{part}/{PARTS}")
    assert len(found) >= 200 // PARTS
    assert sum(r["status"] == "skipped" for r in found) < 10
    wrong = [line(r) for r in found if not as_it_must_be(r)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.shared
def test_right_on_eight() -> None:
    """Some; `python -m tests.suites.multi_gpu --devices 8` has all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        found = supervise("tests.suites.multi_gpu", 8, ["ring", "shipped_reduce", "mesh", "halo", "random[1"], limit=200)
    assert len(found) >= 20
    wrong = [line(r) for r in found if not as_it_must_be(r)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.shared
def test_in_the_long_run() -> None:
    reported = _runs("tests.suites.multi_gpu.endurance", "--rounds", "60")
    for part in ("many: 60 exchanges", "replays: 60 runs", "late: ", "absent: ", "unsignalled: "):
        assert part in reported, reported


@functools.cache
def twins() -> list[Result]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        return supervise("tests.suites.multi_gpu.broken", 4, limit=120)


@pytest.mark.shared
def test_mistakes_are_found() -> None:
    """Each of them, at a line that has to do with it; and nothing is found in the right twins."""
    assert sum(r["status"] != "right" for r in twins()) >= 20
    missed = [line(r) for r in twins() if r["status"] not in ("found", "right")]
    assert not missed, "\n".join(missed)


@pytest.mark.shared
def test_what_is_left_out_is_found() -> None:
    """Every signal and every wait of some kernels, one by one."""
    only = ["ring_reduce_scatter", "producer_and_consumer", "halo_exchange", "all_reduce_in_two_shots", "one_warpgroup_sends"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        examined = supervise("tests.suites.multi_gpu.omissions", 4, only)
    assert len(examined) >= 5
    missed = [line(r) for r in examined if r.get("found") != r.get("of", -1)]
    assert not missed, "\n".join(missed)
    assert sum(r["of"] for r in examined) > 25


def test_meshes_of_several_processes_have_numbers() -> None:
    def number(*devices: tuple[int, int]) -> int:
        listed = [types.SimpleNamespace(id=i, process_index=process) for i, process in devices]
        mesh = types.SimpleNamespace(devices=np.array(listed, object))
        return _versions.mesh_number(types.SimpleNamespace(mesh=mesh))

    assert number((0, 0), (1, 0)) == 0
    assert number((4, 1), (5, 1)) == 0
    spanning = {number((0, 0), (1, 1)), number((1, 1), (0, 0)), number((0, 0), (2, 1)), number((0, 0), (1, 1), (2, 1))}
    assert len(spanning) == 4 and 0 not in spanning and max(spanning) < 1 << 55
    assert _versions.mesh_number(types.SimpleNamespace()) == 0
    assert _versions.mesh_number(types.SimpleNamespace(mesh=jax.sharding.AbstractMesh((2,), ("x",)))) == 0


def test_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Store(dict[str, str]):
        def key_value_set(self, key: str, value: str, allow_overwrite: bool) -> None:
            assert allow_overwrite
            self[key] = value

        def key_value_dir_get(self, prefix: str) -> list[tuple[str, str]]:
            return [(k, v) for k, v in self.items() if k.startswith(prefix)]

    with pytest.raises(RuntimeError, match="no coordination service"):
        directory.answer({"list": "a/"})
    store = Store({"b/1": "z"})
    monkeypatch.setattr(_versions, "coordination_service", lambda: store)
    assert directory.answer({"put": {"key": "a/0", "value": "x"}}) is None
    assert directory.answer({"list": "a/"}) == {"a/0": "x"}


def test_emulated_devices_of_other_processes_are_refused() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        found = supervise("tests.suites.multi_gpu", 2, ["dissemination_barrier"], limit=100, processes=2)
    assert [r["status"] for r in found] == ["refused"], found
    for words in ("talks to emulated devices of other processes", "--xla_force_host_platform_device_count=N", "collectives.py:"):
        assert words in found[0]["text"], found[0]["text"]


def _runs(module: str, *arguments: str) -> str:
    """A module, or a file, as Python's main one."""
    how = "run_path" if module.endswith(".py") else "run_module"
    script = f"import runpy, sys\nsys.argv[0] = {module!r}\nrunpy.{how}({module!r}, run_name='__main__')"
    done = run_script(script, *arguments, **environment(4))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["halo_exchange", "all_to_all_moe", "ring_all_gather_matmul"])
def test_example(name: str) -> None:
    assert "on 4 ×" in _runs(f"examples.{name}")


def test_page(tmp_path: pathlib.Path) -> None:
    """`docs/MULTI_GPU.md` runs as it stands, block after block."""
    text = (ROOT / "docs" / "MULTI_GPU.md").read_text()
    source, at = "", 1
    for block in re.finditer(r"```python\n(.*?)```", text, re.S):
        start = text[: block.start(1)].count("\n") + 1
        source += "\n" * (start - at) + block.group(1)  # lines are the page's
        at = start + block.group(1).count("\n")
    assert source.count("assert") >= 3
    script = tmp_path / "page.py"
    script.write_text(source)
    _runs(str(script))


# ------------------------------------------------------------------------------------------ what is refused

ROWS = jax.ShapeDtypeStruct((4, 128), "float32")
MESH = ("a", "b")


def _talks(device, **kwargs):
    """A kernel that signals and stores to `device`."""

    def body(x, o, sem):
        plgpu.remote_ref(o, device, **kwargs)[...] = x[...]
        pl.semaphore_signal(sem, 1, device_id=device, **kwargs)
        pl.semaphore_wait(sem, 1)

    return lambda x: kernel(body, like(x.shape), REGULAR, grid=(1,), grid_names=("block",))(x)


REFUSED = {
    "no mesh": (_talks(0), False, ("a device id in a kernel that runs on one device", "jax.shard_map")),
    "one number for two axes": (_talks(0), True, ("a device id of 1 number", "for each axis of the device mesh: 'a', 'b'", "got: 1")),
    "three for two": (_talks((0, 1, 0)), True, ("a device id of 3 numbers", "got: 3")),
    "two for a position": (_talks((0, 1), **logical()), True, ("a device id of 2 numbers", "one number, the position in the mesh")),
    "an axis of the grid": (_talks({"block": 0}), True, ("axes of the device mesh: 'a', 'b'", "got: 'block'")),
    "axes and a position": (_talks({"a": 0}, **logical()), True, ("a device id by axes", "leave out device_id_type")),
}


@pytest.mark.filterwarnings("ignore:.*device_id_type:DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_device_ids_that_mean_nothing(name: str) -> None:
    local, on_mesh, words = REFUSED[name]
    fn = over(local, grid((2, 2), MESH)) if on_mesh else local
    with pytest.raises(smalt.InvalidKernel) as caught:
        smalt.descriptor(fn, ROWS)
    for word in (*words, "remedy:", "test_multi_gpu.py:"):
        assert word in str(caught.value), str(caught.value)


def test_axes_left_to_xla() -> None:
    """Partitions have no numbers there."""
    spec = jax.sharding.PartitionSpec("b")
    mesh = grid((2, 2), MESH)
    fn = jax.shard_map(_talks({"b": 0}), mesh=mesh, in_specs=spec, out_specs=spec, axis_names={"b"}, check_vma=False)
    with smalt.enabled(True), pytest.raises(smalt.Unsupported, match="'a' left to XLA"):
        jax.jit(fn).lower(ROWS)
