"""The arguments of a TorchXJob, as they are saved."""

from __future__ import annotations

import re
import sys
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

# Schedulers whose replicas find this machine's files at the same places.
_SHARING = frozenset({"local_cwd", "slurm"})


class TorchXArguments(BaseModel):
    """Every argument of the constructor; `app` is the application as JSON."""

    model_config = ConfigDict(extra="forbid", strict=True)

    app: dict[str, Any]
    scheduler: str
    scheduler_cfg: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    workspace: str | None = None
    python_exe: str | None = None
    monarch_port: int = Field(22222, ge=1, le=65535)
    join_timeout: float = Field(120.0, gt=0)

    @field_validator("workspace", "python_exe")
    @classmethod
    def _one_line(cls, value: str | None) -> str | None:
        if value is not None and (not value.strip() or re.search(r"[\x00-\x1f\x7f]", value)):
            raise ValueError("is empty, or has a line break or a control character")
        return value

    @property
    def python(self) -> str:
        """The interpreter of the workers: this one where the replicas have this machine's files."""
        return self.python_exe or (sys.executable if self.scheduler in _SHARING else "python")
