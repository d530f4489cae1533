"""Services of a keeper for tests, and the job feature that uses one; `install` makes them entry points of every process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monarch.job import FeatureHosts, JobFeature, KeptService, Offer

ENTRIES = "[monarch.keeper]\nlamp = kept_lamp:Lamp\nodd = kept_lamp:ENTRIES\n[monarch.job_feature]\nlamp = kept_lamp:LampFeature\n"


def install(folder: Path) -> str:
    """A folder for the module path that has the entry points."""
    info = folder / "lamp-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lamp\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    return str(folder)


class Lamp(KeptService):
    """Its file has a line for each start; `fail` in the config raises, `procs` makes it start a process on each host."""

    def __init__(self) -> None:
        self.path = Path()
        self.starts = 0
        self.is_busy = True

    def start(self, hosts: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
        if config.get("fail"):
            raise ValueError("the bulb is broken")
        for mesh in hosts.values():
            mesh.initialized.get()
            if config.get("procs"):
                procs = mesh.spawn_procs()
                procs.initialized.get()
                procs.stop().get()
        self.path = Path(config["path"])
        self.starts += 1
        self.is_busy = config.get("busy", True)
        with self.path.open("a") as f:
            f.write(f"on {self.starts} {' '.join(hosts)}\n")
        return {"pid": os.getpid(), "starts": self.starts}

    def stop(self) -> None:
        with self.path.open("a") as f:
            f.write("off\n")

    def status(self) -> Mapping[str, Any]:
        return {"starts": self.starts}

    def busy(self) -> bool:
        return self.is_busy


class LampFeature(JobFeature):
    several = True

    def __init__(self, path: str) -> None:
        self.path = path

    def dump(self) -> dict[str, Any]:
        return {"path": self.path}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> LampFeature:
        return cls(**saved)

    def start(self, hosts: FeatureHosts) -> Offer:
        assert hosts.keeper is not None
        return Offer({"lamp": hosts.keeper.serve("lamp", self.path, {"path": self.path})})

    def stop(self) -> None:
        pass
