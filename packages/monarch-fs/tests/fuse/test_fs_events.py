"""The rows of `fs_events` and the metrics of mounts, as an observer of the host gets them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.extension import events
from monarch.fs import Mount, mount

LIMIT = 20.0


class Observer:
    """The rows and metrics of the processes of this host."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.rows: list[dict[str, Any]] = []
        self.metrics: dict[str, float] = {}
        self._observation = events.observe(self._take)

    def _take(self, batch: events.Batch) -> None:
        with self._changed:
            for event in batch.events:
                fields: dict[str, Any] = dict(event.fields)
                if event.name == "user.event" and fields["name"] == "fs_events":
                    self.rows.append(json.loads(fields["fields"]))
                elif event.name == "metric.update" and fields["meter"] == "monarch.fs":
                    name = fields["name"] + "".join(json.loads(fields["attributes"] or "{}").values())
                    self.metrics[name] = self.metrics.get(name, 0) + fields["amount"]
            self._changed.notify_all()

    def of(self, target: str, event: str) -> list[dict[str, Any]]:
        """The rows so far: the service may have recorded an earlier test."""
        return [row for row in self.rows if (row["target"], row["event"]) == (target, event)]

    def row(self, target: str, event: str) -> dict[str, Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.of(target, event)), LIMIT), (target, event, self.rows)
            return self.of(target, event)[0]

    def has_metric(self, name: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: name in self.metrics, LIMIT)

    def stop(self) -> None:
        self._observation.stop()


@pytest.fixture
def observer() -> Any:
    made = Observer()
    yield made
    made.stop()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "file").write_text(secrets.token_hex())
    (folder / "other").write_text(secrets.token_hex())
    return folder


def recording(mounted: Mount) -> None:
    """Returns when the service of the host, which may have run before, records."""
    mounted.status().get()
    end = threading.Event()
    while not any("fs" in found.name and not found.ended for found in events.recordings()):
        assert not end.wait(0.01)  # sleeps: a process that begins to record has no event


def test_mount_has_rows_and_metrics(source: Path, tmp_path: Path, observer: Observer) -> None:
    target = str(tmp_path / "mounted")
    mounted = mount(this_host(), source, target, pyc="as-is", fetch="demand")
    mounted.ready.get()
    recording(mounted)
    subprocess.run(["cmp", source / "file", f"{target}/file"], check=True, timeout=LIMIT)
    os.unlink(source / "other")
    failed = subprocess.run(["cat", f"{target}/other"], check=False, capture_output=True, text=True, timeout=LIMIT)
    assert "Input/output error" in failed.stderr
    [host] = mounted.status().get().hosts
    assert host.last_error == "other: the file was removed since the index was made" and host.stale_paths == ["other"]
    error = observer.row(target, "error")
    assert error == error | {"target": target, "path": "other", "detail": f"EIO: {host.last_error.removeprefix('other: ')}"}
    assert error["host"] == os.uname().nodename and error["timestamp_us"] > 1e15
    report = mounted.refresh().get()
    refresh = observer.row(target, "refresh")
    assert (refresh["target"], refresh["bytes"]) == (target, report.bytes_sent) and refresh["detail"].startswith("1 changed in ")
    mounted.close().get()
    observer.row(target, "unmount")
    for name in ("monarch.fs.faults", "monarch.fs.bytesclient", "monarch.fs.refresh.duration"):
        assert observer.has_metric(name), (name, observer.metrics)
    assert observer.metrics["monarch.fs.faults"] >= 2


def test_replaced_mount_server_has_a_row(source: Path, tmp_path: Path, observer: Observer) -> None:
    target = str(tmp_path / "mounted")
    with mount(this_host(), source, target, pyc="as-is", fetch="demand") as mounted:
        recording(mounted)
        mounted.status().get()
        found = subprocess.run(["pgrep", "-f", f"mount_server {os.environ['MONARCH_HOME']}/"], capture_output=True, text=True, check=True)
        [pid] = map(int, found.stdout.split())
        os.kill(pid, signal.SIGKILL)
        subprocess.run(["cmp", source / "file", f"{target}/file"], check=True, timeout=LIMIT)
        mounted.status().get()
        assert observer.row(target, "takeover")["detail"].startswith(f"the mount server {pid} was replaced by ")
        assert not observer.of(target, "error")
        # The numbers of the next server start again.
        os.unlink(source / "other")
        subprocess.run(["cat", f"{target}/other"], check=False, capture_output=True, timeout=LIMIT)
        mounted.status().get()
        assert observer.row(target, "error")["path"] == "other"


FULL = """
import json, sys
from monarch.actor import this_host
from monarch.extension import events
from monarch.fs import FsError, mount

batches = []
observation = events.observe(batches.append)
with mount(this_host(), sys.argv[1], sys.argv[2], pyc="as-is", fetch="demand") as mounted:
    try:
        mounted.complete().get()
    except FsError:
        mounted.status().get()
observation.stop()
for batch in batches:
    for event in batch.events:
        if event.name == "user.event" and event.fields["name"] == "fs_events":
            print(event.fields["fields"])
"""


def test_full_store_has_a_row(source: Path, tmp_path: Path) -> None:
    (source / "large").write_bytes(os.urandom(3 << 20))
    environment = {**os.environ, "MONARCH_FS_STORE_DIR": str(tmp_path / "store"), "MONARCH_FS_STORE_BYTES": str(1 << 20)}
    argv = [sys.executable, "-c", FULL, str(source), str(tmp_path / "mounted")]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=LIMIT, env=environment)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["event"] for row in rows] == ["mount", "store_full", "unmount"]
    mounted, full, _ = rows
    assert (mounted["target"], mounted["bytes"]) == (str(tmp_path / "mounted"), (3 << 20) + 128)
    assert full["bytes"] >= 2 << 20 and "were passed on and not kept" in full["detail"]
