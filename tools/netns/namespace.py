"""Namespaces that live as long as one process, and one process that lives as long as its owner.

A namespace of processes ends with its first process: the kernel kills all others in it. Then their network, with its links, and their
mounts end too. That first process is a `cat` that reads a pipe whose other end the owner holds. So when
the owner closes the pipe, or is killed, nothing is left. Nothing has a name that could be left: no file below /run/netns or /etc/netns.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tools.netns.process import Process

# The variable of each first process: `network/label`.
MARK = "MONARCH_NETNS"
_PROGRAMS = ("ip", "nft", "ss", "nsenter", "unshare")
# The number of checks of a process without an environment, and the pause before each, in seconds: some processes never have one.
_LOOKS, _PAUSE_S = 50, 0.002
_KINDS = ("--net", "--uts", "--ipc", "--mount", "--pid")
# $0 is the host name, $1 the text of /etc/hosts. Each host has shared memory of its own. An ignored SIGCHLD makes the kernel reap the
# orphans of the first process.
_FIRST = """
set -e
hostname "$0"
mount -t tmpfs tmpfs /dev/shm
if [ -n "$1" ]; then
    printf %s "$1" >/dev/shm/hosts
    mount --bind /dev/shm/hosts /etc/hosts
    rm /dev/shm/hosts
fi
trap "" CHLD
echo up
exec cat >/dev/null 2>&1
"""


def unavailable() -> str | None:
    """The reason why there can be no namespaces here; None if there can."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"no {', '.join(missing)} here (tools/system_packages.sh test)"
    argv = ["unshare", *_KINDS, "--fork", "--mount-proc", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"]
    tried = subprocess.run(argv, capture_output=True, text=True)
    return None if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip()}"


class Namespace:
    """Namespaces, by the process id of the first process in them."""

    def __init__(self, first: int) -> None:
        self.first = first

    @classmethod
    def make(cls, network: str, label: str, lifeline: int, hosts: str = "") -> Namespace:
        """Makes namespaces that live as long as the other end of the pipe `lifeline` is open somewhere; `hosts` is their /etc/hosts."""
        made = subprocess.Popen(
            ["unshare", *_KINDS, "--fork", "--kill-child", "--mount-proc", "sh", "-c", _FIRST, label, hosts],
            stdin=lifeline,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: f"{network}/{label}"},
            # A Ctrl-C is for the user, who then closes the pipe.
            start_new_session=True,
        )
        assert made.stdout is not None
        with made.stdout:
            if made.stdout.readline() != "up\n":
                raise OSError(f"namespaces of {network}/{label} did not come up: unshare ended with {made.wait()}")
        space = cls(int(Path(f"/proc/{made.pid}/task/{made.pid}/children").read_text()))
        space._made = made
        return space

    _made: subprocess.Popen[str] | None = None

    def gone(self) -> None:
        """Waits until the first process, and with it all others, have ended."""
        if self._made is not None:
            self._made.wait()

    def enter(self, *kinds: str) -> list[str]:
        """The prefix of a command line that runs in these namespaces, or in these kinds of them, and in the current folder."""
        return ["nsenter", f"--target={self.first}", *(kinds or _KINDS), f"--wd={Path.cwd()}"]

    def popen(self, *argv: str, **options: Any) -> Process:
        """Starts a command; the options are those of `subprocess.Popen`."""
        return Process(self.first, argv, **options)

    def run(self, *argv: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, and raises if that is not 0; the options are those of `subprocess.run`."""
        return subprocess.run([*self.enter(), *argv], check=check, text=True, **options)

    def configure(self, *argv: str, lines: str | None = None) -> None:
        """Runs `ip`, `nft` or `ss` of the outside on this network."""
        done = subprocess.run([*self.enter("--net"), *argv], input=lines, text=True, capture_output=True)
        if done.returncode != 0:
            raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")

    def list_sockets(self, *argv: str) -> list[str]:
        """The TCP sockets of this network, by `ss` of the outside, a line each."""
        done = subprocess.run([*self.enter("--net"), "ss", "-Htn", *argv], check=True, text=True, capture_output=True)
        return done.stdout.splitlines()


def living() -> dict[str, dict[str, Namespace]]:
    """All namespaces on this machine: network, label, namespaces."""
    found: dict[str, dict[str, Namespace]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "status").read_text()
            # The process's numbers in all namespaces of processes, the outer one first.
            numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), None)
            if numbers is None or len(numbers) < 2 or numbers[-1] != "1":
                continue
            environ = _environ(entry).split(b"\0")
        except OSError:
            continue
        mark = next((e.partition(b"=")[2].decode() for e in environ if e.startswith(MARK.encode() + b"=")), None)
        if mark is not None:
            network, _, label = mark.partition("/")
            found.setdefault(network, {})[label] = Namespace(int(entry.name))
    return found


def _environ(entry: Path) -> bytes:
    """The environment of a process. While a process executes another program, it has none for a moment; the first process of a namespace
    does that.
    """
    found = (entry / "environ").read_bytes()
    for _ in range(_LOOKS):
        if found:
            break
        time.sleep(_PAUSE_S)  # sleeps: between two checks of a process, because no event announces the end of its exec
        found = (entry / "environ").read_bytes()
    return found
