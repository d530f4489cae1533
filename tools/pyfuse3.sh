#!/usr/bin/env bash
# Installs pyfuse3, the other back end of monarch-fs, into the environment of a Python: it is built from source, with Debian's packages.
#
#     tools/pyfuse3.sh PYTHON
#
# Nothing is done where it is installed. Where it cannot be built, the tests of that back end are left out, and say so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1
"$python" -c 'import pyfuse3' >/dev/null 2>&1 && exit 0
bash tools/system_packages.sh fuse
"$python" -m pip --disable-pip-version-check install --quiet 'pyfuse3>=3.3'
