"""What the housekeeping thread of a process is told: one class for each kind of event."""

from typing import TypeAlias, final

__all__ = [
    "ActorFailed",
    "Ask",
    "CallAbandoned",
    "Fail",
    "HostAudit",
    "HostShutdown",
    "JobEnded",
    "LaunchProc",
    "Mark",
    "Orphan",
    "ProcUnresponsive",
    "ProcessEnd",
    "ProcsEnded",
    "RootLost",
    "SpawnActor",
    "StacksWanted",
    "StopProc",
    "SystemRequest",
    "Tell",
]

# ---- process_end.rs

@final
class ProcessEnd:
    """How a process of the job has ended."""

    @property
    def pid(self) -> int:
        """0 if it is not known."""

    @property
    def host(self) -> str:
        """Empty if it is not known."""

    @property
    def kind(self) -> str:
        """That of an `ExitReason`."""

    @property
    def is_stop(self) -> bool:
        """It was stopped, which is no failure."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def core_dumped(self) -> bool: ...
    @property
    def detail(self) -> str:
        """The reason in words, of the kinds that have one. That of a stop has its bounds before it."""

    @property
    def cleaning(self) -> list[int]:
        """The meshes whose actors had begun their `__cleanup__` and not ended it when the process died by itself."""

    @property
    def recent(self) -> bytes:
        """Its last events, for `events.decode`."""

    @property
    def output(self) -> list[str]:
        """The last lines that it printed."""

# ---- system_event.rs

@final
class SpawnActor:
    """An actor is to be spawned here."""

    @property
    def mailbox(self) -> int: ...
    @property
    def spec(self) -> bytes: ...

@final
class StopProc:
    """This proc is to end."""

    @property
    def reason(self) -> str: ...

@final
class ProcsEnded:
    """Processes have ended, of one cause; and what is to be done about it."""

    @property
    def ends(self) -> list[tuple[int, ProcessEnd]]: ...
    @property
    def actions(self) -> list[_Action]: ...

@final
class ActorFailed:
    """An actor of a mesh that this process owns has failed; and what is to be done about it."""

    @property
    def mesh(self) -> int: ...
    @property
    def failure(self) -> bytes: ...
    @property
    def actions(self) -> list[_Action]: ...

@final
class SystemRequest:
    """A process asks for something; an answer goes to `slot`."""

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
    """Somebody wants the stacks of all threads."""

    @property
    def ticket(self) -> int: ...

@final
class ProcUnresponsive:
    """Python has stopped to run in a proc of this agent, or, with no evidence, runs again. `stacks` are JSON or empty."""

    @property
    def proc(self) -> int: ...
    @property
    def evidence(self) -> str: ...
    @property
    def stacks(self) -> bytes: ...

@final
class CallAbandoned:
    """A failed call was let go unseen."""

    @property
    def mesh(self) -> int: ...

@final
class RootLost:
    """The agent of this proc is gone."""

@final
class HostAudit:
    """Somebody has joined, attached, was refused, or is lost; so many times since it was last said."""

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
    """Of an agent: a client has the host end."""

    @property
    def sender(self) -> int: ...
    @property
    def slot(self) -> int: ...

@final
class JobEnded:
    """Of an agent: a client is gone, with all that it had here. `host`: what this host was called in its job."""

    @property
    def host(self) -> int: ...

@final
class LaunchProc:
    """Of a simulated world's client: a proc is to be started in this process."""

    @property
    def proc(self) -> int: ...
    @property
    def setup(self) -> bytes: ...

# ---- supervision.rs

@final
class Mark:
    """From now on this rank counts as failed: slices that contain it are refused."""

    @property
    def mesh(self) -> int: ...
    @property
    def rank(self) -> int: ...

@final
class Tell:
    """The owner of the mesh, which is this process, is told of a rank."""

    @property
    def mesh(self) -> int: ...
    @property
    def rank(self) -> int: ...

@final
class Ask:
    """The actor that owns the mesh is asked: its `__supervise__` decides, when its turn comes."""

    @property
    def actor(self) -> int: ...
    @property
    def mesh(self) -> int: ...
    @property
    def rank(self) -> int: ...

@final
class Fail:
    """The actor that owns the mesh fails: it handles nothing."""

    @property
    def actor(self) -> int: ...
    @property
    def mesh(self) -> int: ...
    @property
    def rank(self) -> int: ...

@final
class Orphan:
    """The actor fails: the process of its owner is gone."""

    @property
    def actor(self) -> int: ...

# What is to be done about a failure.
_Action: TypeAlias = Mark | Tell | Ask | Fail | Orphan
