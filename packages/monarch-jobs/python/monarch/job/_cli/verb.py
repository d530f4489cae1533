"""What the verbs share: errors become exit codes, and the current job is found.

A verb is made so, and loads what it needs inside its function, because `monarch` has to start quickly:

    @verb("status", short_help="Scheduler phase, hosts, last words.")
    @click.option("--json", "as_json", is_flag=True)
    def command(as_json: bool) -> int:
        job = current_job()
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.job._job_state import JobState
    from monarch.job._trait import JobTrait

FAILED = 1
NO_JOB = 3
ENDED = 4
INTERRUPTED = 130


def verb(name: str, **attributes: Any) -> Callable[[Callable[..., int | None]], click.Command]:
    """A `click.Command` of this name; `attributes` go to `click.command`."""

    def made(function: Callable[..., int | None]) -> click.Command:
        return click.command(name, **attributes)(guarded(function))

    return made


def guarded(function: Callable[..., int | None]) -> Callable[..., int]:
    """Turns errors into their text on stderr and an exit code: 3 no such job, 4 job ended, 130 Ctrl-C, 1 anything else."""

    @functools.wraps(function)
    def guard(*args: Any, **kwargs: Any) -> int:
        try:
            return function(*args, **kwargs) or 0
        except (KeyboardInterrupt, click.Abort):
            return INTERRUPTED
        except click.ClickException:
            raise  # usage; the command itself shows it
        except Exception as e:
            code = exit_code(e)
            if code is None:
                raise
            click.echo(f"monarch: {e}", err=True)
            return code

    return guard


def exit_code(error: Exception) -> int | None:
    """The exit code for an error that a user can do something about; None for any other."""
    from monarch.actor import MonarchError
    from monarch.job.errors import NO_JOB as NO_JOB_CODE
    from monarch.job.errors import JobEndedError

    if isinstance(error, JobEndedError):
        return ENDED
    if not isinstance(error, MonarchError):
        return None
    return NO_JOB if error.code == NO_JOB_CODE else FAILED


def current_job() -> JobTrait:
    """The job of the active context; `JobError` with code `no_such_job` where there is none."""
    from monarch.job import _store

    return loaded(_store.active_path(), None) or _store.load(_store.active_path())


def loaded(path: str, context: str | None) -> JobTrait | None:
    """The job of a state file, None without one. The module of the context's spec is imported where the job's class is not."""
    from monarch.job import _contexts, _store
    from monarch.job.errors import StateFileError

    try:
        return _store.load_if_there(path)
    except StateFileError as e:
        spec = _contexts.spec(context)
        if e.field != "kind" or spec is None:
            raise
        from importlib import import_module

        # The user named it to `monarch apply`; the file did not.
        import_module(spec.rpartition(".")[0])
        return _store.load_if_there(path)


def current_state() -> JobState:
    """The hosts of the current job, which is neither made nor changed; `JobEndedError` if it is over."""
    return current_job()._reconnect()
