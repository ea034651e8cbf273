"""Builds smalt's wheel (PEP 517, PEP 660): the Python package and the native library. Needs nothing but Python and Rust.

The library links to no Python, so that one wheel serves every Python; it is tagged for the platform alone. SMALT_LIBRARY
names a library that is already built; otherwise `cargo build --profile dist` makes one.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "jax_plugin" / "smalt"
LIBRARY = "libsmalt.dylib" if platform.system() == "Darwin" else "libsmalt.so"


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _name() -> str:
    project = _project()
    return f"{project['name']}-{project['version']}"


def _tag() -> str:
    return f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _metadata() -> str:
    project = _project()
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Summary: {project['description']}", f"Requires-Python: {project['requires-python']}"]
    lines.append(f"License-Expression: {project['license']}")
    lines += [f"License-File: {file}" for file in project["license-files"]]
    lines += [f"Requires-Dist: {requirement}" for requirement in project["dependencies"]]
    lines.append("Description-Content-Type: text/markdown")
    return "\n".join(lines) + "\n\n" + (ROOT / "README.md").read_text()


def _headers() -> pathlib.Path | None:
    """XLA's headers, if they are here."""
    given = os.environ.get("SMALT_XLA_FFI_INCLUDE_DIR")
    fetched = ROOT / "build" / "jaxlib-0.10.2" / "jaxlib" / "include"
    return pathlib.Path(given) if given else fetched if fetched.is_dir() else None


def _library() -> pathlib.Path:
    if given := os.environ.get("SMALT_LIBRARY"):
        if not pathlib.Path(given).is_file():
            raise SystemExit(f"SMALT_LIBRARY: {given} is not there")
        return pathlib.Path(given)
    if shutil.which("cargo") is None:
        raise SystemExit("smalt's wheel needs Rust (https://rustup.rs), or SMALT_LIBRARY, a library that is already built")
    include = _headers() or subprocess.check_output([sys.executable, ROOT / "scripts/xla_headers.py"], text=True).strip()
    environment = dict(os.environ, SMALT_XLA_FFI_INCLUDE_DIR=str(include))
    subprocess.run(["cargo", "build", "--profile", "dist", "--lib"], cwd=ROOT, env=environment, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "dist" / LIBRARY


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """pip itself, where scripts/xla_headers.py will have to fetch the headers."""
    return [] if os.environ.get("SMALT_LIBRARY") or _headers() else ["pip"]


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    return []


def _write_wheel(folder: str, files: dict[str, bytes]) -> str:
    info = f"{_name()}.dist-info"
    files = dict(files)
    files[f"{info}/METADATA"] = _metadata().encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: smalt\nRoot-Is-Purelib: false\nTag: {_tag()}\n".encode()
    for file in _project()["license-files"]:
        files[f"{info}/licenses/{file}"] = (ROOT / file).read_bytes()
    rows = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}")
    rows.append(f"{info}/RECORD,,")
    files[f"{info}/RECORD"] = ("\n".join(rows) + "\n").encode()
    wheel = f"{_name()}-{_tag()}.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)  # of a fixed date: equal inputs give equal wheels
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith((".so", ".dylib")) else 0o644) << 16
            archive.writestr(entry, data)
    return wheel


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    files = {f"smalt/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes() for path in sorted(PACKAGE.rglob("*.py"))}
    files["smalt/py.typed"] = b""
    files[f"smalt/{LIBRARY}"] = _library().read_bytes()
    return _write_wheel(wheel_directory, files)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    """The source tree on the path, with the library beside the package."""
    library = _library()
    if library.resolve() != (PACKAGE / LIBRARY).resolve():
        shutil.copyfile(library, PACKAGE / LIBRARY)
    return _write_wheel(wheel_directory, {"smalt.pth": f"{PACKAGE.parent}\n".encode()})


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Everything that git tracks."""
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT).decode().split("\0")
    archive = f"{_name()}.tar.gz"
    with tarfile.open(pathlib.Path(sdist_directory) / archive, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name in filter(None, tracked):
            tar.add(ROOT / name, f"{_name()}/{name}")
        data = _metadata().encode()
        info = tarfile.TarInfo(f"{_name()}/PKG-INFO")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return archive
