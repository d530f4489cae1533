"""What programs of tests look at: the files of snapshots that a process has open, by their inodes."""

from __future__ import annotations

FILES = """
import os

def files(pid):
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            if "monarch-snapshot" in os.readlink(path):
                found.add(os.stat(path).st_ino)
        except FileNotFoundError:  # it is closed, as that of this directory
            continue
    return found
"""
