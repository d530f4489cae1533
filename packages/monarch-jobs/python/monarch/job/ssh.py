"""SSHJob: hosts that the user can log in to by ssh, with a worker on each; one connection a machine, shared by all commands.

The secret goes over ssh's standard input into a file of the worker's private directory there, which is removed once the worker listens.
`ids["workers"]` has one entry a host, in the order of the meshes.
"""

from __future__ import annotations

import base64
import contextvars
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from typing import Any

from monarch.job._files.contexts import logs_folder
from monarch.job._job.launcher import HostStatus, JobStatus, LogFile, Plan
from monarch.job._job.worker_address import published_address
from monarch.job._machine.commands import SSH_FAILED, Commands, Forwarding, Result, time_limit
from monarch.job.errors import BackendMissingError, JobError, SubmitError
from monarch.job.login import LoginJob, check_meshes

TRANSPORTS = ("tcp", "tls", "metatls", "metatls-hostname")


class SSHJob(LoginJob):
    """A worker on each host of its meshes (`add_mesh`), started by one ssh each; the worker goes on after ssh has ended.

    Args:
        python_exe: the interpreter of the workers, as a login shell of the hosts finds it.
        ssh_args: further options of ssh, such as `["-F", "cluster.config"]`.
        monarch_port: the port of the workers; the next free port where it is taken. A port that this machine cannot reach is forwarded.
        transport: the transport of 0.7; traffic is TLS in any case.

    ```python
    from monarch.job import SSHJob

    job = SSHJob(python_exe="/opt/monarch/bin/python")
    job.add_mesh("workers", ["gpu1", "gpu2"])
    assert "gpu2" in job.plan().text
    ```
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
        return _fetch_logs(self._launcher(), self._ids, logs_folder(self.apply_id))

    def _where(self) -> str:
        workers = (self._ids or {}).get("workers", ())
        return ", ".join(f"pid {worker['pid']} on {worker['name']}" for worker in workers) or "no worker was started"


START_TIMEOUT_S = 60.0
# Seconds: a host that is up answers within a second; this bounds the cost of a host that is cut off.
LOOK_TIMEOUT_S = 10.0
END_TIMEOUT_S = 15.0
PORT_TRIES = 100
AT_ONCE = 32  # an sshd refuses more than ten half-open connections by default, and these are on as many machines

# Prints the versions of Python and monarch; a checkout has no version.
_VERSIONS = (
    "import sys, importlib.metadata as m, monarch.extension.cli;"
    " print('monarch', '%d.%d' % sys.version_info[:2], next((d.version for d in m.distributions(name='monarch-core')), '-'))"
)
# Arguments: interpreter, listen address, port tries, and the expected output of `_VERSIONS`.
_START = f"""
umask 077
IFS= read -r secret
found=$("$1" -c "{_VERSIONS}" 2>&1) || {{ printf '%s\\n' "$found" >&2; exit 3; }}
if [ "$found" != "$4" ]; then echo "it has $found, and this machine $4" >&2; exit 4; fi
directory=$(mktemp -d "${{TMPDIR:-/tmp}}/monarch-worker-XXXXXXXX") || exit 5
printf %s "$secret" | base64 -d >"$directory/secret" || exit 5
setsid sh -c '"$1" -c "from monarch.extension.cli import main; main()" worker --listen "$2" --port-tries "$3" --secret-file "$0/secret" \\
    --publish "$0/host.json"; echo $? >"$0/exit"' "$directory" "$1" "$2" "$3" </dev/null >"$directory/log" 2>&1 &
echo "started $! $directory"
"""
# Arguments: directory and pid.
_LOOK = """
if [ -s "$1/exit" ]; then echo "exit $(cat "$1/exit")"; tail -n 5 "$1/log"
elif ! kill -0 "$2" 2>/dev/null; then echo "exit -"
elif [ -s "$1/host.json" ]; then rm -f "$1/secret"; echo "joined $(head -c 16384 "$1/host.json")"
else echo waiting; fi
"""
_END = """
case $1 in */monarch-worker-*) ;; *) exit 1 ;; esac
if [ -d "$1" ] && grep -q -a -F -- "$1" "/proc/$2/cmdline" 2>/dev/null; then
    kill -TERM -"$2" 2>/dev/null
    for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 -"$2" 2>/dev/null || break; sleep 0.1; done
    kill -KILL -"$2" 2>/dev/null
fi
rm -rf -- "$1"
"""


class SshLauncher:
    """A `Launcher`; `secret` is asked for when workers are started again, `socket` names the connections of this allocation."""

    kind = "ssh"
    machines_outlive_workers = True

    def __init__(
        self,
        meshes: Mapping[str, Sequence[str]],
        *,
        python_exe: str,
        ssh_args: Sequence[str],
        port: int,
        title: str,
        secret: Callable[[], bytes],
        socket: str,
    ) -> None:
        self._meshes = meshes
        self._python_exe = python_exe
        self._ssh_args = tuple(ssh_args)
        self._port = port
        self._title = title
        self._secret = secret
        self._socket = socket
        self._seen: dict[int, _Look] = {}

    def plan(self) -> Plan:
        words = shlex.join(["ssh", "-o", "BatchMode=yes", *self._ssh_args])
        lines = [
            f"{mesh}[{rank}]: {words} {shlex.quote(host)} {shlex.quote(self._python_exe)} monarch worker --listen 'tcp://*:{self._port}'\n"
            for mesh, hosts in self._meshes.items()
            for rank, host in enumerate(hosts)
        ]
        if not lines:
            raise ValueError("SSHJob without a mesh: nothing to start")
        return Plan(self.kind, "".join(lines))

    def submit(self, plan: Plan, secret: bytes) -> dict[str, Any]:
        workers: list[dict[str, Any]] = [
            {"mesh": mesh, "rank": rank, "name": host, "pid": 0, "directory": "", "address": None, "forwards": {}}
            for mesh, hosts in self._meshes.items()
            for rank, host in enumerate(hosts)
        ]
        ids: dict[str, Any] = {"workers": workers}
        try:
            for error in self.of_all(workers, lambda worker: self._start(worker, secret)):
                if error is not None:
                    raise error
        except BaseException:
            self.of_all([worker for worker in workers if worker["pid"]], self._end)
            self._close(workers)
            raise
        return ids

    def poll(self, ids: dict[str, Any]) -> JobStatus:
        self._look_at(ids)
        hosts: list[HostStatus] = []
        for number, worker in enumerate(ids["workers"]):
            look = self._seen[number]
            phase = "lost" if look.state in ("exit", "unreachable") else "waiting"
            hosts.append(HostStatus(worker["mesh"], worker["rank"], worker["name"], phase, worker["address"], look.detail))
        states = {look.state for look in self._seen.values()}
        if states == {"exit"}:
            return JobStatus("ended", "all workers ended", hosts)
        return JobStatus("unknown" if states == {"unreachable"} else "running", "", hosts)

    def addresses(self, ids: dict[str, Any]) -> dict[str, list[str | None]]:
        if not self._seen:
            self._look_at(ids)
        found: dict[str, list[str | None]] = {mesh: [] for mesh in self._meshes}
        for number, worker in enumerate(ids["workers"]):
            joined = self._seen[number].state == "joined"
            found[worker["mesh"]].append(worker["address"] if joined else None)
        self._seen.clear()
        return found

    def relaunch(self, ids: dict[str, Any], lost: list[tuple[str, int]]) -> list[tuple[str, int]]:
        workers = [worker for worker in ids["workers"] if (worker["mesh"], worker["rank"]) in lost]
        secret = self._secret()

        def again(worker: dict[str, Any]) -> None:
            self._end(worker)
            worker.update({"pid": 0, "directory": "", "address": None, "forwards": {}})
            self._start(worker, secret)

        errors = self.of_all(workers, again)
        return [(worker["mesh"], worker["rank"]) for worker, error in zip(workers, errors, strict=True) if error is None]

    def cancel(self, ids: dict[str, Any]) -> None:
        workers = [worker for worker in ids["workers"] if worker["pid"]]
        failed = [f"{worker['name']}: {error}" for worker, error in zip(workers, self.of_all(workers, self._end), strict=True) if error]
        self._close(ids["workers"])
        if failed:
            raise JobError("workers may go on", title=self._title, cause="\n".join(failed))

    def _close(self, workers: Sequence[dict[str, Any]]) -> None:
        """Ends the connections, when all commands are over: a command that still uses a shared one would fail with 255."""
        hosts = {worker["name"]: worker for worker in workers}
        self.of_all(list(hosts.values()), lambda worker: self.commands_of(worker["name"]).close())

    def commands_of(self, host: str) -> Commands:
        """Runs commands on a host, over the connection that all of them share."""
        return Commands(self._title, host, self._socket, self._ssh_args)

    def of_all(self, workers: Sequence[dict[str, Any]], action: Callable[[dict[str, Any]], None]) -> list[Exception | None]:
        """Does it for all of them at the same time; what each raised."""

        def one(worker: dict[str, Any]) -> Exception | None:
            try:
                action(worker)
            except Exception as error:
                return error
            return None

        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="monarch-ssh") as pool:
            # Each call has a copy of the context, which has the time limit.
            started = [pool.submit(contextvars.copy_context().run, one, worker) for worker in workers]
            return [future.result() for future in started]

    def _start(self, worker: dict[str, Any], secret: bytes) -> None:
        version = next((found.version for found in distributions(name="monarch-core")), "-")
        own = f"monarch {sys.version_info[0]}.{sys.version_info[1]} {version}"
        commands = self.commands_of(worker["name"])
        arguments = (self._python_exe, f"tcp://*:{self._port}", str(PORT_TRIES), own)
        encoded_secret = base64.b64encode(secret).decode() + "\n"
        result = commands.run("sh", "-c", _START, "sh", *arguments, stdin=encoded_secret, timeout=START_TIMEOUT_S)
        words = result.out.split(None, 2)
        if result.code or len(words) != 3 or words[0] != "started" or not words[1].isdecimal():
            raise self._refused(worker, result)
        worker.update({"pid": int(words[1]), "directory": words[2].strip()})

    def _refused(self, worker: dict[str, Any], result: Result) -> Exception:
        place = f"{worker['mesh']}[{worker['rank']}] on {worker['name']}"
        what = {
            SSH_FAILED: f"ssh does not get to {worker['name']}",
            3: f"'{self._python_exe}' on {worker['name']} is no interpreter with monarch",
            4: f"'{self._python_exe}' on {worker['name']} is another version",
        }.get(result.code, f"the worker of {place} could not be started: exit code {result.code}")
        if result.code == 3 and not result.words:
            return BackendMissingError(what, title=self._title)
        command = shlex.join([*self.commands_of(worker["name"]).ssh(), self._python_exe])
        return SubmitError(what, title=self._title, cause=result.words[:4000], command=command, exit_code=result.code)

    def _look_at(self, ids: dict[str, Any]) -> None:
        looks: list[_Look | None] = [None] * len(ids["workers"])
        numbered = [{"number": number, **worker} for number, worker in enumerate(ids["workers"])]

        def look(entry: dict[str, Any]) -> None:
            with time_limit(LOOK_TIMEOUT_S):  # the limit includes the forwarding of ports
                looks[entry["number"]] = self._look(ids["workers"][entry["number"]])

        errors = self.of_all(numbered, look)
        self._seen = {number: found or _Look("unreachable", str(errors[number] or "no answer")) for number, found in enumerate(looks)}

    def _look(self, worker: dict[str, Any]) -> _Look:
        commands = self.commands_of(worker["name"])
        result = commands.run("sh", "-c", _LOOK, "sh", worker["directory"], str(worker["pid"]))
        if result.code:
            return _Look("unreachable", result.words or f"exit code {result.code}")
        word, _, rest = result.out.partition(" ")
        if word == "exit":
            code, _, tail = rest.partition("\n")
            return _Look("exit", f"its worker {'is gone' if code == '-' else f'ended with exit code {code}'}\n{tail}".rstrip())
        if word == "joined":
            address = published_address(rest)
            if address is not None:
                worker["address"] = Forwarding(commands).of_login(worker, address)
                return _Look("joined", "")
        return _Look("waiting", "")

    def _end(self, worker: dict[str, Any]) -> None:
        commands = self.commands_of(worker["name"])
        result = commands.run("sh", "-c", _END, "sh", worker["directory"], str(worker["pid"]), timeout=END_TIMEOUT_S)
        if result.code:
            raise JobError(result.words or f"exit code {result.code}")


class _Look:
    """What was found on a host: `exit`, `joined`, `waiting` or `unreachable`."""

    def __init__(self, state: str, detail: str) -> None:
        self.state = state
        self.detail = detail


LOGS_TIMEOUT_S = 20.0
# Bytes of each worker in one read; the next read continues.
_MOST = 16 << 20
# Arguments: directory, the first wanted byte counted from 1, and the most bytes. Base64, since a log may contain any bytes.
_TAIL = 'tail -c +"$2" -- "$1/log" | head -c "$3" | base64'
# Workers without an answer that a line has named; `monarch logs -f` reads again and again.
_named: set[str] = set()


def _fetch_logs(launcher: SshLauncher, ids: dict[str, Any], folder: str) -> list[LogFile]:
    """Copies below `folder`, one for each worker; a line on stderr names a host that gives nothing."""
    os.makedirs(folder, 0o700, exist_ok=True)
    workers = [worker for worker in ids["workers"] if worker["directory"]]
    found = [LogFile(worker["mesh"], worker["rank"], "out", _path(folder, worker)) for worker in workers]

    def one(worker: dict[str, Any]) -> None:
        with time_limit(LOGS_TIMEOUT_S):
            _append(launcher, worker, _path(folder, worker))

    for worker, error in zip(workers, launcher.of_all(workers, one), strict=True):
        if error is not None and worker["directory"] not in _named:
            _named.add(worker["directory"])
            print(f"monarch: no output of {worker['mesh']}[{worker['rank']}] on {worker['name']}: {error}", file=sys.stderr)
    return found


def _path(folder: str, worker: dict[str, Any]) -> str:
    # A worker that was started again has another directory, and a log of its own.
    return os.path.join(folder, f"{os.path.basename(worker['directory'])}.log")


def _append(launcher: SshLauncher, worker: dict[str, Any], path: str) -> None:
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600)) as copy:
        begin = copy.tell() + 1
        result = launcher.commands_of(worker["name"]).run("sh", "-c", _TAIL, "sh", worker["directory"], str(begin), str(_MOST))
        if result.code or result.err:
            raise OSError(result.words or f"exit code {result.code}")
        copy.write(base64.b64decode(result.out))
