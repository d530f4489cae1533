"""A root of a container as content of a push: entered and run at its new place, with modes, links and holes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fs_pushed_source import PushedSource, shown

PROGRAM = r"""
#include <stdio.h>
#include <unistd.h>
int main(void) {
    char text[64] = {0};
    FILE *file = fopen("/etc/greeting", "r");
    if (!file || !fgets(text, sizeof text, file)) return 3;
    printf("%s %d\n", text, access("/proc", F_OK));
    return 0;
}
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("cc") is None, reason="enters a root: root and a C compiler are needed")
def test_command_runs_in_a_pushed_root(tmp_path: Path) -> None:
    root, target = tmp_path / "root", tmp_path / "target"
    (root / "etc").mkdir(parents=True)
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "etc" / "greeting").symlink_to("/etc/real")
    (root / "etc" / "real").write_text("hello")
    (tmp_path / "program.c").write_text(PROGRAM)
    subprocess.run(["cc", "-static", "-o", root / "usr" / "bin" / "greet", tmp_path / "program.c"], check=True, timeout=25)
    os.link(root / "usr" / "bin" / "greet", root / "usr" / "bin" / "again")
    (root / "usr" / "bin" / "again").chmod(0o4755)
    os.chown(root / "etc" / "real", 1234, 5678)
    assert PushedSource(root).push(target, set_id=True).failures == []
    assert shown(target) == shown(root)
    assert ((target / "etc" / "real").stat().st_uid, (target / "etc" / "real").stat().st_gid) == (1234, 5678)
    entered = subprocess.run(["unshare", "--root", str(target), "/bin/again"], capture_output=True, text=True, timeout=25)
    assert (entered.returncode, entered.stdout) == (0, "hello -1\n")


def test_image_layout_is_ordinary_content(tmp_path: Path) -> None:
    layout, target = tmp_path / "layout", tmp_path / "target"
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layer = os.urandom(2 << 20)
    name = hashlib.sha256(layer).hexdigest()
    (blobs / name).write_bytes(layer)
    (layout / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    (layout / "image.sif").write_bytes(b"hsqs" + bytes(1 << 20) + layer)
    assert PushedSource(layout).push(target).failures == []
    assert hashlib.sha256((target / "blobs" / "sha256" / name).read_bytes()).hexdigest() == name
    assert shown(target) == shown(layout)
