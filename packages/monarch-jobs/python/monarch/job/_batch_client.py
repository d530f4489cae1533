"""Becomes the script of a batch job once it may begin: `python -m monarch.job._batch_client DESCRIPTOR SCRIPT`.

The script looks for the state file, which names the script's process; a byte on the descriptor says that the file is there.
"""

from __future__ import annotations

import os
import sys


def main(arguments: list[str]) -> int:
    gate, script = int(arguments[0]), arguments[1]
    begun = os.read(gate, 1)
    os.close(gate)
    if not begun:
        return 1  # who started it failed or died before
    os.execv(sys.executable, [sys.executable, script])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
