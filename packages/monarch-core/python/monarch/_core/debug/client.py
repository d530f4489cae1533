"""`monarch debug`: the line client of the debug server.

One thread receives and prints; the main thread reads a line from the user whenever the server wants one. With a terminal, `readline` edits
and remembers lines, Ctrl-C leads back to the prompt, or out of a wait, and Ctrl-D leaves. Without a terminal, the answers to piped input
are shown with the input, like a transcript.
"""

from __future__ import annotations

import codecs
import os
import signal
import socket
import sys
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from monarch._core.debug import address as debug_address
from monarch._core.debug.mark import BEGIN, END, HELLO, INTERRUPT, INTERRUPTED, PROMPT, MarkReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    Elsewhere = Callable[[], list[str]]

# Seconds for the connection to the server.
_CONNECT_TIMEOUT = 10.0
_INTERRUPTED_CODE = 130
# Clears the line of the cursor.
_CLEAR = "\r\x1b[K"


def run(host: str | None, port: int | None, elsewhere: Elsewhere = list) -> int:
    """Connects and serves the user; gives the exit code. `elsewhere` names debuggers on other machines if there is none on this one."""
    try:
        connection = _connect(host, port, elsewhere)
    except (OSError, ValueError) as e:
        print(f"monarch debug: {e}", file=sys.stderr)
        return 1
    with connection:
        return DebugClient(connection).run()


def list_servers() -> int:
    """Prints the debug servers of this user on this machine."""
    for server in debug_address.find_servers():
        print(f"process {server.pid} at {server.host} port {server.port}: {_command_line(server.pid)}")
    return 0


def _connect(host: str | None, port: int | None, elsewhere: Elsewhere) -> socket.socket:
    if host is None and port is None and not os.environ.get(debug_address.PORT_VARIABLE):
        server = _only_server(elsewhere)
        connection = _dial(server.host, server.port)
        # Waits for the greeting: before the server has accepted the connection, no process holds its other end.
        connection.recv(1, socket.MSG_PEEK)
        if not debug_address.is_own(connection):
            connection.close()
            raise OSError(f"port {server.port} belongs to another user now")
        return connection
    default_host, default_port = debug_address.configured()
    return _dial(host or default_host, port or default_port)


def _dial(host: str, port: int) -> socket.socket:
    try:
        connection = socket.create_connection((host, port), _CONNECT_TIMEOUT)
    except OSError as e:
        raise OSError(f"nothing answers at {host} port {port}: {e}") from None
    connection.settimeout(None)
    return connection


def _only_server(elsewhere: Elsewhere) -> debug_address.DebugServerAddress:
    found = debug_address.find_servers()
    if not found:
        raise OSError(nothing_here(elsewhere))
    if len(found) > 1:
        jobs = "".join(f"\n  --port {s.port}  process {s.pid}: {_command_line(s.pid)}" for s in found)
        raise OSError(f"several jobs of yours are being debugged; choose one:{jobs}")
    return found[0]


def nothing_here(elsewhere: Elsewhere = list) -> str:
    """Advice for a machine without a debug server: procs of a job may run here while its client, and so the debugger, is elsewhere."""
    from monarch._core.observe import inspection

    nothing = "no job of yours on this machine is at a breakpoint"
    # The look comes before this process becomes a client of the current job itself.
    found = inspection.look(inspection.STATE)
    if there := elsewhere():
        listed = "".join(f"\n  on {line}" for line in there)
        return f"{nothing}; debuggers on hosts of the current job:{listed}\n`monarch debug` finds them there: see `monarch shell`"
    clients = sorted({client for one in found if one.answer is not None for client in one.answer.get("clients", ())})
    if not clients:
        return f"{nothing}; for others, give --host and --port"
    where = "".join(f"\n  on {host}, process {pid}" for host, _, pid, *_ in (client.split() for client in clients))
    return (
        f"{nothing}; jobs with processes here are debugged where their client is:{where}\n"
        "there `monarch debug` finds the job, and --port tells this one where a tunnel ends: ssh -L 27000:localhost:27000 HOST"
    )


def _command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read().replace(b"\0", b" ").decode(errors="replace").strip()[:120]
    except OSError:
        return "?"


class DebugClient:
    """A connection to the debug server and the terminal of the user."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self.readline = _readline() if self.interactive else None
        # Events for the main thread: prompts to answer, `INTERRUPTED`, or None at the end.
        self.events: SimpleQueue[tuple[str, str] | None] = SimpleQueue()
        self.code = 1
        self.over = False
        # The prompt at which the user types a line; None while there is none.
        self.asking: str | None = None
        self.lock = threading.Lock()

    def run(self) -> int:
        threading.Thread(target=self._receive, daemon=True).start()
        self._send(HELLO)
        try:
            while self._turn():
                pass
        except KeyboardInterrupt:
            if not self.over:
                return _INTERRUPTED_CODE
        except BrokenPipeError:  # the reader of this output has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return self.code

    def _turn(self) -> bool:
        """Handles one prompt and its line; false at the end."""
        try:
            event = self.events.get()
            if event is None:
                return False
            line = self._ask(event[1]) if event[0] == PROMPT else None
        except KeyboardInterrupt:
            if self.over or not self.interactive:
                raise
            self._interrupt()
            return True
        except EOFError:
            if self.interactive:
                self._print("\n")
            self.code = 0
            return False
        if line is not None:
            self._send(line + "\n")
        return True

    def _interrupt(self) -> None:
        """Ctrl-C: discards earlier prompts. A second Ctrl-C, without an answer from the server to the first, ends this process."""
        self._send(INTERRUPT)
        while (event := self.events.get()) is not None and event[0] != INTERRUPTED:
            continue
        self._print("\n")
        if event is None:
            self.events.put(None)

    def _send(self, text: str) -> None:
        try:
            self.connection.sendall(text.encode(errors="replace"))
        except OSError:  # the receiving thread sees the error too and reports it
            return

    # ---- the terminal

    def _ask(self, prompt: str) -> str:
        with self.lock:
            if self.over:
                raise KeyboardInterrupt
            self.asking = prompt
        try:
            if self.interactive:
                return input(prompt)
            self._print(prompt)
            line = sys.stdin.readline()
            if not line:
                self._print("\n")
                raise EOFError
            line = line.rstrip("\n")
            self._print(line + "\n")
            return line
        finally:
            with self.lock:
                self.asking = None

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _show(self, text: str) -> None:
        """Prints output. A line that is being typed is shown again below it."""
        with self.lock:
            if self.asking is None or self.readline is None:
                self._print(text)
            else:
                self._print(f"{_CLEAR}{text}{self.asking}{self.readline.get_line_buffer()}")

    # ---- the connection

    def _receive(self) -> None:
        decoder, marks, begun = codecs.getincrementaldecoder("utf-8")("replace"), MarkReader(), False
        before = ""
        try:
            while data := self.connection.recv(1 << 16):
                for kind, text in marks.feed(decoder.decode(data)):
                    if kind == BEGIN:
                        begun = True
                    elif not begun:
                        # The greeting for clients without marks arrives a second time; a refusal does not.
                        before += text
                    elif kind == "":
                        self._show(text)
                    elif kind == END:
                        self.code = 0
                    else:
                        self.events.put((kind, text))
        except (OSError, ValueError):  # the other side has ended, or the output is closed
            pass
        self._end(before if not begun else "")

    def _end(self, refusal: str) -> None:
        if refusal or self.code:
            print(f"monarch debug: {refusal.strip() or 'the connection has ended'}", file=sys.stderr)
        self.events.put(None)
        with self.lock:
            self.over = True
            if self.asking is not None:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:
        return None
    return readline
