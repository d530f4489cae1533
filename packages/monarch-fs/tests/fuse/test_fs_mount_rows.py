"""The rows of `mounts`, as an observer of the host gets them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monarch.actor import this_host
from monarch.extension import events
from monarch.fs import mount

LIMIT = 20.0


class Rows:
    """The rows of one mount point."""

    def __init__(self, target: str) -> None:
        self._target, self._changed = target, threading.Condition()
        self.rows: list[dict[str, Any]] = []
        self._observation = events.observe(self._take)

    def _take(self, batch: events.Batch) -> None:
        with self._changed:
            for event in batch.events:
                if event.name == "user.event" and event.fields["name"] == "mounts":
                    row = json.loads(str(event.fields["fields"]))
                    if row["target"] == self._target:
                        self.rows.append(row)
            self._changed.notify_all()

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(wanted, self.rows)), LIMIT), self.rows
            return next(row for row in self.rows if wanted(row))

    def stop(self) -> None:
        self._observation.stop()


def test_mount_is_reported_alive_and_at_its_end(tmp_path: Path) -> None:
    source, target = tmp_path / "source", str(tmp_path / "mounted")
    source.mkdir()
    (source / "file").write_bytes(os.urandom(5000))
    rows = Rows(target)
    try:
        mounted = mount(this_host(), source, target, pyc="as-is", fetch="all")
        mounted.ready.get()
        # Each status causes a look, also in a service that is older than this observer.
        while not rows.rows:
            mounted.status().get()
        live = rows.until(lambda row: row["state"] == "live")
        assert (live["host"], live["generation"]) == (os.uname().nodename, 1) and str(source) in live["source"]
        (source / "more").write_bytes(os.urandom(3000))
        mounted.refresh().get()
        while not any(row["generation"] == 2 and row["bytes_held"] >= 8000 for row in rows.rows):
            mounted.status().get()
        mounted.close().get()
        assert rows.until(lambda row: row["state"] == "unmounted")["ended"] is True
    finally:
        rows.stop()
