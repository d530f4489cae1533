"""The place of a workspace on a host, and `sys.path` of the processes there.

The process of an agent that serves remote clients calls `export` once. All procs of the host inherit its directory, in which each job has
a directory of its own: that one is `WORKSPACE_DIR` in the procs of the job, whatever the client's environment contains. Procs receive the
list of mirrored directories as pairs of a local directory and its place. In a proc an entry of the client's `sys.path` that is in such a
directory is replaced by the same path in the mirror. A directory without such an entry is inserted behind the standard library, before
installed packages, so that synced code is found before an older installed copy.
"""

from __future__ import annotations

import os
import sys

from monarch._core.process.identity import to_base58
from monarch._core.process.workspace_variables import BELOW, OF_AGENT, OF_JOB, VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from monarch._core.sync.host_workspaces import HostWorkspaces

    # A local directory, its place below `WORKSPACE_DIR`, and its import position: True at the front, as an entry of the client's
    # `sys.path`; False behind the standard library; None if other items of the list cover it.
    Place = tuple[str, str, bool | None]

VARIABLES = (VARIABLE, OF_JOB)

# The directories that this process has mirrored, by the uid of the agent; and, in a proc, those that its client has mirrored.
_mirrored: dict[int, list[Place]] = {}
_own: list[Place] = []
# While this lock is held, the mirrors here are not removed.
_lock: int | None = None


def export() -> HostWorkspaces:
    """Called by an agent, before it has procs: makes the directory in which each job has its workspace on this host."""
    from monarch._core.sync.host_workspaces import open_for_agent

    home = os.environ.get("MONARCH_HOME") or os.path.join(os.path.expanduser("~"), ".monarch")
    found = open_for_agent(os.environ.get(VARIABLE) or os.path.join(home, "workspaces"), os.uname().nodename)
    os.environ[OF_AGENT] = found.path
    return found


def of_job(id: int) -> str | None:
    """The workspace of a job, in which this host has the given `id`. None if this host's agent serves its own process only.

    Called before the client's environment is applied.
    """
    found = os.environ.get(OF_JOB)
    if found is None and (agent := os.environ.get(OF_AGENT)) is not None:
        found = os.path.join(agent, to_base58(id))
    return found


def keep(found: str | None) -> None:
    """Sets the workspace of the job on this host, whatever the client's environment contains."""
    if found is not None:
        os.environ.update(variables(found))
        os.environ.pop(OF_AGENT, None)
        if sys.prefix.startswith(found + "/"):
            # The interpreter belongs to the synced environment, which must stay as long as this process lives.
            hold()


def variables(workspace: str | None) -> dict[str, str]:
    """The environment variables of a proc of the job that is started by a command."""
    return {} if workspace is None else dict.fromkeys(VARIABLES, workspace)


def expanded(path: str, workspace: str | None) -> str:
    """A path of a proc's program on this host; a path outside the workspace is unchanged."""
    return path if workspace is None or not path.startswith(BELOW) else os.path.join(workspace, path[len(BELOW) :])


def workspace_directory() -> str:
    """The workspace of this proc's job on this host; `RuntimeError` if its agent has none."""
    found = os.environ.get(OF_JOB) or os.environ.get(VARIABLE)
    if not found:
        raise RuntimeError(f"the agent of host {os.uname().nodename} has exported no {VARIABLE}")
    return os.path.abspath(found)


def hold() -> str:
    """The workspace, which is not removed as long as this process lives."""
    global _lock
    top = workspace_directory()
    if _lock is None:
        import fcntl

        from monarch._core.sync.host_workspaces import lock, lock_of

        try:
            _lock = lock(lock_of(top), fcntl.LOCK_SH)
        except OSError:  # the file system has no locks, so no other process removes the workspace; or it is full, which the sync reports
            pass
    return top


def described(dirs: Sequence[tuple[str, str]], path: Sequence[str]) -> list[Place]:
    """The directories of a workspace, and their parts on `sys.path` here."""
    found: list[Place] = []
    imported: list[Place] = []
    for entry in path:
        for local, place in dirs:
            if entry == local or entry.startswith(local + "/"):
                imported.append((entry, os.path.normpath(os.path.join(place, entry[len(local) + 1 :])), True))
                break
    for local, place in dirs:
        is_imported = any(p == place or p.startswith(place + "/") for _, p, _ in imported)
        if (local, place, True) not in imported:
            found.append((local, place, None if is_imported else False))
    return [*imported, *found]


def remember(agents: Iterable[int], places: list[Place]) -> None:
    """Records that these hosts have these directories."""
    for agent in agents:
        known = _mirrored.setdefault(agent, [])
        names = {place for _, place, _ in places}
        known[:] = [one for one in known if one[1] not in names] + places


def pushed(agents: Sequence[int]) -> list[Place]:
    """The mirrored directories in the set-up of procs that are spawned on these hosts."""
    for agent in agents:
        if agent in _mirrored:
            return _mirrored[agent]
    return _own


def accept(places: list[Place]) -> None:
    """In a proc: makes the mirrored directories importable."""
    if places and OF_JOB in os.environ:
        top = hold()
        sys.path[:] = translated(sys.path, places, top)
        # Procs that are spawned from here start with the entries that were just set.
        _own[:] = [*places, *((os.path.join(top, place), place, None) for _, place, _ in places)]


def translated(path: Sequence[str], places: Sequence[Place], top: str) -> list[str]:
    """`sys.path` with local directories replaced by their mirrors, and the other directories inserted."""
    found: list[str] = []
    for entry in path:
        for local, place, _ in places:
            if entry == local or entry.startswith(local + "/"):
                entry = os.path.normpath(os.path.join(top, place, entry[len(local) + 1 :]))
                break
        found.append(entry)
    mirrors = {os.path.join(top, place): kind for _, place, kind in places}
    new = [mirror for mirror, kind in mirrors.items() if kind is True and mirror not in found]
    found[:0] = new
    at = next((i for i, entry in enumerate(found) if os.path.basename(entry) in ("site-packages", "dist-packages")), len(found))
    found[at:at] = [mirror for mirror, kind in mirrors.items() if kind is False and mirror not in found]
    return found


def mirrors(places: Sequence[Place]) -> list[str]:
    """The paths of the directories on this host."""
    top = workspace_directory()
    return [os.path.join(top, place) for _, place, _ in places]
