"""TorchX applications as JSON and back, checked; the same application with workers in the place of its commands."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from monarch.job._job.job_state import check_count, check_mesh_names
from monarch.job.errors import BackendMissingError

try:
    from torchx import specs  # pyright: ignore[reportMissingTypeStubs]
    from torchx.schedulers import get_scheduler_factories  # pyright: ignore[reportMissingTypeStubs]
except ImportError as e:
    raise BackendMissingError(f"TorchXJob needs the package torchx: {e}", hint="pip install 'monarch-jobs[torchx]'") from e

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, Any]
_MOUNTS = {mount.__name__: mount for mount in (specs.BindMount, specs.VolumeMount, specs.DeviceMount)}


def scheduler_names() -> list[str]:
    """The schedulers that TorchX knows here: its own, or those of the entry points `torchx.schedulers`."""
    return sorted(get_scheduler_factories())


def check_scheduler(name: str) -> str:
    """The name; `ValueError` lists the schedulers that exist where there is none of that name."""
    known = scheduler_names()
    if name in known:
        return name
    where = ", which exists only inside the company that makes it" if name.startswith("mast") else ""
    raise ValueError(f"TorchXJob: scheduler: there is no '{name}' here{where}; there is: {', '.join(known)}")


def to_json(app: object) -> Json:
    """The application; `TypeError` or `ValueError` name the role and what is wrong with it."""
    if not isinstance(app, specs.AppDef):
        raise TypeError(f"TorchXJob: appdef is a torchx.specs.AppDef, not {type(app).__name__}")
    if not app.roles:
        raise ValueError(f"TorchXJob: the application '{app.name}' has no role")
    names = [role.name for role in app.roles]
    check_mesh_names(names)
    for role in app.roles:
        # TorchX makes files and folders of these names.
        if "/" in role.name or role.name.startswith(".") or not role.name.isprintable():
            raise ValueError(f"TorchXJob: role {role.name!r}: the name is no name of a file")
        if names.count(role.name) > 1:
            raise ValueError(f"TorchXJob: two roles have the name '{role.name}'")
        check_count(role.name, role.num_replicas)
    encoded = dataclasses.asdict(app)
    for role, saved in zip(app.roles, encoded["roles"], strict=True):
        saved["mounts"] = [{"type": type(mount).__name__, **dataclasses.asdict(mount)} for mount in role.mounts]
        try:
            json.dumps(saved)
        except TypeError as e:
            raise TypeError(f"TorchXJob: role '{role.name}': {e}") from None
    plain: Json = json.loads(json.dumps(encoded))
    return plain


def from_json(encoded: Json) -> specs.AppDef:
    """The application of such JSON."""
    roles: list[specs.Role] = []
    for saved in encoded["roles"]:
        role = dict(saved)
        role["resource"] = specs.Resource(**role["resource"])
        role["retry_policy"] = specs.RetryPolicy(role["retry_policy"])
        role["mounts"] = [_MOUNTS[mount["type"]](**{k: v for k, v in mount.items() if k != "type"}) for mount in role["mounts"]]
        roles.append(specs.Role(**role))
    return specs.AppDef(encoded["name"], roles, encoded["metadata"])


def sizes(encoded: Json) -> dict[str, int]:
    """How many replicas each role has, in order."""
    return {role["name"]: role["num_replicas"] for role in encoded["roles"]}


def places(replicas: Mapping[str, int]) -> dict[str, list[int]]:
    """The ranks of the roles among all workers of the application."""
    found: dict[str, list[int]] = {}
    first = 0
    for role, count in replicas.items():
        found[role] = list(range(first, first + count))
        first += count
    return found


def with_workers(encoded: Json, script: str) -> Json:
    """The application whose roles run the script: its arguments are the rank of the role's first replica, and the replica's number."""
    made = copy.deepcopy(encoded)
    first = places(sizes(encoded))
    for role in made["roles"]:
        # The environment of the command may be secret, and the worker needs none of it.
        role.update(entrypoint="/bin/sh", args=[script, str(first[role["name"]][0]), specs.macros.replica_id], env={})
    return made
