"""Forwarded ports, with real servers and clients."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from exec_scripts import Script

from monarch.actor import ActorError, Point, ProcMesh, this_host, this_proc
from monarch.job import PortForwarder
from monarch.job._host.tunnel import parse_address

HERE = "127.0.0.1"


class Server:
    """Runs a function for each connection, on a thread of its own."""

    def __init__(self, serve: Any) -> None:
        self.socket = socket.create_server((HERE, 0), backlog=2048)
        self.port = self.socket.getsockname()[1]
        self.serve = serve
        self.threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self.socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._run, args=(accepted,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _run(self, accepted: socket.socket) -> None:
        with accepted:
            try:
                self.serve(accepted)
            except OSError:
                return

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for thread in self.threads:
            thread.join()


def echo(sock: socket.socket) -> None:
    while data := sock.recv(65536):
        sock.sendall(data)


@pytest.fixture(scope="module")
def procs() -> Iterator[tuple[ProcMesh, ProcMesh]]:
    """Those to connect to, and those that listen."""
    with this_host().spawn_procs({"x": 2}, name="dst") as dst, this_host().spawn_procs({"x": 2}, name="src") as src:
        yield dst, src


@pytest.fixture
def pair(procs: tuple[ProcMesh, ProcMesh]) -> tuple[ProcMesh, ProcMesh]:
    return procs[0].slice(x=0), procs[1].slice(x=1)


@pytest.fixture
def forwarder() -> Iterator[PortForwarder]:
    made = this_proc().spawn("forwarder", PortForwarder)
    yield made
    made.stop().get()


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made: list[Server] = []
    yield made
    for server in made:
        server.close()


def tunnel(forwarder: PortForwarder, pair: tuple[ProcMesh, ProcMesh], port: int) -> tuple[str, int]:
    """The address that leads to the port."""
    forwarder.forward.call_one(pair[0], port, pair[1], "0").get()
    return parse_address(forwarder.addresses.call_one().get()[-1])


def connected(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address)
    sock.settimeout(20)
    return sock


def everything(sock: socket.socket) -> bytes:
    found = bytearray()
    while data := sock.recv(1 << 20):
        found += data
    return bytes(found)


def test_bytes_pass_in_both_directions(forwarder: PortForwarder, pair: Any, servers: list[Server]) -> None:
    servers.append(Server(echo))
    with connected(tunnel(forwarder, pair, servers[0].port)) as sock:
        for word in (b"a", b"b" * 100_000, b"\0"):
            sock.sendall(word)
            received = b""
            while len(received) < len(word):
                received += sock.recv(1 << 20)
            assert received == word
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""


def test_listener_is_on_loopback_by_default(forwarder: PortForwarder, pair: Any, servers: list[Server]) -> None:
    servers.append(Server(echo))
    port = servers[0].port
    for address in ("0", ":0", "localhost:0", "0.0.0.0:0"):
        forwarder.forward.call_one(pair[0], port, pair[1], address).get()
    assert [address.rpartition(":")[0] for address in forwarder.addresses.call_one().get()] == [HERE, HERE, HERE, "0.0.0.0"]


def test_each_point_has_its_own_address(forwarder: PortForwarder, procs: tuple[ProcMesh, ProcMesh], servers: list[Server]) -> None:
    servers += [Server(lambda sock, i=i: sock.sendall(b"server %d" % i)) for i in range(2)]
    ports = [server.port for server in servers]

    def address(point: Point) -> str:
        return f"127.0.0.{1 + point['x']}:0"

    forwarder.forward.call_one(procs[0], lambda point: ports[point["x"]], procs[1], address).get()
    places = [parse_address(text) for text in forwarder.addresses.call_one().get()]
    assert [host for host, _ in places] == [HERE, "127.0.0.2"]
    for i, place in enumerate(places):
        with connected(place) as sock:
            assert everything(sock) == b"server %d" % i


def test_server_can_send_after_the_clients_end(forwarder: PortForwarder, pair: Any, servers: list[Server]) -> None:
    def serve(sock: socket.socket) -> None:
        asked = everything(sock)
        sock.sendall(asked[::-1] * 2)

    servers.append(Server(serve))
    with connected(tunnel(forwarder, pair, servers[0].port)) as sock:
        sock.sendall(b"abc")
        sock.shutdown(socket.SHUT_WR)
        assert everything(sock) == b"cbacba"


def test_client_can_send_after_the_servers_end(forwarder: PortForwarder, pair: Any, servers: list[Server]) -> None:
    heard: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        sock.sendall(b"welcome")
        sock.shutdown(socket.SHUT_WR)
        heard.append(everything(sock))

    servers.append(Server(serve))
    with connected(tunnel(forwarder, pair, servers[0].port)) as sock:
        assert everything(sock) == b"welcome"
        sock.sendall(b"x" * 1_000_000)
        sock.sendall(b"end")
        sock.shutdown(socket.SHUT_WR)
        servers[0].threads[0].join()
    assert heard == [b"x" * 1_000_000 + b"end"]


def test_refused_connection_is_closed_and_reported() -> None:
    script = Script("""
    import socket
    from monarch.actor import this_proc
    from monarch.job import PortForwarder
    procs = this_host().spawn_procs()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    forwarder = this_proc().spawn("forwarder", PortForwarder)
    forwarder.forward.call_one(procs, port, procs, "0").get()
    host, _, at = forwarder.addresses.call_one().get()[0].rpartition(":")
    with socket.create_connection((host, int(at))) as sock:
        say(f"received {sock.recv(1)}")
    """)
    done = script.end()
    assert (done.code, done.out, done.left) == (0, "received b''\n", [])
    assert "connection closed: port " in done.err
    assert "Connection refused" in done.err
    assert done.err.count("\n") == 1


def test_reset_reaches_the_other_side(forwarder: PortForwarder, pair: Any, servers: list[Server]) -> None:
    ended: list[str] = []

    def serve(sock: socket.socket) -> None:
        sock.sendall(b"ready")
        try:
            ended.append(f"received {sock.recv(1)!r}")
        except ConnectionResetError:
            ended.append("reset")

    servers.append(Server(serve))
    with connected(tunnel(forwarder, pair, servers[0].port)) as sock:
        assert sock.recv(5) == b"ready"
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    servers[0].threads[0].join()
    assert ended == ["reset"]


def test_paused_reader_pauses_the_writer(forwarder: PortForwarder, pair: Any, servers: list[Server]) -> None:
    """Both ways: what is on its way is bounded, the rest waits, and all of it arrives in the end."""
    read_on = threading.Event()
    amount = 64 << 20

    def serve(sock: socket.socket) -> None:
        sock.setblocking(False)
        sent = 0
        block = b"y" * 65536
        import select

        while select.select([], [sock], [], 1.0)[1]:
            sent += sock.send(block)
        stuck.append(sent)
        ready.set()
        read_on.wait()
        sock.setblocking(True)
        sock.sendall(bytes(amount - sent))
        sock.shutdown(socket.SHUT_WR)
        stuck.append(len(everything(sock)))

    stuck: list[int] = []
    ready = threading.Event()
    servers.append(Server(serve))
    with connected(tunnel(forwarder, pair, servers[0].port)) as sock:
        assert ready.wait(25)
        # The bound covers two sockets' buffers at each end, which the kernel grows to 6 MB and less, and one window.
        assert 0 < stuck[0] < 32 << 20
        read_on.set()
        writer = threading.Thread(target=lambda: (sock.sendall(bytes(amount)), sock.shutdown(socket.SHUT_WR)))
        writer.start()
        assert len(everything(sock)) == amount
        writer.join()
    servers[0].threads[0].join()
    assert stuck[1] == amount


def test_slow_connection_does_not_delay_others(forwarder: PortForwarder, pair: Any, servers: list[Server]) -> None:
    servers.append(Server(lambda sock: sock.sendall(bytes(64 << 20))))
    servers.append(Server(echo))
    with connected(tunnel(forwarder, pair, servers[0].port)) as slow, connected(tunnel(forwarder, pair, servers[1].port)) as quick:
        assert slow.recv(1) == b"\0"
        for _ in range(100):
            quick.sendall(b"x")
            assert quick.recv(1) == b"x"


def test_thousand_connections_work_at_once() -> None:
    """In a process of its own, because of the descriptors."""
    script = Script("""
    import resource, selectors, socket
    from monarch.actor import this_proc
    from monarch.job import PortForwarder
    procs = this_host().spawn_procs({"x": 2})
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)

    def serve():
        held = []
        for _ in range(1000):
            sock, _ = server.accept()
            held.append(sock)
        # All are there at the same time: only now is anything answered.
        for sock in held:
            sock.sendall(sock.recv(64)[::-1])
            sock.close()

    with socket.create_server(("127.0.0.1", 0), backlog=2048) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        forwarder = this_proc().spawn("forwarder", PortForwarder)
        forwarder.forward.call_one(procs.slice(x=0), server.getsockname()[1], procs.slice(x=1), "0").get()
        host, _, port = forwarder.addresses.call_one().get()[0].rpartition(":")
        clients = [socket.create_connection((host, int(port))) for _ in range(1000)]
        for i, sock in enumerate(clients):
            sock.sendall(b"%04d" % i)
        for i, sock in enumerate(clients):
            assert sock.recv(64) == (b"%04d" % i)[::-1], i
            assert sock.recv(1) == b""
            sock.close()
        thread.join()
        say("all")
    """)
    try:
        script.until("all")
    except BaseException:
        script.close()
        raise
    script.end().assert_clean()


def test_stopping_it_closes_ports_and_connections(pair: Any, servers: list[Server]) -> None:
    servers.append(Server(echo))
    forwarder = this_proc().spawn("forwarder", PortForwarder)
    address = tunnel(forwarder, pair, servers[0].port)
    with connected(address) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        forwarder.stop().get()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connected(address)


def test_procs_of_a_machine_share_one_literal_address(forwarder: PortForwarder, procs: Any, servers: list[Server]) -> None:
    servers += [Server(lambda sock: sock.sendall(b"first")), Server(lambda sock: sock.sendall(b"second"))]
    with socket.create_server((HERE, 0)) as probe:
        port = probe.getsockname()[1]
    ports = [server.port for server in servers]
    forwarder.forward.call_one(procs[0], lambda point: ports[point["x"]], procs[1], str(port)).get()
    assert forwarder.addresses.call_one().get() == [f"{HERE}:{port}"] * 2
    found: set[bytes] = set()
    while len(found) < 2:
        with connected((HERE, port)) as sock:
            found.add(everything(sock))
    assert found == {b"first", b"second"}


def test_invalid_forwards_are_refused(forwarder: PortForwarder, procs: tuple[ProcMesh, ProcMesh]) -> None:
    one = procs[0].slice(x=0)
    with pytest.raises(ActorError, match="must have the same shape"):
        forwarder.forward.call_one(procs[0], 80, one, "0").get()
    with this_host().spawn_procs({"y": 2}) as other, pytest.raises(ActorError, match="{x: 2} and .* {y: 2} must have the same shape"):
        forwarder.forward.call_one(procs[0], 80, other, "0").get()
    with pytest.raises(ActorError, match="invalid address 'nothing'"):
        forwarder.forward.call_one(one, 80, one, "nothing").get()
    with pytest.raises(ActorError, match="invalid port 0"):
        forwarder.forward.call_one(one, 0, one, "0").get()
    with socket.create_server((HERE, 0)) as taken:
        with pytest.raises(ActorError, match="cannot listen on .*Address already in use"):
            forwarder.forward.call_one(one, 80, one, str(taken.getsockname()[1])).get()
    assert forwarder.addresses.call_one().get() == []


def test_killed_proc_closes_its_connections() -> None:
    script = Script("""
    import socket
    import monarch.actor
    from monarch.actor import this_proc
    from monarch.job import PortForwarder
    failed = threading.Event()
    monarch.actor.unhandled_fault_hook = lambda failure: failed.set()
    far, near = this_host().spawn_procs(), this_host().spawn_procs()
    with socket.create_server(("127.0.0.1", 0)) as server:
        forwarder = this_proc().spawn("forwarder", PortForwarder)
        forwarder.forward.call_one(far, server.getsockname()[1], near, "0").get()
        host, _, port = forwarder.addresses.call_one().get()[0].rpartition(":")
        with socket.create_connection((host, int(port))) as sock:
            accepted, _ = server.accept()
            from monarch.actor import Actor, endpoint
            class Pid(Actor):
                @endpoint
                def pid(self):
                    return os.getpid()
            os.kill(far.spawn("pid", Pid).pid.call_one().get(), signal.SIGKILL)
            try:
                say(f"received {sock.recv(1)}")
            except ConnectionResetError:
                say("reset")
            accepted.close()
        failed.wait()
    """)
    done = script.end()
    assert (done.code, done.left) == (0, [])
    assert done.out in ("reset\n", "received b''\n")
