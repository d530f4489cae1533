#!/usr/bin/env bash
# Makes the two environments that bench/run.sh compares, under bench/.venvs: `ours` (the wheels in dist/, built if there are none) and
# `reference` (torchmonarch 0.7.0 from the package index, and pyzmq for the floors). Existing ones are kept, except that our wheels are
# always installed anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
venvs=bench/.venvs

make() {
    [ -x "$venvs/$1/bin/python" ] || "$python" -m venv --without-pip "$venvs/$1"
}
install() {
    local target=$1
    shift
    "$python" -m pip --disable-pip-version-check --python "$venvs/$target/bin/python" install --quiet "$@"
}

compgen -G 'dist/*.whl' >/dev/null || "$python" -m tools.build_wheels
make ours
install ours numpy
# Without monarch-tensor: it brings PyTorch.
mapfile -t wheels < <(ls dist/*.whl | grep -v /monarch_tensor-)
install ours --force-reinstall --no-deps "${wheels[@]}"
install ours "${wheels[@]}"
make reference
install reference torchmonarch==0.7.0 numpy pyzmq
