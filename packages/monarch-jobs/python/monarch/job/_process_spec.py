"""The arguments of a `ProcessJob`, checked."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator


class ProcessSpec(BaseModel):
    """Hosts per mesh, and what is added to the environment of the workers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    meshes: dict[str, Annotated[int, Field(ge=1)]] = Field(min_length=1)
    env: dict[str, str]

    @field_validator("env")
    @classmethod
    def _can_be_set(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not name or "=" in name or "\0" in name + text:
                raise ValueError(f"{name!r} cannot be set in an environment")
        return value
