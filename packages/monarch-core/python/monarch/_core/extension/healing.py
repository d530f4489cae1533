"""The replacement of lost hosts of an attached mesh: a function that the mesh's job sets. Libraries get it for any slice of the mesh."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from monarch._core.hosts.host_mesh import HostMesh
from monarch._core.hosts.host_set import HostSet
from monarch._core.shape.shape import Shape
from monarch._core.shape.slice import Slice


class HealedHosts(NamedTuple):
    """The hosts of a mesh after healing. `missing` has the ranks, in `hosts`, of hosts that are still lost; `why` is a text for users."""

    hosts: HostMesh
    missing: frozenset[int] = frozenset()
    why: str = ""


class Healer(Protocol):
    """The function that brings lost hosts of a mesh back."""

    def __call__(self, seconds: float, /) -> HealedHosts:
        """The hosts of the mesh, after at most `seconds`."""
        ...


def set_healer(hosts: HostMesh, heal: Healer) -> None:
    """Sets the function that replaces lost hosts of an attached mesh, of its copies and of its slices, in place of an earlier function.

    `heal(seconds)` brings lost hosts back within that time, and returns the hosts of this mesh: handles that reach the new ones. Code that
    needs its hosts calls it, on any thread, also on several at once; it may block. Its caller gets its exceptions. Hosts that were not
    attached, like `this_host()`, cannot be lost: for these the call has no effect. It has none either for other objects than a `HostMesh`,
    in the `JobState` of a job whose meshes are of its own kind.
    """
    if isinstance(hosts, HostMesh) and hosts.__core__.attachment is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
        agents, healers = tuple(hosts.__core__.agent_ids()), hosts.__core__.healers
        healers.pop(agents, None)
        healers[agents] = heal


def healer_of(hosts: HostMesh) -> Healer | None:
    """The function that replaces lost hosts of a mesh, None if no job has set one. For a slice, it returns the same slice of the healed
    mesh.

    The interpreter that `with_python_executable` has set for the mesh stays. A handle that arrived in a message has no healer.
    """
    wanted = hosts.__core__.agent_ids()
    # The last function that was set comes first.
    of, heal = next((one for one in reversed(list(hosts.__core__.healers.items())) if set(wanted).issubset(one[0])), (None, None))
    if of is None or heal is None:
        return None
    places = [of.index(agent) for agent in wanted]

    def healed(seconds: float, /) -> HealedHosts:
        found = heal(seconds)
        every = found.hosts.__core__.agent_ids()
        if len(every) != len(of):
            raise ValueError(f"the healer of {len(of)} hosts has returned {found.hosts!r}: expected all hosts of the mesh")
        shape = Shape(tuple(hosts.sizes), Slice.new_row_major(tuple(hosts.sizes.values())))
        mesh = HostSet(tuple(every[place] for place in places), shape, False, hosts.__core__.executable)
        mesh.sharing(found.hosts.__core__, found.hosts.__core__.spawned)
        return HealedHosts(HostMesh(mesh), frozenset(rank for rank, place in enumerate(places) if place in found.missing), found.why)

    return healed
