"""The nodes of a cluster, over the provider's ssh: where workers listen, and the secret, which goes over standard input.

Each node reports its own ranks: SkyPilot's numbers of nodes are no promise about ranks.
"""

from __future__ import annotations

import base64
import contextvars
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

from monarch.job._job.worker_address import published_address
from monarch.job._machine.commands import SSH_FAILED, Commands, Forwarding, Result, listens, time_limit

# Seconds: a first connection to a node of SLURM starts a step of its job, which takes seconds on an idle machine. A cut one ends after 15
# s.
LOOK_TIMEOUT_S = 120.0
AT_ONCE = 32

# Argument: the suffix of the folder of the task. Prints a line for each rank of this node; nodes on one machine may share the folder.
_LOOK = """
base=/tmp/monarch-skypilot-$(id -u)
[ -d "$base" ] && [ ! -L "$base" ] && [ -O "$base" ] || exit 0
for directory in "$base"/*$1/[0-9]*; do
    [ "$(cat "$directory/node" 2>/dev/null)" = "$(uname -n)" ] && [ -s "$directory/pid" ] || continue
    rank=${directory##*/}
    if ! kill -0 "$(cat "$directory/pid")" 2>/dev/null; then echo "$rank exit killed"
    elif [ -s "$directory/secret" ] && [ ! -s "$directory/host.json" ]; then echo "$rank waiting"
    elif [ -s "$directory/exit" ]; then echo "$rank exit $(cat "$directory/exit")"
    elif [ -s "$directory/host.json" ]; then
        rm -f "$directory/secret"
        echo "$rank joined $(head -c 16384 "$directory/host.json" | tr '\\n' ' ')"
    else echo "$rank wanting"; fi
done
:
"""
# Arguments: the suffix of the folder of the task, ranks. The secret is on standard input, in base64.
_GIVE = """
umask 077
base=/tmp/monarch-skypilot-$(id -u)
[ -d "$base" ] && [ ! -L "$base" ] && [ -O "$base" ] || { echo "$base is not this user's" >&2; exit 1; }
IFS= read -r secret
task=$1; shift
for rank in "$@"; do
    for directory in "$base"/*$task/"$rank"; do
        [ -d "$directory" ] || continue
        printf %s "$secret" | base64 -d >"$directory/.secret" || exit 1
        rm -f "$directory/exit" "$directory/host.json"
        mv -f "$directory/.secret" "$directory/secret"
    done
done
"""

State = Literal["wanting", "waiting", "joined", "exit"]


class Worker(NamedTuple):
    """What was found of the worker of a rank; `node` is the name of its machine for ssh, `detail` how it ended."""

    state: State
    node: str
    address: str | None = None
    detail: str = ""


class Nodes:
    """The machines `names`, which the file `config` of ssh has, with the key `key`; `task` is how the folder of the task ends on each."""

    def __init__(self, title: str, names: Sequence[str], config: str, key: str, socket: str, task: str) -> None:
        self.names = list(names)
        self._task = task
        options = ("-F", config, *(("-o", f"IdentityFile={key}") if key else ()), "-o", "LogLevel=ERROR")
        # A socket for each node: on SLURM all of them have the address of the login node, by which ssh would distinguish the sockets.
        self._commands = {
            name: Commands(title, name, f"{socket}-{number}", options, int(LOOK_TIMEOUT_S)) for number, name in enumerate(names)
        }
        # Whether this machine reaches the private addresses.
        self._is_direct: bool | None = None
        # Nodes that did not answer the last query, with the reasons.
        self.unreachable: dict[str, str] = {}

    def look(self) -> dict[int, Worker]:
        """The workers by rank; a rank whose node does not answer is missing."""
        found: dict[int, Worker] = {}
        self.unreachable = {}
        for name, result in self._of_all(self.names, lambda name: self._run(name, _LOOK, self._task)):
            if result.code:
                self.unreachable[name] = result.words or f"exit code {result.code}"
                continue
            for line in result.out.splitlines():
                worker = _parsed(line, name)
                if worker is not None:
                    found[worker[0]] = worker[1]
        return found

    def give(self, workers: dict[int, Worker], secret: bytes) -> list[int]:
        """Brings the secret to these ranks, whose workers then start; gives those that have it."""
        encoded_secret = base64.b64encode(secret).decode() + "\n"
        of_node: dict[str, list[int]] = {}
        for rank, worker in workers.items():
            of_node.setdefault(worker.node, []).append(rank)
        given = self._of_all(list(of_node), lambda name: self._run(name, _GIVE, self._task, *map(str, of_node[name]), stdin=encoded_secret))
        return [rank for name, result in given if result.code == 0 for rank in of_node[name]]

    def reachable(self, ids: dict[str, Any], found: dict[str, list[str | None]]) -> dict[str, list[str | None]]:
        """The addresses as this machine can dial them: as they are, or forwarded over the connection to the first node."""
        first = next((address for addresses in found.values() for address in addresses if address), None)
        if first is None:
            return found
        if self._is_direct is None:
            place = re.fullmatch(r"(?:[^@]*@)?\w+://\[?([^\]]+?)\]?:(\d+)", first)
            self._is_direct = place is not None and listens(place[1], int(place[2]))
        if self._is_direct:
            return found
        return Forwarding(self._commands[self.names[0]]).reachable(ids, found)

    def close(self) -> None:
        """Ends the connections."""

        def close(name: str) -> Result:
            self._commands[name].close()
            return Result("", 0, "", "")

        self._of_all(self.names, close)

    def _run(self, name: str, script: str, *arguments: str, stdin: str = "") -> Result:
        with time_limit(LOOK_TIMEOUT_S):
            return self._commands[name].run("sh", "-c", script, "sh", *arguments, stdin=stdin, timeout=LOOK_TIMEOUT_S)

    def _of_all(self, names: Sequence[str], action: Callable[[str], Result]) -> list[tuple[str, Result]]:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="monarch-skypilot") as pool:
            # Each call has a copy of the context, which has the time limit.
            started = [(name, pool.submit(contextvars.copy_context().run, action, name)) for name in names]
            return [(name, _result(future.result)) for name, future in started]


def node_names(config: str, cluster: str) -> list[str]:
    """The nodes in the order of SkyPilot, which are hosts in the file that it has written for ssh; `OSError` where it cannot be read."""
    with open(config) as file:
        hosts = re.findall(r"^Host\s+(\S+)\s*$", file.read(), re.MULTILINE)
    return [host for host in hosts if host == cluster or re.fullmatch(re.escape(cluster) + r"-worker\d+", host)]


def _result(get: Callable[[], Result]) -> Result:
    try:
        return get()
    except OSError as error:
        return Result("", SSH_FAILED, "", str(error))


def _parsed(line: str, node: str) -> tuple[int, Worker] | None:
    rank, _, rest = line.partition(" ")
    word, _, rest = rest.partition(" ")
    if not rank.isdecimal():
        return None
    match word:
        case "wanting" | "waiting":
            return int(rank), Worker(word, node)
        case "exit":
            return int(rank), Worker("exit", node, detail=f"with exit code {rest}" if rest.isdecimal() else "with its task")
        case "joined" if (address := published_address(rest)) is not None:
            return int(rank), Worker("joined", node, address)
        case "joined":
            return int(rank), Worker("waiting", node)
        case _:
            return None
