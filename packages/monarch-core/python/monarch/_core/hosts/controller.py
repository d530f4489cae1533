"""Controllers: one actor per job and name, in the client's process. The client keeps the table."""

from __future__ import annotations

import marshal
from _thread import allocate_lock

from monarch._core._native.protocol import ERROR, FIRST_ERROR
from monarch._core.call.actor import actor_class, class_name
from monarch._core.call.actor_mesh import check_names
from monarch._core.call.arguments import check_arguments
from monarch._core.call.future import Future, new_future
from monarch._core.process.current import current_process
from monarch._core.process.process import CONTROLLER, LocalProcess
from monarch._core.process.request_fields import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, TypeVar

    from monarch._core._native import PendingCall
    from monarch._core.call.actor_mesh import ActorMesh

    P = ParamSpec("P")
    T = TypeVar("T")


_lock = allocate_lock()
_MAIN = frozenset({"__main__", "__mp_main__"})


def get_or_spawn_controller(name: str, Class: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """The controller of that name: one actor for the whole job. The client spawns it in its process if there is none; the root owns it.

    Args:
        name: the name by which all processes of the job find the actor.
        Class: a subclass of `Actor`.
        *args: positional arguments of its `__init__`; not used if the controller exists.
        **kwargs: its keyword arguments.

    Returns:
        A Future of the handle.

    Raises:
        ValueError: the class cannot be spawned.
        TypeError: the arguments do not fit `__init__`; from the Future: the controller exists, and its class is neither `Class` nor a
            subclass. Classes are compared by name, so a class that a notebook has defined again is the same.
        ActorError: from the Future: the controller has failed; the text begins with `Failure on {name}`.

    ```python
    from monarch.actor import Actor, endpoint, get_or_spawn_controller

    class Registry(Actor):
        def __init__(self) -> None:
            self.names: list[str] = []

        @endpoint
        def add(self, name: str) -> int:
            self.names.append(name)
            return len(self.names)

    first = get_or_spawn_controller("registry", Registry).get()
    again = get_or_spawn_controller("registry", Registry).get()
    assert [first.add.call_one("a").get(), again.add.call_one("b").get()] == [1, 2]
    ```
    """
    from monarch._core.pickle.actor_class import dumps_class
    from monarch._core.pickle.pickling import dumps_in_band

    check_names(actor_class(Class), Class)  # pyright: ignore
    check_arguments(Class.__init__, 1, args, kwargs, Class.__qualname__)  # pyright: ignore
    process = current_process()
    named = (name, Class.__module__, Class.__qualname__)  # pyright: ignore
    request = marshal.dumps((*named, dumps_class(Class), dumps_in_band((args, kwargs))))  # pyright: ignore
    cell = process.native.cell(FIRST_ERROR, 1, [process.peers.job])
    process.native.request(process.peers.job, CONTROLLER, request, cell.slot)
    return new_future(cell, lambda c: _result(c, name))


def _result(cell: PendingCall, name: str) -> Any:
    from monarch._core.call.answer import endpoint_error
    from monarch._core.errors.errors import ActorError

    error = cell.error()
    if error is not None:
        if error.status == ERROR:
            found = endpoint_error(error, name, "get_or_spawn_controller")
            if not isinstance(found, ActorError):
                raise found
            found.args = (str(found.exception),)
            found.message = str(found.exception).split("\n", 1)[0]  # the rest is in the traceback
            raise found
        raise RuntimeError(f"the client that keeps controller {name} is gone")
    result = cell.result(0)
    assert result is not None
    from monarch._core.pickle.pickling import loads

    return loads(result.raw())


def handle_request(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    """Handles a look-up, on the client's housekeeping thread."""
    from monarch._core.pickle.pickling import dumps_in_band

    name, module, qualname, payload, arguments = fields(body, str, str, str, bytes, bytes)
    try:
        found = _find_or_spawn(process, name, payload, arguments)
        _check_class(name, found.actor_class, module, qualname)
    except _OtherClass as e:
        from monarch._core.call.answer import pack_plain_error

        process.native.reply(sender, slot, 0, ERROR, pack_plain_error(TypeError(str(e))))
        return
    except Exception as e:
        from monarch._core.call.answer import pack_error

        process.native.reply(sender, slot, 0, ERROR, pack_error(e, "<root>", process.pid, process.host))
        return
    process.native.reply(sender, slot, 0, 0, dumps_in_band(found))


class _OtherClass(Exception):
    """The controller is an actor of another class than the caller has named."""


def _check_class(name: str, cls: type, module: str, qualname: str) -> None:
    """Raises `_OtherClass` if neither the class of the controller nor one of its bases has this name.

    The script of the client is `__main__` there, and has another name in a process that imports it.
    """
    for base in cls.__mro__:
        if base.__qualname__ == qualname and (base.__module__ == module or _MAIN & {base.__module__, module}):
            return
    expected = f"{module}.{qualname}".replace("<locals>.", "")
    raise _OtherClass(f"controller {name!r} is an actor of class {class_name(cls)}, not of {expected}")


def _find_or_spawn(process: LocalProcess, name: str, payload: bytes, arguments: bytes) -> ActorMesh:
    from monarch._core.hosts.proc_set import own_proc_set
    from monarch._core.pickle.actor_class import loads_class
    from monarch._core.pickle.pickling import loads

    with _lock:
        found = process.controllers.get(name)
        if found is None:
            args, kwargs = loads(arguments)
            found = process.controllers[name] = own_proc_set(process).spawn(name, loads_class(payload), args, kwargs)
            # Callers that look up a failed controller get its failure; no other process is notified.
            process.meshes.supervision.disown(found.__core__.info.uid)
    failure = found.__core__.failure()
    if failure is not None:
        from monarch._core.errors.text import fill

        raise RuntimeError(fill("controller_failed", name=name, failure=failure.report()))
    return found
