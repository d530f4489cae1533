"""Stands in for `monarch worker` where only processes, files and logs are under test: it listens on nothing.

Publishes like one, prints a line to each stream, has a child in a process group of its own, and ends at SIGTERM with code 0. A file
in its folder of orders (`MODE_DIRECTORY/<rank>`) replaces this behaviour.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys


def main() -> None:
    options = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    rank = os.environ["MONARCH_SERVICE_PROC_RANK"]
    print(f"worker {rank} {os.environ.get('GREETING', '')}", flush=True)
    print(f"worker {rank} complains", file=sys.stderr, flush=True)
    try:
        with open(os.path.join(os.environ["MODE_DIRECTORY"], rank)) as f:
            mode = f.read()
    except FileNotFoundError:
        mode = ""
    if mode == "die":
        sys.exit(5)
    with open(options["--secret-file"], "rb") as f:
        assert len(f.read()) == 32
    # An orphan in a group of its own, as procs are.
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], process_group=0)
    if mode == "mute":
        signal.pause()
    path = options["--publish"]
    found = {"address": options["--listen"], "host": "here", "pid": os.getpid(), "uid": "x", "version": "0"}
    with open(path + ".new", "w") as f:
        json.dump(found, f)
    os.rename(path + ".new", path)
    signal.pause()
