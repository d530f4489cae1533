"""The server on loopback: many, slow, broken and half-closed clients, taken ports, certificates, its end, and the client of the API."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import http.client
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from eventually import eventually
from support.http_parts import TOKENS, engine, parts
from support.http_server import ANY, make, place, served

from monarch.telemetry._asking import Answer
from monarch.telemetry._http import acceptor
from monarch.telemetry._http.app import App
from monarch.telemetry._http.auth import Names
from monarch.telemetry._http.client import QueryEngineClient
from monarch.telemetry._http.connection import Connection, Ending, Times
from monarch.telemetry._http.places import UNPROVED
from monarch.telemetry._http.routes import ARROW
from monarch.telemetry._http.server import Address, Server, Tls, parse_address
from monarch.telemetry._sql.coverage import Coverage
from monarch.telemetry.errors import TelemetryError


def connected(url: str) -> socket.socket:
    return socket.create_connection(place(url), timeout=20)


def get(url: str, path: str = "/v1/admin", *, token: str | None = TOKENS.read) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*place(url), timeout=20)
    try:
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def head(path: str = "/v1/admin", method: str = "GET", *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {TOKENS.read}", *more]
    return "".join(f"{line}\r\n" for line in lines).encode()


def all_of(one: socket.socket) -> bytes:
    data = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := one.recv(65_536):
            data += part
    return bytes(data)


class Quick(Connection):
    """A connection with short times."""

    class Short(Times):
        head, read = 0.5, 0.2

    times = Short


def test_server_answers_and_stops() -> None:
    server = Server(make(), ANY)
    (url,) = server.start()
    status, body = get(url)
    assert status == 200 and json.loads(body)["url"] == url
    assert get(url, token=None)[0] == 401
    server.stop()
    server.stop()
    with pytest.raises(OSError):
        connected(url)
    with pytest.raises(RuntimeError):
        server.start()


def test_one_server_has_several_addresses() -> None:
    server = Server(make(), (Address("127.0.0.1", 0), Address("localhost", 0)))
    try:
        urls = server.start()
        assert len(set(urls)) == 2
        assert [get(url)[0] for url in urls] == [200, 200]
    finally:
        server.stop()


def test_hundred_connections_are_served() -> None:
    with served() as url, contextlib.ExitStack() as stack:
        # Idle connections delay no request.
        idle = [stack.enter_context(connected(url)) for _ in range(100)]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            assert {status for status, _ in pool.map(lambda _: get(url), range(100))} == {200}
        idle[99].sendall(head() + b"\r\n")
        assert idle[99].recv(64).startswith(b"HTTP/1.1 200")


def test_client_that_sends_its_head_slowly_is_closed() -> None:
    with served(connection=Quick) as url, connected(url) as slow, connected(url) as silent:
        slow.sendall(head()[:-4])
        stop = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not stop.wait(0.02):
                    slow.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        assert all_of(slow) == b"" and all_of(silent) == b""
        stop.set()
        thread.join()


def test_body_after_a_refusal_is_read_briefly() -> None:
    with served(connection=Quick) as url, connected(url) as one:
        one.sendall(head("/v1/root", "POST", "Content-Length: 100000000") + b"\r\n")
        stop = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not stop.wait(0.02):
                    one.sendall(b"x" * 100)

        thread = threading.Thread(target=drip)
        thread.start()
        assert all_of(one).startswith(b"HTTP/1.1 405")
        stop.set()
        thread.join()


def test_missing_body_times_out() -> None:
    def slow(names: Names) -> App:
        return App(parts(), TOKENS, names, body_seconds=0.05)

    with served(slow) as url, connected(url) as one:
        one.sendall(head("/v1/query", "POST", "Content-Length: 100") + b"\r\n{")
        assert all_of(one).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("chunked", [False, True])
def test_large_body_is_answered_before_it_has_come(chunked: bool) -> None:
    with served() as url, connected(url) as one:
        length = "Transfer-Encoding: chunked" if chunked else "Content-Length: 1000000000"
        one.sendall(head("/v1/query", "POST", length) + b"\r\n")
        with contextlib.suppress(OSError):
            for _ in range(40 if chunked else 0):
                one.sendall(b"10000\r\n" + b" " * 65_536 + b"\r\n")
        assert b"413" in all_of(one)[:20]
        assert get(url)[0] == 200


@pytest.mark.parametrize("sent", [0, 3])
def test_client_refused_while_sending_gets_the_answer(sent: int) -> None:
    with served() as url, connected(url) as one:
        # More than sockets buffer: a server that closed at once would reset the connection, and the answer would be lost.
        one.sendall(head("/v1/query", "POST", f"Content-Length: {32 << 20}") + b"\r\n")
        for _ in range(sent):
            one.sendall(b" " * (8 << 20))
        assert all_of(one).startswith(b"HTTP/1.1 413")


def test_half_closed_client_gets_its_answer() -> None:
    with served() as url, connected(url) as one:
        body = b'{"sql": "SELECT 42 AS x"}'
        one.sendall(head("/v1/query", "POST", f"Content-Length: {len(body)}") + b"\r\n" + body)
        one.shutdown(socket.SHUT_WR)
        # A check for a disconnected client is sent during a long answer.
        data = all_of(one).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
        assert data.startswith(b"HTTP/1.1 200") and b'{"x":42}' in data


def test_incomplete_request_is_not_answered() -> None:
    with served() as url, connected(url) as one:
        one.sendall(head())
        one.shutdown(socket.SHUT_WR)
        assert all_of(one) == b""


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.0\r\n\r\n", b"\r\n" * 10, b"A" * 100_000, b"GET /\xff HTTP/1.1\r\n\r\n"]
)
def test_malformed_http_ends_its_connection(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with served(connection=Quick) as url, connected(url) as one:
        with contextlib.suppress(OSError):
            one.sendall(data)
        found = all_of(one)
        assert found == b"" or found.startswith(b"HTTP/1.1 4")
        connected(url).close()
    assert caplog.text == ""


def test_reset_connection_is_ended_without_an_error() -> None:
    class Reset:
        """The transport of a connection that the client has reset while the answer was written."""

        aborted = False

        def is_closing(self) -> bool:
            return False

        def can_write_eof(self) -> bool:
            return True

        def write_eof(self) -> None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

        def abort(self) -> None:
            self.aborted = True

    transport: Any = Reset()
    loop = asyncio.new_event_loop()
    Ending(transport, loop).close()
    loop.close()
    assert transport.aborted


def test_client_that_reads_nothing_is_closed() -> None:
    large = pa.table({"x": ["y" * 1000] * 60_000})

    class Large:
        def ask(self, sql: str, **more: Any) -> Answer:
            return Answer(large, Coverage(1, 1))

    gone = threading.Event()

    class Watched(Quick):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            gone.set()

    with served(make(engine=Large()), connection=Watched) as url, connected(url) as one:
        body = b'{"sql": "x"}'
        one.sendall(head("/v1/query", "POST", f"Content-Length: {len(body)}", f"Accept: {ARROW}") + b"\r\n" + body)
        assert gone.wait(20)
        assert len(all_of(one)) < large.nbytes


def test_events_are_streamed_and_end_with_the_server() -> None:
    server = Server(make(), ANY)
    (url,) = server.start()
    with connected(url) as one:
        one.sendall(head("/v1/events") + b"\r\n")
        data = b""
        while b": events of the job" not in data:
            data += one.recv(4096)
        assert b"text/event-stream" in data
        server.stop()
        assert all_of(one).endswith(b"0\r\n\r\n")
    assert "monarch telemetry http" not in [thread.name for thread in threading.enumerate()]


def test_stop_does_not_wait_for_a_hanging_handler() -> None:
    release, entered = threading.Event(), threading.Event()

    def metrics(accept: str) -> Any:
        entered.set()
        release.wait(30)
        return "text/plain", b""

    server = Server(make(metrics=metrics), ANY)
    (url,) = server.start()
    try:
        with connected(url) as one:
            one.sendall(head("/metrics") + b"\r\n")
            assert entered.wait(20)
            server.stop()
            assert not release.is_set()
            all_of(one)
            with pytest.raises(OSError):
                connected(url)
    finally:
        release.set()


def test_audit_rows_are_written_before_the_end() -> None:
    batches: list[Any] = []
    with served(make(audit=batches.append)) as url:
        for _ in range(5):
            get(url)
    assert sum(batch.num_rows for batch in batches) == 5


def test_taken_port_means_the_next_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with served() as url:
        host, port = place(url)
        server = Server(make(), (Address(host, port),))
        try:
            (other,) = server.start()
            assert other != url and get(other)[0] == 200 and get(url)[0] == 200
            assert [record.levelno for record in caplog.records] == [logging.WARNING]
            assert str(port) in caplog.text
        finally:
            server.stop()
        assert get(url)[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "node7.example"])
def test_other_addresses_need_a_certificate(host: str) -> None:
    with pytest.raises(TelemetryError, match="no certificate"):
        Server(make(), (Address(host, 0),))


def test_insecure_server_has_the_name_of_its_machine() -> None:
    server = Server(make(), (Address("0.0.0.0", 0),), insecure=True, names=["proxy.example"])
    try:
        (url,) = server.start()
        assert socket.gethostname() in url
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as one:
            request = head().replace(b"localhost", b"proxy.example") + b"Connection: close\r\n\r\n"
            one.sendall(request)
            assert all_of(one).startswith(b"HTTP/1.1 200")
    finally:
        server.stop()


def test_address_that_cannot_be_bound_is_named() -> None:
    with pytest.raises(TelemetryError, match=r"192\.0\.2\.1:0 cannot be bound"):
        Server(make(), (Address("192.0.2.1", 0),), insecure=True).start()


def test_failed_application_is_an_error_of_start() -> None:
    def broken(_: Names) -> App:
        raise ZeroDivisionError("no application")

    with pytest.raises(TelemetryError, match="no application"):
        Server(broken, ANY).start()


def test_header_of_a_client_is_not_its_address() -> None:
    batches: list[Any] = []
    with served(make(audit=batches.append)) as url, connected(url) as one:
        one.sendall(head("/v1/admin", "GET", "X-Forwarded-For: 203.0.113.5", "X-Forwarded-Proto: https", "Connection: close") + b"\r\n")
        assert b'"url":"http://localhost"' in all_of(one)
    assert [row["source"] for batch in batches for row in batch.to_pylist()] == ["127.0.0.1"]


def test_log_of_other_servers_stays_as_it_was() -> None:
    before = [
        (log.level, log.propagate, list(log.handlers)) for log in map(logging.getLogger, ("uvicorn", "uvicorn.error", "uvicorn.access"))
    ]
    with served() as url:
        get(url)
    after = [
        (log.level, log.propagate, list(log.handlers)) for log in map(logging.getLogger, ("uvicorn", "uvicorn.error", "uvicorn.access"))
    ]
    assert after == before


def test_nothing_is_logged_of_requests(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with served() as url:
        get(url)
        get(url, "/v1/nothing")
        get(url, token="wrong")
    assert [record.getMessage() for record in caplog.records if record.name != "asyncio"] == []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    folder = tmp_path_factory.mktemp("tls")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += [
        "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-keyout",
        str(folder / "key.pem"),
        "-out",
        str(folder / "cert.pem"),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=20)
    return Tls(folder / "cert.pem", folder / "key.pem")


def test_certificate_makes_it_https(certificate: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tls=certificate) as url:
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=str(certificate.certificate))
        connection = http.client.HTTPSConnection(*place(url), context=context, timeout=20)
        headers = {"Authorization": f"Bearer {TOKENS.read}", "Origin": url}
        connection.request("GET", "/v1/admin", headers=headers)
        assert json.loads(connection.getresponse().read())["url"] == url
        connection.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))
        assert QueryEngineClient(url, token=TOKENS.read).query("SELECT 1 AS x")["rows"] == [{"x": 1}]
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(TelemetryError, match="certificate"):
            QueryEngineClient(url, token=TOKENS.read).query("SELECT 1")
        with connected(url) as plain:
            plain.sendall(head() + b"\r\n")
            assert b"200 OK" not in all_of(plain)


def test_wrong_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("none")
    with pytest.raises(TelemetryError, match=r"cert\.pem"):
        Server(make(), ANY, tls=Tls(tmp_path / "cert.pem", tmp_path / "cert.pem"))


@pytest.mark.parametrize("text", ["", "localhost", ":80", "localhost:", "localhost:x", "localhost:70000", "::1", "::1:80", "a:b:c"])
def test_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        parse_address(text)


def test_addresses_are_parsed() -> None:
    assert parse_address("127.0.0.1:1729") == Address("127.0.0.1", 1729)
    assert parse_address("[::1]:0") == Address("::1", 0)
    assert str(Address("::1", 5)) == "[::1]:5"


@pytest.mark.timeout(100)
def test_missing_extra_is_named(tmp_path: Path) -> None:
    script = f"""
import sys
sys.modules["uvicorn"] = None
from pathlib import Path
from monarch.telemetry import TelemetryError
from monarch.telemetry._http.parts import Parts
from monarch.telemetry._http.serve import serve
try:
    serve(Parts(None, None), Path({str(tmp_path)!r}))
except TelemetryError as e:
    print(e)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "monarch-telemetry[http]" in done.stdout, done.stderr


@pytest.mark.timeout(100)
def test_process_ends_despite_running_server_and_handler() -> None:
    script = f"""
import sys, threading
sys.path.insert(0, {os.path.dirname(os.path.dirname(__file__))!r})
from support.http_parts import TOKENS, parts
from monarch.telemetry._http.app import App
from monarch.telemetry._http.serve import serve
from monarch.telemetry._http.server import Address, Server
import http.client
entered = threading.Event()
def metrics(accept):
    entered.set()
    threading.Event().wait()
server = Server(lambda names: App(parts(metrics=metrics), TOKENS, names), (Address("127.0.0.1", 0),))
(url,) = server.start()
connection = http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]))
connection.request("GET", "/metrics", headers={{"Authorization": "Bearer " + TOKENS.read}})
entered.wait()
print("ends")
"""
    # The limit is that of the test: the imports of the process take twenty seconds on a busy machine.
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "ends", "")


def test_engine_runs_in_threads_outside_the_loop() -> None:
    release, entered = threading.Event(), threading.Event()

    class Slow:
        def ask(self, sql: str, **more: Any) -> Answer:
            entered.set()
            release.wait(20)
            return engine().ask("SELECT 1 AS x")

    with served(make(engine=Slow())) as url, concurrent.futures.ThreadPoolExecutor(1) as pool:
        slow = pool.submit(get, url, "/api/meshes")
        assert entered.wait(20)
        assert get(url, "/healthz", token=None) == (200, b'{"status":"ok"}')
        release.set()
        assert slow.result()[0] == 200


# ---- connections of others


def silent(stack: contextlib.ExitStack, url: str, count: int) -> list[socket.socket]:
    return [stack.enter_context(connected(url)) for _ in range(count)]


def is_open(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_silent_connections_of_another_user_harm_no_owner() -> None:
    program = """
import encodings.idna, os, socket, sys
os.setuid(65534)
held = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(900)]
print("held", flush=True)
sys.stdin.read()
"""
    with served() as url:
        host, port = place(url)
        command = [sys.executable, "-c", program, host, str(port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None and other.stdout.readline() == "held\n"
            assert {get(url)[0] for _ in range(20)} == {200}
            assert get(url, "/healthz", token=None)[0] == 200


def test_client_with_a_token_precedes_silent_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "is_own_peer", lambda _: False)
    with served() as url, contextlib.ExitStack() as stack:
        held = http.client.HTTPConnection(*place(url), timeout=20)
        for _ in range(3):
            silent(stack, url, 250)
            held.request("GET", "/v1/admin", headers={"Authorization": f"Bearer {TOKENS.read}"})
            answer = held.getresponse()
            # The connection remains open: it has shown a token.
            assert answer.status == 200 and answer.read() and held.sock is not None
            assert get(url)[0] == 200
        held.close()


def test_silent_strangers_hold_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "is_own_peer", lambda _: False)
    with served() as url, contextlib.ExitStack() as stack:
        held = silent(stack, url, 400)
        # Connections are accepted in their order.
        assert get(url)[0] == 200
        eventually("the oldest connections are closed", lambda: sum(map(is_open, held)) <= UNPROVED)


def test_unfinished_handshakes_keep_no_client_out(certificate: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "is_own_peer", lambda _: False)
    with served(tls=certificate) as url, contextlib.ExitStack() as stack:
        silent(stack, url, 400)
        context = ssl.create_default_context(cafile=str(certificate.certificate))
        client = http.client.HTTPSConnection(*place(url), timeout=20, context=context)
        client.request("GET", "/v1/admin", headers={"Authorization": f"Bearer {TOKENS.read}"})
        assert client.getresponse().status == 200
        client.close()


def test_server_without_descriptors_goes_on_later() -> None:
    program = """
import logging, os, resource, socket, threading
from support.http_server import place, served

refused = threading.Event()

class Warned(logging.Handler):
    def emit(self, record):
        print(record.getMessage())
        refused.set()

logging.getLogger("monarch.telemetry").addHandler(Warned())
with served() as url:
    waiting = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    waiting.connect(place(url))
    waiting.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    assert refused.wait(20)
    for one in held:
        os.close(one)
    waiting.settimeout(20)
    print(waiting.recv(15))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, env=environment)
    assert done.stdout.splitlines() == ["the HTTP server accepts no connection: Too many open files", "b'HTTP/1.1 200 OK'"], done.stderr
