"""The hosts of a job, by the names of its meshes."""

from __future__ import annotations

from copy import copy
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from monarch.actor import HostMesh


class JobState:
    """Host meshes by name: `state.trainers`, or `state["a-b"]` for names that are no identifiers.

    The other attributes are None where the component is not enabled. Meshes are pending like all meshes: the first use waits.
    """

    __module__ = "monarch.job"
    query_engine: Any
    query_engine_client: Any
    telemetry_url: str | None
    dashboard_url: str | None
    admin_url: str | None

    def __init__(
        self,
        meshes: Mapping[str, HostMesh],
        *,
        query_engine: Any = None,
        query_engine_client: Any = None,
        telemetry_url: str | None = None,
        dashboard_url: str | None = None,
        admin_url: str | None = None,
    ) -> None:
        check_mesh_names(meshes)
        self._meshes = dict(meshes)
        self.query_engine = query_engine
        self.query_engine_client = query_engine_client
        self.telemetry_url = telemetry_url
        self.dashboard_url = dashboard_url
        self.admin_url = admin_url

    def __getattr__(self, name: str) -> HostMesh:
        # Unpickling also looks names up before there are any attributes.
        meshes: dict[str, HostMesh] = self.__dict__.get("_meshes", {})
        if name in meshes:
            return meshes[name]
        raise AttributeError(f"no mesh '{name}' in this job, there is: {_listed(meshes)}", name=name, obj=self)

    def __getitem__(self, name: str) -> HostMesh:
        if name in self._meshes:
            return self._meshes[name]
        raise KeyError(f"no mesh '{name}' in this job, there is: {_listed(self._meshes)}")

    def __contains__(self, name: object) -> bool:
        return name in self._meshes

    def __iter__(self) -> Iterator[str]:
        return iter(self._meshes)

    def __len__(self) -> int:
        return len(self._meshes)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._meshes})

    def __repr__(self) -> str:
        meshes = [f"{name}: {getattr(mesh, 'extent', mesh)}" for name, mesh in self._meshes.items()]
        return f"<JobState {', '.join(meshes)}>"


# The meshes by name. A public name of the class would be no name for a mesh.
meshes_of: Callable[[JobState], dict[str, HostMesh]] = attrgetter("_meshes")


def extend(state: JobState, attributes: Mapping[str, Any], meshes: Mapping[str, HostMesh]) -> None:
    """Adds what a feature of the job offers: attributes, and meshes in the place of others. `ValueError`: a name is taken, or missing."""
    for name in attributes:
        if name in state or name in vars(JobState) or name.startswith("_"):
            raise ValueError(f"the attribute '{name}' is taken")
    for name in meshes:
        if name not in state:
            raise ValueError(f"there is no mesh '{name}'")
    vars(state).update(attributes)
    meshes_of(state).update(meshes)


def with_own_meshes(state: JobState) -> JobState:
    """The same hosts and components, with mesh objects that nothing else has."""
    found = copy(state)
    vars(found)["_meshes"] = {name: copy(mesh) for name, mesh in meshes_of(state).items()}
    return found


def host_meshes(meshes: Mapping[str, object]) -> dict[str, HostMesh]:
    """The meshes of hosts among the meshes of a job, which may also have meshes of its own kind."""
    from monarch.actor import HostMesh

    return {name: mesh for name, mesh in meshes.items() if isinstance(mesh, HostMesh)}


def checked_state(found: object, job: str) -> JobState:
    """What `_state()` of a class of jobs has returned."""
    if not isinstance(found, JobState):
        raise TypeError(f"{job}._state(): expected a JobState, not {type(found).__name__}")
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def check_mesh_names(names: Iterable[object]) -> None:
    """`TypeError` or `ValueError` for what cannot be the name of a mesh."""
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"the name of a mesh is text, not {type(name).__name__}")
        if not name:
            raise ValueError("the name of a mesh is empty")
        if name in _MEMBERS or name.startswith("__"):
            raise ValueError(f"a mesh cannot be named '{name}': every JobState has that attribute")


def check_count(name: str, count: object) -> int:
    """`TypeError` or `ValueError` for what cannot be the number of hosts of a mesh."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"mesh '{name}': the number of hosts is an int, not {type(count).__name__}")
    if count < 1:
        raise ValueError(f"mesh '{name}' needs at least one host, not {count}")
    return count


_MEMBERS = frozenset({*vars(JobState), "_meshes", "query_engine", "query_engine_client", "telemetry_url", "dashboard_url", "admin_url"})
