"""The native library: finding it, its C API (src/capi/mod.rs), and typed wrappers that raise smalt's errors."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import pathlib
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from smalt import _errors

CAPI_VERSION = 4
_NAME = "libsmalt.dylib" if platform.system() == "Darwin" else "libsmalt.so"


class _Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("len", ctypes.c_size_t)]


_Handle = ctypes.c_void_p
_Ask = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_Write = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_size_t)
_Input = (ctypes.c_char_p, ctypes.c_size_t)  # bytes and their length

# name -> (result, arguments)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "smalt_capi_version": (ctypes.c_uint32, ()),
    "smalt_version": (ctypes.c_char_p, ()),
    "smalt_free": (None, (_Bytes,)),
    "smalt_wait_for_runs": (None, (ctypes.c_int32,)),
    "smalt_end_runs": (None, ()),
    "smalt_set_packages": (_Bytes, _Input),
    "smalt_look_for_assembler": (None, ()),
    "smalt_set_stdout": (None, (_Write,)),
    "smalt_set_directory": (None, (_Ask,)),
    "smalt_directory_answer": (None, (ctypes.c_void_p, *_Input)),
    "smalt_compile": (_Bytes, (*_Input, *_Input, *_Input, ctypes.POINTER(_Handle))),
    "smalt_show": (_Bytes, (*_Input, *_Input, *_Input, ctypes.POINTER(_Bytes))),
    "smalt_from_ptx": (_Bytes, (*_Input, ctypes.POINTER(_Handle))),
    "smalt_release": (None, (_Handle,)),
    "smalt_report": (_Bytes, (_Handle, ctypes.POINTER(_Bytes))),
    "smalt_ptx": (_Bytes, (_Handle, ctypes.POINTER(_Bytes))),
    "smalt_assemble": (_Bytes, (_Handle, ctypes.POINTER(_Bytes))),
    "smalt_assemble_in_background": (_Bytes, (_Handle,)),
    "smalt_run": (
        _Bytes,
        (
            _Handle,
            ctypes.c_int32,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.POINTER(ctypes.c_size_t),
            ctypes.c_uint32,
            ctypes.POINTER(_Bytes),
        ),
    ),
    "smalt_emulate": (
        _Bytes,
        (
            _Handle,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.POINTER(ctypes.c_size_t),
            *_Input,
            ctypes.POINTER(_Bytes),
        ),
    ),
    "smalt_call_site": (_Bytes, (*_Input, *_Input, *_Input, ctypes.POINTER(_Handle))),
    "smalt_release_call_site": (None, (_Handle,)),
    "smalt_launch": (
        _Bytes,
        (
            _Handle,
            ctypes.c_int32,
            ctypes.c_size_t,
            ctypes.c_size_t,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_size_t),
            ctypes.POINTER(ctypes.c_size_t),
        ),
    ),
    "smalt_set_trace": (_Bytes, _Input),
    "smalt_lowered_profile": (_Bytes, _Input),
    "smalt_layout_map": (_Bytes, (*_Input, ctypes.POINTER(_Bytes))),
    "smalt_smem_map": (_Bytes, (*_Input, ctypes.POINTER(_Bytes))),
    "smalt_reported": (_Bytes, (*_Input, ctypes.POINTER(_Bytes))),
    "smalt_machines": (_Bytes, (ctypes.POINTER(_Bytes),)),
    "smalt_target_of": (_Bytes, (ctypes.c_uint32, ctypes.c_uint32, ctypes.POINTER(_Bytes))),
    "smalt_doctor": (_Bytes, (ctypes.POINTER(_Bytes),)),
    "smalt_cache_stats": (_Bytes, (ctypes.POINTER(_Bytes),)),
}


def candidates() -> list[pathlib.Path]:
    """Where the library is looked for, in order: SMALT_LIBRARY, the package, a source tree's builds (newest first)."""
    if override := os.environ.get("SMALT_LIBRARY"):
        return [pathlib.Path(override)]
    package = pathlib.Path(__file__).resolve().parent
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or package.parent.parent / "target")
    builds = [target / profile / _NAME for profile in ("dist", "release", "debug")]
    built = sorted((b for b in builds if b.is_file()), key=lambda b: b.stat().st_mtime, reverse=True)
    return [package / _NAME, *built]


@functools.cache
def library() -> ctypes.CDLL:
    """The library, loaded once. Raises NotInstalled with every place that was tried."""
    path = next((c for c in candidates() if c.is_file()), None)
    if path is None:
        tried = "".join(f"\n    {c}" for c in candidates())
        raise _missing("the native library is not there", f"a file at one of{tried}", "none of them")
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as e:
        raise _missing(f"the native library at {path} cannot be loaded", f"a library for {platform.machine()}", str(e)) from e
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name, None)
        if function is None:
            raise _missing(f"the native library at {path} is another version's", f"one that has {name}", "one that lacks it")
        function.restype, function.argtypes = result, arguments
    if (version := lib.smalt_capi_version()) != CAPI_VERSION:
        wanted, got = f"version {CAPI_VERSION} of its interface", f"version {version}"
        raise _missing(f"the native library at {path} is another version's", wanted, got)
    packages = json.dumps([p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]).encode()
    _check(lib, lib.smalt_set_packages(packages, len(packages)))
    lib.smalt_set_stdout(_WRITE)
    # Threads of the library outlive the interpreter.
    atexit.register(lib.smalt_set_stdout, _Write())
    return lib


def _missing(what: str, expected: str, got: str) -> _errors.NotInstalled:
    if "SMALT_LIBRARY" in os.environ:
        remedy = "unset SMALT_LIBRARY, or name a library that `make build` made from this version"
    else:
        remedy = "pip install smalt anew; in a source tree: make build"
    return _errors.NotInstalled(f"smalt: {what}\n  expected: {expected}\n  got: {got}\n  remedy: {remedy}")


def _write(text: int, length: int) -> bool:
    """Writes what a kernel prints; the library does if this cannot."""
    try:
        sys.stdout.write(ctypes.string_at(text, length).decode())
    except Exception:  # closed, or none: nothing of Python may pass through the library
        return False
    return True


_WRITE = _Write(_write)


def library_path() -> pathlib.Path:
    return pathlib.Path(library()._name)


def version() -> str:
    text: bytes = library().smalt_version()
    return text.decode()


def _take(lib: ctypes.CDLL, owned: _Bytes) -> bytes:
    try:
        return ctypes.string_at(owned.data, owned.len) if owned.len else b""
    finally:
        lib.smalt_free(owned)


def _check(lib: ctypes.CDLL, result: _Bytes) -> None:
    if error := _take(lib, result):
        report = _parsed("an error", error)
        if report["fault"] == "Interrupted":
            raise_kept()
        raise _errors.of_report(report)


def raise_kept() -> None:
    """Raises what the handler of a signal raised while the main thread was in a run, if one did."""
    # With the interpreter's lock: ctypes raises the error that the function sets.
    function = ctypes.PyDLL(str(library_path())).smalt_raise_kept
    function.restype = None
    function()


@contextlib.contextmanager
def waiting_for_runs() -> Iterator[None]:
    """The main thread waits for runs of the emulator in the interpreter: if a handler of a signal raises here, they end."""
    lib = library()
    lib.smalt_wait_for_runs(1)
    try:
        yield
    except BaseException:
        lib.smalt_end_runs()
        raise
    finally:
        lib.smalt_wait_for_runs(0)


def _answer(lib: ctypes.CDLL, function: Callable[..., _Bytes], *arguments: Any) -> bytes:
    """What a function of the C API writes to its last parameter."""
    out = _Bytes()
    _check(lib, function(*arguments, ctypes.byref(out)))
    return _take(lib, out)


def _parsed(what: str, text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as e:
        raise _errors.Internal(f"smalt: internal error of smalt (please report it): {what} of the library is no JSON: {e}") from e


class ExtraOperands(NamedTuple):
    """What a kernel's launch needs besides its operands."""

    #: Sizes of zeroed scratch buffers, in bytes.
    scratch: Sequence[int]
    #: Whether the device's position in its mesh follows, a `u32[]`.
    position: bool
    #: Whether the host reads something behind each launch: then no CUDA graph may record it.
    is_read: bool


class Artifact:
    """A compiled kernel. Alive as long as this object; executables hold their own reference."""

    def __init__(self, lib: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._lib = lib
        self._handle = handle

    def __del__(self) -> None:
        self._lib.smalt_release(self._handle)

    def report(self) -> dict[str, Any]:
        """Everything about the kernel: launch, buffers, phases, and registers, spills and warnings once assembled."""
        report: dict[str, Any] = _parsed("a report", _answer(self._lib, self._lib.smalt_report, self._handle))
        return report

    @property
    def extra_operands(self) -> ExtraOperands:
        """What the caller passes after the kernel's own operands."""
        launch = self.report()["launch"]
        is_read = any(reads in launch for reads in ("printer", "profile", "gives_up"))
        return ExtraOperands([scratch["bytes"] for scratch in launch["scratch"]], "mesh" in launch, is_read)

    @property
    def ptx(self) -> str:
        return _answer(self._lib, self._lib.smalt_ptx, self._handle).decode()

    def assemble(self) -> bytes | None:
        """The cubin; None where there is no assembler but the driver's."""
        return _answer(self._lib, self._lib.smalt_assemble, self._handle) or None

    def assemble_in_background(self) -> None:
        _check(self._lib, self._lib.smalt_assemble_in_background(self._handle))

    def run(self, buffers: Sequence[Any], device: int | None = None) -> dict[str, Any]:
        """Runs on NumPy arrays, in place, in the launch's numbering; in the emulator, or on GPU `device`.

        The arrays must be C-contiguous, writable and distinct, and as large as the kernel's buffers.
        """
        return self._run(buffers, -1 if device is None else device, 0)

    def measure(self, buffers: Sequence[Any], device: int = 0, batch: int = 100) -> dict[str, Any]:
        """Times 10 * `batch` launches on a GPU; the arrays stay as they are."""
        return self._run(buffers, device, batch)

    def emulate(
        self,
        buffers: Sequence[Any],
        schedule: str = "latest",
        seed: int = 0,
        threads: int = 0,
        check: str | None = None,
    ) -> dict[str, Any]:
        """Runs in the emulator as `run` does, under a schedule: latest, earliest or seeded; on that many host threads.

        `check` is that of `smalt.emulated`.
        """
        options = {"schedule": schedule, "seed": seed, "threads": threads, "check": check}
        text = json.dumps(options).encode()
        answer = _answer(self._lib, self._lib.smalt_emulate, self._handle, *_pointers(buffers), text, len(text))
        report: dict[str, Any] = _parsed("a run's report", answer)
        return report

    def run_at(self, buffers: Sequence[tuple[int, int]]) -> None:
        """Runs in the emulator on memory at these addresses, of these sizes, in the launch's numbering."""
        count = len(buffers)
        data = (ctypes.c_void_p * count)(*(at for at, _ in buffers))
        sizes = (ctypes.c_size_t * count)(*(size for _, size in buffers))
        _answer(self._lib, self._lib.smalt_run, self._handle, -1, count, data, sizes, 0)

    def _run(self, buffers: Sequence[Any], device: int, batch: int) -> dict[str, Any]:
        answer = _answer(self._lib, self._lib.smalt_run, self._handle, device, *_pointers(buffers), batch)
        report: dict[str, Any] = _parsed("a run's report", answer)
        return report


class CallSite:
    """A place where a kernel is launched on another library's streams."""

    def __init__(self, descriptor: bytes, debug: bytes, target: str, operands: Sequence[int], results: Sequence[int]) -> None:
        """`operands`, `results`: sizes in bytes, scratch behind the others: the same memory as operand and as result."""
        self._lib = library()
        self._handle = _Handle()
        name = target.encode()
        arguments = (descriptor, len(descriptor), debug, len(debug), name, len(name))
        _check(self._lib, self._lib.smalt_call_site(*arguments, ctypes.byref(self._handle)))
        self._operands = len(operands)
        self._array = ctypes.c_size_t * (len(operands) + len(results))
        self._sizes = self._array(*operands, *results)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.smalt_release_call_site(self._handle)

    def launch(self, device: int, stream: int, operands: Sequence[int], results: Sequence[int]) -> None:
        """Queues the kernel on memory at these addresses, which lives until the stream has come to its end. The device's context is current."""
        addresses = self._array(*operands, *results)
        error = self._lib.smalt_launch(self._handle, device, stream, self._operands, len(addresses), addresses, self._sizes)
        _check(self._lib, error)


def _pointers(buffers: Sequence[Any]) -> tuple[int, Any, Any]:
    """Count, addresses and sizes of arrays, as the C API takes them."""
    for index, buffer in enumerate(buffers):
        if not (buffer.flags.c_contiguous and buffer.flags.writeable):
            raise ValueError(f"buffer {index} of a run: expected a C-contiguous, writable array")
    count = len(buffers)
    data = (ctypes.c_void_p * count)(*(b.ctypes.data for b in buffers))
    return count, data, (ctypes.c_size_t * count)(*(b.nbytes for b in buffers))


def compile(descriptor: bytes, debug: bytes, target: str, options: dict[str, Any] | None = None) -> Artifact:
    """Compiles a descriptor, or finds it in the process's cache."""
    lib = library()
    text = json.dumps({"target": target, **(options or {})}).encode()
    handle = _Handle()
    arguments = (descriptor, len(descriptor), debug, len(debug), text, len(text))
    _check(lib, lib.smalt_compile(*arguments, ctypes.byref(handle)))
    return Artifact(lib, handle)


def show(descriptor: bytes, debug: bytes, target: str, options: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    """(pass, text) after each pass, from "import" to "print", whose text is the PTX; compiles anew."""
    lib = library()
    text = json.dumps({"target": target, **(options or {})}).encode()
    answer = _answer(lib, lib.smalt_show, descriptor, len(descriptor), debug, len(debug), text, len(text))
    return [(name, shown) for name, shown in _parsed("the passes", answer)]


def from_ptx(
    name: str, ptx: str, launch: dict[str, Any], buffers: list[dict[str, Any]], target: str, debug: bytes = b""
) -> Artifact:
    """An artifact of PTX text; see `PtxKernel` in src/capi/mod.rs."""
    lib = library()
    kernel = {"name": name, "ptx": ptx, "launch": launch, "buffers": buffers, "target": target, "debug": list(debug)}
    text = json.dumps(kernel).encode()
    handle = _Handle()
    _check(lib, lib.smalt_from_ptx(text, len(text), ctypes.byref(handle)))
    return Artifact(lib, handle)


def look_for_assembler() -> None:
    """On another thread: a kernel for a GPU will soon be compiled."""
    library().smalt_look_for_assembler()


@functools.cache
def set_directory(answer: Callable[[dict[str, Any]], Any]) -> object:
    """Registers `answer` for queries about a job of several processes, from any thread; the result must live as long as the process."""
    lib = library()

    def ask(request: int, length: int, sink: int) -> None:
        try:
            reply = {"answer": answer(json.loads(ctypes.string_at(request, length)))}
        except Exception as e:  # the library raises it where the kernel runs
            reply = {"error": f"{type(e).__name__}: {e}"}
        text = json.dumps(reply).encode()
        lib.smalt_directory_answer(sink, text, len(text))

    callback = _Ask(ask)
    lib.smalt_set_directory(callback)
    return callback


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a kernel is compiled for, e.g. `sm_90a`: a row of `src/target/machines.rs`."""

    name: str
    capability: tuple[int, int]
    features: tuple[str, ...]  # as in `src/target/features.rs`, in lower case
    shared_memory: int  # bytes that one block may have
    producers: bool  # whether warps that only copy give their registers to others
    status: str  # how far what is compiled for it was tried


@functools.cache
def machines() -> dict[str, Machine]:
    """Those that smalt compiles for, by name, the earliest first."""
    lib = library()
    rows = _parsed("the machines", _answer(lib, lib.smalt_machines))
    return {
        name: Machine(name, tuple(row["capability"]), tuple(row["features"]), row["shared_memory"], row["producers"], row["status"])
        for name, row in sorted(rows.items(), key=lambda item: (item[1]["capability"], item[0]))
    }


@functools.cache
def target_of(capability: tuple[int, int]) -> str:
    """The machine to compile for where a device of this compute capability runs it."""
    lib = library()
    return _answer(lib, lib.smalt_target_of, *capability).decode()


def doctor() -> dict[str, Any]:
    lib = library()
    report: dict[str, Any] = _parsed("the doctor's report", _answer(lib, lib.smalt_doctor))
    return report


def cache_stats() -> dict[str, int]:
    lib = library()
    stats: dict[str, int] = _parsed("the cache's state", _answer(lib, lib.smalt_cache_stats))
    return stats


def set_trace(path: str | None) -> None:
    """Where runs in the emulator are traced to; None: by SMALT_TRACE."""
    lib, text = library(), (path or "").encode()
    _check(lib, lib.smalt_set_trace(text, len(text)))


def lowered_profile(hash: str, folder: str) -> None:
    """This process has lowered the kernel of this hash, whose profiles go to `folder`: an artefact alone chooses no folder."""
    lib, text = library(), json.dumps({"hash": hash, "folder": folder}).encode()
    _check(lib, lib.smalt_lowered_profile(text, len(text)))


def layout_map(layout: dict[str, Any], shape: Sequence[int] | None, dtype: str | None) -> dict[str, Any]:
    """Which thread holds which element; see src/runtime/layout_map.rs."""
    lib, text = library(), json.dumps({"layout": layout, "shape": shape, "dtype": dtype}).encode()
    found: dict[str, Any] = _parsed("a layout's map", _answer(lib, lib.smalt_layout_map, text, len(text)))
    return found


def smem_map(shape: Sequence[int], dtype: str, tiling: Sequence[int], swizzle: int) -> dict[str, Any]:
    """Where each element of a buffer in shared memory lies; see src/runtime/smem_map.rs."""
    query = {"shape": shape, "dtype": dtype, "tiling": tiling, "swizzle": swizzle}
    lib, text = library(), json.dumps(query).encode()
    found: dict[str, Any] = _parsed("a buffer's map", _answer(lib, lib.smalt_smem_map, text, len(text)))
    return found


def is_loaded() -> bool:
    return library.cache_info().currsize > 0


def reported(text: str) -> dict[str, Any] | None:
    """The error of a run that was reported to XLA with a message that stands in `text`; None if there is none."""
    lib, message = library(), text.encode()
    answer = _answer(lib, lib.smalt_reported, message, len(message))
    return _parsed("an error", answer) if answer else None


def xla_handler(number: int) -> int:
    """The address of an XLA FFI handler; see `smalt_xla_handler` in src/ffi/handlers.rs."""
    function = getattr(library(), "smalt_xla_handler", None)
    if function is None:
        raise _missing(f"the native library at {library_path()} cannot be called by XLA", "one built with feature xla-ffi", "one without it")
    function.restype, function.argtypes = ctypes.c_size_t, (ctypes.c_uint32,)
    address: int = function(number)
    return address
