"""Programs of which each host has one: declared by a wheel, started by the agent of the host with the first use."""

from __future__ import annotations

import marshal
from time import monotonic

from monarch._core.call.actor import actor_class
from monarch._core.call.actor_mesh import ActorMesh, check_names
from monarch._core.call.actor_ranks import ActorRanks
from monarch._core.call.arguments import check_arguments
from monarch._core.call.received_mesh import mark_ended, reach
from monarch._core.call.runs import runs_of
from monarch._core.config.entry_points import BrokenEntry, load_entry

# The table is loaded early: an error is also made when the process can open no file.
from monarch._core.errors import table as _table  # noqa: F401  # pyright: ignore[reportUnusedImport]
from monarch._core.errors.extension import RequestError, ServiceError
from monarch._core.errors.text import fill
from monarch._core.extension.arguments import check_seconds
from monarch._core.extension.ids import HostId
from monarch._core.extension.request import ask
from monarch._core.pickle.actor_class import dumps_class
from monarch._core.process.current import current_process, refuse_in_child, simulated_process
from monarch._core.process.identity import new_uid
from monarch._core.process.mesh_info import MeshInfo
from monarch._core.shape.shape import whole_shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from monarch._core.call.actor import Actor
    from monarch._core.call.future import Future
    from monarch._core.hosts.host_mesh import HostMesh
    from monarch._core.process.process import LocalProcess

GROUP = "monarch.service"
REQUEST = "monarch.service"


# Seconds that the longest pause before a start, and the messages there and back, may add to a start and an answer.
_PAUSE, _WAY = 30.0, 2.0


class Service:
    """The declaration of a service, which an entry point of the group `monarch.service` names; immutable.

    `actor` is its class, of an importable module. A `shared` service is one for all jobs of the host, else each job has its own, which ends
    with the job. `arguments` are keyword arguments of the class, to which the function `service` may add. A start may take `start_seconds`,
    and so may the answer of a running service.
    """

    __slots__ = ("actor", "arguments", "shared", "start_seconds")

    actor: type[Actor]
    shared: bool
    arguments: Mapping[str, Any]
    start_seconds: float

    def __init__(
        self, actor: type[Actor], *, shared: bool = False, arguments: Mapping[str, Any] | None = None, start_seconds: float = 30.0
    ) -> None:
        check_names(actor_class(actor), actor)
        checked_arguments(f"Service({actor.__qualname__})", arguments)
        check_seconds("start_seconds", start_seconds, positive=True)
        for field, value in zip(self.__slots__, (actor, dict(arguments or {}), bool(shared), float(start_seconds)), strict=True):
            object.__setattr__(self, field, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Service.{name} cannot be set: a declaration is immutable")

    def __repr__(self) -> str:
        return f"Service({self.actor.__qualname__}, shared={self.shared}, arguments={self.arguments})"


def service(hosts: HostMesh, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> ActorMesh:
    """The service of that name on each of the hosts, as a mesh of actors in the shape of the hosts; waits until it has started everywhere.

    The agent of a host starts it with the first use, and again, with a growing pause, when it ends. The handle fails for a rank whose
    service has ended since: call this function again. Arguments are plain data: None, bool, int, float, str, bytes, and lists, tuples and
    dicts of them. `timeout` bounds the wait, in seconds; without it, a start and the answer of a running service may each take the
    `start_seconds` of its declaration. A start continues after a shorter timeout.

    `ServiceError` if no wheel has it, if it does not start or answer in time, or if it runs with other arguments than the given ones.
    """
    from monarch._core.hosts.host_mesh import HostMesh as Hosts

    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"service({name!r}): expected the name of a service, a str, not {type(name).__name__}")
    if not isinstance(hosts, Hosts):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"service({name!r}): expected a mesh of hosts, not {type(hosts).__name__}")
    if timeout is not None:
        check_seconds(f"service({name!r}): timeout", timeout, ", or None", positive=True)
    refuse_in_child()
    if simulated_process() is not None:
        raise RuntimeError(f"service({name!r}): a Universe has no services of hosts")
    declared = _declared(name)
    given = {**declared.arguments, **checked_arguments(f"service({name!r})", arguments)}
    try:
        check_arguments(declared.actor.__init__, 1, (), given)
    except TypeError as e:
        raise TypeError(f"service({name!r}): the arguments do not fit {declared.actor.__qualname__}: {e}") from None
    try:
        packed = marshal.dumps(sorted(given.items()))
    except ValueError:
        raise TypeError(f"service({name!r}): arguments are plain data, which {given!r} is not") from None
    hosts.__core__.check_usable()
    process = current_process()
    agents = hosts.__core__.agent_ids()
    cls = declared.actor
    class_name, payload = f"{cls.__module__}.{cls.__qualname__}", dumps_class(cls)
    body = marshal.dumps((name, class_name, payload, declared.shared, declared.start_seconds, packed, arguments is None, timeout))
    # The agent reports the cause of the delay; an agent that does not answer at all gets a little more time.
    until = monotonic() + (2 * declared.start_seconds + _PAUSE if timeout is None else timeout) + _WAY
    asked = {agent: ask(agent, REQUEST, body) for agent in dict.fromkeys(agents)}
    job = hosts.__core__.job or process.peers.job
    found = {agent: _started(process, job, name, agent, answer, until) for agent, answer in asked.items()}
    mailbox = next(iter(found.values()))[1] if found else 0
    procs = tuple(found[agent][0] for agent in agents)
    extent = hosts.extent
    info = MeshInfo(new_uid(), name, "<host>", extent, procs, class_name, payload, runs_of(agents), job=job, mailbox=mailbox)
    info.cls = cls
    process.meshes.known[info.uid] = info
    reach(process, job, [(found[agent][0], agent) for agent in found])
    mark_ended(info, process.peers.ended)
    return ActorMesh(ActorRanks(info, whole_shape(extent)))


def _declared(name: str) -> Service:
    found = load_entry(GROUP, name)
    if found is None:
        raise ServiceError(
            f"no service {name!r} is installed", hint=f"install the wheel that has {name!r} in the entry-point group {GROUP}"
        )
    if isinstance(found, BrokenEntry):
        wheel = found.wheel.partition(" ")[0]
        raise ServiceError(
            f"service {name!r} cannot be loaded\n  {found.describe()}", hint=f"install a version of {wheel} that fits this monarch-core"
        ) from found.error
    if not isinstance(found.value, Service):
        raise ServiceError(f"service {name!r} of {found.wheel} is {found.value!r}, not a monarch.extension.Service")
    return found.value


def checked_arguments(what: str, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Keyword arguments; `TypeError` for values that cannot be arguments."""
    from collections.abc import Mapping as AnyMapping

    if arguments is None:
        return {}
    if not isinstance(arguments, AnyMapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{what}: arguments are a mapping of keyword arguments, not {type(arguments).__name__}")
    for key in arguments:
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{what}: the name of an argument is a str, not {key!r}")
    return dict(arguments)


def _started(process: LocalProcess, job: int, name: str, agent: int, answer: Future[bytes], until: float) -> tuple[int, int]:
    """The proc and mailbox of the service on one host."""
    host = process.host if agent == process.agent_uid else str(HostId(agent))
    try:
        proc, mailbox, its = marshal.loads(answer.get(timeout=max(0.0, until - monotonic())))
    except TimeoutError:
        raise ServiceError(fill("service_failed", name=name, host=host, why="the agent of the host does not answer")) from None
    except RequestError as e:
        why = str(e)
        if e.code == "request_failed":
            # The agent's error about a service begins with the name of its host. Any other text is the reason why the agent could not start
            # it.
            host, why = marshal.loads(e.body[1:]) if e.body.startswith(b"\0") else (host, e.body.decode(errors="replace"))
        elif e.code == "request_proc_ended" and e.end is not None:
            why = e.end.describe()
        raise ServiceError(fill("service_failed", name=name, host=host, why=why.replace("\n", "\n  "))) from None
    if its != job:
        # Objects that the service sends by itself, such as ports, belong to the job of its agent.
        process.peers.services_of[its] = (agent, job)
    return proc, mailbox
