"""The command `monarch` on a host of a job, for what a person wants to see of all of them."""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple

from monarch.actor import Actor, endpoint
from monarch.extension import python_command


class CommandResult(NamedTuple):
    """How the command has ended, and what it has printed; `error` is why that is no answer, else empty."""

    code: int
    output: str
    error: str


def machine() -> str:
    """Equal for processes of one user that look at the same processes: a container is a machine of its own."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        return f"{f.read().strip()} {os.stat('/proc/self/ns/net').st_ino} {os.stat('/proc/self/ns/pid').st_ino} {os.getuid()}"


class MonarchCommand(Actor):
    """Runs it in a process of its own, for a limited time."""

    @endpoint
    def machine(self) -> str:
        return machine()

    @endpoint
    def run(self, arguments: list[str], timeout: float) -> CommandResult:
        """`TimeoutExpired` after so many seconds."""
        done = subprocess.run(
            python_command("monarch.extension.cli", *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
        # A verb exits with 0, or with 1 after a finding.
        if done.returncode in (0, 1) and (done.stdout or not done.stderr):
            return CommandResult(done.returncode, done.stdout, "")
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        error = f"`monarch {arguments[0]}` ended with {how} there{': ' * bool(done.stderr)}{done.stderr.strip()}"
        return CommandResult(1, done.stdout, error)
