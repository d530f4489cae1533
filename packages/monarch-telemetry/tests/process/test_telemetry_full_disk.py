"""A disk without room: what has to be written is named by an error, what needs no disk goes on, and no part of a file is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounts a small disk, which only root can")
PROGRAM = """
import os, sys
from pathlib import Path
disk = Path("disk")
os.environ["MONARCH_HOME"] = str(disk.absolute() / "home")
import monarch.telemetry as telemetry
from monarch.actor import Actor, endpoint, this_host
from monarch.telemetry._cli_capture import capture

class Worker(Actor):
    @endpoint
    def step(self) -> int:
        return 1

def fill():
    with open(disk / "rest", "ab", buffering=0) as file:
        try:
            for _ in range(1 << 20):
                file.write(b"x" * 512)
        except OSError as error:
            print("=", error.strerror)

def steps(wanted):
    print("=", worker.step.call_one().get())
    count = "SELECT count(*) AS n FROM messages WHERE endpoint = 'step'"
    while telemetry.query(count).to_pylist() != [{"n": wanted}]:  # polls: rows come with a look
        continue

worker = this_host().spawn_procs(name="workers").spawn("worker", Worker)
fill()
try:
    telemetry.start(serve=True, admin_addr="127.0.0.1:0")
except telemetry.TelemetryError as error:
    print("=", str(error).rpartition("/")[2])
try:
    telemetry.query("SELECT 1")
except telemetry.TelemetryError as error:
    print("=", str(error).splitlines()[0])
# A start that failed leaves nothing that observes: this has no row.
worker.step.call_one().get()
# Rows need no disk.
running = telemetry.start()
steps(1)
running.stop().get()
(disk / "rest").unlink()
running = telemetry.start(serve=True, admin_addr="127.0.0.1:0")
fill()
steps(2)
print("=", capture.main(["-o", str(disk / "saved"), "--addr", running.url], standalone_mode=False))
print("=", sorted(path.name for path in disk.iterdir()))
steps(3)
sys.stdout.flush()
os._exit(0)
"""


def test_full_disk_is_named_and_costs_no_rows(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    script = 'mount -t tmpfs -o size=256k none disk && exec "$0" -W error program.py'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    shown = [line.removeprefix("= ") for line in done.stdout.splitlines() if line.startswith("= ")]
    full = "No space left on device"
    assert shown == [
        full,
        f"telemetry.json cannot be written: {full}",
        "telemetry is not enabled in this process",
        "1",
        full,
        "1",
        "1",
        "['home', 'rest']",
        "1",
    ], done.stdout + done.stderr
    assert full.lower() in done.stderr
