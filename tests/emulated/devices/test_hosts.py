"""Kernels that talk within a host, in jobs of several."""

from __future__ import annotations

import concurrent.futures
import json
import subprocess
import sys
import types
from typing import Any

import jax
import numpy as np
import pytest

import smalt
from smalt import _versions
from smalt._devices import directory, hosts as _hosts
from tests.suites.multi_gpu import hosts
from tests.suites.multi_gpu.processes import free_port
from tests.suites.multi_gpu.supervise import ROOT, environment

REFUSED = {
    "across hosts": "along the axis 'host'",
    "all coordinates": "by a position in the whole mesh",
    "a position": "by a position in the whole mesh",
    "an axis that is in part a host's": "along the axis 'rows'",
}


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    """Of both processes."""
    port = free_port()

    def run(process: int) -> dict[str, str]:
        command = [sys.executable, "-m", "tests.suites.multi_gpu.hosts", "--process", str(process), "--port", str(port)]
        env = environment(hosts.DEVICES) | {"JAX_PLATFORMS": "cpu"}
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=300, check=False)
        found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
        assert done.returncode == 0 and found, done.stderr
        return found

    with concurrent.futures.ThreadPoolExecutor(hosts.PROCESSES) as pool:
        return list(pool.map(run, range(hosts.PROCESSES)))


@pytest.mark.parametrize("name", hosts.PROGRAMS)
def test_programs(name: str, outcomes: list[dict[str, str]]) -> None:
    for found in outcomes:
        if not name.startswith("refused: "):
            assert found[name] == "right"
            continue
        text = found[name]
        assert "remedy: " in text and "hosts.py:" in text
        if (how := REFUSED.get(name.removeprefix("refused: "))) is not None:
            assert f"a kernel that talks to emulated devices of other processes {how}" in text
            assert "lie within a process: 'x', by name" in text and "--xla_force_host_platform_device_count=N" in text
        else:
            assert "a host in several places" in text and "2 parts" in text and "got: 4" in text


# ------------------------------------------------------------------------------------------ GPUs, several processes each host


def mesh(processes: Any, names: tuple[str, ...], own: int = 0) -> Any:
    """A mesh of devices of these processes, as process `own` has it."""
    processes = np.array(processes)
    client = types.SimpleNamespace(process_index=lambda: own)
    devices = np.empty(processes.shape, object)
    for i, (at, process) in enumerate(np.ndenumerate(processes)):
        devices[at] = types.SimpleNamespace(id=i, process_index=int(process), client=client)
    return types.SimpleNamespace(devices=devices, axis_names=names, empty=False, shape=dict(zip(names, processes.shape)))


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes 0 to 3 are on one host, the others on another."""
    monkeypatch.setattr(_hosts, "_host_names", lambda processes: {p: "ab"[p // 4] for p in processes})
    monkeypatch.setattr(_hosts, "GROUPS", {})


def within(processes: Any, names: tuple[str, ...], own: int = 0) -> _hosts.Within | None:
    return _hosts.within(types.SimpleNamespace(mesh=mesh(processes, names, own)), ("cuda",), lambda: "")


def test_processes_of_a_host_meet_apart_from_others(two_hosts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    store: dict[str, str] = {}
    service = types.SimpleNamespace(
        key_value_set=lambda key, value, allow_overwrite: store.update({key: value}),
        key_value_dir_get=lambda prefix: [(k, v) for k, v in store.items() if k.startswith(prefix)],
    )
    monkeypatch.setattr(_versions, "coordination_service", lambda: service)
    numbers = set()
    for own in range(8):
        found = within(np.arange(8).reshape(2, 4), ("host", "x"), own)
        assert found is not None and found.mesh == [("x", 4)] and found.far == ["host"] and found.number
        numbers.add(found.number)
        key = f"smalt/{found.number:x}/0123/1"
        directory.answer({"put": {"key": f"{key}/{own}.0", "value": str(own)}})
        came = directory.answer({"list": f"{key}/"})
        assert sorted(came.values()) == [str(p) for p in range(own // 4 * 4, own + 1)]
    assert len(numbers) == 1  # the program is the same everywhere
    assert directory.answer({"list": "smalt/1f/0123/1/"}) == {}


def test_one_process_for_each_host_needs_no_directory(two_hosts: None) -> None:
    found = within([[0, 0, 0, 0], [4, 4, 4, 4]], ("host", "x"))
    assert found is not None and found.number == 0 and found.mesh == [("x", 4)]


@pytest.mark.parametrize(
    "processes, names, axes",
    [
        (np.arange(8).reshape(4, 2), ("rows", "x"), [("rows", 4, 2), ("x", 2, 2)]),
        (np.arange(8).reshape(2, 4).T, ("x", "host"), [("x", 4, 4), ("host", 2, 1)]),
        (np.arange(8), ("x",), [("x", 8, 4)]),
        (np.arange(8).reshape(2, 2, 2), ("a", "b", "c"), [("a", 2, 1), ("b", 2, 2), ("c", 2, 2)]),
    ],
)
def test_what_a_host_has_of_a_mesh(processes: Any, names: tuple[str, ...], axes: Any, two_hosts: None) -> None:
    """Positions count the devices of a host, in the order of the mesh."""
    found = within(processes, names)
    assert found is not None and list(found.axes) == axes
    own: dict[int, list[int]] = {0: [], 1: []}
    for whole, process in enumerate(processes.flat):
        at = found.position(whole, lambda x, n: x // n, lambda x, n: x % n, lambda terms: sum(x * n for x, n in terms))
        own[int(process) // 4].append(at)
        coordinates = [found.index(name, whole, lambda x, n: x // n, lambda x, n: x % n) for name in names]
        assert tuple(coordinates) == np.unravel_index(whole, np.shape(processes))
    assert own == {0: list(range(4)), 1: list(range(4))}


def test_meshes_within_a_host_are_as_they_were(two_hosts: None) -> None:
    assert within(np.arange(4).reshape(2, 2), ("a", "b")) is None
    assert within([[0, 0], [0, 0]], ("a", "b")) is None
    assert _hosts.within(types.SimpleNamespace(), ("cuda",), lambda: "") is None
    with pytest.raises(smalt.Unsupported, match=r"a host in several places(?s:.*)2 parts(?s:.*)got: 4"):
        within([[0, 4], [5, 1]], ("a", "b"))


def test_each_process_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    store = {"smalt/host/1": "there"}
    service = types.SimpleNamespace(
        key_value_set=lambda key, value, allow_overwrite: store.update({key: value}),
        blocking_key_value_get=lambda key, patience: store[key],
    )
    monkeypatch.setattr(_versions, "coordination_service", lambda: service)
    monkeypatch.setattr(_hosts, "own_name", lambda: "here")
    assert _hosts._host_names([0, 1]) == {jax.process_index(): "here", 1: "there"} and store["smalt/host/0"] == "here"


def test_names_of_hosts_are_those_of_the_library() -> None:
    """Which compares them, too: the same file."""
    source = (ROOT / "src/runtime/neighbours.rs").read_text()
    assert "/proc/sys/kernel/random/boot_id" in source and _hosts.own_name()
