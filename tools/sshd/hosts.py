"""SshHosts: hosts with names of their own that ssh reaches, each an sshd of its own on loopback for the current user.

Each sshd is an enclosure (tools/enclosure.py): processes left by a session end with its host, and all hosts with the owner.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tools.enclosure import Enclosure, unavailable
from tools.ports import PortBlock

START_TIMEOUT_S = 10.0


def missing() -> str:
    """The reason why there can be no sshd here; empty if there can."""
    lacking = [program for program in ("sshd", "ssh", "ssh-keygen") if shutil.which(program, path=_path()) is None]
    if lacking:
        return f"there is no {', '.join(lacking)}: tools/system_packages.sh ssh"
    if os.getuid() != 0:
        return "an sshd in a PID namespace needs root"
    return unavailable()


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


class SshHosts:
    """The hosts `names` while the `with` block runs; `ssh -F config NAME` reaches them.

    Sessions see `env`, and `files` as an `Enclosure` does. Their home is an empty folder of the hosts.
    """

    def __init__(
        self,
        directory: Path,
        names: Sequence[str] = ("h0",),
        *,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, Path] | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.names = list(names)
        self.config = self.directory / "config"
        # The shell's own files in this user's home may do anything, and wait for locks that a killed host left there.
        self._env = {"PATH": os.environ["PATH"], "HOME": str(self.directory / "home"), **(env or {})}
        self._files = dict(files or {})
        self._ports: PortBlock | None = None
        self._hosts: dict[str, Enclosure] = {}

    @property
    def ssh_args(self) -> list[str]:
        """The arguments with which ssh finds the hosts."""
        return ["-F", str(self.config)]

    def up(self) -> None:
        """Starts one sshd per host and waits until each listens."""
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        (self.directory / "home").mkdir(mode=0o700, exist_ok=True)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd needs this folder for its privilege separation
        for key in ("host", "user"):
            if not (self.directory / key).exists():
                argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.directory / key)]
                subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
        self._ports = PortBlock(len(self.names))
        self.config.write_text(self._client_config(self._ports.first))
        host_key = (self.directory / "host.pub").read_text()
        (self.directory / "known_hosts").write_text("".join(f"{name} {host_key}" for name in self.names))
        try:
            for name in self.names:
                self.start_host(name)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Ends every sshd, and all processes of their sessions."""
        for host in self._hosts.values():
            host.kill()
        self._hosts.clear()
        if self._ports is not None:
            self._ports.close()
            self._ports = None

    def kill_host(self, name: str) -> None:
        """Ends a host's sshd and all its descendants, at once."""
        self._hosts.pop(name).kill()

    def freeze_host(self, name: str) -> None:
        """Stops every process of a host: as in a cut network, the kernel accepts connections and no process answers."""
        self._hosts[name].signal(signal.SIGSTOP)

    def thaw_host(self, name: str) -> None:
        """Continues the processes of a frozen host."""
        self._hosts[name].signal(signal.SIGCONT)

    def start_host(self, name: str) -> None:
        """Starts a host (again)."""
        assert self._ports is not None
        port = self._ports.first + self.names.index(name)
        settings = self.directory / f"{name}.sshd"
        settings.write_text(self._server_config(port))
        program = shutil.which("sshd", path=_path())
        assert program is not None
        log = self.directory / f"{name}.log"
        log.unlink(missing_ok=True)  # the new log shows below that it listens
        self._hosts[name] = Enclosure([program, "-D", "-e", "-f", str(settings)], log=log, files=self._files)
        end = time.monotonic() + START_TIMEOUT_S
        while "Server listening on" not in self._hosts[name].last_words():
            if time.monotonic() > end:
                raise TimeoutError(f"sshd of {name} does not listen on port {port}\n{self._hosts[name].last_words()}")
            time.sleep(0.02)

    def _client_config(self, first_port: int) -> str:
        common = [
            "HostName 127.0.0.1",
            f"User {getpass.getuser()}",
            f"IdentityFile {self.directory}/user",
            "IdentitiesOnly yes",
            f"UserKnownHostsFile {self.directory}/known_hosts",
            "GlobalKnownHostsFile /dev/null",
        ]
        lines: list[str] = []
        for index, name in enumerate(self.names):
            settings = [*common, f"HostKeyAlias {name}", f"Port {first_port + index}"]
            lines += [f"Host {name}", *(f"  {setting}" for setting in settings)]
        return "\n".join(lines) + "\n"

    def _server_config(self, port: int) -> str:
        lines = [
            f"Port {port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.directory}/host",
            "PidFile none",
            f"AuthorizedKeysFile {self.directory}/user.pub",
            "StrictModes no",
            "PasswordAuthentication no",
            "UsePAM no",
            "PermitRootLogin prohibit-password",
            "MaxStartups 100",
            "MaxSessions 100",
            "SetEnv " + " ".join(f'"{name}={value}"' for name, value in self._env.items()),
            "Subsystem sftp internal-sftp",
        ]
        return "\n".join(lines) + "\n"

    def __enter__(self) -> SshHosts:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()
