"""Hosts in namespaces reach each other, each cut has its documented effect, and nothing is left, whatever ends them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.netns import Host, Network, Process
from tools.netns.namespace import living
from tools.project import ROOT

# Answers each datagram and each line of a connection, under its own name, so that the lost direction is visible.
SERVER = """
import selectors, socket, sys
from pathlib import Path
port = int(sys.argv[1])
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", port))
tcp = socket.create_server(("", port))
ready = selectors.DefaultSelector()
ready.register(udp, selectors.EVENT_READ)
ready.register(tcp, selectors.EVENT_READ)
print("up", flush=True)
while True:
    for key, _ in ready.select():
        if key.fileobj is udp:
            data, address = udp.recvfrom(100)
            print("got", data.decode(), flush=True)
            udp.sendto(data, address)
        elif key.fileobj is tcp:
            ready.register(tcp.accept()[0], selectors.EVENT_READ)
        else:
            try:
                data = key.fileobj.recv(100)
            except ConnectionError:
                data = b""
            if data:
                key.fileobj.sendall(data)
            else:
                ready.unregister(key.fileobj)
                key.fileobj.close()
"""
# Sends one datagram and waits for its answer, a second at most.
ASK = """
import socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.settimeout(float(sys.argv[3]))
try:
    udp.sendto(sys.argv[2].encode(), (sys.argv[1], 4000))
    print(udp.recv(100).decode())
except OSError as error:
    print(type(error).__name__)
"""
CONNECT = """
import socket, sys
try:
    line = socket.create_connection((sys.argv[1], 4000))
    for word in sys.stdin:
        line.sendall(word.encode())
        print(line.recv(100).decode().strip() or "end", flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(3) as made:
        yield made


@pytest.fixture
def hosts(network: Network) -> Iterator[list[Host]]:
    yield network.hosts
    for host in network.hosts:
        host.heal()


@pytest.fixture(scope="module")
def servers(network: Network) -> Iterator[dict[str, Process]]:
    with_output: dict[str, Process] = {}
    for host in network.hosts:
        server = host.popen(sys.executable, "-IS", "-c", SERVER, "4000", stdout=subprocess.PIPE)
        assert line(server) == "up"
        with_output[host.name] = server
    yield with_output
    for server in with_output.values():
        server.kill()
        assert server.wait() == -signal.SIGKILL
        assert server.stdout is not None
        server.stdout.close()


def line(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ask(asking: Host, asked: Host, word: str = "word", limit: float = 10) -> str:
    """The answer, or the name of the error; `limit` is long if an answer is awaited, short if none is expected."""
    return asking.run(sys.executable, "-IS", "-c", ASK, asked.name, word, str(limit), stdout=subprocess.PIPE).stdout.strip()


def got(servers: dict[str, Process], host: Host, word: str) -> bool:
    """Whether the server has received the word. A later word that does arrive proves that the first is lost."""
    assert host.run(sys.executable, "-IS", "-c", ASK, "127.0.0.1", "mark", "10", stdout=subprocess.PIPE).stdout.strip() == "mark"
    heard: list[str] = []
    while not heard or heard[-1] != "got mark":
        heard.append(line(servers[host.name]))
    return f"got {word}" in heard


def test_hosts_reach_each_other_by_name(hosts: list[Host], servers: dict[str, Process]) -> None:
    for asking in hosts:
        assert asking.run("hostname", stdout=subprocess.PIPE).stdout.strip() == asking.name
        assert [ask(asking, asked) for asked in hosts] == ["word"] * 3


def test_hosts_are_apart(hosts: list[Host]) -> None:
    """Each has its own processes, shared memory and ports; files and the folder are shared."""
    a, b, _ = hosts
    a.run("sh", "-c", "echo 1 >/dev/shm/x")
    assert b.run("sh", "-c", "ls /dev/shm; pwd", stdout=subprocess.PIPE).stdout.strip() == os.getcwd()
    with b.popen("sleep", "1000") as process:
        seen = {host.name: host.run("ps", "-A", "-o", "args=", stdout=subprocess.PIPE).stdout.splitlines() for host in (a, b)}
        process.terminate()
    assert [name for name, commands in seen.items() if "sleep 1000" in commands] == ["h2"]
    assert process.returncode == -signal.SIGTERM


def test_cut_host_gets_and_sends_nothing(hosts: list[Host], servers: dict[str, Process]) -> None:
    a, b, c = hosts
    b.cut()
    assert ask(a, b, "lost", 0.2) != "lost"
    assert ask(b, a, "lost", 0.2) != "lost"
    assert not got(servers, b, "lost")
    assert not got(servers, a, "lost")
    assert ask(a, c) == "word"
    b.heal()
    assert ask(a, b) == ask(b, a) == "word"


def test_host_without_inbound_traffic_still_sends(hosts: list[Host], servers: dict[str, Process]) -> None:
    a, b, c = hosts
    assert ask(b, a, "known") == "known"
    b.cut(outbound=False)
    assert ask(a, b, "in", 0.2) == "TimeoutError"
    assert ask(b, a, "out", 0.2) == "TimeoutError"
    assert not got(servers, b, "in")
    assert got(servers, a, "out")
    b.heal()
    assert ask(a, b) == ask(b, a) == ask(c, b) == "word"


def test_host_without_outbound_traffic_still_receives(hosts: list[Host], servers: dict[str, Process]) -> None:
    a, b, c = hosts
    assert ask(a, b, "known") == "known"
    b.cut(inbound=False)
    assert ask(a, b, "in", 0.2) == "TimeoutError"
    assert ask(b, a, "out", 0.2) == "TimeoutError"
    assert got(servers, b, "in")
    assert not got(servers, a, "out")
    b.heal()
    assert ask(a, b) == ask(b, a) == ask(c, b) == "word"


@pytest.mark.parametrize("back", [True, False])
def test_cut_link_affects_two_hosts_only(network: Network, hosts: list[Host], servers: dict[str, Process], back: bool) -> None:
    a, b, c = hosts
    assert ask(a, b) == ask(b, a) == "word"
    network.cut_link(a, b, back=back)
    assert ask(a, b, "there", 0.2) == "TimeoutError"
    assert ask(b, a, "back", 0.2) == "TimeoutError"
    assert not got(servers, b, "there")
    assert got(servers, a, "back") == (not back)
    assert ask(a, c) == ask(b, c) == ask(c, a) == ask(c, b) == "word"
    a.heal()
    assert ask(a, b) == ask(b, a) == "word"


def test_frozen_process_continues(hosts: list[Host]) -> None:
    with hosts[0].popen("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert say(process, "first") == "first"
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
        assert say(process, "word") == "word"
        process.send_signal(signal.SIGSTOP)
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_frozen_process_ends_with_its_host() -> None:
    with Network(1) as network:
        process = network.hosts[0].popen("cat", stdin=subprocess.PIPE)
        process.send_signal(signal.SIGSTOP)
    assert process.wait() == -signal.SIGKILL
    process.communicate()


def connected(host: Host, to: Host) -> Process:
    made = host.popen(sys.executable, "-IS", "-c", CONNECT, to.name, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert say(made, "hello") == "hello"
    return made


def say(process: Process, word: str) -> str:
    assert process.stdin is not None
    try:
        process.stdin.write(word + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass
    return line(process)


def test_reset(hosts: list[Host], servers: dict[str, Process]) -> None:
    a, b, _ = hosts
    with connected(a, b) as before:
        b.reset()
        assert say(before, "more") in ("ConnectionResetError", "BrokenPipeError", "end")
    with connected(a, b) as after:
        assert say(after, "more") == "more"


def test_refusing_port_keeps_open_connections(hosts: list[Host], servers: dict[str, Process]) -> None:
    a, b, _ = hosts
    with connected(a, b) as before:
        b.refuse(4000)
        assert say(before, "more") == "ConnectionResetError"
    refused = a.run(sys.executable, "-IS", "-c", CONNECT, b.name, input="", stdout=subprocess.PIPE).stdout
    assert refused.strip() == "ConnectionRefusedError"
    b.heal()
    with connected(a, b) as after:
        assert say(after, "more") == "more"


def test_healing_the_healthy_changes_nothing(hosts: list[Host], servers: dict[str, Process]) -> None:
    for host in (*hosts, *hosts):
        host.heal()
    assert ask(hosts[0], hosts[1]) == "word"


def ended(*pids: int) -> None:
    """Waits until these processes, which are not children of this one, have ended."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        select.select([handle], [], [])
        os.close(handle)


def traces() -> set[str]:
    """Possible leftovers outside of all namespaces: links, and files with names given by tools."""
    named = [*Path("/sys/class/net").iterdir(), *Path("/run").glob("netns/*"), *Path("/etc").glob("netns/*")]
    return {str(path) for path in named if path.name in ("h1", "h2", "bridge", "switch", "eth0") or "netns" in path.parts}


def test_nothing_is_left() -> None:
    before = traces()
    with Network(2) as network:
        first = [network.switch.first, *(host.namespace.first for host in network.hosts)]
        inside = network.hosts[0].popen("sh", "-c", "setsid sleep 1000 & setsid sleep 1000 & echo up; wait", stdout=subprocess.PIPE)
        assert line(inside) == "up"
        assert network.name in living()
        assert traces() == before
    # The sleeping ones have ended, too: they hold the pipe.
    assert inside.communicate() == ("", None)
    assert inside.returncode == -signal.SIGKILL
    network.close()
    ended(*first)
    assert network.name not in living()
    assert traces() == before


def test_error_in_the_block_ends_the_network() -> None:
    with pytest.raises(KeyError), Network(1) as network:
        first = network.hosts[0].namespace.first
        raise KeyError
    ended(first)
    assert network.name not in living()


def terminal(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tools.netns", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(argv, cwd=ROOT, text=True, **{**pipes, **options})


@pytest.mark.parametrize("how", ["end of input", "SIGINT", "SIGKILL"])
def test_end_of_its_user_ends_the_network(how: str) -> None:
    with terminal("up", "2") as up:
        assert up.stdin is not None and up.stdout is not None
        name, *hosts = up.stdout.readline().split()
        assert hosts == ["h1", "h2"]
        first = [space.first for space in living()[name].values()]
        assert len(first) == 3
        if how == "end of input":
            up.stdin.close()
        else:
            up.send_signal(signal.Signals[how])
        assert up.wait() == (-signal.SIGKILL if how == "SIGKILL" else 0)
    ended(*first)
    assert name not in living()


def verb(*arguments: str) -> tuple[int, str, str]:
    with terminal(*arguments) as done:
        out, err = done.communicate()
        return done.returncode, out, err


def test_command_line_lists_and_removes_networks() -> None:
    with terminal("up", "2") as one, terminal("up", "2", "--name", f"n{os.getpid()}") as two:
        assert one.stdout is not None and two.stdout is not None
        name, other = one.stdout.readline().split()[0], two.stdout.readline().split()[0]
        assert other == f"n{os.getpid()}"
        assert {f"{name} h1 h2", f"{other} h1 h2"} <= set(verb("list")[1].splitlines())
        assert verb("--network", name, "exec", "h2", "sh", "-c", "hostname; exit 3") == (3, "h2\n", "")
        code, _, said = verb("exec", "h1", "true")
        assert code == 1 and said.startswith("netns: no network chosen; there are: ")
        code, _, said = verb("--network", "nowhere", "exec", "h1", "true")
        assert code == 1 and said.startswith("netns: no network nowhere; there are: ")
        _, hosts = Network.find(name)
        server = hosts["h1"].popen(sys.executable, "-IS", "-c", SERVER, "4000", stdout=subprocess.PIPE)
        assert line(server) == "up"
        for cut in (["cut", "h1"], ["cut", "h2", "--inbound"], ["cut", "h1", "--outbound"], ["cut", "h1", "--from", "h2"]):
            assert ask(hosts["h2"], hosts["h1"]) == "word"
            assert verb("--network", name, *cut) == (0, "", "")
            assert ask(hosts["h2"], hosts["h1"], "lost", 0.2) != "lost"
            assert verb("--network", name, "heal", cut[1]) == (0, "", "")
        assert verb("--network", name, "refuse", "h1", "4000") == (0, "", "")
        refused = hosts["h2"].run(sys.executable, "-IS", "-c", CONNECT, "h1", input="", stdout=subprocess.PIPE).stdout
        assert refused.strip() == "ConnectionRefusedError"
        assert verb("--network", name, "reset", "h1") == (0, "", "")
        one.communicate("")
        two.communicate("")
        assert server.wait() == -signal.SIGKILL
        server.communicate()
