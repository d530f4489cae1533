"""SkyPilot on a real SLURM, all on this machine: its API server, a login node with sshd, and two nodes; one folder has all of it.

What daemons see as the home of the user is a folder of the test: SkyPilot's clusters, keys and runtime go there. SkyPilot wants `uv` and a
Python 3.10 in the home of a cluster and would download both: `uv` is put there, and takes 3.10 for the interpreter of these tests.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from tools import side_venv
from tools.enclosure import Enclosure
from tools.ports import PortBlock
from tools.slurm.cluster import SlurmCluster
from tools.slurm.cluster import missing as slurm_missing
from tools.slurm.configuration import Node
from tools.sshd.hosts import SshHosts
from tools.sshd.hosts import missing as sshd_missing

USER_HASH = "00c0ffee"  # how SkyPilot tells its users apart; a part of the names of clusters
# SkyPilot leaves these in the temporary folder, of its server and of nodes, whose paths are fixed.
_LEFT = ("sky-tmp*", "sky_app_*", "sky_setup_*", "sky_ssh_*", f"*-{USER_HASH}")
START_TIMEOUT_S = 240.0  # 8 s on a machine that is not busy, a minute on one that compiles
_UV = """#!/bin/sh
# {python} in place of 3.10, which would be downloaded; the packages of nodes are kept between runs.
count=$#
while [ "$count" -gt 0 ]; do
    [ "$1" = 3.10 ] && set -- "$@" {python} || set -- "$@" "$1"
    shift; count=$((count - 1))
done
export UV_CACHE_DIR={cache} UV_NATIVE_TLS=1 UV_NO_PROGRESS=1
exec {uv} "$@"
"""


def missing() -> str:
    """Why there can be no such site here; empty where there can."""
    if not os.environ.get("MONARCH_TEST_SKYPILOT"):
        return "a test of many minutes on a busy machine: set MONARCH_TEST_SKYPILOT=1"
    if side_venv.existing("skypilot") is None:
        return "SkyPilot is not installed: python -m tools.side_venv skypilot"
    if shutil.which("rsync") is None:
        return "there is no rsync, which SkyPilot copies files with: tools/system_packages.sh ssh"
    return slurm_missing() or sshd_missing()


class SkyPilotSite:
    """`env` is what clients need; `python` is the interpreter that SkyPilot is installed for."""

    def __init__(self, directory: Path, clusters: list[str]) -> None:
        found = side_venv.existing("skypilot")
        assert found is not None
        self.python = found
        self.directory = directory.resolve()
        self.home = self.directory / "home"
        self._clusters = clusters
        self._ports = PortBlock(1)
        self.env = {
            "HOME": str(self.home),
            "SKYPILOT_API_SERVER_LOCAL_PORT": str(self._ports.first),
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
            "SKYPILOT_USER_ID": USER_HASH,
        }
        accounts = self.directory / "passwd"
        self.slurm = SlurmCluster(self.directory / "slurm", [Node(cpus=2, memory_mb=4096)] * 2, named=True, files={"/etc/passwd": accounts})
        variables = {**self.slurm.env, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        self.login = SshHosts(self.directory / "sshd", ["login"], env=variables, files={"/etc/passwd": accounts})
        self._accounts = accounts
        self._server: Enclosure | None = None
        self._before = _left_files()

    def up(self) -> None:
        """Returns when the API server answers."""
        for folder in (self.home / ".slurm", self.home / ".ssh"):
            folder.mkdir(mode=0o700, parents=True)
        name = pwd.getpwuid(os.getuid()).pw_name
        lines = Path("/etc/passwd").read_text().splitlines()
        fields = [line.split(":") for line in lines if line]
        changed = [[*entry[:5], str(self.home), "/bin/bash"] if entry[0] == name else entry for entry in fields]
        self._accounts.write_text("".join(":".join(entry) + "\n" for entry in changed))
        for cluster in self._clusters:
            self._put_uv(cluster)
        try:
            self.slurm.up()
            self.login.up()
            (self.home / ".slurm" / "config").write_text(self.login.config.read_text())
            self._start_server()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Ends everything, what SkyPilot has started included."""
        if self._server is not None:
            self._server.kill()
            self._server = None
        self.login.down()
        self.slurm.down()
        self._ports.close()
        for path in _left_files() - self._before:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def log(self) -> str:
        """The end of what the API server and the daemons of the cluster have printed."""
        logs = [self.directory / "server.log", *sorted(self.directory.glob("s*/*.log"))]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in logs if path.exists())

    def _put_uv(self, cluster: str) -> None:
        folder = self.home / ".sky_clusters" / f"{cluster}-{USER_HASH}" / ".local" / "bin"
        folder.mkdir(parents=True)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "monarch" / "uv"
        python = os.path.realpath(sys.executable)
        (folder / "uv").write_text(_UV.format(python=python, cache=cache, uv=self.python.with_name("uv")))
        (folder / "uv").chmod(0o755)

    def _start_server(self) -> None:
        argv = [str(self.python.with_name("sky")), "api", "start", "--foreground"]
        # The login node is known to ssh by the keys of this site only.
        self._server = Enclosure(argv, log=self.directory / "server.log", env=self._environment(), files={"/etc/passwd": self._accounts})
        end = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > end:
                raise TimeoutError(f"SkyPilot's API server does not answer\n{self.log()}")
            time.sleep(0.1)  # sleeps: the server has no event for this

    def _environment(self) -> dict[str, str]:
        # What pytest and its caller have set is not for SkyPilot.
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TZ", "SSL_CERT_FILE")}
        return {**kept, **self.env}

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ports.first}/api/health", timeout=5) as answer:
                return json.load(answer)["status"] == "healthy"
        except (OSError, ValueError, KeyError):
            return False

    def __enter__(self) -> SkyPilotSite:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()


def _left_files() -> set[Path]:
    return {path for pattern in _LEFT for path in Path("/tmp").glob(pattern)}
