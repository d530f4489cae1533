"""The script of a replica of TorchX: a request for a new worker that arrives at the worst moment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from monarch.job.torchx.worker_script import script

# A worker that publishes its address and fails.
WORKER = """#!/bin/sh
echo started >>{folder}/starts
while [ "$1" != --publish ]; do shift; done
echo published >"$2"
exit 137
"""
# The client finds the exit code as soon as the file has its name, and removes the files of the worker before it writes its request.
MOVE = """#!/bin/sh
/bin/mv "$@" || exit
case "$3" in *.exit) /bin/rm -f "{folder}/hosts/0.json" "{folder}/hosts/0.exit" ;; esac
"""
# The request arrives while the script waits; the second time the script is asked to end.
SLEEP = """#!/bin/sh
[ "$1" = 0.2 ] || exec /bin/sleep "$1"
if [ "$(/usr/bin/wc -l <{folder}/starts)" = 1 ]; then : >{folder}/wanted/0; else kill -TERM $PPID; fi
"""


def test_script_waits_after_its_files_are_removed(tmp_path: Path) -> None:
    for name in ("hosts", "wanted", "bin"):
        (tmp_path / name).mkdir()
    for name, text in (("mv", MOVE), ("sleep", SLEEP), ("python", WORKER)):
        program = tmp_path / "bin" / name
        program.write_text(text.format(folder=tmp_path))
        program.chmod(0o700)
    text = script(str(tmp_path), str(tmp_path / "log"), str(tmp_path), str(tmp_path / "bin" / "python"), "tcp://127.0.0.1:0")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    done = subprocess.run(["sh", "-c", text, "worker.sh", "0", "0"], env={**os.environ, "PATH": path}, check=False)
    assert (done.returncode, (tmp_path / "starts").read_text()) == (137, "started\nstarted\n"), (tmp_path / "log.0.err").read_text()
