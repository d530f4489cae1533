"""The threads and the clock of a process. A simulated process has its own, in which time passes only while all its threads wait."""

from __future__ import annotations

from _thread import start_new_thread
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._core.process.parts import RunningActor, World


class Execution:
    """Threads of the interpreter, and the clock of the machine."""

    # Set for a simulated process: its world.
    world: World | None = None
    # The clock of time-outs.
    now = staticmethod(monotonic)

    @property
    def killed(self) -> bool:
        """Whether the simulated process was killed: its threads end at once, and report nothing."""
        return False

    def start_actor(self, actor: RunningActor) -> None:
        from monarch._core.process.actor_thread import ReportingActorThread

        ReportingActorThread(actor).start()

    def start_thread(self, body: Callable[..., Any], *args: Any) -> None:
        start_new_thread(body, args)
