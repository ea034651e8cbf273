#!/usr/bin/env bash
# venv.sh FOLDER PYTHON PACKAGE...: makes a virtual environment unless it is there with exactly these packages.
set -euo pipefail
folder=$1 python=$2
shift 2
stamp="$folder/.smalt-packages"
wanted="$("$python" --version) $* $(cat "$(dirname "$0")/../constraints/jax.txt")"
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0
echo "making $folder ($("$python" --version)): $*"
"$python" -m venv --clear "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
# ptxas and its kin come without the executable bit.
find "$folder" -path '*/nvidia/*/bin/*' -type f -exec chmod +x {} +
printf '%s' "$wanted" >"$stamp"
