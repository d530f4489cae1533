"""The thread of an actor: a daemon thread whose creator does not wait for it to start.

`threading.Thread.start` waits until the new thread runs, which costs two switches between threads that hold the GIL, more than the rest
of spawning an actor. Spawning an actor does not need that wait.

Hooks of `threading.settrace` and `threading.setprofile` run on the thread before the actor does. An exception of such a hook is the
reason why the actor does not start.
"""

from __future__ import annotations

import sys
import threading

from monarch._core.process.emergency_exit import end_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.process.parts import RunningActor


class ActorThread(threading.Thread):
    if sys.version_info < (3, 13):

        def start(self) -> None:
            with threading._active_limbo_lock:  # pyright: ignore
                threading._limbo[self] = self  # pyright: ignore
            try:
                threading._start_new_thread(self._bootstrap, ())  # pyright: ignore
            except Exception:
                with threading._active_limbo_lock:  # pyright: ignore
                    del threading._limbo[self]  # pyright: ignore
                raise


class ReportingActorThread(ActorThread):
    """A thread whose exceptions outside the code of the actor fail the actor."""

    def __init__(self, actor: RunningActor) -> None:
        super().__init__(target=actor.run, name=f"actor {actor.info.name}", daemon=True)
        self._actor = actor
        self._excepthook = self._invoke_excepthook  # pyright: ignore
        self._invoke_excepthook = self._raised

    def _bootstrap(self) -> None:
        try:
            super()._bootstrap()  # pyright: ignore
        except BaseException as e:
            if self._actor.began:
                raise
            self._not_begun(e)

    def _raised(self, thread: threading.Thread) -> None:
        """Handles an exception of `run`, which a hook around it may raise."""
        error = sys.exception()
        if self._actor.began or error is None:
            self._excepthook(thread)
        else:
            self._not_begun(error)

    def _not_begun(self, error: BaseException) -> None:
        try:
            from monarch._core.pickle.remote_exception import raised_text

            self._actor.not_started(f"the thread of the actor has raised before the actor began: {raised_text(error)}")
        except BaseException as e:
            end_process(f"the start of actor {self._actor.display}", e)
