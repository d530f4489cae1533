"""Rows of `mounts` and `fs_events` in a real program that mounts a directory."""

from __future__ import annotations

import telemetry_program


def test_mount_has_rows_until_it_ends():
    assert telemetry_program.shown("""
import os, subprocess, sys
import monarch.telemetry as telemetry
from monarch.actor import this_host
from monarch.fs import mount
from observed_job import rows, until

telemetry.start()
source, target = os.path.abspath("source"), os.path.abspath("mounted")
os.mkdir(source)
with open(f"{source}/file", "wb") as file:
    file.write(bytes(100_000))
mounted = mount(this_host(), source, target)
mounted.ready.get()
subprocess.run(["cmp", f"{source}/file", f"{target}/file"], check=True)
print("=", until(f"SELECT state, generation FROM mounts WHERE target = '{target}' AND source LIKE '{source}%'", [("live", 1)]))
mounted.refresh().get()
mounted.close().get()
print("=", until("SELECT state FROM mounts", [("unmounted",)]))
print("=", until("SELECT event FROM fs_events ORDER BY timestamp_us", [("mount",), ("refresh",), ("unmount",)]))
print("=", rows(f"SELECT DISTINCT target = '{target}', host = '{os.uname().nodename}' FROM fs_events"))
print("=", rows("SELECT name FROM events WHERE name IN ('mounts', 'fs_events')"))
""") == ["[('live', 1)]", "[('unmounted',)]", "[('mount',), ('refresh',), ('unmount',)]", "[(True, True)]", "[]"]
