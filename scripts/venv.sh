#!/usr/bin/env bash
# venv.sh FOLDER PYTHON PACKAGE...: makes a virtual environment unless it is there with exactly these packages.
#
# By uv, which build/ keeps and which takes a tenth of pip's time; where that cannot be had, by pip.
set -euo pipefail
folder=$1 python=$2
shift 2
root=$(cd "$(dirname "$0")/.." && pwd)
stamp="$folder/.smalt-packages"
wanted="$("$python" --version) $* $(cat "$root/constraints/jax.txt")"
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0
echo "making $folder ($("$python" --version)): $*"
uv=$(command -v uv || echo "$root/build/uv/bin/uv")
if [ ! -x "$uv" ]; then
  "$python" -m pip install --quiet --disable-pip-version-check --target "$root/build/uv" uv >/dev/null 2>&1 || true
fi
rm -rf "$folder"
if [ -x "$uv" ]; then
  "$uv" venv --quiet --seed --python "$python" "$folder"
  "$uv" pip install --quiet --python "$folder/bin/python" "$@"
else
  "$python" -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
fi
# ptxas and its kin come without the executable bit.
find "$folder" -path '*/nvidia/*/bin/*' -type f -exec chmod +x {} +
printf '%s' "$wanted" >"$stamp"
