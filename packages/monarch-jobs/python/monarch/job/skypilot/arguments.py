"""The arguments of a SkyPilotJob, checked when they are given: nothing that SkyPilot would only refuse after minutes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from monarch.job._job import arguments as job_arguments
from monarch.job._job.job_state import check_count, check_mesh_names

# SkyPilot's own rule for the names of clusters; longer ones are cut by some providers.
_CLUSTER = re.compile(r"[a-zA-Z](?:[-_.a-zA-Z0-9]*[a-zA-Z0-9])?")
_MAX_CLUSTER = 60
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
# Prefixes of variables that the provider sets on nodes, and of Monarch's.
_TAKEN = ("SKYPILOT_", "MONARCH_JOB_SECRET")


class SkyPilotArguments(BaseModel):
    """Every argument of the constructor; `resources` as in a task's YAML."""

    model_config = ConfigDict(extra="forbid", strict=True)

    meshes: dict[str, int]
    resources: dict[str, Any] | None = None
    cluster_name: str | None = None
    monarch_port: int = Field(22222, ge=1, le=65535)
    idle_minutes_to_autostop: int | None = Field(None, ge=0)
    down_on_autostop: bool = True
    python_exe: str = "python"
    setup_commands: str | None = None
    workdir: str | None = None
    file_mounts: dict[str, str] | None = None
    envs: dict[str, str] | None = None
    join_timeout: float = Field(600.0, gt=0)

    @field_validator("meshes")
    @classmethod
    def _meshes(cls, value: dict[str, int]) -> dict[str, int]:
        if not value:
            raise ValueError("has no mesh: nothing to launch")
        return value

    @field_validator("cluster_name")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and (not _CLUSTER.fullmatch(value) or len(value) > _MAX_CLUSTER):
            raise ValueError(f"is a letter, then letters, digits, '-', '_' and '.', {_MAX_CLUSTER} characters at most")
        return value

    @field_validator("python_exe", "workdir")
    @classmethod
    def _one_line(cls, value: str | None) -> str | None:
        if value is not None and (not value.strip() or value.startswith("-") or re.search(r"[\x00-\x1f\x7f]", value)):
            raise ValueError("is empty, begins with '-', or has a control character")
        return value

    @field_validator("setup_commands")
    @classmethod
    def _script(cls, value: str | None) -> str | None:
        if value is not None and re.search(r"[\x00-\x08\x0b-\x1f\x7f]", value):
            raise ValueError("has a control character")
        return value

    @field_validator("file_mounts")
    @classmethod
    def _mounts(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        for target, source in (value or {}).items():
            if not target.startswith(("/", "~/")):
                raise ValueError(f"{target!r} is no path on the nodes: it begins with '/' or '~/'")
            if not source.strip():
                raise ValueError(f"{target!r} has no source")
        return value

    @field_validator("envs")
    @classmethod
    def _variables(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        for name in value or {}:
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a variable")
            if name.startswith(_TAKEN):
                raise ValueError(f"{name!r} belongs to SkyPilot, or to Monarch")
        return value


def checked(arguments: Mapping[str, Any]) -> SkyPilotArguments:
    """The arguments as a model; `TypeError` or `ValueError` name the one that is wrong."""
    meshes = arguments["meshes"]
    if not isinstance(meshes, Mapping):
        raise TypeError(f"SkyPilotJob: meshes is a dict of names to numbers of nodes, not {type(meshes).__name__}")
    check_mesh_names(meshes)  # pyright: ignore[reportUnknownArgumentType]
    given: dict[str, Any] = {**arguments, "meshes": {name: check_count(name, count) for name, count in meshes.items()}}  # pyright: ignore
    return job_arguments.checked(SkyPilotArguments, given, "SkyPilotJob")


def plain_resources(resources: Any) -> dict[str, Any] | None:
    """What `sky.Resources`, or a mapping as in a task's YAML, asks for, as JSON; `TypeError` for anything else."""
    if resources is None:
        return None
    found: Any = resources.to_yaml_config() if hasattr(resources, "to_yaml_config") else resources
    if not isinstance(found, dict):
        raise TypeError(f"SkyPilotJob: resources is a sky.Resources, or a dict as in a task's YAML, not {type(resources).__name__}")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(found))
    except (TypeError, ValueError) as error:
        raise TypeError(f"SkyPilotJob: resources: {error}") from None
    return plain
