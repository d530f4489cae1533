"""Brings the native module of the editable install up to date with its Rust sources.

Creating the environment builds it once; this is cargo finding out that nothing changed, or compiling what did. The profile and the
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
