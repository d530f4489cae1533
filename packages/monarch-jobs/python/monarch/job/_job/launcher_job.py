"""Jobs whose machines come from a `Launcher`: submitting, joining, status, healing and killing are the same for all of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from monarch import actor
from monarch.job._files import credentials
from monarch.job._job.allocation import Allocation
from monarch.job._job.heal import HealSteps, heal
from monarch.job._job.hold import Hold, is_wanted
from monarch.job._job.host_end import leave, shut_down
from monarch.job._job.job_state import JobState, check_count, check_mesh_names
from monarch.job._job.launcher import HealReport, Host, HostStatus, JobStatus, Launcher, Plan, Trouble
from monarch.job._job.saved import launcher_factory, write
from monarch.job._job.scheduler_report import SCHEDULERS
from monarch.job._job.trait import JobTrait, refresh
from monarch.job._job.watch import AddressWatch, Promise
from monarch.job.errors import JobError

if TYPE_CHECKING:
    from monarch.actor import Future, HostMesh

# The most hosts that a trouble names.
MOST_HOSTS = 512


class LauncherJob(JobTrait):
    """A backend derives from this, records its constructor's arguments in a pydantic model, and implements the first four hooks.

    `_ids` has what `Launcher.submit` returned, changed in place by `relaunch`; it is saved with the job.
    """

    # Whether `apply(client_script=...)` works. Then `self._client_script` is set before `_launcher` is called.
    runs_scripts: ClassVar[bool] = False

    _ids: dict[str, Any] | None = None
    _client_script: str | None = None
    # Handles of this process, their addresses, and the allocation whose hosts are awaited.
    connection_: JobState | None = None
    # Earlier handles of this process: processes spawned through them end with the job too.
    earlier_: tuple[JobState, ...] = ()
    attached_: dict[Host, str] | None = None
    awaited_: Allocation | None = None
    watch_: AddressWatch | None = None
    # Hosts that this process has lost only with its gateway, according to the last query: their workers may be alive.
    unreached_: frozenset[Host] = frozenset()
    # The additional wait of the handles, beside the hosts.
    hold_: Hold | None = None
    # Workers have been replaced since: the next `state` connects again.
    is_stale_: bool = False

    @abstractmethod
    def _launcher(self) -> Launcher:
        """The launcher; made anew for every use, from the arguments (and `self.apply_id`, `self._directory` where it submits)."""

    @abstractmethod
    def _sizes(self) -> dict[str, int]:
        """How many hosts each mesh has, in order."""

    @abstractmethod
    def _arguments(self) -> dict[str, Any]:
        """The constructor's arguments as JSON, and what `add_mesh` and the like have added."""

    @abstractmethod
    def _set_arguments(self, saved: dict[str, Any]) -> None:
        """Restores what `_arguments` gave, into an object whose `__init__` has not run."""

    def _join_timeout(self) -> float | None:
        """Seconds from "running" to "joined"."""
        return 120.0

    @property
    def _directory(self) -> str:
        """This allocation's private directory, `MONARCH_HOME/jobs/<apply_id>`, 0700; it exists once the job is applied."""
        assert self.apply_id is not None
        return credentials.directory(self.apply_id)

    def _secret(self) -> bytes:
        """The secret that the hosts got when the job was submitted; `CredentialsError` where it is not on this machine."""
        assert self.apply_id is not None
        return credentials.secret(self.apply_id)

    def _starts_workers(self, mesh: str) -> bool:
        """Does the job start the workers of this mesh? Workers that were started by other means outlive it."""
        return True

    def _trust(self, mesh: str) -> dict[str, Any]:
        """By which credentials the hosts of a mesh are attached: arguments of `attach_to_workers`."""
        return {"secret": self._secret()}

    def plan(self) -> Plan:
        return self._launcher().plan()

    def can_run(self, spec: JobTrait) -> bool:
        return type(spec) is type(self) and spec.plan() == self.plan()

    def _create(self, client_script: str | None) -> None:
        if client_script is not None and not self.runs_scripts:
            raise JobError(
                f"{self.kind} jobs run no client script", title=self._title, hint="run the script itself; it connects with state()"
            )
        assert self.apply_id is not None
        secret = credentials.make(self.apply_id)
        self._client_script = client_script
        launcher = self._launcher()
        self._ids = launcher.submit(launcher.plan(), secret)

    def _state(self) -> JobState:
        """Handles at once; they wait for the hosts. The same ones each time, until workers are replaced."""
        if self.connection_ is None or self.is_stale_ or (self.hold_ is not None and self.hold_.has_failed):
            if self.connection_ is not None:
                self.earlier_ += (self.connection_,)
            self.connection_ = self._attach()
            self.is_stale_ = False
        return self.connection_

    def _attach(self) -> JobState:
        from monarch.extension.mesh import explain_failure, explain_loss, joined_by

        prepare = self._late_way()
        # Without a route to them, hosts with known addresses are not dialled either.
        addresses = {} if prepare is not None else self._launcher().addresses(self._submitted())
        of_loss, of_failure = self._explains_loss(), self._explains_failure()
        hold = self.hold_ = self._hold(addresses)
        promises: dict[Host, Promise] = {}
        attached = self.attached_ = {}
        meshes: dict[str, HostMesh] = {}
        for mesh, size in self._sizes().items():
            workers: list[str | Future[str]] = []
            found = addresses.get(mesh, [])
            for rank in range(size):
                address = found[rank] if rank < len(found) and hold is None else None
                if address is None:
                    promise = promises[Host(mesh, rank)] = Promise(*actor.Channel[str].open(once=True))
                    workers.append(promise.receiver.recv())
                else:
                    workers.append(address)
                    attached[Host(mesh, rank)] = address
            with joined_by(self._join_deadline()):
                meshes[mesh] = actor.attach_to_workers(workers=workers, name=mesh, **self._trust(mesh))
            if of_loss is not None:
                explain_loss(meshes[mesh], of_loss)
            if of_failure is not None:
                explain_failure(meshes[mesh], of_failure)
        if hasattr(self._launcher(), "troubles"):
            SCHEDULERS.add(self)
        if promises:
            allocation = self.awaited_ = self._allocation()
            self.watch_ = AddressWatch(allocation, promises, attached, self._join_timeout(), hold, prepare)
            self.watch_.start()
        return JobState(meshes)

    def _hold(self, addresses: Mapping[str, list[str | None]]) -> Hold | None:
        """Where features need the hosts and these are in a queue, what the handles wait for."""
        is_whole = all(None not in addresses.get(mesh, [None]) for mesh in self._sizes())
        if is_whole or not is_wanted() or self._launcher().poll(self._submitted()).phase != "pending":
            return None
        return Hold()

    def _late_way(self) -> Callable[[], None] | None:
        """What makes the way to the hosts, where that has to wait for one of them: `state` does not. None where there is a way."""
        return None

    def _submitted(self) -> dict[str, Any]:
        """The scheduler's ids; `JobError` without an allocation."""
        if self._ids is None:
            raise JobError("has no allocation", title=self._title)
        return self._ids

    def _allocation(self) -> Allocation:
        return Allocation(self._title, self._launcher(), self._submitted(), self._sizes(), self._logs())

    def _explains_loss(self) -> Callable[[], JobError | None] | None:
        """The error for calls whose hosts are lost; None where the scheduler knows no more than the runtime."""
        return None

    def _explains_failure(self) -> Callable[[actor.AttachError], JobError | None] | None:
        """The error for hosts that do not join; None where the scheduler knows no more than the runtime."""
        return None

    def _join_deadline(self) -> float | None:
        """Until when hosts have to join, in monotonic seconds, where the user has set a limit."""
        return None

    def _troubles(self) -> list[dict[str, Any]]:
        """What the scheduler knows to be wrong with the job, each with the names of the machines of its hosts as the runtime has them."""
        from monarch.extension.mesh import host_names

        connection, ids = self.connection_, self._ids
        find = getattr(self._launcher(), "troubles", None)
        if connection is None or ids is None or find is None:
            return []
        names = {Host(mesh, rank): name for mesh in connection for rank, name in host_names(connection[mesh]).items()}
        troubles: list[Trouble] = find(ids)
        return [
            {
                "job": self._title,
                "kind": one.kind,
                "text": one.text,
                "hosts": sorted({names[host] for mesh, rank in one.hosts or names if (host := Host(mesh, rank)) in names})[:MOST_HOSTS],
                "source": one.source,
                "command": one.command,
            }
            for one in troubles
        ]

    def _poll(self) -> JobStatus:
        return self._look(self._allocation())

    def _look(self, allocation: Allocation) -> JobStatus:
        """The launcher's status, and the hosts that the runtime of this process has lost: neither waits for the other.

        Notes where workers have been replaced since this process connected: by another process's `heal`, or by a requeue.
        """
        status = allocation.poll()
        self.unreached_ = frozenset()
        from monarch.extension.mesh import lost_gateway, lost_hosts

        connection, attached = self.connection_, self.attached_
        if connection is None or attached is None:
            return status
        lost = {Host(name, rank): why for name in connection for rank, why in lost_hosts(connection[name]).items()}
        is_gateway_lost = any(lost_gateway(connection[name]) is not None for name in connection)
        unreached: set[Host] = set()
        hosts: list[HostStatus] = []
        for host in status.hosts:
            place = Host(host.mesh, host.rank)
            known, why = attached.get(place), lost.get(place)
            if host.address is None:
                # The host is unknown for a moment, or not there yet; if the runtime has lost it, another worker will come.
                self.is_stale_ |= known is not None and why is not None
            elif known is not None and known != host.address:
                self.is_stale_ = True
            elif why is not None and host.phase != "lost":
                host = host._replace(phase="lost", detail=why)
                if is_gateway_lost:
                    unreached.add(place)
            hosts.append(host)
        self.unreached_ = frozenset(unreached)
        return status._replace(hosts=hosts)

    def _heal(self, timeout: float | None) -> HealReport:
        steps = HealSteps(lambda: refresh(self), self._allocation, self._look, self._replaced, self._save, self._join_timeout)
        return heal(self, steps, timeout)

    def _replaced(self, hosts: Iterable[Host]) -> None:
        """New workers are at these places: handles that exist keep failing for the lost ranks, the next `state()` makes new ones."""
        again = dict.fromkeys(hosts, "")
        if self.attached_ is not None and again:
            self.attached_.update(again)
            self.is_stale_ = True

    def _save(self) -> None:
        """Writes the state file that has this job, if there is one."""
        record = self.__core__.inside or self
        path = record.__core__.path
        if path is not None:
            write(path, record)

    def _kill(self) -> None:
        """Asks the hosts that the job has started to stop, if this process is connected to them, and ends the allocation in any case."""
        if self.awaited_ is not None:
            self.awaited_.stopped.set()
        connections = self._disconnect()
        try:
            leave(state[mesh] for state in connections for mesh in state if not self._starts_workers(mesh))
            shut_down(state[mesh] for state in connections[-1:] for mesh in state if self._starts_workers(mesh))
        finally:
            if self._ids is not None:
                self._launcher().cancel(self._ids)
        self._ids = None

    def _disconnect(self) -> tuple[JobState, ...]:
        """The handles that this process has had, the last of which are for hosts that it has now; it has none from now on."""
        found = self.earlier_ if self.connection_ is None else (*self.earlier_, self.connection_)
        self.connection_, self.earlier_ = None, ()
        return found

    def _where(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in (self._ids or {}).items() if isinstance(value, str | int))

    def _dump(self) -> dict[str, Any]:
        return {"arguments": self._arguments(), "ids": self._ids, "client_script": self._client_script}

    def _load(self, saved: dict[str, Any]) -> None:
        self._set_arguments(saved["arguments"])
        self._ids = saved.get("ids")
        self._client_script = saved.get("client_script")


class AdaptedJob(LauncherJob):
    """A job out of a launcher that another wheel offers: entry-point group `monarch.launcher`, name -> factory(arguments).

    `arguments` are the factory's, plain JSON; `arguments["meshes"]` has the number of hosts per mesh.
    """

    def __init__(self, kind: str, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.kind = kind
        given = arguments.get("meshes")
        if not isinstance(given, dict) or not given:
            raise TypeError(f"{kind}: meshes is a dict with the number of hosts of each mesh, not {given!r}")
        meshes: dict[str, Any] = given  # pyright: ignore[reportUnknownVariableType]
        check_mesh_names(meshes)
        for name, count in meshes.items():
            check_count(name, count)
        self._given = dict(arguments)

    @classmethod
    def of_kind(cls, kind: str) -> AdaptedJob:
        """An empty one, for `_load`."""
        self = cls.__new__(cls)
        self.kind = kind
        return self

    def _launcher(self) -> Launcher:
        found = launcher_factory(self.kind)(dict(self._given))
        if not isinstance(found, Launcher):
            raise JobError(f"the factory of '{self.kind}' gave a {type(found).__name__}, which is no launcher", title=self._title)
        return found

    def _sizes(self) -> dict[str, int]:
        return dict(self._given["meshes"])

    def _arguments(self) -> dict[str, Any]:
        return self._given

    def _set_arguments(self, saved: dict[str, Any]) -> None:
        self._given = dict(saved)
