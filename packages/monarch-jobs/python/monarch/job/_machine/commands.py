"""Runs commands, here or on another machine by ssh, each within a time; `time_limit` bounds all commands of a block together."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn

from monarch.job.errors import BackendMissingError, JobError

# Seconds: a controller that is up answers in milliseconds; a failover takes up to a minute, and the commands then retry.
TIMEOUT_S = 30.0
# The exit code of a shell for a missing command.
NOT_FOUND = 127
# The exit code of ssh for its own failures.
SSH_FAILED = 255
TIMED_OUT = 124
# Seconds, enough for the master of a connection, which is on this machine.
_CLOSE_TIMEOUT_S = 5.0
# Seconds for the last output of a killed command, whose pipes another process may hold open.
_REST_TIMEOUT_S = 0.2
# Seconds: a connection to a host that is cut off ends after 15 s; a later command would wait for it.
CONNECT_TIMEOUT_S = 10
_LIVENESS = ("ServerAliveInterval=5", "ServerAliveCountMax=3")
_DEADLINE: ContextVar[float | None] = ContextVar("monarch_job_commands_deadline", default=None)


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Generator[None]:
    """Commands of this block, and of threads with a copy of its context, have ended after `seconds`. None sets no further limit.

    A command that is not started for lack of time has the result of one that timed out.
    """
    outer = _DEADLINE.get()
    ends = [*([] if outer is None else [outer]), *([] if seconds is None else [time.monotonic() + seconds])]
    token = _DEADLINE.set(min(ends, default=None))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def time_left(seconds: float) -> float:
    """`seconds`, or what is left of the surrounding `time_limit`; at least 0."""
    deadline = _DEADLINE.get()
    return seconds if deadline is None else max(0.0, min(seconds, deadline - time.monotonic()))


class Result(NamedTuple):
    """How a command ended: `code` is 124 where it was ended for taking too long."""

    command: str
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """The output of the command, stderr first."""
        return "\n".join(part.strip() for part in (self.err, self.out) if part.strip())


class Commands:
    """Runs commands on this machine, or through ssh on `login`, all over one connection whose socket has `socket` in its name.

    `options` are further ones of ssh, which has `connect_timeout` seconds for a connection.
    """

    def __init__(
        self,
        title: str,
        login: str | None = None,
        socket: str = "new",
        options: Sequence[str] = (),
        connect_timeout: int = CONNECT_TIMEOUT_S,
    ) -> None:
        self.title = title
        self.login = login
        self._options = tuple(options)
        self._connect_timeout = f"ConnectTimeout={connect_timeout}"
        self._control = control_path(socket) if login else ""

    def close(self) -> None:
        """Ends the connection to the login node."""
        if self.login:
            # The connection is closed even after the end of a time limit: an open one stays for ten minutes.
            result = _run(self.ssh("-O", "exit"), "", _CLOSE_TIMEOUT_S)
            if result is None:
                self.missing("ssh")

    def run(self, *argv: str, stdin: str = "", timeout: float = TIMEOUT_S) -> Result:
        """The result, whatever it is; `BackendMissingError` where there is no such command."""
        if not self.login:
            return self.run_here(*argv, stdin=stdin, timeout=timeout)
        result = self.run_here(*self.ssh(), shlex.join(argv), stdin=stdin, timeout=timeout)
        if result.code == NOT_FOUND:
            self.missing(argv[0])
        return result._replace(command=shlex.join(argv))

    def run_here(self, *argv: str, stdin: str = "", timeout: float = TIMEOUT_S) -> Result:
        """The result of a command of this machine."""
        limit = time_left(timeout)
        result = _run(argv, stdin, limit) if limit > 0 else Result("", TIMED_OUT, "", "no time left to run it")
        if result is None:
            self.missing(argv[0])
        return result._replace(command=shlex.join(argv))

    def ssh(self, *words: str) -> tuple[str, ...]:
        """An ssh command for the login node; `words` are options."""
        assert self.login is not None
        options = ("BatchMode=yes", "ControlMaster=auto", f"ControlPath={self._control}", "ControlPersist=600")
        options += (self._connect_timeout, *_LIVENESS)
        named = tuple(word for option in options for word in ("-o", option))
        return ("ssh", *named, *self._options, *words, self.login)

    def host_name(self) -> str:
        """What ssh dials for `login`."""
        shown = self.run_here(*self.ssh("-G")).out
        return next((line.split(None, 1)[1] for line in shown.splitlines() if line.startswith("hostname ")), self.login or "")

    def missing(self, program: str) -> NoReturn:
        where = f" on {self.login}" if self.login and program != "ssh" else ""
        hint = "install an ssh client" if program == "ssh" else "run on a login node of the cluster, or name one with via_ssh="
        raise BackendMissingError(f"there is no command '{program}'{where}", title=self.title, hint=hint)


def control_path(name: str) -> str:
    """Where ssh puts the socket of a shared connection: a private folder with a short path, as sockets need one.

    `RuntimeError` where another user has made it first.
    """
    folder = os.path.join(tempfile.gettempdir(), f"monarch-ssh-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise RuntimeError(f"{folder} is not this user's private folder; remove it")
    return os.path.join(folder, f"{name}-%C")


def _run(argv: Sequence[str], stdin: str, timeout: float) -> Result | None:
    # Formats of dates and the like would depend on the user's environment.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SQUEUE_", "SACCT_", "SINFO_"))}
    env |= {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            text=True,
            errors="replace",
            start_new_session=True,  # a session of its own: it can be ended with its children, and Ctrl-C does not reach parts of it
        )
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return None
    with process:
        try:
            out, err = process.communicate(stdin, timeout)
            return Result("", process.returncode, out, err)
        except subprocess.TimeoutExpired:
            _end(process)
            out, err = _rest(process)
            return Result("", TIMED_OUT, out, f"{err}no end after {round(timeout, 1):g} s")
        except BaseException:
            _end(process)
            _rest(process)
            raise


def _end(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _rest(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it had printed; a process that left the group may still hold the pipes, and is not waited for."""
    try:
        return process.communicate(timeout=_REST_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        for pipe in (process.stdout, process.stderr, process.stdin):
            if pipe is not None:
                pipe.close()
        return "", ""


DIAL_TIMEOUT_S = 2.0
_ADDRESS = re.compile(r"(?P<identity>(?:[^@]*@)?)(?:tcp|tls)://(?P<host>\[[^\]]+\]|[^:/@]+):(?P<port>\d+)")


class Forwarding:
    """Forwards are kept in `ids["forwards"]` (address to local port) and made again where nothing listens any more."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def reachable(self, ids: dict[str, Any], addresses: dict[str, list[str | None]]) -> dict[str, list[str | None]]:
        """The same addresses as this machine can dial them."""
        kept: dict[str, int] = ids.setdefault("forwards", {})
        return {name: [self._reachable(kept, address) for address in found] for name, found in addresses.items()}

    def of_login(self, ids: dict[str, Any], address: str) -> str:
        """Where this machine can dial a worker of the login machine itself: there, or by a forward if its port is closed from here."""
        found = _ADDRESS.fullmatch(address)
        if found is None:
            return address
        name = self._commands.host_name()
        if listens(name, int(found["port"])):
            return f"{found['identity']}tcp://{f'[{name}]' if ':' in name else name}:{found['port']}"
        kept: dict[str, int] = ids.setdefault("forwards", {})
        return self._forwarded(kept, found, address, f"127.0.0.1:{found['port']}")

    def _reachable(self, kept: dict[str, int], address: str | None) -> str | None:
        found = _ADDRESS.fullmatch(address) if address else None
        if address is None or found is None:
            return address
        return self._forwarded(kept, found, address, f"{found['host']}:{found['port']}")

    def _forwarded(self, kept: dict[str, int], found: re.Match[str], address: str, target: str) -> str:
        if address not in kept or not listens("127.0.0.1", kept[address]):
            kept[address] = self._forward(target)
        return f"{found['identity']}tcp://127.0.0.1:{kept[address]}"

    def _forward(self, target: str) -> int:
        self._commands.run("true")  # the connection that the next command uses
        words = ""
        for _ in range(5):  # another process may take the port in between
            port = _free_port()
            result = self._commands.run_here(*self._commands.ssh("-O", "forward", "-L", f"127.0.0.1:{port}:{target}"))
            if result.code == 0 and listens("127.0.0.1", port):
                return port
            words = result.words
        raise JobError(f"no port could be forwarded to {target}", title=self._commands.title, cause=words)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(host: str, port: int) -> bool:
    """Does a process take a connection there within two seconds?"""
    try:
        socket.create_connection((host, port), DIAL_TIMEOUT_S).close()
    except OSError:
        return False
    return True
