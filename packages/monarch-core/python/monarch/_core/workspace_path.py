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

VARIABLE = "WORKSPACE_DIR"
# Set by agents for their procs only: the client's own variable travels with its environment and means the client's machine.
_OF_HOST = "MONARCH_HOST_WORKSPACE_DIR"

VARIABLES = (VARIABLE, _OF_HOST)

# What has been mirrored by this process, by the uid of the agent; and, in a proc, what its client has mirrored.
_mirrored: dict[int, list[tuple[str, str]]] = {}
_own: list[tuple[str, str]] = []


def export(default: str) -> str:
    """Called by an agent: where workspaces go, for all procs of this host. `default` if the host's environment does not say."""
    found = os.path.abspath(os.environ.get(VARIABLE) or default)
    os.environ[VARIABLE] = os.environ[_OF_HOST] = found
    return found


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


def remember(agents: Iterable[int], pairs: list[tuple[str, str]]) -> None:
    """These hosts have these directories from now on."""
    for agent in agents:
        known = _mirrored.setdefault(agent, [])
        places = {place for _, place in pairs}
        known[:] = [pair for pair in known if pair[1] not in places] + pairs


def pushed(agents: Sequence[int]) -> list[tuple[str, str]]:
    """What procs that are spawned on these hosts are told."""
    for agent in agents:
        if agent in _mirrored:
            return _mirrored[agent]
    return _own


def accept(pairs: list[tuple[str, str]]) -> None:
    """In a proc: makes what has been mirrored importable."""
    if pairs and of_host() is not None:
        top = workspace_directory()
        sys.path[:] = translated(sys.path, pairs, top)
        # For procs that are spawned from here the entries are what they have just become.
        _own[:] = [*pairs, *((os.path.join(top, place), place) for _, place in pairs)]


def translated(path: Sequence[str], pairs: Sequence[tuple[str, str]], top: str) -> list[str]:
    """`sys.path` with local directories replaced by their mirrors, and the others put in."""
    found: list[str] = []
    for entry in path:
        for local, place in pairs:
            if entry == local or entry.startswith(local + "/"):
                entry = os.path.normpath(os.path.join(top, place, entry[len(local) + 1 :]))
                break
        found.append(entry)
    mirrors = dict.fromkeys(os.path.join(top, place) for _, place in pairs)
    new = [mirror for mirror in mirrors if not any(entry == mirror or entry.startswith(mirror + "/") for entry in found)]
    at = next((i for i, entry in enumerate(found) if os.path.basename(entry) in ("site-packages", "dist-packages")), len(found))
    found[at:at] = new
    return found


def places(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Where directories are on this host."""
    top = workspace_directory()
    return [os.path.join(top, place) for _, place in pairs]
