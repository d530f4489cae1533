"""The addresses at which a debug server may listen, and the user at the other end of a connection."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from monarch._core.debug import address as debug_address
from monarch._core.process import peer


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1"])
def test_both_ends_know_each_other(host: str) -> None:
    try:
        listening, moved = debug_address.listen(host, 0)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listening:
        assert not moved
        address = listening.getsockname()[:2]
        listening.setblocking(True)
        with socket.create_connection(address) as one:
            other = listening.accept()[0]
            with other:
                assert debug_address.is_own(one)
                assert debug_address.is_own(other)
        beacon = debug_address.announce(*address)
        assert beacon is not None
        with beacon:
            assert debug_address.DebugServerAddress(os.getpid(), *address) in debug_address.find_servers()
        assert debug_address.DebugServerAddress(os.getpid(), *address) not in debug_address.find_servers()


def test_announced_name_without_server_is_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    beacon = debug_address.announce("127.0.0.1", port)
    assert beacon is not None
    with beacon:
        assert not any(found.port == port for found in debug_address.find_servers())


def test_closed_connection_has_no_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other = server.accept()[0]
        one.close()
        assert not debug_address.is_own(one)
        other.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        yield one, other


def test_table_of_connections_is_not_read(pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    if peer.is_own_peer(pair[0]) is None:
        pytest.skip("this kernel does not look up single connections")
    monkeypatch.setattr(debug_address, "_connections", lambda: pytest.fail("the table has been read"))
    assert debug_address.is_own(pair[0]) and debug_address.is_own(pair[1])


def test_kernel_without_a_lookup(pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "_NETLINK_SOCK_DIAG", 1 << 20)
    assert peer.is_own_peer(pair[0]) is None
    assert debug_address.is_own(pair[0]) and debug_address.is_own(pair[1])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connection_of_another_user_is_refused(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        address = (host, server.getsockname()[1])
        code = f"import encodings.idna, os, socket, sys; os.setuid(65534); s = socket.create_connection({address}); sys.stdin.read()"
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE):
            with server.accept()[0] as connection:
                assert peer.is_own_peer(connection) in (False, None)
                assert not debug_address.is_own_by_table(connection)


def test_closed_client_connection_is_not_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as one:
            one.sendall(b"attach trainer 0\n")
        other = server.accept()[0]
        with other:
            assert other.recv(100) == b"attach trainer 0\n"
            assert not debug_address.is_own(other)


def test_unaccepted_server_connection_is_not_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        assert not debug_address.is_own(one)


def test_taken_debug_port_is_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        listening, moved = debug_address.listen("localhost", port)
        with listening:
            assert moved
            assert listening.getsockname()[1] != port


@pytest.mark.parametrize(("host", "text"), [("0.0.0.0", "loopback interface only"), ("no such host", "has no address")])
def test_hosts_that_are_refused(host: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        debug_address.listen(host, 0)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("MONARCH_DEBUG_SERVER_PORT", "many", "is no port"),
        ("MONARCH_DEBUG_SERVER_PORT", "70000", "is no port"),
        ("MONARCH_DEBUG_SERVER_PORT", "-1", "is no port"),
        ("MONARCH_DEBUG_SERVER_PROTOCOL", "udp", "'tcp' only"),
    ],
)
def test_variables_that_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str, text: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=text):
        debug_address.configured()


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOST", "PORT", "PROTOCOL"):
        monkeypatch.delenv(f"MONARCH_DEBUG_SERVER_{name}", raising=False)
    assert debug_address.configured() == ("localhost", 27000)
    monkeypatch.setenv("MONARCH_DEBUG_SERVER_HOST", "127.0.0.1")
    monkeypatch.setenv("MONARCH_DEBUG_SERVER_PORT", "1")
    assert debug_address.configured() == ("127.0.0.1", 1)
