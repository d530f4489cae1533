"""Debian's Prometheus on loopback, with a folder of its own, and the questions that a test asks it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote

import pytest
from eventually import eventually

from tools.ports import PortBlock

MISSING = "there is no Prometheus: tools/system_packages.sh test"
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None or shutil.which("promtool") is None, reason=MISSING)
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Prometheus:
    """A server that runs. `log` is what it has printed."""

    def __init__(self, url: str, log: Path) -> None:
        self.url, self.log = url, log

    def get(self, path: str) -> Any:
        """The data of an answer of the API; `AssertionError` with its text for an error."""
        try:
            with _OPENER.open(f"{self.url}/api/v1/{path}", timeout=20) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode()}") from None

    def query(self, text: str) -> dict[frozenset[tuple[str, str]], float]:
        """The values of an instant query, by their labels."""
        found = self.get(f"query?query={quote(text)}")["result"]
        return {frozenset(one["metric"].items()): float(one["value"][1]) for one in found}

    def targets(self) -> dict[str, tuple[str, str]]:
        """Health and last error of each target, by the name of its scrape job."""
        return {one["scrapePool"]: (one["health"], one["lastError"]) for one in self.get("targets")["activeTargets"]}


@contextlib.contextmanager
def running(folder: Path, config: str, *flags: str, agent: bool = False) -> Iterator[Prometheus]:
    """A server with this configuration, which is ready. `folder` is new; files that the configuration names are relative to it."""
    folder.mkdir(exist_ok=True)
    (folder / "prometheus.yaml").write_text(config)
    storage = "--storage.agent.path" if agent else "--storage.tsdb.path"
    ports = PortBlock(1)
    argv = ["prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"{storage}={folder / 'data'}", *flags]
    argv += [f"--web.listen-address=127.0.0.1:{ports.first}", *(["--enable-feature=agent"] if agent else [])]
    found = Prometheus(f"http://127.0.0.1:{ports.first}", folder / "log")
    try:
        with found.log.open("w") as log, subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process:
            try:
                eventually("Prometheus is ready", lambda: _is_ready(found, process))
                yield found
            finally:
                process.terminate()
                process.wait(20)
    finally:
        ports.close()


def _is_ready(server: Prometheus, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, server.log.read_text()
    try:
        with _OPENER.open(f"{server.url}/-/ready", timeout=5) as answer:
            return answer.status == 200
    except (URLError, OSError):
        return False
