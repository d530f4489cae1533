"""SkyPilot's API server on this machine, with what daemons see as the home of the user in a folder of a test.

SkyPilot's clusters, keys and settings go there. SkyPilot wants `uv` and a Python 3.10 on the nodes of a cluster and would download both:
`write_uv` puts `uv` there, and takes 3.10 for an interpreter that is there.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tools import side_venv
from tools.enclosure import Enclosure
from tools.ports import PortBlock

USER_HASH = "00c0ffee"  # SkyPilot's identifier of a user; a part of the names of clusters
# SkyPilot leaves these in the temporary folder, of its server and of nodes, whose paths are fixed.
_LEFT = ("sky-tmp*", "sky_app_*", "sky_setup_*", "sky_ssh_*", f"*-{USER_HASH}")
START_TIMEOUT_S = 240.0  # seconds: 8 on an idle machine, a minute on one that compiles
_UV = """#!/bin/sh
# {python} in place of 3.10, which would be downloaded; the packages of nodes are kept between runs.
count=$#
while [ "$count" -gt 0 ]; do
    [ "$1" = 3.10 ] && set -- "$@" {python} || set -- "$@" "$1"
    shift; count=$((count - 1))
done
export UV_CACHE_DIR={cache} UV_NATIVE_TLS=1 UV_NO_PROGRESS=1 {more}
exec {uv} "$@"
"""


def missing() -> str:
    """Why SkyPilot cannot run here; empty where it can."""
    if not os.environ.get("MONARCH_TEST_SKYPILOT"):
        return "a test of many minutes on a busy machine: set MONARCH_TEST_SKYPILOT=1"
    if side_venv.existing("skypilot") is None:
        return "SkyPilot is not installed: python -m tools.side_venv skypilot"
    if shutil.which("rsync") is None:
        return "there is no rsync, which SkyPilot copies files with: tools/system_packages.sh ssh"
    return ""


def uv_cache() -> Path:
    """The packages that nodes have got, which outlives a test."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "monarch" / "uv"


def write_uv(path: Path, uv: Path, python: str, **more: str) -> None:
    """The program `uv` of nodes: the real one at `uv`, with the variables `more`."""
    variables = " ".join(f"{name}={value}" for name, value in more.items())
    path.write_text(_UV.format(python=python, cache=uv_cache(), uv=uv, more=variables))
    path.chmod(0o755)


class SkyPilotServer:
    """The API server between `start` and `close`.

    `env` is what clients need; `python` is the interpreter that SkyPilot is installed for; `accounts` is an /etc/passwd in which `home` is
    that of this user, which ssh believes more than HOME.
    """

    def __init__(self, directory: Path, *, env: Mapping[str, str] | None = None) -> None:
        found = side_venv.existing("skypilot")
        assert found is not None
        self.python = found
        self.directory = directory.resolve()
        self.home = self.directory / "home"
        self.accounts = self.directory / "passwd"
        self._ports = PortBlock(1)
        self.env = {
            "HOME": str(self.home),
            "SKYPILOT_API_SERVER_LOCAL_PORT": str(self._ports.first),
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
            "SKYPILOT_USER_ID": USER_HASH,
            **(env or {}),
        }
        self._server: Enclosure | None = None
        self._before = _left_files()

    def write_accounts(self) -> None:
        name = pwd.getpwuid(os.getuid()).pw_name
        fields = [line.split(":") for line in Path("/etc/passwd").read_text().splitlines() if line]
        changed = [[*entry[:5], str(self.home), "/bin/bash"] if entry[0] == name else entry for entry in fields]
        self.home.mkdir(parents=True, exist_ok=True)
        self.accounts.write_text("".join(":".join(entry) + "\n" for entry in changed))

    def start(self) -> None:
        """Returns when it answers; `accounts` is there then."""
        self.write_accounts()
        argv = [str(self.python.with_name("sky")), "api", "start", "--foreground"]
        self._server = Enclosure(argv, log=self.directory / "server.log", env=self._environment(), files={"/etc/passwd": self.accounts})
        end = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > end:
                raise TimeoutError(f"SkyPilot's API server does not answer\n{self.log()}")
            time.sleep(0.1)  # sleeps: the server has no event for this

    def close(self) -> None:
        """Ends it with all that it has started, and removes what it has left."""
        if self._server is not None:
            self._server.kill()
            self._server = None
        self._ports.close()
        for path in _left_files() - self._before:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def log(self) -> str:
        """The end of what it and the daemons beside it have printed."""
        logs = [self.directory / "server.log", *sorted(self.directory.glob("s*/*.log"))]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in logs if path.exists())

    def _environment(self) -> dict[str, str]:
        # Variables of pytest and its caller are not for SkyPilot.
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TZ", "SSL_CERT_FILE")}
        return {**kept, **self.env}

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ports.first}/api/health", timeout=5) as answer:
                return json.load(answer)["status"] == "healthy"
        except (OSError, ValueError, KeyError):
            return False

    def __enter__(self) -> SkyPilotServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _left_files() -> set[Path]:
    return {path for pattern in _LEFT for path in Path("/tmp").glob(pattern)}
