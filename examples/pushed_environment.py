"""Writes an environment of the client to the hosts, as files that can be changed there.

A venv is made here, with a module that no host has, and pushed: its files are real files there, rewritten for their new place. A process of
the host then runs its interpreter. remote_environment.py mounts an environment instead, which is faster.

    python examples/pushed_environment.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from monarch.actor import Actor, endpoint, this_host
from monarch.fs import push


class Environment(Actor):
    """The state of the environment on a host."""

    def __init__(self, place: str) -> None:
        self.place = place

    @endpoint
    def run(self, text: str) -> str:
        command = [f"{self.place}/bin/python", "-c", text]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        here, there = Path(folder, "here"), f"{folder}/there"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(here)], check=True)
        (packages,) = here.glob("lib/python*/site-packages")
        (packages / "greeting.py").write_text("def text():\n    return 'a first environment'\n")

        hosts = this_host()  # or attach_to_workers(...), or the hosts of a job
        report = push(hosts, here, there, relocate=True).get()
        print(f"{report.files} files, {report.bytes_sent} bytes sent, to {report.hosts} host(s)")
        environment = hosts.spawn_procs().spawn("environment", Environment, there)
        print(environment.run.call_one("import sys, greeting; print(sys.prefix, greeting.text())").get())

        # One module is edited: one file is sent and written.
        (packages / "greeting.py").write_text("def text():\n    return 'a better environment'\n")
        report = push(hosts, here, there, relocate=True).get()
        assert report.files_written == 1
        print(environment.run.call_one("import greeting; print(greeting.text())").get())


if __name__ == "__main__":
    main()
