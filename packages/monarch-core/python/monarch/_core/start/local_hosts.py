"""Hosts for tests: agents as separate processes on this machine, attached as if they were on other machines.

No part of them can be left behind. They listen on abstract sockets, which are no files. Their standard input is a pipe from the test's
process. When that process ends, in whatever way, the agents end, with all their procs and the directory of their workspaces.
"""

from __future__ import annotations

import os
import sys

from monarch._core.process.identity import new_uid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from subprocess import Popen

    from monarch._core.hosts.host_mesh import HostMesh

# Seconds that an agent may take to end after the request.
_EXIT_TIMEOUT = 10.0


class LocalHosts:
    """The result of `local_hosts`: a context manager, sync and async, whose value is the mesh."""

    def __init__(self, n: int, name: str, env: Mapping[str, str | None] | None) -> None:
        if n < 1:
            raise ValueError(f"local_hosts needs at least one host, not {n}")
        self._count = n
        self._name = name
        self._env = dict(env or {})
        self._agents: list[Popen[bytes]] = []
        self._directory = ""
        self._mesh: HostMesh | None = None

    def _start(self) -> list[str]:
        """Starts the agents and waits until they listen; gives their addresses."""
        import tempfile

        if self._agents:
            raise RuntimeError("these local hosts have been started already")
        self._directory = tempfile.mkdtemp(prefix="monarch-hosts-")
        addresses = [f"ipc://@monarch-host-{new_uid():x}" for _ in range(self._count)]
        ready, report = os.pipe()
        try:
            for i, address in enumerate(addresses):
                self._agents.append(self._start_one(address, os.path.join(self._directory, str(i)), report))
            os.close(report)
            report = -1
            left = self._count
            while left:
                reports = os.read(ready, left)
                if not reports:
                    raise RuntimeError(f"{left} of {self._count} local hosts did not start; their output is on stderr")
                left -= len(reports)
        except BaseException:
            self._end()
            raise
        finally:
            os.close(ready)
            if report >= 0:
                os.close(report)
        return addresses

    def _start_one(self, address: str, workspace: str, report: int) -> Popen[bytes]:
        import subprocess

        from monarch._core.process.python_command import import_path

        env = {**os.environ, "WORKSPACE_DIR": workspace, **self._env}
        serving = f"from monarch._core.start.local_hosts import serve; serve({address!r}, {workspace!r}, {report})"
        code = f"import sys; sys.path[:] = {import_path()!r}; {serving}"
        command = [sys.executable, "-c", code]
        chosen = {k: v for k, v in env.items() if v is not None}
        # The agent is in a session of its own: Ctrl-C is for the test only.
        return subprocess.Popen(command, env=chosen, stdin=subprocess.PIPE, pass_fds=(report,), start_new_session=True)

    def _attach(self, addresses: list[str]) -> HostMesh:
        from monarch._core.hosts.attach import attach_to_workers

        self._mesh = attach_to_workers(workers=addresses, name=self._name)
        return self._mesh

    def _end(self) -> None:
        import shutil
        import subprocess

        for agent in self._agents:
            assert agent.stdin is not None
            agent.stdin.close()
        for agent in self._agents:
            try:
                agent.wait(_EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:  # a fault may have frozen the agent
                agent.kill()
                agent.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> HostMesh:
        return self._attach(self._start())

    def __exit__(self, *_: object) -> None:
        mesh, self._mesh = self._mesh, None
        try:
            if mesh is not None and not mesh.__core__.spawned.is_shut_down:
                mesh.shutdown().exception(_EXIT_TIMEOUT)
        except TimeoutError:  # hosts that do not answer are ended all the same
            return
        finally:
            self._end()

    async def __aenter__(self) -> HostMesh:
        import asyncio

        return self._attach(await asyncio.to_thread(self._start))

    async def __aexit__(self, *_: object) -> None:
        import asyncio

        await asyncio.to_thread(self.__exit__)


def local_hosts(n: int, *, name: str = "hosts", env: Mapping[str, str | None] | None = None) -> LocalHosts:
    """Hosts for tests: agents as separate processes on this machine, as an owned `HostMesh` with the dimension `hosts`.

    The agents run when the block begins. They are gone, with all processes that they ran, when the block ends, or when this process ends in
    whatever way. Each has a `WORKSPACE_DIR` of its own.

    Args:
        n: the number of hosts.
        name: the name of the hosts in errors.
        env: variables that are added to the environment of the agents; None removes a variable.

    Returns:
        A context manager, sync and async, whose value is the mesh.

    Raises:
        ValueError: `n` is not positive.
        RuntimeError: at the beginning of the block: an agent did not start.

    ```python
    from monarch.actor.testing import local_hosts

    with local_hosts(2) as hosts:
        assert hosts.sizes == {"hosts": 2}
        hosts.spawn_procs({"gpus": 2}).initialized.get()
    ```
    """
    return LocalHosts(n, name, env)


def serve(address: str, workspace: str, report: int) -> None:
    """Runs the agent of a test host: its main function."""
    from _thread import start_new_thread

    from monarch._core.hosts.trust import Given
    from monarch._core.start.worker import WorkerLoop

    os.set_inheritable(report, False)
    watched = os.dup(0)
    start_new_thread(_end_with_the_test, (watched, workspace))
    loop = WorkerLoop(address, Given(None, None, None, False))
    os.write(report, b".")
    os.close(report)
    loop.wait()


def _end_with_the_test(watched: int, workspace: str) -> None:
    """Ends the agent at the end of the pipe, which is closed by the test's process or by its end."""
    import shutil
    import signal

    while os.read(watched, 1):
        continue
    shutil.rmtree(workspace, ignore_errors=True)
    try:
        os.rmdir(os.path.dirname(workspace))
    except OSError:  # another host of the test removes it
        pass
    os.kill(os.getpid(), signal.SIGKILL)
