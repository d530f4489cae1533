"""The machine and the environment that a process was started in."""

from __future__ import annotations

import os
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def host_name() -> str:
    return os.uname().nodename


# Prefixes of variables that an interpreter or its libraries read when they start: a fork sets them too late.
_START_VARIABLES = ("LD_", "PYTHON", "MALLOC_", "GLIBC_TUNABLES")


def is_start_variable(name: str) -> bool:
    return name.startswith(_START_VARIABLES)


def changed(changes: Mapping[str, str | None] | None) -> dict[str, str]:
    """The environment of this process after changes, if there are any; None removes a variable."""
    if not changes:
        return dict(os.environ)
    return {name: value for name, value in {**os.environ, **changes}.items() if value is not None}


def native_variables() -> dict[str, str]:
    """The variables of this process without those that are not UTF-8, which native code does not take. A spawn sends these to the procs."""
    return {name: value for name, value in os.environ.items() if _is_utf8(name) and _is_utf8(value)}


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def start_variables(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The start variables of this process, after changes if there are any."""
    return {name: value for name, value in changed(changes).items() if is_start_variable(name)}


def not_for_kernel(text: str) -> str:
    """The reason why the text cannot be a word of a command or a variable of the environment; empty if it can."""
    if "\0" in text:
        return "it has a null character"
    try:
        os.fsencode(text)
    except UnicodeEncodeError as e:
        return f"it has a surrogate at position {e.start}, which cannot be encoded"
    return ""


def is_main_thread() -> bool:
    import threading

    return threading.main_thread().ident == get_ident()
