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

from fs_workers import Agent, running

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
    variables = {**environment, "PYTHONPATH": os.pathsep.join([*path, *filter(None, sys.path)])}
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    with tempfile.TemporaryDirectory() as stores:
        agents = [
            Agent(
                ("unshare", "--mount", "sh", "-c", script, "sh", str(folder), shared),
                {**variables, "MONARCH_FS_STORE_DIR": f"{stores}/{number}"},
            )
            for number, folder in enumerate(own)
        ]
        with running(agents) as found:
            yield found
