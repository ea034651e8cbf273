"""Prints the folder with the XLA FFI headers of the oldest jaxlib that smalt supports, fetching them once.

The library runs on the jaxlib that it was built against and on newer ones, never on older ones, so that releases are
built against the oldest. The headers come out of jaxlib's wheel; nothing is installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import zipfile

OLDEST = "0.10.2"
FOLDER = pathlib.Path(__file__).resolve().parent.parent / "build" / f"jaxlib-{OLDEST}"
PREFIX = "jaxlib/include/"


def installed() -> pathlib.Path | None:
    try:
        if importlib.metadata.version("jaxlib") != OLDEST:
            return None
    except importlib.metadata.PackageNotFoundError:
        return None
    spec = importlib.util.find_spec("jaxlib")
    assert spec is not None and spec.submodule_search_locations
    return pathlib.Path(spec.submodule_search_locations[0]) / "include"


def fetched() -> pathlib.Path:
    include = FOLDER / PREFIX
    if not (include / "xla/ffi/api/ffi.h").is_file():
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            wheel = ["--only-binary=:all:", "--python-version=3.11", f"--dest={folder}", f"jaxlib=={OLDEST}"]
            subprocess.run([*pip, *wheel], check=True)
            (file,) = pathlib.Path(folder).glob("*.whl")
            with zipfile.ZipFile(file) as archive:
                names = [n for n in archive.namelist() if n.startswith(PREFIX + "xla/ffi/")]
                archive.extractall(FOLDER, names)
    return include


if __name__ == "__main__":
    print(installed() or fetched())
