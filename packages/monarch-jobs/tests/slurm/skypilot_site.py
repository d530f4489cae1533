"""SkyPilot on a real SLURM, all on this machine: its API server, a login node with sshd, and two nodes; one folder has all of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

import skypilot_server
from skypilot_server import USER_HASH, SkyPilotServer, write_uv

from tools.slurm.cluster import SlurmCluster
from tools.slurm.cluster import missing as slurm_missing
from tools.slurm.configuration import Node
from tools.sshd.hosts import SshHosts
from tools.sshd.hosts import missing as sshd_missing


def missing() -> str:
    """Why there can be no such site here; empty where there can."""
    return skypilot_server.missing() or slurm_missing() or sshd_missing()


class SkyPilotSite:
    """`env` is what clients need; `python` is the interpreter that SkyPilot is installed for."""

    def __init__(self, directory: Path, clusters: list[str]) -> None:
        # Only the keys of this site make the login node known to ssh.
        self._server = SkyPilotServer(directory)
        accounts = self._server.accounts
        self.directory, self.home = self._server.directory, self._server.home
        self.env, self.python = self._server.env, self._server.python
        self._clusters = clusters
        self.slurm = SlurmCluster(self.directory / "slurm", [Node(cpus=2, memory_mb=4096)] * 2, named=True, files={"/etc/passwd": accounts})
        variables = {**self.slurm.env, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        self.login = SshHosts(self.directory / "sshd", ["login"], env=variables, files={"/etc/passwd": accounts})

    def up(self) -> None:
        """Returns when the API server answers."""
        for folder in (self.home / ".slurm", self.home / ".ssh"):
            folder.mkdir(mode=0o700, parents=True)
        self._server.write_accounts()
        for cluster in self._clusters:
            folder = self.home / ".sky_clusters" / f"{cluster}-{USER_HASH}" / ".local" / "bin"
            folder.mkdir(parents=True)
            write_uv(folder / "uv", self.python.with_name("uv"), os.path.realpath(sys.executable))
        try:
            self.slurm.up()
            self.login.up()
            (self.home / ".slurm" / "config").write_text(self.login.config.read_text())
            self._server.start()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Ends everything, what SkyPilot has started included."""
        self._server.close()
        self.login.down()
        self.slurm.down()

    def __enter__(self) -> SkyPilotSite:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()
