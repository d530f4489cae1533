"""The hosts of a job in a flow, and the tasks that run on them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Thread
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from prefect import Task, get_run_logger, task

from monarch.actor import Channel, HostMesh, PortReceiver, SupervisionError
from monarch.job import JobError, JobTrait, job_loads
from prefect_monarch.runner import Line, Runner

P = ParamSpec("P")
R = TypeVar("R")


def is_failure_of_hosts(task: Any, task_run: Any, state: Any) -> bool:
    """Whether a process or a host of the task has failed, and not its function: the `retry_condition_fn` of the tasks."""
    return isinstance(state.data, (SupervisionError, JobError))


class JobHosts:
    """The hosts of one mesh of a job, reserved for the time of a `with` block in a flow.

    The end of the block ends the job: also by an exception, and by the cancellation of the flow.

    Args:
        job: where the hosts come from, such as `ProcessJob` or `SlurmJob`.
        mesh: the name of the mesh; without it the job has one.
        state_file: where the job is written, so that `monarch ps` and other programs find it; None writes no file.
    """

    def __init__(self, job: JobTrait, mesh: str | None = None, state_file: str | None = None) -> None:
        self._job = job
        self._mesh = mesh
        self._state_file = state_file
        self._hosts: HostMesh | None = None
        self._is_damaged = False

    def __getstate__(self) -> dict[str, Any]:
        """Prefect pickles the flows of a script that serves them, and with a flow what it refers to."""
        return {**vars(self), "_job": self._job.dumps(), "_hosts": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _job=job_loads(state["_job"]))

    def __enter__(self) -> Self:
        try:
            self._find()
        except BaseException:
            self._job.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._hosts = None
        self._job.kill()

    def task(self, *, per_host: dict[str, int] | None = None, **options: Any) -> Callable[[Callable[P, R]], Task[P, list[R]]]:
        """A decorator: the task runs the function in each process at once, and its result is the list of all results, by rank.

        A retry comes after the failure of a process or a host, and heals the job first. An exception of the function is an `ActorError`.

        Args:
            per_host: the processes of each host, such as `{"gpus": 8}`; one without it.
            **options: those of `prefect.task`, such as `retries` and `retry_delay_seconds`.
        """
        options.setdefault("retry_condition_fn", is_failure_of_hosts)

        def decorate(function: Callable[P, R]) -> Task[P, list[R]]:
            @functools.wraps(function)
            def run(*args: P.args, **kwargs: P.kwargs) -> list[R]:
                return self._run(function, per_host, args, kwargs)

            return task(**options)(run)

        return decorate

    def _find(self) -> None:
        state = self._job.state(cached_path=self._state_file)
        names = list(state)
        if self._mesh is None and len(names) != 1:
            raise ValueError(f"the job has the meshes {', '.join(names)}\n  hint: name one, as in JobHosts(job, {names[0]!r})")
        self._hosts = getattr(state, self._mesh or names[0])

    def _run(self, function: Callable[..., R], per_host: dict[str, int] | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[R]:
        if self._hosts is None:
            raise RuntimeError(f"{function.__qualname__} runs on hosts of a job\n  hint: call it in a flow, in `with` of its JobHosts")
        if self._is_damaged:
            self._job.heal()
            self._find()
            self._is_damaged = False
        try:
            with self._hosts.spawn_procs(per_host) as procs:
                runners = procs.spawn(function.__name__, Runner)
                with _forwarded_lines(procs.size()) as port:
                    return runners.run.call(port, function, args, kwargs).get().values()
        except SupervisionError:
            self._is_damaged = True
            raise


@contextmanager
def _forwarded_lines(count: int) -> Generator[Any]:
    """A port whose lines go to the log of the task. After an error the lines of processes that run on are dropped."""
    port, receiver = Channel[Line | None].open()
    thread = Thread(target=_forward, args=(receiver, get_run_logger(), count), daemon=True)
    thread.start()
    try:
        yield port
    except BaseException:
        for _ in range(count):
            port.send(None)
        raise
    finally:
        thread.join()


def _forward(receiver: PortReceiver[Line | None], logger: Any, count: int) -> None:
    while count:
        line = receiver.recv().get()
        if line is None:
            count -= 1
        else:
            logger.log(*line)
