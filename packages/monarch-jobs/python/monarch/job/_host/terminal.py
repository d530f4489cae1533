"""The actor that runs a program in a terminal of its own on a host: the host's half of `shell`."""

from __future__ import annotations

import os
import pwd
import socket

from monarch.actor import Actor, concurrent_endpoint
from monarch.extension.command import CannotStart, CommandLine, TerminalProcess
from monarch.job._files import audit
from monarch.job._host.command import Refusal


class Terminal(Actor):
    """Reads are answered when there is output, writes when the terminal has taken them."""

    _is_system_actor = True

    def __init__(self, env: dict[str, str], workdir: str | None, window: tuple[int, int], asked: audit.Origin) -> None:
        self.asked = asked
        self.env = env
        self.workdir = workdir
        self.terminal = TerminalProcess(window, lambda code: self._record(f"ended with {code}", None))

    @concurrent_endpoint
    async def start(self) -> Refusal | str:
        """Starts the user's shell as a login shell; the name of the host, or why it cannot be."""
        program = self.env.get("SHELL") or os.environ.get("SHELL") or _shell_of_user()
        environment = {**os.environ, "SHELL": program, **self.env}
        name = "-" + os.path.basename(program)
        try:
            await self.terminal.start(CommandLine((program,), environment, self.workdir, program_name=name))
        except CannotStart as e:
            self._record(f"cannot start {e.word!r}: {os.strerror(e.errno)}", program)
            return Refusal(socket.gethostname(), (program,), e.errno, e.word)
        self._record("begun", program)
        return socket.gethostname()

    def _record(self, outcome: str, program: str | None) -> None:
        pid = self.terminal.pid or None
        audit.record_here(self.asked, "host.shell", outcome, command=program, workdir=self.workdir, pid=pid)

    @concurrent_endpoint
    async def read(self) -> tuple[bytes, int | None]:
        """The output of the terminal; at the end no more, and the exit code."""
        return await self.terminal.read()

    @concurrent_endpoint
    async def write(self, data: bytes) -> None:
        """Input for the terminal."""
        await self.terminal.write(data)

    @concurrent_endpoint
    async def end_input(self) -> None:
        """Nothing more will be typed."""
        await self.terminal.end_input()

    @concurrent_endpoint
    async def resize(self, size: tuple[int, int]) -> None:
        """Rows and columns."""
        self.terminal.resize(size)

    async def __cleanup__(self, exc: Exception | None) -> None:
        await self.terminal.close()


def _shell_of_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:  # a container whose user has no entry
        return "/bin/sh"
