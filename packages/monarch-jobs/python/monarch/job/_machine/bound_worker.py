"""A worker that ends with the process that has started it: the kernel sends it SIGTERM. Its arguments: PID, and those of `monarch`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from monarch.extension import cli

# The number of PR_SET_PDEATHSIG.
_DEATH_SIGNAL = 1


def main() -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != int(sys.argv.pop(1)):
        sys.exit(1)
    cli.main()
