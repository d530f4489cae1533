"""The events that the housekeeping thread of a process receives: one class for each kind."""

from typing import final

__all__ = [
    "ActorFailed",
    "Ask",
    "CallAbandoned",
    "CallOverdue",
    "Fail",
    "HostAudit",
    "HostShutdown",
    "JobEnded",
    "LaunchProc",
    "Mark",
    "Notify",
    "Orphan",
    "ProcUnresponsive",
    "ProcessEnd",
    "ProcsEnded",
    "RootLost",
    "SpawnActor",
    "StacksWanted",
    "StopProc",
    "SystemRequest",
    "UnreadError",
]

# ---- process_end.rs

@final
class ProcessEnd:
    """The end of a process of the job."""

    @property
    def pid(self) -> int:
        """The process id, 0 if unknown."""

    @property
    def host(self) -> str:
        """The name of the host, empty if unknown."""

    @property
    def kind(self) -> str:
        """The `kind` of the `ExitReason`."""

    @property
    def is_stop(self) -> bool:
        """Whether the process was stopped, which is no failure."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def core_dumped(self) -> bool: ...
    @property
    def detail(self) -> str:
        """The text of the reason, for the kinds that have one. The text of a stop begins with the stop's bounds."""

    @property
    def cleaning(self) -> list[int]:
        """The meshes whose actors were in their `__cleanup__` when the process died by itself."""

    @property
    def recent(self) -> bytes:
        """The last events of the process, for `events.decode`."""

    @property
    def output(self) -> list[str]:
        """The last lines that the process printed."""

# ---- system_event.rs

@final
class SpawnActor:
    """A request to spawn an actor in this process."""

    @property
    def sender(self) -> int: ...
    @property
    def mailbox(self) -> int: ...
    @property
    def spec(self) -> bytes: ...

@final
class StopProc:
    """A request to end this proc."""

    @property
    def drain(self) -> tuple[float, float] | None: ...
    @property
    def reason(self) -> str: ...

@final
class ProcsEnded:
    """Processes that have ended for one cause."""

    @property
    def ends(self) -> list[tuple[int, ProcessEnd]]: ...

@final
class ActorFailed:
    """An actor of a mesh that this process owns has failed, according to the process `sender`."""

    @property
    def sender(self) -> int: ...
    @property
    def mesh(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def failure(self) -> bytes: ...

@final
class SystemRequest:
    """A request of another process. The answer goes to the call id `slot`."""

    @property
    def sender(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def slot(self) -> int: ...
    @property
    def body(self) -> bytes: ...

@final
class StacksWanted:
    """A request for the stacks of all threads."""

    @property
    def ticket(self) -> int: ...

@final
class CallOverdue:
    """The deadline of a message in progress has passed."""

    @property
    def mesh(self) -> int: ...
    @property
    def number(self) -> int: ...

@final
class ProcUnresponsive:
    """Python no longer runs in a proc of this agent or, if `silence_reason` is empty, runs again. `stacks` is JSON or empty."""

    @property
    def proc(self) -> int: ...
    @property
    def silence_reason(self) -> str: ...
    @property
    def stacks(self) -> bytes: ...

@final
class CallAbandoned:
    """The result of a failed call was dropped before any thread read it."""

    @property
    def mesh(self) -> int: ...

@final
class UnreadError:
    """An error of an endpoint that no thread has read; `answer` is the packed error."""

    @property
    def answer(self) -> bytes: ...

@final
class RootLost:
    """The agent of this proc has ended."""

@final
class HostAudit:
    """A host has joined, a client has attached, was refused, or was lost. `count` is the number of times since the last such event."""

    @property
    def what(self) -> str: ...
    @property
    def peer(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def count(self) -> int: ...

@final
class HostShutdown:
    """In an agent: a client requests the end of the host."""

    @property
    def sender(self) -> int: ...
    @property
    def slot(self) -> int: ...

@final
class JobEnded:
    """In an agent: a client has ended, with everything that it had on this host. `host` is the name of this host in that client's job."""

    @property
    def host(self) -> int: ...

@final
class LaunchProc:
    """In the client of a simulated world: a request to start a proc in this process."""

    @property
    def proc(self) -> int: ...
    @property
    def setup(self) -> bytes: ...

# ---- supervision.rs

@final
class Mark:
    """The rank counts as failed from now on: calls to slices that contain it are refused."""

    @property
    def mesh(self) -> int: ...
    @property
    def rank(self) -> int: ...

@final
class Notify:
    """The owner of the mesh, which is this process, is notified of a rank's failure."""

    @property
    def mesh(self) -> int: ...
    @property
    def rank(self) -> int: ...

@final
class Ask:
    """The actor that owns the mesh receives the failure; its `__supervise__` decides in the actor's next step."""

    @property
    def actor(self) -> int: ...
    @property
    def mesh(self) -> int: ...
    @property
    def rank(self) -> int: ...

@final
class Fail:
    """The actor that owns the mesh fails: it handles no failures."""

    @property
    def actor(self) -> int: ...
    @property
    def mesh(self) -> int: ...
    @property
    def rank(self) -> int: ...

@final
class Orphan:
    """The actor fails because the process of its owner has ended."""

    @property
    def actor(self) -> int: ...
