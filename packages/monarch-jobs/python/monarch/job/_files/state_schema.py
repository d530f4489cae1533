"""The schema of state files; loaded when a file is read, since pydantic takes longer to load than most commands take to run."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, field_validator


class FeatureRecord(BaseModel):
    """A feature of the job: its name, its configuration, and what it has saved."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str
    configured: dict[str, Any]
    saved: dict[str, Any]


class StateRecord(BaseModel):
    """Schema 1. `job` is the backend's own part; `apply_id` names a directory, so it is a uuid and nothing else."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    # `schema` itself is a method of BaseModel.
    schema_: Literal[1] = Field(alias="schema")
    kind: str
    apply_id: str | None
    active: bool
    job: dict[str, Any]
    features: list[FeatureRecord] = []

    @field_validator("apply_id")
    @classmethod
    def _is_uuid(cls, value: str | None) -> str | None:
        if value is not None and str(UUID(value)) != value:
            raise ValueError("is no uuid")
        return value
