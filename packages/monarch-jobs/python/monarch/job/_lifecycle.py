"""Submit, find again, connect, end: the public methods of `JobTrait`, in terms of its hooks."""

from __future__ import annotations

import os
import sys
import threading
import uuid
import warnings
from typing import TYPE_CHECKING

from monarch.job import _allocation_lock, _store
from monarch.job._files import audit, credentials
from monarch.job.errors import JobEndedError, JobError, StateFileError

if TYPE_CHECKING:
    from monarch.job._job_state import JobState
    from monarch.job._status import HealReport
    from monarch.job._trait import JobTrait

BATCH = "MONARCH_BATCH_JOB"
# Where the record of the surrounding allocation is; without it, the path that the script asks for.
BATCH_FILE = "MONARCH_BATCH_JOB_FILE"
REPLACE = "MONARCH_JOB"
# How long an interrupted or failed submission waits for the scheduler to take it back.
CANCEL_SECONDS = 5.0


def apply(job: JobTrait, client_script: str | None) -> None:
    job = intended(job)
    if job._life.active:
        return
    life = job._life
    life.apply_id = str(uuid.uuid4())
    try:
        with audit.recorded("apply", _named(job), script=client_script):
            job._create(client_script)
    except BaseException:
        _take_back(job)
        raise
    life.active = True


def _take_back(job: JobTrait) -> None:
    """Cancels what a failed or interrupted submission has left, and says what it was if that does not work."""
    where = job._where()
    failed: list[str] = []

    def cancel() -> None:
        try:
            job._kill()
        except Exception as e:
            failed.append(f"{type(e).__name__}: {e}")

    # On a thread of its own: what it waits for may never come, and a second Ctrl-C must get through.
    thread = threading.Thread(target=cancel, name="monarch-job-cancel", daemon=True)
    thread.start()
    thread.join(CANCEL_SECONDS)
    if thread.is_alive():
        failed.append(f"no answer within {CANCEL_SECONDS:.0f} s")
    if failed:
        say(f"{job._title}: could not be cancelled ({'; '.join(failed)}), it may go on: {where}")
    apply_id = job._life.apply_id
    if apply_id is not None and not failed:
        try:
            credentials.remove(apply_id)
        except JobError as e:  # the error that is on its way says more
            if os.path.lexists(credentials.directory(apply_id)):
                say(f"{job._title}: {e}")
    job._life.apply_id = None
    job._life.active = False


def state(job: JobTrait, cached_path: str | None) -> JobState:
    current = job._current
    if current._life.active:
        if is_alive(current):
            return _connect(current)
        kill(job)  # what is left of it: credentials, the file
    if os.environ.get(BATCH) == "1":
        return _surrounding(job, cached_path)
    wanted = intended(job)
    if cached_path is None:
        apply(wanted, None)
        return _connect(wanted)
    cached_path = os.fspath(cached_path)
    kept = _store.load_if_there(cached_path)
    if kept is not None:
        if is_alive(kept):
            if kept.can_run(wanted):
                job._life.stand_in = kept
                return _connect(kept)
            say(f"monarch: the job in {cached_path} cannot run what is asked for now, it is killed: {kept._title}, {kept._where()}")
        kill(kept)
    apply(wanted, None)
    # Before connecting: who is interrupted there finds the allocation again.
    _write(cached_path, wanted)
    return _connect(wanted)


def _connect(job: JobTrait) -> JobState:
    target = _named(job)
    try:
        found = job._state()
    except BaseException as e:
        audit.record("attach", target, f"{type(e).__name__}: {e}".partition("\n")[0])
        raise
    if found is not job._life.attached:
        job._life.attached = found
        audit.record("attach", target)
    path = job._life.path
    if path is not None and os.path.exists(path):
        with _allocation_lock.held(job):
            # Addresses have become known, or another process has changed more than that.
            if not refresh(job):
                _write(path, job)
    return found


def refresh(job: JobTrait) -> bool:
    """Takes over what another process has done with the allocation, such as healing it; True where there was something."""
    job = job._life.inside or job
    try:
        found = _store.changed(job)
    except StateFileError:
        return False  # the next process that needs the file names what is wrong with it
    if found is None:
        return False
    job._adopt(found)
    return True


def _write(path: str, job: JobTrait) -> None:
    try:
        _store.write(path, job)
    except StateFileError:
        raise
    except JobError as e:
        warnings.warn(f"{path} is not written, so this job is not found again: {e}", RuntimeWarning, stacklevel=5)


def _surrounding(job: JobTrait, cached_path: str | None) -> JobState:
    from monarch.job._trait import DEFAULT_JOB_PATH

    path = os.environ.get(BATCH_FILE) or cached_path or DEFAULT_JOB_PATH
    kept = _store.load(path)
    from monarch.job.local import BatchJob

    batch = kept if isinstance(kept, BatchJob) else BatchJob(kept)
    job._life.stand_in = batch
    return batch._surround()


def intended(job: JobTrait) -> JobTrait:
    """The job, or the one of local processes that reproduces it, if the environment asks for that."""
    if job._life.stand_in is not None:
        return job._life.stand_in
    asked = os.environ.get(REPLACE)
    if not asked or job._life.active:
        return job
    from monarch.job import _reproduction

    if asked != "process":
        raise ValueError(f"{REPLACE}={asked}: only 'process' can replace a job")
    job._life.stand_in = _reproduction.as_process(job)
    return job._life.stand_in or job


def batch_path(job: JobTrait) -> str | None:
    """Where a job with a client script is saved for the commands; None where another job that is alive is the current one."""
    path = _store.active_path()
    kept = _store.load_if_there(path)
    return None if kept is not None and kept.apply_id != job.apply_id and is_alive(kept) else path


def is_alive(job: JobTrait) -> bool:
    """Is there an allocation that can be used? One look at the scheduler."""
    return job.status().phase in ("pending", "running", "unknown")


def reconnect(job: JobTrait) -> JobState:
    """The hosts of a job that was loaded; `JobEndedError` if it is over."""
    status = job.status()
    if status.phase in ("none", "ended"):
        words = "ended" if status.phase == "ended" else "is not submitted"
        raise JobEndedError(words, title=job._title, cause=status.detail, state=status.phase, reason=status.detail)
    return _connect(job._current)


def kill(job: JobTrait) -> None:
    """Every step is tried. The state file stays while the allocation could not be ended: it says which one that is."""
    asked, job = job, job._current
    with _allocation_lock.held(job):
        refresh(job)
        _kill(asked, job)


def _kill(asked: JobTrait, job: JobTrait) -> None:
    life = job._life
    apply_id, path = life.apply_id, life.path
    failed: list[tuple[str, Exception]] = []

    def step(what: str, action: object, *arguments: object) -> None:
        assert callable(action)
        try:
            action(*arguments)
        except Exception as e:
            failed.append((what, e))

    was_active, target = life.active, _named(job)
    if life.active:
        step(f"end the allocation ({job._where()})", job._kill)
    ended = not failed
    if apply_id is not None:
        step("remove the credentials", credentials.remove, apply_id)
    if ended and path is not None:
        step("remove the state file", _store.remove, path, apply_id)
    if ended:
        life.active = False
        life.apply_id = life.path = None
        asked._life.stand_in = None
    if was_active:
        life.attached = None
        audit.record("kill", target, "; ".join(f"could not {what}: {type(e).__name__}" for what, e in failed) or "done")
    if failed:
        causes = "\n".join(f"could not {what}: {type(e).__name__}: {e}" for what, e in failed)
        raise JobError("was not killed completely", title=job._title, cause=causes) from failed[0][1]


def heal(job: JobTrait, timeout: float | None) -> HealReport:
    with audit.recorded("heal", _named(job)):
        return job._heal(timeout)


def _named(job: JobTrait) -> str:
    """The job as it is written down: `apply_id` tells it from the others."""
    from monarch.job._trait import kind_of

    return f"{kind_of(job)} job {job._life.apply_id or ''}".rstrip()


def say(line: str) -> None:
    """One line on stderr."""
    print(line, file=sys.stderr, flush=True)
