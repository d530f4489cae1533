"""Features of jobs: one that works, and others that fail."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from monarch.job import FeatureHosts, JobFeature, Offer


class Cage(JobFeature):
    """A file while the job runs; offers its path as `state.cage`."""

    def __init__(self, path: str, bars: int = 3) -> None:
        if bars < 1:
            raise ValueError(f"a cage of {bars} bars")
        self.path = path
        self.bars = bars
        self.starts = 0

    def dump(self) -> dict[str, Any]:
        return {"path": self.path, "bars": self.bars, "starts": self.starts}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> Cage:
        self = cls(saved["path"], saved["bars"])
        self.starts = saved["starts"]
        return self

    def start(self, hosts: FeatureHosts) -> Offer:
        self.starts += 1
        Path(self.path).write_text(f"{self.bars} bars around {', '.join(hosts.meshes)}", encoding="utf-8")
        return Offer({"cage": self.path})

    def stop(self) -> None:
        Path(self.path).unlink()


class _Plain(JobFeature):
    def dump(self) -> dict[str, Any]:
        return {}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> _Plain:
        return cls()

    def start(self, hosts: FeatureHosts) -> Offer:
        return Offer()

    def stop(self) -> None:
        """Nothing runs."""


class Raises(_Plain):
    def start(self, hosts: FeatureHosts) -> Offer:
        raise LookupError("no such cage")


class Hangs(_Plain):
    best_effort = True
    start_seconds = stop_seconds = 0.1

    def start(self, hosts: FeatureHosts) -> Offer:
        threading.Event().wait()
        raise AssertionError("unreachable")

    def stop(self) -> None:
        threading.Event().wait()
