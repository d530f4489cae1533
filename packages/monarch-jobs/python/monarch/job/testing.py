"""Does a backend do what every backend does? `conformance` runs the life cycle against it, for schedulers of other wheels too.

    python -m monarch.job.testing MODULE.ATTRIBUTE

The attribute is a function that makes a new, equal job each time. Everything runs in an empty directory with a `MONARCH_HOME` of its own;
nothing is left if it passes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
import uuid
from typing import TYPE_CHECKING

from monarch.job._files import credentials
from monarch.job._job.trait import JobTrait
from monarch.job._lookup import job_load, job_loads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from monarch.job._job.job_state import JobState

__all__ = ["conformance"]

_ALIVE = ("pending", "running", "unknown")


def conformance(job_factory: Callable[[], JobTrait], *, hosts: bool = True) -> None:
    """Takes jobs of the factory through their life; `AssertionError` names what a backend has to do and did not.

    With `hosts=False` nothing is run on the hosts.
    """
    with _own_folder():
        first = job_factory()
        try:
            _before(first, job_factory)
            _allocation(first)
            if hosts:
                _hosts(first.state(cached_path=None))
            _saved(first)
        finally:
            first.kill()
        _after(first)
        _cached(job_factory)


@contextlib.contextmanager
def _own_folder() -> Generator[None]:
    before, home = os.getcwd(), os.environ.get("MONARCH_HOME")
    # Sockets may be made below it, and their paths are short.
    with tempfile.TemporaryDirectory(prefix="mj-") as made:
        os.environ["MONARCH_HOME"] = os.path.join(made, "home")
        work = os.path.join(made, "work")
        os.mkdir(work)
        os.chdir(work)
        try:
            yield
        finally:
            os.chdir(before)
            if home is None:
                del os.environ["MONARCH_HOME"]
            else:
                os.environ["MONARCH_HOME"] = home


def _require(holds: object, what: str) -> None:
    if not holds:
        raise AssertionError(what)


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
    _require(job.status().phase in _ALIVE, f"status() of an active job is one of {', '.join(_ALIVE)}")


def _hosts(state: JobState) -> None:
    # Loads the runtime of actors, which a suite without hosts does not need.
    from monarch.actor import Actor, endpoint

    class Greeter(Actor):
        @endpoint
        def greet(self) -> str:
            return "here"

    _require(len(state), "there is at least one mesh")
    for name in state:
        mesh = state[name]
        mesh.initialized.get()
        procs = mesh.spawn_procs({"conformance": 1})
        answers = list(procs.spawn("greeter", Greeter).greet.call().get().values())
        _require(set(answers) == {"here"}, f"every host of {name} runs actors")
        procs.stop().get()


def _saved(job: JobTrait) -> None:
    data = job.dumps()
    copy = job_loads(data)
    _require(type(copy) is type(job), "job_loads(job.dumps()) is of the same class")
    _require(copy.plan() == job.plan(), "job_loads(job.dumps()) has the same plan")
    _require((copy.apply_id, copy.active) == (job.apply_id, True), "job_loads(job.dumps()) is the same allocation")
    job.dump("saved.json")
    _require(job_load("saved.json").apply_id == job.apply_id, "job_load() reads what dump() wrote")
    os.unlink("saved.json")
    for secret in _secrets(job):
        for shown in (data, str(job.plan()).encode(), repr(job).encode()):
            _require(secret not in shown and secret.hex().encode() not in shown, "no secret is in plan, state or repr")
        _require(not _in_argument_or_environment(secret), "no secret is in the arguments or the environment of a process")


def _secrets(job: JobTrait) -> list[bytes]:
    assert job.apply_id is not None
    folder = credentials.directory(job.apply_id)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    paths = [os.path.join(folder, name) for name in names]
    return [credentials.read_private(path) for path in paths if os.path.isfile(path)]


def _in_argument_or_environment(secret: bytes) -> bool:
    needles = (secret, secret.hex().encode())
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for file in ("cmdline", "environ"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/{file}", "rb") as f:
                text = f.read()
                if any(needle in text for needle in needles):
                    return True
    return False


def _after(job: JobTrait) -> None:
    _require(not job.active and job.apply_id is None, "after kill() the job is not active")
    _require(job.status().phase == "none", "after kill() status() is 'none'")
    job.kill()
    folder = os.path.join(credentials.home(), "jobs")
    left = os.listdir(folder) if os.path.isdir(folder) else []
    _require(not left, f"kill() removes the credentials (left: {', '.join(left)})")


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


def _main(arguments: list[str]) -> int:
    if len(arguments) != 1 or "." not in arguments[0]:
        print(__doc__, file=sys.stderr)
        return 2
    sys.path.append(os.getcwd())
    module, _, attribute = arguments[0].rpartition(".")
    conformance(getattr(importlib.import_module(module), attribute))
    print(f"{arguments[0]} conforms")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
