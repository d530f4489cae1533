#!/usr/bin/env bash
# Installs pyfuse3 into the environment of a Python, from a wheel that is built with Debian's packages into dist/.
#
#     tools/pyfuse3.sh PYTHON
#
# Nothing is done where it is installed. Where it cannot be built, the tests of that back end are left out, and say so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1
"$python" -c 'import pyfuse3' >/dev/null 2>&1 && exit 0
"$python" -m tools.build_pyfuse3
"$python" -m pip --disable-pip-version-check install --quiet dist/pyfuse3-*.whl
