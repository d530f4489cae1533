"""The arguments of a SlurmJob, checked when they are given: nothing that reaches the scheduler can add a line to the script."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator

from monarch.job._job import arguments as job_arguments
from monarch.job._job.job_state import check_count, check_mesh_names

_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|INFINITE|UNLIMITED", re.IGNORECASE)
_WITH_PORT = re.compile(r"(?:\w+://)?(?:\[[^\]]*\]|[^:/@\[\]]*):\d+")
_MEMORY = re.compile(r"\d+[KMGT]?B?", re.IGNORECASE)


class SlurmArguments(BaseModel):
    """Every argument of the constructor, and what `add_mesh` and `share_node` have changed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    meshes: dict[str, int] = Field(default_factory=dict[str, int])
    python_exe: str = "python"
    slurm_args: tuple[str, ...] = ()
    monarch_port: int = Field(22222, ge=1, le=65535)
    job_name: str = "monarch_job"
    ntasks_per_node: PositiveInt = 1
    time_limit: str | None = None
    partition: str | None = None
    log_dir: str | None = None
    exclusive: bool = True
    gpus_per_node: int | None = Field(None, ge=0)
    cpus_per_task: PositiveInt | None = None
    mem: str | None = None
    job_start_timeout: PositiveInt | None = None
    account: str | None = None
    qos: str | None = None
    out_of_cluster: bool = False
    attach_to: str | None = None
    bind_to: str | None = None
    gres: str | None = None
    mesh_args: dict[str, tuple[str, ...]] | None = None
    min_nodes: PositiveInt | None = None
    spares: int = Field(0, ge=0)
    requeue: bool = False
    job_dir: str | None = None
    via_ssh: str | None = None
    join_timeout: float = Field(120.0, gt=0)
    gpus_per_task: int | None = Field(None, ge=0)  # of `share_node`

    @field_validator("*", mode="after")
    @classmethod
    def _one_line(cls, value: Any) -> Any:
        if isinstance(value, str):
            if re.search(r"[\x00-\x1f\x7f]", value):
                raise ValueError("has a line break or a control character")
            if not value.strip() or value.startswith("-"):
                raise ValueError("is empty or begins with '-'")
        return value

    @field_validator("slurm_args", mode="after")
    @classmethod
    def _options(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _checked_options(value)

    @field_validator("time_limit")
    @classmethod
    def _time(cls, value: str | None) -> str | None:
        if value is not None and not _TIME.fullmatch(value):
            raise ValueError("is no time: minutes, hours:minutes:seconds or days-hours")
        return value

    @field_validator("bind_to")
    @classmethod
    def _is_whole(cls, value: str | None) -> str | None:
        # An IPv6 address without brackets has colons, and no port.
        if value is None or bool(_WITH_PORT.fullmatch(value)) == ("://" in value):
            if value is not None and "://" in value and int(value.rpartition(":")[2]) > 65535:
                raise ValueError("has a port above 65535")
            return value
        if "://" in value:
            raise ValueError(f"is an address without a port: write {value}:22222, or the host alone, whose port is monarch_port")
        raise ValueError("is a host without a port, which is monarch_port, or an address with one, such as tcp://0.0.0.0:22222")

    @field_validator("mem")
    @classmethod
    def _memory(cls, value: str | None) -> str | None:
        if value is not None and not _MEMORY.fullmatch(value):
            raise ValueError("is no amount of memory: a number and K, M, G or T")
        return value

    @model_validator(mode="after")
    def _together(self) -> SlurmArguments:
        check_mesh_names(self.meshes)
        for name, count in self.meshes.items():
            check_count(name, count)
        for name, options in (self.mesh_args or {}).items():
            if name not in self.meshes:
                raise ValueError(f"mesh_args has no mesh '{name}'; the meshes are {', '.join(map(repr, self.meshes)) or 'none'}")
            _checked_options(options)
        if self.mesh_args and (self.spares or self.min_nodes):
            raise ValueError("mesh_args makes a heterogeneous job, which has neither spares nor min_nodes")
        if self.min_nodes is not None and self.meshes and self.min_nodes > sum(self.meshes.values()):
            raise ValueError(f"min_nodes is {self.min_nodes}, and the meshes have {sum(self.meshes.values())} nodes")
        if self.min_nodes is not None and self.min_nodes <= sum([*self.meshes.values()][:-1]):
            raise ValueError(f"min_nodes is {self.min_nodes}, which may leave the last mesh without a node")
        if self.out_of_cluster and not (self.via_ssh or self.attach_to):
            raise ValueError("out_of_cluster needs via_ssh, a login node, or attach_to, a gateway that this machine can reach")
        return self


def checked(arguments: dict[str, Any]) -> SlurmArguments:
    """The arguments as a model; `TypeError` or `ValueError` name the one that is wrong."""
    return job_arguments.checked(SlurmArguments, arguments, "SlurmJob")


def _checked_options(options: tuple[str, ...]) -> tuple[str, ...]:
    for option in options:
        if not option.startswith("-"):
            raise ValueError(f"an option of sbatch begins with '-': {option!r}")
        if re.search(r"[\x00-\x1f\x7f]", option):
            raise ValueError(f"has a line break or a control character: {option!r}")
    return options
