"""Processes of Python for tests, which need not import JAX: they are forked from one that has.

`run_script` is `subprocess.run([python, "-c", script])`. What a process reads at its start is as there: the environment (smalt is not imported
yet, and XLA has no backend), `sys.argv`, the folder. Where JAX itself would read another environment at its import, a process of its own is
started; so it is for tests of how a process begins or ends.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import traceback
import warnings
from typing import Any

from tests import ROOT


def environment(**variables: str) -> dict[str, str]:
    """This process's, with the library and the sources that it tests, and these variables; one that is empty is unset."""
    paths = f"{ROOT / 'jax_plugin'}{os.pathsep}{ROOT}"
    env = {**os.environ, "PYTHONPATH": paths, **variables}
    return {name: value for name, value in env.items() if value or name not in variables or name == "SMALT_CACHE_DIR"}


def start_script(script: str, *args: str, timeout: float = 300, cwd: pathlib.Path = ROOT, check: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process that is started for it: nothing is imported yet."""
    command = [sys.executable, "-c", textwrap.dedent(script), *args]
    return subprocess.run(command, env=environment(**variables), cwd=cwd, capture_output=True, text=True, timeout=timeout, check=check)


def run_script(script: str, *args: str, timeout: float = 300, cwd: pathlib.Path = ROOT, check: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own, mostly a forked one, with these variables in its environment."""
    env = environment(**variables)
    if read_at_import(env) != read_at_import(dict(os.environ)):
        return start_script(script, *args, timeout=timeout, cwd=cwd, check=check, **variables)
    command = [sys.executable, "-c", textwrap.dedent(script), *args]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        code = _server().run({"command": command[2:], "env": env, "cwd": str(cwd)}, out, err, timeout)
        texts = [(file.seek(0), file.read())[1] for file in (out, err)]
    if code is None:
        raise subprocess.TimeoutExpired(command, timeout, *texts)
    done = subprocess.CompletedProcess(command, code, *texts)
    if check:
        done.check_returncode()
    return done


def read_at_import(env: dict[str, str]) -> dict[str, str]:
    """What JAX, or Python, reads once."""
    return {k: v for k, v in env.items() if k.startswith(("JAX_", "PYTHON", "ABSL_", "TF_", "OPENBLAS_")) and k != "PYTHONPATH"}


class _Server:
    def __init__(self) -> None:
        self.socket, there = socket.socketpair()
        command = [sys.executable, "-c", "from tests import fresh; fresh.serve()", str(there.fileno())]
        self.process = subprocess.Popen(command, env=environment(), cwd=ROOT, pass_fds=[there.fileno()])
        there.close()
        atexit.register(self.process.kill)

    def run(self, request: dict[str, Any], out: Any, err: Any, timeout: float) -> int | None:
        """The exit status; None if it does not end in time."""
        text = json.dumps(request).encode()
        socket.send_fds(self.socket, [len(text).to_bytes(8, "little")], [out.fileno(), err.fileno()])
        self.socket.sendall(text)
        stream = self.socket.makefile("r")
        pid = int(stream.readline())
        self.socket.settimeout(timeout)
        try:
            return int(stream.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self.socket.settimeout(None)
            self.socket.makefile("r").readline()
            return None
        finally:
            self.socket.settimeout(None)


@functools.cache
def _server() -> _Server:
    return _Server()


def serve() -> None:
    """Forks for each request."""
    import jax
    import jax.experimental.pallas
    import jax.experimental.pallas.mosaic_gpu
    import jax.numpy  # noqa: F401

    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    # The terminal's: the tests' own process answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    here = socket.socket(fileno=int(sys.argv[1]))
    while True:
        size, fds, *_ = socket.recv_fds(here, 8, 2)
        if not size:
            return
        text = here.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL)
        pid = os.fork()
        if pid == 0:
            here.close()
            _be(json.loads(text), fds)
        for fd in fds:
            os.close(fd)
        here.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        here.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _be(request: dict[str, Any], fds: list[int]) -> None:
    """The process that was asked for."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(fds[0], 1)
    os.dup2(fds[1], 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd in fds:
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    script, *args = request["command"]
    sys.argv = ["-c", *args]
    namespace = {"__name__": "__main__", "__builtins__": __builtins__}
    sys.modules["__main__"].__dict__.clear()
    sys.modules["__main__"].__dict__.update(namespace)
    code = 1
    try:
        exec(compile(script, "<string>", "exec"), sys.modules["__main__"].__dict__)
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
    except BaseException as e:  # noqa: BLE001  (as Python does)
        # Without this function's own frame.
        e = e.with_traceback(e.__traceback__ and e.__traceback__.tb_next)
        sys.excepthook(type(e), e, e.__traceback__)
    with contextlib.suppress(BaseException):
        import threading

        threading._shutdown()  # type: ignore[attr-defined]
    try:
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code)
