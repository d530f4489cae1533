"""The terminal UI as a program: in a detached tmux of two sizes, and its diagnosis, over a server of the made-up job."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from support.http_parts import SECONDS, TOKENS, parts
from support.http_server import served

from monarch.telemetry._http.app import App
from monarch.telemetry._http.routes import ROUTES

PROGRAM = "from monarch.telemetry._tui.cli import main; main()"
# Seconds after which a terminal without output ends a test.
_MOST_SECONDS = 40.0
# A program starts slowly on a busy machine.
pytestmark = pytest.mark.timeout(100)


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    # A node has a second, which is short on a busy machine.
    routes = [route._replace(seconds=max(route.seconds, SECONDS)) for route in ROUTES]
    with served(lambda names: App(parts(), TOKENS, names, routes=routes)) as found:
        yield found


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKENS.admin)
    return path


class Terminal:
    """A terminal of its own tmux server, without a client."""

    def __init__(self, folder: Path, size: tuple[int, int], *arguments: str) -> None:
        self._socket = str(folder / "tmux")
        self._codes = folder / "code"
        command = " ".join(f"'{one}'" for one in (sys.executable, "-W", "error", "-c", PROGRAM, *arguments))
        run = f"{command}; echo $? > '{self._codes}'"
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "HOME": str(folder), "MONARCH_HOME": str(folder)}
        columns, rows = map(str, size)
        self._tmux("-f", os.devnull, "new-session", "-d", "-x", columns, "-y", rows, run, environment=environment)

    def _tmux(self, *arguments: str, environment: dict[str, str] | None = None) -> str:
        argv = ["tmux", "-S", self._socket, *arguments]
        return subprocess.run(argv, check=True, timeout=20, env=environment, stdout=subprocess.PIPE, text=True).stdout

    def keys(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def shows(self, *texts: str, never: str | None = None) -> str:
        """Waits for a screen with all these texts, and without `never`."""
        until = time.monotonic() + _MOST_SECONDS
        while True:
            found = self._tmux("capture-pane", "-p")
            if all(text in found for text in texts) and (never is None or never not in found):
                return found
            if time.monotonic() > until:
                raise AssertionError(f"the terminal has not all of {texts}, or has {never!r}:\n{found}")

    def code(self) -> int:
        """The exit code of the program, which ends."""
        until = time.monotonic() + _MOST_SECONDS
        while time.monotonic() < until:
            if self._codes.exists() and (text := self._codes.read_text()):
                return int(text)
        raise AssertionError("the program does not end")

    def close(self) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], check=False, timeout=20, stderr=subprocess.DEVNULL)


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(tmp_path: Path) -> Generator[Open]:
    opened: list[Terminal] = []

    def make(*arguments: str, size: tuple[int, int] = (80, 24)) -> Terminal:
        opened.append(Terminal(tmp_path, size, *arguments))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
def test_job_is_shown_in_a_terminal(terminal: Open, url: str, token: Path, size: tuple[int, int]) -> None:
    one = terminal("--addr", url, "--token-file", str(token), "--refresh-ms", "500", size=size)
    found = one.shows("host0  ready, 2 procs", "1/1 hosts answer", "ada", "every 500 ms", "q quit")
    lines = found.split("\n")
    assert lines[0].startswith(" monarch  " + url) and lines[2].startswith(">- job  2 hosts")
    one.keys("j", "Tab")
    one.shows("workers[0]  2 actors", "Host  host0")
    one.keys("/")
    one.shows("Search")
    one.keys("-l", "trainer[3]")
    one.keys("Enter")
    one.shows("1 found")
    one.keys("Enter")
    one.shows("! trainer[3]  Failed", "ValueError: bad batch", "this actor")
    one.keys("p")
    one.shows("Stacks: workers[3]", "train.py:10")
    one.keys("Escape")
    one.shows("Actor  trainer[3]", never="Stacks:")
    one.keys("M-v")
    one.shows("Job  job")
    one.keys("l")
    one.shows("Logs: all processes", "trainer[3] info it's line 39")
    one.keys("q")
    one.shows("Job  job", never="Logs:")
    one.keys("?")
    one.shows("kill or stop, after a confirmation")
    one.keys("Escape")
    one.shows("Job  job", never="after a confirmation")
    one.keys("q")
    assert one.code() == 0


def test_chinese_in_the_light_theme(terminal: Open, url: str, token: Path) -> None:
    one = terminal("-a", url, "--token-file", str(token), "--lang", "zh", "--theme", "doom-nord-light", "--plaintext")
    one.shows("2 台主机", "? 帮助")
    one.keys("q")
    assert one.code() == 0


def test_silent_server_does_not_keep_the_program(terminal: Open) -> None:
    """A server that accepts and never answers: keys work, and the program ends at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        one = terminal("--admin-port", str(port))
        one.shows("waiting for an answer for")
        one.keys("?")
        one.shows("kill or stop, after a confirmation")
        one.keys("Escape")
        one.shows("waiting", never="after a confirmation")
        one.keys("q")
        assert one.code() == 0


def test_server_that_ends_is_stated(terminal: Open, token: Path) -> None:
    with served() as found:
        one = terminal("-a", found, "--token-file", str(token), "--refresh-ms", "300")
        one.shows("host0  ready")
    one.shows("NO ANSWER for", "host0  ready")
    one.keys("q")
    assert one.code() == 0


def diagnosis(*arguments: str, folder: Path) -> tuple[int, Any]:
    environment = {**os.environ, "HOME": str(folder), "MONARCH_HOME": str(folder)}
    argv = [sys.executable, "-W", "error", "-c", PROGRAM, "--diagnose", *arguments]
    done = subprocess.run(argv, check=False, timeout=60, env=environment, stdout=subprocess.PIPE, text=True)
    return done.returncode, json.loads(done.stdout)


def test_diagnosis_is_json_with_an_exit_code(url: str, token: Path, tmp_path: Path) -> None:
    code, found = diagnosis("--addr", url, "--token-file", str(token), folder=tmp_path)
    assert code == 0 and found["ok"] and found["url"] == url and found["counts"]["fail"] == 0
    assert {check["group"] for check in found["checks"]} == {"admin", "mesh"}
    token.write_text("another-token-than-that-of-the-server")
    code, found = diagnosis("--addr", url, "--token-file", str(token), folder=tmp_path)
    assert code == 1 and not found["ok"] and "another-token" not in json.dumps(found)
    code, found = diagnosis(folder=tmp_path)
    assert code == 1 and "no job of this user" in found["checks"][0]["detail"]


def test_diagnosis_of_another_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            one, _ = listener.accept()
            with one:
                one.recv(65_536)
                one.sendall(b"SSH-2.0-x\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        code, found = diagnosis("-a", f"127.0.0.1:{listener.getsockname()[1]}", folder=tmp_path)
        thread.join()
    assert code == 1 and found["checks"][0]["status"] == "fail"


def test_without_a_terminal_it_is_refused(url: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", PROGRAM, "-a", url]
    done = subprocess.run(argv, check=False, timeout=60, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 1 and "needs a terminal" in done.stderr and done.stdout == ""
