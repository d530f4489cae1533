"""The command of a Python process that finds its modules in the same places as this process.

A program may find modules by its changes to `sys.path`, as launchers and notebooks do: neither `-m` nor an inherited environment
passes these to a child process.
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
    """`sys.path` without entries that are no text, such as a `Path`: imports skip those."""
    return [entry for entry in sys.path if isinstance(entry, str)]  # pyright: ignore[reportUnnecessaryIsInstance]


def _absolute(path: list[str]) -> list[str]:
    """The paths as absolute ones. The working directory, which is an empty entry, comes last, so that no file in it hides a library."""
    try:
        here = os.getcwd()
    except OSError:  # the directory was deleted, and with it all directories relative to it
        return [entry for entry in path if os.path.isabs(entry)]
    return [*(os.path.join(here, entry) for entry in path if entry), *[here] * ("" in path)]
