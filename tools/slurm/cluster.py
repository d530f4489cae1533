"""SlurmCluster: munged, slurmctld and one slurmd per node, from Debian's packages, on loopback and below one folder.

Each daemon is an enclosure (tools/enclosure.py): all processes of a job end with its node, and all daemons with the owner of the cluster.
Several clusters can run at once, each with its own folder, key and ports.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tools.enclosure import Enclosure, unavailable
from tools.ports import PortBlock
from tools.slurm.configuration import CGROUP_CONF, Node, gres_conf, node_address, slurm_conf

START_TIMEOUT_S = 20.0  # 1 s on an idle machine
CGROUPS = Path("/sys/fs/cgroup")
_HOSTS = Path("/etc/hosts")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")


def missing() -> str:
    """The reason why no cluster can be started here; empty if one can."""
    lacking = [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]
    if lacking:
        return f"SLURM is not installed ({', '.join(lacking)}): tools/system_packages.sh slurm"
    if os.getuid() != 0:
        return "the daemons of a SLURM cluster need root"
    return unavailable()


def without_cgroups() -> str:
    """The reason why control groups cannot limit memory here; empty if they can."""
    return "" if (CGROUPS / "memory" / "memory.limit_in_bytes").exists() else "no memory controller of control groups v1 here"


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


class SlurmCluster:
    """A cluster with the nodes n0, n1, ... while the `with` block runs; `env` is the environment for its clients.

    With `cgroups` the kernel limits the memory of jobs, in groups named after the nodes: no two clusters may then have the same `prefix`.
    With `named`, processes on a node see the name of the node as the machine's, and find each node by its name at an address of its own.
    Nodes see `files` as an `Enclosure` does.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int | Sequence[Node] = 3,
        *,
        cgroups: bool = False,
        prefix: str = "n",
        extra: str = "",
        named: bool = False,
        files: Mapping[str, Path] | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.nodes = [Node()] * nodes if isinstance(nodes, int) else list(nodes)
        self.env = {"SLURM_CONF": str(self.directory / "slurm.conf")}
        self._cgroups = cgroups
        self._prefix = prefix
        self._extra = extra
        self._named = named
        self._files = dict(files or {})
        self._ports: PortBlock | None = None
        self._daemons: dict[str, Enclosure] = {}

    def up(self) -> None:
        """Starts all daemons and waits until all nodes are idle."""
        for folder in ("", "state", "spool", "munge", "devices", *(f"spool/{self._prefix}{index}" for index in range(len(self.nodes)))):
            (self.directory / folder).mkdir(mode=0o755, parents=True, exist_ok=True)
        self._ports = PortBlock(1 + len(self.nodes))
        try:
            self._write_configuration(self._ports.first)
            self._start_munge()
            self._start("slurmctld", "-D", "-c")
            for index in range(len(self.nodes)):
                self.start_node(index, wait=False)
            self._wait(f"{len(self.nodes)} idle nodes", lambda: self.states().count("idle") == len(self.nodes))
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Ends every process of the cluster, jobs included; the folder with the logs stays."""
        for daemon in reversed(self._daemons.values()):
            daemon.kill()
        self._daemons.clear()
        for group in CGROUPS.glob(f"*/slurm_{self._prefix}[0-9]*") if self._cgroups else ():
            for folder, _, _ in os.walk(group, topdown=False):
                os.rmdir(folder)
        if self._ports is not None:
            self._ports.close()
            self._ports = None

    def kill_node(self, index: int) -> None:
        """Ends a node's slurmd, its jobs and all their processes, at once; the controller detects the loss by itself."""
        self._daemons.pop(f"{self._prefix}{index}").kill()

    def start_node(self, index: int, *, wait: bool = True) -> None:
        """Starts a node (again)."""
        name = f"{self._prefix}{index}"
        self._start(name, "-D", "-N", name, program="slurmd")
        if wait:
            self._wait(f"node {name}", lambda: self.states()[index] == "idle")

    def clear(self) -> None:
        """Ends all jobs and waits until all nodes are idle."""
        if jobs := self.run("squeue", "-h", "-o", "%A").split():
            self.run("scancel", *jobs, check=False)
        self._wait(f"{len(self.nodes)} idle nodes", lambda: self.states().count("idle") == len(self.nodes))

    def states(self) -> list[str]:
        """The controller's state of every node: idle, allocated, down* and so on; empty while it does not answer."""
        return [line.split()[1] for line in sorted(self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T", check=False).splitlines())]

    def run(self, *argv: str, check: bool = True, timeout: float = 10, stdin: str = "") -> str:
        """The output of a client command."""
        env = {**os.environ, **self.env}
        done = subprocess.run(argv, env=env, input=stdin, capture_output=True, text=True, timeout=timeout)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout if not done.returncode else ""

    def _write_configuration(self, first_port: int) -> None:
        text = slurm_conf(
            self.directory, self.nodes, first_port, cgroups=self._cgroups, prefix=self._prefix, extra=self._extra, named=self._named
        )
        (self.directory / "slurm.conf").write_text(text)
        if self._named:
            own = "".join(f"{node_address(index, named=True)} {self._prefix}{index}\n" for index in range(len(self.nodes)))
            (self.directory / "hosts").write_text(f"{own}{_HOSTS.read_text()}")
            self._files[str(_HOSTS)] = self.directory / "hosts"
        if self._cgroups:
            (self.directory / "cgroup.conf").write_text(CGROUP_CONF)
        for number in range(max(node.gpus for node in self.nodes)):
            device = self.directory / "devices" / f"nvidia{number}"
            if not device.exists():
                os.mknod(device, 0o600 | 0o020000, os.makedev(195, number))
        if any(node.gpus for node in self.nodes):
            (self.directory / "gres.conf").write_text(gres_conf(self.directory, self.nodes, self._prefix))

    def _start_munge(self) -> None:
        folder = self.directory / "munge"
        folder.chmod(0o711)
        key = folder / "key"
        key.unlink(missing_ok=True)
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        files = [f"--{name}-file={folder / name}" for name in ("key", "pid", "seed", "log")]
        self._start("munged", "--foreground", "--force", f"--socket={folder / 'socket'}", "--num-threads=2", *files)
        self._wait("munged", (folder / "socket").is_socket)

    def _start(self, name: str, *arguments: str, program: str = "") -> None:
        found = shutil.which(program or name, path=_path())
        if found is None:
            raise RuntimeError(missing())
        # Jobs inherit the environment of the submitting process. Daemons inherit none, which could differ between two runs.
        env = {"PATH": _path(), "LANG": "C.UTF-8", **self.env}
        is_node = program == "slurmd"
        self._daemons[name] = Enclosure(
            [found, *arguments],
            log=self.directory / f"{name}.log",
            env=env,
            files=self._files if is_node else None,
            hostname=name if is_node and self._named else "",
        )

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while not ready():
            if time.monotonic() > end:
                words = "\n".join(f"--- {name}\n{daemon.last_words()}" for name, daemon in self._daemons.items())
                raise TimeoutError(f"no {what} after {START_TIMEOUT_S:.0f} s; nodes: {self.states()}\n{words}")
            time.sleep(0.05)

    def __enter__(self) -> SlurmCluster:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()
