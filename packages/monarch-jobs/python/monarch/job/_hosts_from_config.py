"""Hosts by name, for scripts that do not say which job they run in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.actor import HostMesh

_LOCAL_HOSTS = 2


def hosts_from_config(name: str) -> HostMesh:
    """The mesh `name` of the current job; without a current job, two hosts that are processes of this machine."""
    from monarch.job._current_job import load_current_job
    from monarch.job._files import contexts
    from monarch.job.process import ProcessJob

    if contexts.spec() is not None:
        return load_current_job().state()[name]
    from atexit import register

    job = ProcessJob({name: _LOCAL_HOSTS})
    state = job.state(cached_path=None)
    # Nobody else knows of it.
    register(job.kill)
    return state[name]
