"""The main function of an interpreter that an agent starts by a command: a proc, or an interpreter from which procs are forked."""

from __future__ import annotations

import os
import sys

from monarch._core.start import proc_main


def run_proc() -> None:
    """Runs the proc that a host starts with this interpreter, and ends the interpreter with the proc's exit code.

    It is the program of a `BootstrapCommand` with arguments of its own. `SystemExit` with a text where no host started the interpreter.

    >>> run_proc()
    Traceback (most recent call last):
    SystemExit: no host started this process: MONARCH_PROC_FDS is not set
    """
    main()


def main(wanted: tuple[int, int] | None = None, own: tuple[list[str], frozenset[str]] = ([], frozenset())) -> None:
    """Entry of a proc that was started by a command, or of a preloaded interpreter.

    `wanted` is the minor version of Python that the process must have, `own` the import path of the interpreter itself and the modules
    that it has at its start.
    """
    if wanted is not None:
        proc_main.check_python(wanted)
    if proc_main.PRELOAD_VARIABLE in os.environ:
        from monarch._core.start import preloader

        sys.exit(proc_main.run(*preloader.main(*own)))
    given = os.environ.pop(proc_main.FDS_VARIABLE, None)
    if given is None:
        sys.exit(f"no host started this process: {proc_main.FDS_VARIABLE} is not set")
    link, setup = (int(fd) for fd in given.split(","))
    with open(setup, "rb") as f:
        body = f.read()
    os.set_inheritable(link, False)
    sys.exit(proc_main.run(body, link, forked=False))
