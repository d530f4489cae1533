"""The command of a Python process that finds its modules where this one does.

A program may have found them by what it has put into `sys.path`, as launchers and notebooks do: neither `-m` nor an inherited environment
gives that to a child process.
"""

from __future__ import annotations

import os
import sys

_CODE = "import sys; sys.path[:] = {path!a}; from importlib import import_module; import_module(sys.argv.pop(1)).main()"


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `main()` of a module in a Python process of its own, with the modules of this program.

    `main` finds the arguments in `sys.argv[1:]`. Entries of `sys.path` become absolute: the process may have another working directory.
    """
    return [sys.executable, "-P", "-c", _CODE.format(path=_absolute(import_path())), module, *arguments]


def import_path() -> list[str]:
    """`sys.path` without what is no text, such as a `Path`: imports pass over that."""
    return [entry for entry in sys.path if isinstance(entry, str)]  # pyright: ignore[reportUnnecessaryIsInstance]


def _absolute(path: list[str]) -> list[str]:
    """The working directory, which is an empty entry, is the last: no file that lies around there is taken for a library."""
    try:
        here = os.getcwd()
    except OSError:  # it was deleted, and with it all that is relative to it
        return [entry for entry in path if os.path.isabs(entry)]
    return [*(os.path.join(here, entry) for entry in path if entry), *[here] * ("" in path)]
