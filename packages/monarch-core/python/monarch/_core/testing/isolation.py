"""Runs one function in an interpreter of its own, for tests of process-wide state."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, TypeVar, cast

    P = ParamSpec("P")
    T = TypeVar("T")

_CODE = "import sys; sys.path[:] = {path!r}; from monarch._core.testing.isolation import main; main({task}, {answer})"


def isolated(function: Callable[P, T]) -> Callable[P, T]:
    """Makes a sync or async function run in a fresh interpreter, with the runtime configuration of this one, each time it is called.

    Its result, its exception and its output are passed back. `SystemExit` with the exit code if the interpreter ends without a result or
    with another code than 0 (128 + n after signal n). Arguments and result must pickle.
    """
    from functools import wraps

    from monarch._core.call.coroutine_function import is_coroutine_function

    if is_coroutine_function(function):

        @wraps(function)
        async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            import asyncio

            return await asyncio.to_thread(_run, function, args, kwargs)

        return run_async  # pyright: ignore[reportReturnType]

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return _run(function, args, kwargs)

    return run


def _run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    import subprocess
    import tempfile
    from typing import cast

    from monarch._core.config.config import get_runtime_config
    from monarch._core.pickle.pickling import dumps_in_band, loads
    from monarch._core.process.python_command import import_path

    with tempfile.TemporaryFile() as task, tempfile.TemporaryFile() as answer:
        task.write(dumps_in_band((_portable(function), args, kwargs, get_runtime_config())))
        task.flush()
        task.seek(0)
        code = _CODE.format(path=import_path(), task=task.fileno(), answer=answer.fileno())
        flags = cast("list[str]", subprocess._args_from_interpreter_flags())  # pyright: ignore
        done = subprocess.run(
            [sys.executable, *flags, "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=(task.fileno(), answer.fileno()),
            check=False,
        )
        sys.stdout.write(done.stdout.decode(errors="replace"))
        sys.stderr.write(done.stderr.decode(errors="replace"))
        answer.seek(0)
        found = answer.read()
    if done.returncode or not found:
        raise SystemExit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
    result, error = loads(found)
    if error is not None:
        from monarch._core.pickle.remote_exception import unpack_exception

        raise unpack_exception(error)
    return result


def _portable(function: Callable[..., Any]) -> Any:
    """The function itself if it is sent by value, else its module and name: by name alone, the wrapper would be found."""
    from monarch._core.pickle.reference import goes_by_value

    name = function.__qualname__
    if goes_by_value(function) or "<locals>" in name:
        return function
    return function.__module__, name


def main(task: int, answer: int) -> None:
    """The main function of the fresh interpreter."""
    import asyncio

    from monarch._core.call.coroutine_function import is_coroutine_function
    from monarch._core.config.config import configure
    from monarch._core.pickle.pickling import dumps_in_band, loads
    from monarch._core.pickle.remote_exception import pack_exception

    with open(task, "rb") as f:
        function, args, kwargs, settings = loads(f.read())
    os.set_inheritable(answer, False)
    configure(**settings)
    if isinstance(function, tuple):
        module, name = cast("tuple[str, str]", function) if TYPE_CHECKING else function
        function = _find(module, name)
    try:
        result = function(*args, **kwargs)
        if is_coroutine_function(function):
            result = asyncio.run(result)
        body = dumps_in_band((result, None))
    except Exception as e:
        body = dumps_in_band((None, pack_exception(e)))
    with open(answer, "wb") as f:
        f.write(body)


def _find(module: str, name: str) -> Any:
    from importlib import import_module

    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found.__wrapped__
