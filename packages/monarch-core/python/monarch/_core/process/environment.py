"""The machine and the environment that a process was started in."""

from __future__ import annotations

import os
from _thread import get_ident


def host_name() -> str:
    return os.uname().nodename


# Variables that an interpreter or its libraries read when they start: too late to set in a fork.
_START_VARIABLES = ("LD_", "PYTHON", "MALLOC_", "GLIBC_TUNABLES")


def start_variables() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k.startswith(_START_VARIABLES)}


def is_main_thread() -> bool:
    import threading

    return threading.main_thread().ident == get_ident()
