"""Hosts of this machine that each see a folder of their own at the same path, and the entry points that pushes need."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from monarch.actor import attach_to_workers

_ENTRIES = {"monarch.service": "push = monarch.fs._push.service:SERVICE", "monarch.settings": "fs = monarch.fs.settings:SETTINGS"}


def declare_push(folder: Path, settings: str) -> list[str]:
    """Makes the entry points known that the installed wheel lacks: an editable one may be older. Returns folders for the path."""
    lacking = {group: text for group, text in _ENTRIES.items() if text.split(" ")[0] not in entry_points(group=group).names}
    if not lacking:
        return []
    info = folder / "fs_push_hosts-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fs-push-hosts\nVersion: 1.0\n")
    lines = [f"[{group}]\n{text.replace('monarch.fs.settings', settings)}\n" for group, text in lacking.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    sys.path.append(str(folder))
    return [str(folder)]


@contextlib.contextmanager
def push_hosts(shared: str, own: list[Path], path: list[str], **environment: str) -> Generator[tuple[Any, list[subprocess.Popen[str]]]]:
    """A mesh of hosts: at the path `shared` each host sees its folder of `own`, by a mount namespace. Root is needed."""
    environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join([*path, *filter(None, sys.path)])}
    workers: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        addresses = [f"ipc://{folder}/{number}" for number in range(len(own))]
        try:
            for number, address in enumerate(addresses):
                script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
                argv = [sys.executable, "-c", "from monarch.extension.cli import main; main()", "worker", "--listen", address]
                argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(own[number]), shared, *argv]
                store = {"MONARCH_FS_STORE_DIR": f"{folder}/store-{number}"}
                workers.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**environment, **store}))
            for worker in workers:
                assert worker.stdout is not None
                assert worker.stdout.readline().startswith("listening")
            hosts = attach_to_workers(workers=addresses)
            yield hosts, workers
            with contextlib.suppress(Exception):
                hosts.shutdown().exception(10)
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
