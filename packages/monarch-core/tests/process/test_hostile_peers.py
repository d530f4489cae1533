"""Bad input from the network to a live agent, and servers that are no workers."""

from __future__ import annotations

import json
import os
import random
import re
import select
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from forwarded_port import ForwardedPort
from fresh_script import run
from hostile_peers import (
    OURS,
    PYTHON,
    ask,
    channel,
    connect,
    descriptors,
    join,
    memory,
    opening,
    other_version,
    release,
    rest,
    routed,
    said,
    server,
)
from mesh_actors import Probe
from worker_processes import Workers, children

from monarch.actor import AttachError, VersionMismatch, attach_to_workers
from monarch.config import configured

pytestmark = pytest.mark.filterwarnings("ignore:.*without encryption")

# The most connections without authentication that an agent holds.
HALF_OPEN = 256
MIB = 1 << 20


class Agent:
    """A worker with its log."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.err = folder / "stderr"
        self.logs = folder / "logs"
        self.logs.mkdir()
        environment = {**os.environ, "MONARCH_LOG": "info", "MONARCH_FILE_LOG": "info", "MONARCH_LOG_DIR": str(self.logs)}
        with self.err.open("wb") as err:
            self.workers = Workers(1, kind, stderr=err, env=environment)
        self.address = self.workers.addresses[0]
        self.pid = self.workers.processes[0].pid

    def serves(self, address: str | None = None) -> None:
        """A legitimate client can join, and can work."""
        client = f"""
            from monarch.actor import attach_to_workers
            hosts = attach_to_workers(workers=[{address or self.address!r}], **{self.workers.trust()!r})
            assert hosts.spawn_procs().spawn("echo", Echo).echo.call_one(5).get() == 5
        """
        run(client, warnings=("-W", "ignore::UserWarning")).assert_clean()

    def log(self) -> str:
        return self.err.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The logged events of this name, in order."""
        found: list[dict[str, Any]] = []
        for path in self.logs.rglob("runtime.jsonl"):
            # The last line may be half written.
            found += [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")]
        return [event for event in found if event["event"] == name]

    def until(self, what: str, look: Callable[[], object], holds: Callable[[Any], object] = bool) -> None:
        """Waits for an action of the agent."""

        def alive() -> object:
            assert self.workers.processes[0].poll() is None, self.log()
            return look()

        eventually(what, alive, holds)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path, "tls")
    with agent.workers:
        yield agent


@pytest.fixture
def insecure(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path, "insecure")
    with agent.workers:
        yield agent


@pytest.mark.parametrize(
    ("kind", "words", "why"),
    [
        ("tls", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "not the expected protocol"),
        ("tls", bytes(range(256)) * 8, "not the expected protocol"),
        ("tls", release(), "not the expected protocol"),
        ("insecure", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "the other end sent text"),
        ("insecure", b"\x16\x03\x01\x02\x00\x01", "the other end uses TLS"),
        ("insecure", bytes(range(256)) * 8, "not a monarch process"),
        ("insecure", release(77), f"version 0.1.0 (protocol 77, Python {PYTHON}) at the other end"),
        ("insecure", opening(1, 1, b"nonsense"), "its greeting is malformed"),
    ],
)
def test_strangers_are_refused_and_written_down(tmp_path: Path, kind: str, words: bytes, why: str):
    agent = Agent(tmp_path, kind)
    with agent.workers:
        ask(agent.address, words)
        agent.until("a refusal", lambda: agent.events("host.refused"))
        (event,) = agent.events("host.refused")
        assert event["level"] == "warn" and event["peer"].startswith("127.0.0.1:") and why in event["detail"]
        # Operators see the refusal, too.
        assert f"monarch: host.refused: {event['detail']}" in agent.log()
        agent.serves()
        assert len(agent.events("host.joined")) == 1


def test_thousands_of_silent_connections_are_closed(secured: Agent):
    secured.serves()
    before, used = descriptors(secured.pid), memory(secured.pid)
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            connect(secured.address).close()

    with ExitStack() as stack:
        for _ in range(3000):
            stack.enter_context(connect(secured.address))
        secured.serves()
        assert descriptors(secured.pid) <= before + HALF_OPEN + 16
        assert memory(secured.pid) < used + 32 * MIB
        # The garbage also arrives while others connect all the time.
        thread = threading.Thread(target=flood)
        thread.start()
        try:
            secured.serves()
        finally:
            over.set()
            thread.join()
    secured.until("its descriptors are closed", lambda: descriptors(secured.pid), lambda now: now <= before + 4)


def test_slow_handshake_is_cut_off(secured: Agent):
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(501)
    with connect(secured.address) as slow:
        sent = 0
        while not select.select([slow], [], [], 0.05)[0]:
            slow.send(hello[sent % len(hello) :][:1])
            sent += 1
        assert 1 < sent < len(hello)
        rest(slow)
    secured.serves()


def test_frames_of_huge_length_are_refused(insecure: Agent):
    insecure.serves()
    used = memory(insecure.pid)
    job, host = 11, 12
    # The garbage comes before the authentication, and after it.
    assert rest_of(insecure, release() + b"\xff\xff\xff" + bytes(1000)) == b""
    assert said_to(insecure, join(job, host))
    with connect(insecure.address) as connection:
        connection.sendall(channel(job, host))
        assert said(connection, len(release()) + 3)
        connection.sendall(struct.pack("<I", 0xFFFFFFFF) + bytes(MIB))
        insecure.serves()
        assert memory(insecure.pid) < used + 64 * MIB
    insecure.serves()


def rest_of(agent: Agent, words: bytes) -> bytes:
    return ask(agent.address, words).removeprefix(release()).removeprefix(b"\1\0\0")


def said_to(agent: Agent, words: bytes) -> bytes:
    return ask(agent.address, words).removeprefix(release()).removeprefix(b"\1\0\6")


def test_frames_that_have_changed(insecure: Agent):
    insecure.serves()
    before, used = descriptors(insecure.pid), memory(insecure.pid)
    chance = random.Random(4)
    host = 1 << 40
    for n in range(1500):
        job = 1 + chance.getrandbits(62)
        ask(insecure.address, changed(chance, join(job, host + n)))
        if n % 3:
            continue
        # The garbage also comes from a member of the job.
        job = 1 + chance.getrandbits(62)
        assert said_to(insecure, join(job, host + n))
        body = bytes([chance.choice((1, 2, 3, 4, 5, 6))]) + chance.randbytes(chance.randrange(200))
        frames = routed(job, host + n, struct.pack("<I", len(body)) + body)
        ask(insecure.address, channel(job, host + n, chance.choice((0, 255, 3))) + changed(chance, frames))
    insecure.serves()
    assert memory(insecure.pid) < used + 64 * MIB
    insecure.until("its descriptors are closed", lambda: descriptors(insecure.pid), lambda now: now <= before + 8)


def changed(chance: random.Random, good: bytes) -> bytes:
    words = bytearray(good)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(words) or 1)
        match chance.randrange(5):
            case 0 if words:
                words[at] ^= 1 << chance.randrange(8)
            case 1 if words:
                words[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del words[at:]
            case 3:
                words[at:at] = chance.randbytes(chance.randrange(64))
            case _:
                del words[at : at + chance.randrange(32)]
    return bytes(words)


def test_certificate_of_another_authority_is_refused(secured: Agent, tmp_path: Path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=client",
    ]
    subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    with secured.workers.attach() as hosts:
        probe = hosts.spawn_procs().spawn("probe", Probe)
        assert probe.echo.call_one(1).get() == 1
        from monarch._core.process.current import current_process

        job, host = current_process().uid, hosts.__core__.agents[0]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["monarch/1"])
        context.load_cert_chain(certificate, key)
        for number in (job, job + 1):
            with connect(secured.address) as plain, pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                with context.wrap_socket(plain, server_hostname=f"h{host:016x}.j{number:016x}.monarch.internal") as encrypted:
                    # The last message of the handshake is the client's: the answer to it is an alert.
                    assert encrypted.recv(1)
        secured.until("two refusals", lambda: secured.events("host.refused"), lambda found: len(found) == 2)
        assert ["certificate" in e["detail"] or "unknown job" in e["detail"] for e in secured.events("host.refused")] == [True, True]
        assert probe.echo.call_one(2).get() == 2


def test_replayed_handshake_joins_no_job(secured: Agent):
    with ForwardedPort(secured.address) as port:
        secured.serves(port.address)
    assert len(secured.events("host.joined")) == 1 and len(port.heard) >= 3
    for words in port.heard:
        ask(secured.address, bytes(words))
    secured.serves()
    assert len(secured.events("host.joined")) == 2


def until_it_leaves(connection: socket.socket) -> None:
    rest(connection)


def garbage(connection: socket.socket) -> None:
    connection.recv(1)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(range(256)))
    rest(connection)


def at_once(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def nonsense(connection: socket.socket) -> None:
    # The peer follows the protocol until the answer to the greeting.
    connection.recv(65536)
    connection.sendall(release() + b"\1\0\6" + struct.pack("<I", 5) + b"\xee" * 5)
    rest(connection)


@pytest.mark.parametrize("kind", ["tls", "insecure"])
@pytest.mark.parametrize(
    ("handle", "why"),
    [
        (until_it_leaves, "no answer"),
        (garbage, "not the expected protocol"),
        (at_once, "(closed by the other end|connection reset|reset by|broken pipe|endpoint is not connected)"),
        (other_version, re.escape(f"version 0.1.0 (protocol 77, Python {PYTHON}) at the other end, {OURS} here")),
        (nonsense, "its answer is malformed"),
    ],
)
def test_servers_that_are_no_workers(kind: str, handle: Callable[[socket.socket], None], why: str):
    if kind == "tls" and handle in (other_version, nonsense):
        why = "not the expected protocol"
    trust: dict[str, Any] = {"insecure": True} if kind == "insecure" else {"secret": b"x" * 32}
    # Objects that are made once per process exist before the count.
    with pytest.raises(AttachError), configured(mesh_attach_config_timeout="100ms"):
        attach_to_workers(workers=["tcp://127.0.0.1:1"], **trust).initialized.get()
    before = sockets(), threads()
    with server(handle) as address, configured(mesh_attach_config_timeout="500ms"):
        with pytest.raises(AttachError, match=f"1 of 1 hosts did not join: {address}: .*{why}") as caught:
            attach_to_workers(workers=[address], **trust).initialized.get()
        assert isinstance(caught.value, VersionMismatch) == why.startswith("version")
    # Another thread closes both, after it has reported to this one.
    eventually("socket and thread are closed", lambda: (sockets(), threads()), lambda now: now <= before)


def sockets() -> int:
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(entry).startswith("socket:")
        except OSError:
            continue
    return found


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_secrets_are_nowhere(secured: Agent):
    secret = secured.workers.secret.read_bytes()
    with attach_to_workers(workers=[secured.address], secret=secret) as hosts:
        probe = hosts.spawn_procs().spawn("probe", Probe)
        assert probe.echo.call_one(1).get() == 1
        procs = secured.workers.procs_of(0)
        assert len(procs) == 1
        for pid in (secured.pid, *children(secured.pid), *procs):
            for file in ("cmdline", "environ"):
                assert secret not in Path(f"/proc/{pid}/{file}").read_bytes()
        with pytest.raises(AttachError):
            attach_to_workers(workers=[secured.address], secret=b"x" * 32).initialized.get()
    secured.until("refusal and end", lambda: [secured.events(name) for name in ("host.refused", "host.ended")], all)
    written = [secured.err, *(path for path in secured.logs.rglob("*") if path.is_file()), *secured.workers.folder.glob("*.json")]
    assert len(written) >= 2
    for path in written:
        text = path.read_bytes()
        assert secret not in text and b"PRIVATE KEY" not in text and b"x" * 32 not in text
    assert (secured.workers.folder / "0.json").stat().st_mode & 0o777 == 0o600
