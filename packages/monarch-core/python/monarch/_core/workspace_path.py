"""Where a workspace is on a host, and `sys.path` of the processes there.

The process of an agent that serves remote clients calls `export` once; what it finds or chooses is inherited by all procs of the host and
wins over the client's environment. What a client has mirrored is told to procs as pairs of a local directory and its place. In a proc an
entry of the client's `sys.path` that is in such a directory becomes the same one in the mirror; a directory that is on no entry comes in
behind the standard library, before what is installed, so that code that was synced is found before an older installed copy.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    # A local directory, and where it is below `WORKSPACE_DIR`. Whether it is to be imported from: True at the front, as it is an entry
    # of the client's `sys.path`, False behind the standard library; None if others of the list see to that.
    Place = tuple[str, str, bool | None]

VARIABLE = "WORKSPACE_DIR"
# Set by agents for their procs only: the client's own variable travels with its environment and means the client's machine.
_OF_HOST = "MONARCH_HOST_WORKSPACE_DIR"

VARIABLES = (VARIABLE, _OF_HOST)

# What has been mirrored by this process, by the uid of the agent; and, in a proc, what its client has mirrored.
_mirrored: dict[int, list[Place]] = {}
_own: list[Place] = []


def export(address: str) -> str:
    """Called by an agent, before it has procs: where workspaces go on this host, for all of them.

    What the host's environment says, else a directory of the user that agents at the same address share, one after the other: what is
    there when an agent starts need not be sent again.
    """
    found = os.environ.get(VARIABLE)
    if not found:
        home = os.environ.get("MONARCH_HOME") or os.path.join(os.path.expanduser("~"), ".monarch")
        found = os.path.join(home, "workspaces", "".join(c if c.isalnum() or c in ".-" else "_" for c in address))
    os.environ[VARIABLE] = os.environ[_OF_HOST] = os.path.abspath(found)
    return os.environ[VARIABLE]


def of_host() -> str | None:
    """What this host's agent has exported, before the client's environment is taken over."""
    return os.environ.get(_OF_HOST)


def keep(found: str | None) -> None:
    """What the agent has exported holds, whatever the client's environment says."""
    if found is not None:
        os.environ[VARIABLE] = os.environ[_OF_HOST] = found


def workspace_directory() -> str:
    """The directory of workspaces on this host; `RuntimeError` if nobody has said."""
    found = os.environ.get(_OF_HOST) or os.environ.get(VARIABLE)
    if not found:
        raise RuntimeError(f"the agent of host {os.uname().nodename} has exported no {VARIABLE}")
    return os.path.abspath(found)


def described(dirs: Sequence[tuple[str, str]], path: Sequence[str]) -> list[Place]:
    """The directories of a workspace, and what of them is on `sys.path` here."""
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
    """These hosts have these directories from now on."""
    for agent in agents:
        known = _mirrored.setdefault(agent, [])
        names = {place for _, place, _ in places}
        known[:] = [one for one in known if one[1] not in names] + places


def pushed(agents: Sequence[int]) -> list[Place]:
    """What procs that are spawned on these hosts are told."""
    for agent in agents:
        if agent in _mirrored:
            return _mirrored[agent]
    return _own


def accept(places: list[Place]) -> None:
    """In a proc: makes what has been mirrored importable."""
    if places and of_host() is not None:
        top = workspace_directory()
        sys.path[:] = translated(sys.path, places, top)
        # For procs that are spawned from here the entries are what they have just become.
        _own[:] = [*places, *((os.path.join(top, place), place, None) for _, place, _ in places)]


def translated(path: Sequence[str], places: Sequence[Place], top: str) -> list[str]:
    """`sys.path` with local directories replaced by their mirrors, and the others put in."""
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
    """Where directories are on this host."""
    top = workspace_directory()
    return [os.path.join(top, place) for _, place, _ in places]
