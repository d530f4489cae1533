"""The first module of a rank's process: it runs the program as the interpreter would, and keeps the exception that ends it.

    python -u start_program.py KIND PROGRAM [arguments]

It imports nothing of Monarch, since every rank waits for it. The exception goes into the file that TORCHELASTIC_ERROR_FILE names, in the
format of torchelastic. A program that writes this file itself, as one with `@record` does, keeps its own. The signal `STACKS` has the
stacks of all threads written into the file that `MONARCH_SPMD_STACKS` names. `breakpoint()` asks at the socket of `MONARCH_SPMD_DEBUGGER`.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import Any

# A real-time signal, which programs do not use: they use SIGUSR1 and SIGUSR2 for checkpoints.
STACKS = 45
STACKS_FILE = "MONARCH_SPMD_STACKS"
DEBUGGER = "MONARCH_SPMD_DEBUGGER"
# The files of the modules of `_BELOW_DEBUGGER`, separated by `os.pathsep`.
DEBUGGER_FILES = "MONARCH_SPMD_DEBUGGER_FILES"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_DEBUGGER_MODULE = "monarch.spmd.program_debugger"
_BELOW_DEBUGGER = ("monarch_thread_pdb", "monarch_channel")
_LONGEST_TRACEBACK, _LONGEST_MESSAGE = 64 << 10, 4 << 10


def main() -> None:
    kind, program = sys.argv[1:3]
    del sys.argv[:2]
    pid = os.getpid()
    _answer_with_stacks()
    _stop_at_breakpoints()
    try:
        _run(kind, program)
    except SystemExit:
        raise
    except KeyboardInterrupt as error:
        if os.getpid() == pid:
            _record(error, _of_program(error.__traceback__))
        # The interpreter prints it and ends by SIGINT, as without this file.
        raise
    except BaseException as error:
        error.__traceback__ = _of_program(error.__traceback__)
        if os.getpid() == pid:
            _record(error, error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _answer_with_stacks() -> None:
    path = os.environ.pop(STACKS_FILE, None)
    if path is None:
        return
    import faulthandler

    # The file is open as long as the process lives.
    file = open(path, "wb", buffering=0)
    # From now on the signal ends nothing: its sender checks for this.
    faulthandler.register(STACKS, file=file)
    file.write(b"\n")


def _stop_at_breakpoints() -> None:
    address, files = os.environ.pop(DEBUGGER, None), os.environ.pop(DEBUGGER_FILES, None)
    if address is None or files is None or sys.breakpointhook is not sys.__breakpointhook__:
        return

    def stop(*args: Any, **options: Any) -> Any:
        chosen = os.environ.get("PYTHONBREAKPOINT", "")
        if chosen == "0":
            return None
        if chosen not in ("", "pdb.set_trace"):
            return sys.__breakpointhook__(*args, **options)
        # The last call of this frame: the debugger would stop in any later call.
        return _debugger(files).stop_at(sys._getframe(1), address, *args, **options)  # pyright: ignore[reportPrivateUsage]

    sys.breakpointhook = stop


def _debugger(files: str) -> ModuleType:
    """The module `program_debugger` of this folder, and those on which it is built, whatever `sys.path` has."""
    for name, path in zip(_BELOW_DEBUGGER, files.split(os.pathsep), strict=True):
        _module(name, path)
    return _module(_DEBUGGER_MODULE, os.path.join(os.path.dirname(__file__), "program_debugger.py"))


def _module(name: str, path: str) -> ModuleType:
    from importlib.util import module_from_spec, spec_from_file_location

    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        made = module_from_spec(spec)
        sys.modules[name] = made
        spec.loader.exec_module(made)
    return sys.modules[name]


def _run(kind: str, program: str) -> None:
    if kind == "module":
        from runpy import _run_module_as_main  # pyright: ignore

        _find_first(os.getcwd())
        # `python -m` calls the same function: the module becomes `__main__` itself, so that its pickled objects can be found again.
        _run_module_as_main(program)
        return
    if kind == "path" or os.path.isdir(program) or _is_archive(program):
        import runpy

        runpy.run_path(program, run_name="__main__")
        return
    from importlib.machinery import SourceFileLoader

    _find_first(os.path.dirname(os.path.realpath(program)))
    # The interpreter does the same: the file is found even if the program changes its directory.
    program = os.path.abspath(program)
    with open(program, "rb") as file:
        code = compile(file.read(), program, "exec")
    space = sys.modules["__main__"].__dict__
    space.update(__loader__=SourceFileLoader("__main__", program), __file__=program, __cached__=None)
    exec(code, space)


def _is_archive(program: str) -> bool:
    if program.endswith(".py"):
        return False
    import zipimport

    try:
        zipimport.zipimporter(program)
    except zipimport.ZipImportError:
        return False
    return True


def _find_first(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """Without the frames before the program, those of this file and of `runpy`, and without those of the debugger at its end."""
    first = traceback
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if name != __file__ and not name.startswith("<frozen runpy") and not name.endswith("/runpy.py"):
            last = traceback
            while last.tb_next is not None:
                if last.tb_next.tb_frame.f_globals.get("__name__") == _DEBUGGER_MODULE:
                    last.tb_next = None
                    break
                last = last.tb_next
            return traceback
        traceback = traceback.tb_next
    return first


def _record(error: BaseException, traceback_: TracebackType | None) -> None:
    path = os.environ.get(ERROR_FILE)
    if not path or (os.path.exists(path) and os.path.getsize(path)):
        return
    import time

    # The time is taken before slow steps. The file's own time is that of the last tick of the kernel, milliseconds before.
    at = time.time()
    import json
    import traceback

    text = "".join(traceback.format_exception(type(error), error, traceback_))
    if len(text) > _LONGEST_TRACEBACK:
        # The first part has the line of the program, the end has the error.
        text = f"{text[: _LONGEST_TRACEBACK // 8].rpartition(chr(10))[0]}\n  ...\n{text[-_LONGEST_TRACEBACK // 2 :].partition(chr(10))[2]}"
    message = {
        "message": _line(error)[:_LONGEST_MESSAGE],
        "extraInfo": {"py_callstack": text, "timestamp": str(int(at)), "raised_at": at},
    }
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump({"message": message}, file)
    except OSError:  # a full disk: the text is in the output as well
        return


def _line(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = "<its text cannot be shown>"
    return f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__


if __name__ == "__main__":
    # `__main__` becomes the program's namespace: this file keeps its own functions in a module that the program does not see.
    sys.path.insert(0, os.path.dirname(__file__))
    import start_program  # pyright: ignore[reportMissingImports]

    del sys.path[0], sys.modules["start_program"]
    if not sys.flags.safe_path:
        del sys.path[0]
    # A new namespace, without names of this file.
    sys.modules["__main__"] = type(sys)("__main__")
    sys.modules["__main__"].__dict__.update(__builtins__=__builtins__, __annotations__={})
    start_program.main()  # pyright: ignore[reportUnknownMemberType]
