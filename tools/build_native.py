"""Brings the native module of the editable install up to date with its Rust sources.

The creation of the environment builds it once. This command lets cargo check for changes and compile them. The profile and the
target folder are those of the wheel and of `cargo test`, so nothing is compiled twice.
"""

from __future__ import annotations

import subprocess
import sys

from tools.project import CORE


def main() -> int:
    argv = ["maturin", "develop", "--skip-install", "--release", "--locked", "--quiet"]
    return subprocess.run(argv, cwd=CORE, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
