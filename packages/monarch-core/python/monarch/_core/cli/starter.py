"""`monarch init`: the files of a first project, and the commands to run next.

It needs nothing but the folder. What always holds: it overwrites no file; either all files are written or none.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

_PROGRAM = '''\
"""A mesh of workers, each a process of its own. `python work.py` runs it on this machine, `python on_hosts.py` on the hosts of a job."""

import socket

from monarch.actor import Actor, HostMesh, current_rank, endpoint, this_host


class Worker(Actor):
    """One worker: it keeps what it has learned between calls."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.steps = 0

    @endpoint
    def step(self, x: float) -> float:
        self.steps += 1
        return self.scale * x + current_rank().rank

    @endpoint
    def where(self) -> str:
        return f"{socket.gethostname()}: {self.steps} steps"


def main(hosts: HostMesh) -> None:
    procs = hosts.spawn_procs(per_host={"workers": 2})
    workers = procs.spawn("workers", Worker, 2.0)
    for x in range(3):
        results = workers.step.call(float(x)).get()
        print(f"x = {x}: the mean of {len(results)} workers is {sum(results.values()) / len(results)}")
    for point, text in workers.where.call().get().items():
        print(point, text)
    procs.stop().get()


if __name__ == "__main__":
    main(this_host())
'''
_JOB = '''\
"""The hosts: two processes of this machine that behave like machines. On a cluster write `SlurmJob` or another job for `ProcessJob`."""

from monarch.job import ProcessJob

job = ProcessJob({"trainers": 2})
'''
_ON_HOSTS = '''\
"""Runs the program on the hosts of the job; the second run finds the same hosts again. `monarch kill` gives them back."""

from job import job
from work import main

if __name__ == "__main__":
    main(job.state().trainers)
'''
_TEST = '''\
"""Tests of the worker with real processes: `python -m pytest`."""

from work import Worker

from monarch.actor import this_host


def test_each_rank_adds_its_number() -> None:
    procs = this_host().spawn_procs(per_host={"workers": 3})
    try:
        workers = procs.spawn("workers", Worker, 10.0)
        assert list(workers.step.call(1.0).get().values()) == [10.0, 11.0, 12.0]
    finally:
        procs.stop().get()
'''
_NEXT = """\
python work.py         # the program on this machine
python -m pytest       # its test
monarch apply job.job  # reserves hosts (monarch-jobs)
python on_hosts.py     # the program on them
monarch kill           # gives them back
"""
FILES = {"work.py": _PROGRAM, "job.py": _JOB, "on_hosts.py": _ON_HOSTS, "test_work.py": _TEST}


def write(folder: Path) -> None:
    """Writes the files into the folder, which is made if it is missing. `ClickException` names the file that is in the way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = [name for name in FILES if os.path.lexists(folder / name)]
        if there:
            raise click.ClickException(f"{folder / there[0]} exists: choose another folder, or move the file away")
        _write_all(folder)
    except OSError as error:
        raise click.ClickException(f"{error.filename or folder}: {error.strerror or error}") from None
    place = f"cd {shlex.quote(str(folder))}\n" if not os.path.samefile(folder, os.curdir) else ""
    click.echo(f"wrote {', '.join(FILES)}. Next:\n\n{place}{_NEXT}", nl=False)


def _write_all(folder: Path) -> None:
    made: list[Path] = []
    try:
        for name, text in FILES.items():
            # Unlike a write or a rename, this fails where the file exists by now.
            with open(folder / name, "x", encoding="utf-8") as file:
                made.append(folder / name)
                file.write(text)
    except BaseException:
        # A full disk, or Ctrl-C.
        for path in made:
            path.unlink(missing_ok=True)
        raise
