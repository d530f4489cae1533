"""Where a debug server may listen, and who is at the other end of a connection."""

from __future__ import annotations

import os
import socket

import pytest

from monarch._core import debug_address


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


def test_a_name_without_a_server_proves_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    beacon = debug_address.announce("127.0.0.1", port)
    assert beacon is not None
    with beacon:
        assert not any(found.port == port for found in debug_address.find_servers())


def test_a_connection_that_is_gone_belongs_to_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other = server.accept()[0]
        one.close()
        assert not debug_address.is_own(one)
        other.close()


def test_a_client_that_has_closed_is_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as one:
            one.sendall(b"attach trainer 0\n")
        other = server.accept()[0]
        with other:
            assert other.recv(100) == b"attach trainer 0\n"
            assert not debug_address.is_own(other)


def test_a_server_that_has_not_accepted_is_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        assert not debug_address.is_own(one)


def test_a_port_that_is_taken() -> None:
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
