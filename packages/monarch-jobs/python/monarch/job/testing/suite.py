"""The requirements of the suite, in the order of a job's life: each fails with the sentence that a backend has to make true."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import uuid
from typing import TYPE_CHECKING

from monarch.job._files import credentials
from monarch.job._job.trait import JobTrait
from monarch.job._lookup import job_load, job_loads
from monarch.job.errors import JobEndedError, JoinTimeoutError
from monarch.job.local import LocalJob
from monarch.job.testing import interrupt, traces
from monarch.job.testing.hosts import kill_last_worker, silent_hosts, start_client

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

_ALIVE = ("pending", "running", "unknown")
_HOST_PHASES = ("waiting", "joined", "lost")
# Seconds: a scheduler may be slow to notice the end of a worker, and to start another one.
_NOTICE_S, _HEAL_S, _JOIN_S = 60.0, 120.0, 300.0
_PAUSE_S = 0.1
# The number of interrupted submissions, at points that are spread over one submission.
_INTERRUPTIONS = 4

_FRESH = """
import importlib, sys
from monarch.job import job_load
path, module, uses_hosts = sys.argv[1:]
if module:
    importlib.import_module(module)
if __name__ == "__main__":
    job = job_load(path)
    phase = job.status().phase
    assert phase in ("pending", "running", "unknown"), f"status() is '{phase}'"
    if uses_hosts:
        from monarch.job.testing.hosts import silent_hosts
        silent = silent_hosts(job.state(cached_path=None))
        assert not silent, f"no answer from {silent}"
"""


def conformance(
    job_factory: Callable[[], JobTrait],
    *,
    hosts: bool = True,
    wrong: Iterable[Callable[[], object]] = (),
    silent: Callable[[], JobTrait] | None = None,
) -> None:
    """Takes jobs of the factory through their life; `AssertionError` names what a backend has to do and did not.

    With `hosts=False` nothing is run on the hosts. `wrong` are constructions with arguments that cannot be right, such as a mesh of no
    host. `silent` makes a job whose workers never listen, with seconds to join.
    """
    # The client starts outside of the folder: its processes are none of the job's.
    start_client()
    with _own_folder() as folder:
        for construction in wrong:
            _refused(construction)
        first = job_factory()
        try:
            _before(first, job_factory)
            _allocation(first)
            if hosts:
                _hosts(first)
            data = _saved(first, folder)
            _fresh(first, hosts)
            if hosts:
                _loss(first)
        finally:
            first.kill()
        _after(first, data, folder)
        _interrupted(job_factory, folder)
        _cached(job_factory)
        if silent is not None:
            _silent(silent)
        _require_no_process(folder, "kill() ends all that the job has started")


@contextlib.contextmanager
def _own_folder() -> Generator[str]:
    before, home = os.getcwd(), os.environ.get("MONARCH_HOME")
    # Sockets may be made below it, and their paths are short.
    with tempfile.TemporaryDirectory(prefix="mj-") as made:
        os.environ["MONARCH_HOME"] = os.path.join(made, "home")
        work = os.path.join(made, "work")
        os.mkdir(work)
        os.chdir(work)
        try:
            yield made
        finally:
            os.chdir(before)
            if home is None:
                del os.environ["MONARCH_HOME"]
            else:
                os.environ["MONARCH_HOME"] = home


def _require(holds: object, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def _require_no_process(folder: str, what: str) -> None:
    end = time.monotonic() + _NOTICE_S
    while (left := traces.processes(folder)) and time.monotonic() < end:
        time.sleep(_PAUSE_S)
    _require(not left, f"{what} (left: {', '.join(f'pid {pid}, {command}' for pid, command in left.items())})")


def _refused(construction: Callable[[], object]) -> None:
    try:
        construction()
    except (ValueError, TypeError) as e:
        _require(str(e), "the error for arguments that cannot be right has a text")
    else:
        raise AssertionError("arguments that cannot be right are a ValueError or TypeError of the constructor")
    _require(os.listdir() == [], "a constructor that refuses its arguments makes no files")


def _before(job: JobTrait, job_factory: Callable[[], JobTrait]) -> None:
    _require(JobTrait in type(job).__mro__, "the factory gives a JobTrait")
    _require(not job.active and job.apply_id is None, "a new job is not active and has no apply_id")
    _require(job.status().phase == "none", "status() of a new job is 'none'")
    _require(job.plan() == job_factory().plan(), "plan() of equal jobs is equal, so it holds nothing random")
    _require(os.listdir() == [], "neither the constructor nor plan() nor status() makes files")
    job.kill()
    _require(not job.active, "kill() of a new job does nothing")


def _allocation(job: JobTrait) -> None:
    job.apply()
    apply_id = job.apply_id
    _require(job.active, "after apply() the job is active")
    _require(apply_id is not None and str(uuid.UUID(apply_id)) == apply_id, "after apply() it has a uuid as apply_id")
    job.apply()
    _require(job.apply_id == apply_id, "apply() of an active job does nothing")
    _words(job)


def _words(job: JobTrait) -> None:
    status = job.status()
    _require(status.phase in _ALIVE, f"status() of an active job is one of {', '.join(_ALIVE)}, not {status.phase!r}")
    _require(type(status.detail) is str, "the detail of a status is text")
    ranks: dict[str, list[int]] = {}
    for host in status.hosts:
        _require(host.phase in _HOST_PHASES, f"the phase of a host is one of {', '.join(_HOST_PHASES)}, not {host.phase!r}")
        ranks.setdefault(host.mesh, []).append(host.rank)
    for mesh, found in ranks.items():
        _require(found == list(range(len(found))), f"status() has each host of {mesh} once, in the order of the ranks, not {found}")


def _hosts(job: JobTrait) -> None:
    state = job.state(cached_path=None)
    _require(len(state), "there is at least one mesh")
    silent = silent_hosts(state)
    _require(not silent, f"every host of {', '.join(silent)} runs actors")
    listed = {host.mesh: 0 for host in job.status().hosts}
    _require(not listed or set(listed) == set(state), f"status() has the meshes of state(): {', '.join(state)}, not {', '.join(listed)}")
    _words(job)


def _saved(job: JobTrait, folder: str) -> bytes:
    data = job.dumps()
    copy = job_loads(data)
    _require(type(copy) is type(job), "job_loads(job.dumps()) is of the same class")
    _require(copy.plan() == job.plan(), "job_loads(job.dumps()) has the same plan")
    _require((copy.apply_id, copy.active) == (job.apply_id, True), "job_loads(job.dumps()) is the same allocation")
    job.dump("saved.json")
    _require(job_load("saved.json").apply_id == job.apply_id, "job_load() reads what dump() wrote")
    os.unlink("saved.json")
    for secret in traces.secrets(folder):
        for shown in (data, str(job.plan()).encode(), repr(job).encode()):
            _require(secret not in shown and secret.hex().encode() not in shown, "no secret is in plan, state or repr")
        pid = traces.in_arguments_or_environment(secret)
        _require(pid is None, f"no secret is in the arguments or the environment of a process (pid {pid})")
        readable = traces.open_files(folder, secret)
        _require(not readable, f"no secret is in a file that others can read ({', '.join(readable)})")
    return data


def _fresh(job: JobTrait, hosts: bool) -> None:
    """Another process goes on with the saved job; a class of a script itself cannot be imported there."""
    module = type(job).__module__
    # A LocalJob leaves nothing after its client.
    if module == "__main__" or isinstance(job, LocalJob):
        return
    job.dump("fresh.json")
    with open("fresh.py", "w") as f:
        f.write(_FRESH)
    path = os.pathsep.join(part or os.getcwd() for part in sys.path)
    argv = [sys.executable, "fresh.py", "fresh.json", "" if job.kind else module, "hosts" if hosts else ""]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=_JOIN_S)
    _require(done.returncode == 0, f"a fresh process finds the hosts of a saved job:\n{done.stderr.strip()[-2000:]}")
    os.unlink("fresh.json")
    os.unlink("fresh.py")


def _loss(job: JobTrait) -> None:
    _require(not any(job.heal()), "heal() of a job without a lost host does nothing")
    place = kill_last_worker(job.state(cached_path=None))
    if place is None:
        return
    named = f"{place[0]}[{place[1]}]"
    end = time.monotonic() + _NOTICE_S
    while (status := job.status()).phase != "ended" and not any(host[:2] == place and host.phase == "lost" for host in status.hosts):
        _require(time.monotonic() < end, f"status() reports a host as lost whose worker has ended ({named})")
        time.sleep(_PAUSE_S)
    if status.phase == "ended":
        return  # its only worker
    report = job.heal(timeout=_HEAL_S)
    reported = {host[:2] for hosts in report for host in hosts}
    _require(place in reported, f"heal() reports what it did about the lost host {named}")
    if place in {host[:2] for host in report.missing}:
        return
    silent = silent_hosts(job.state(cached_path=None))
    _require(not silent, f"the state() after heal() has hosts that run actors, in the place of lost ones (not: {', '.join(silent)})")


def _after(job: JobTrait, data: bytes, folder: str) -> None:
    _require(not job.active and job.apply_id is None, "after kill() the job is not active")
    _require(job.status().phase == "none", "after kill() status() is 'none'")
    with _required("kill() of a job that was killed does nothing"):
        job.kill()
    _require_no_process(folder, "kill() ends all that the job has started")
    left = _credentials()
    _require(not left, f"kill() removes the credentials (left: {', '.join(left)})")
    copy = job_loads(data)
    # A LocalJob has no allocation outside of its client.
    phase = "ended" if isinstance(copy, LocalJob) else copy.status().phase
    _require(phase not in ("pending", "running"), f"status() of an allocation that was killed elsewhere is 'ended', not {phase!r}")
    with _required("kill() of an allocation that was killed elsewhere does nothing"):
        copy.kill()


@contextlib.contextmanager
def _required(what: str) -> Generator[None]:
    try:
        yield
    except Exception as e:
        raise AssertionError(f"{what}, and does not raise {type(e).__name__}: {e}") from e


def _credentials() -> list[str]:
    folder = os.path.join(credentials.home(), "jobs")
    return os.listdir(folder) if os.path.isdir(folder) else []


def _interrupted(job_factory: Callable[[], JobTrait], folder: str) -> None:
    whole = job_factory()
    try:
        count = interrupt.calls(whole.apply)
    finally:
        whole.kill()
    for number in range(1, _INTERRUPTIONS + 1):
        job = job_factory()
        try:
            if not interrupt.interrupted_at(max(count * number // (_INTERRUPTIONS + 1), 1), job.apply):
                continue  # the submission was over before, or a library has swallowed the interrupt
            _require(not job.active and job.apply_id is None, "a job whose apply() was interrupted is not active")
            _require_no_process(folder, "an apply() that is interrupted ends what it has started")
            left = _credentials()
            _require(not left, f"an apply() that is interrupted leaves no credentials (left: {', '.join(left)})")
        finally:
            job.kill()


def _cached(job_factory: Callable[[], JobTrait]) -> None:
    path = "cached.json"
    one, two = job_factory(), job_factory()
    try:
        one.state(path)
        _require(os.path.exists(path), "state(path) writes the file")
        _require(os.stat(path).st_mode & 0o077 == 0, "the file is for its owner alone")
        two.state(path)
        if one.can_run(job_factory()):
            _require(two.apply_id == one.apply_id, "state(path) finds an allocation that can run the spec")
    finally:
        two.kill()
        _require(not os.path.exists(path), "kill() removes the file")
        one.kill()


def _silent(job_factory: Callable[[], JobTrait]) -> None:
    job = job_factory()
    try:
        state = job.state(cached_path=None)
        name = next(iter(state))
        state[name].initialized.get(_JOIN_S)
    except (JoinTimeoutError, JobEndedError) as e:
        _require(str(e).strip(), "the error for workers that never listen has a text")
    except TimeoutError:
        raise AssertionError(f"the use of hosts that never join is an error within {_JOIN_S:g} s") from None
    except Exception as e:
        raise AssertionError(
            f"the use of hosts that never join is a JoinTimeoutError or a JobEndedError, not {type(e).__name__}: {e}"
        ) from e
    else:
        raise AssertionError("the use of hosts that never join is an error")
    finally:
        job.kill()
