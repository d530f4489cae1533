"""SSHJob: hosts that the user can log in to by ssh, with a worker on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch.job.login import LoginJob, check_meshes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.job._ssh_launcher import SshLauncher
    from monarch.job._trait import LogFile

TRANSPORTS = ("tcp", "tls", "metatls", "metatls-hostname")


class SSHJob(LoginJob):
    """A worker on each host of its meshes (`add_mesh`), started by one ssh each; it goes on after that has ended.

    Args:
        python_exe: the interpreter of the workers, as a login shell of the hosts finds it.
        ssh_args: further options of ssh, such as `["-F", "cluster.config"]`.
        monarch_port: where workers listen; the next free port where it is taken. Where this machine cannot reach it, it is forwarded.
        transport: what 0.7 asked for; traffic is TLS in any case.

        job = SSHJob(python_exe="/opt/monarch/bin/python")
        job.add_mesh("workers", ["gpu1", "gpu2"])
    """

    __module__ = "monarch.job"
    kind = "ssh"

    def __init__(self, python_exe: str = "python", ssh_args: Sequence[str] = (), monarch_port: int = 22222, transport: str = "tcp") -> None:
        super().__init__()
        if isinstance(ssh_args, str):
            raise TypeError("SSHJob: ssh_args is a sequence of options, not one text")
        if not python_exe or python_exe.startswith("-"):
            raise ValueError(f"SSHJob: {python_exe!r} names no interpreter")
        if not 1 <= monarch_port <= 65535:
            raise ValueError(f"SSHJob: monarch_port is 1 to 65535, not {monarch_port}")
        if transport not in TRANSPORTS:
            raise ValueError(f"SSHJob: no transport '{transport}'; there is {', '.join(TRANSPORTS)}")
        self._python_exe = python_exe
        self._ssh_args = tuple(ssh_args)
        self._monarch_port = monarch_port
        self._transport = transport

    def _launcher(self) -> SshLauncher:
        from monarch.job._ssh_launcher import SshLauncher

        return SshLauncher(
            self._meshes,
            python_exe=self._python_exe,
            ssh_args=self._ssh_args,
            port=self._monarch_port,
            title=self._title,
            secret=self._secret,
            socket=(self.apply_id or "new")[:8],
        )

    def _arguments(self) -> dict[str, Any]:
        return {
            "meshes": self._meshes,
            "python_exe": self._python_exe,
            "ssh_args": list(self._ssh_args),
            "monarch_port": self._monarch_port,
            "transport": self._transport,
        }

    def _set_arguments(self, saved: dict[str, Any]) -> None:
        meshes = check_meshes(saved["meshes"])
        SSHJob.__init__(self, saved["python_exe"], tuple(saved["ssh_args"]), saved["monarch_port"], saved["transport"])
        self._meshes = meshes

    def _fetch_logs(self) -> list[LogFile]:
        if self._ids is None or self.apply_id is None:
            return []
        import os

        from monarch.job._ssh_logs import fetch
        from monarch.job._trait import DEFAULT_JOB_PATH

        folder = os.path.abspath(os.path.join(os.path.dirname(DEFAULT_JOB_PATH), "logs", f"job_{self.apply_id}"))
        return fetch(self._launcher(), self._ids, folder)

    def _where(self) -> str:
        workers = (self._ids or {}).get("workers", ())
        return ", ".join(f"pid {worker['pid']} on {worker['name']}" for worker in workers) or "no worker was started"
