"""Compiled modules (`pyc="compile"`): what a tree shows in `__pycache__` beside the files that are there.

A module of which the source has no valid `.pyc` for this version of Python gets an unchecked-hash one. It belongs to the content of the
source: an edited module has another one, or none until it has been compiled, so a host never runs what the source no longer has. Results
are kept on disk by the identity of the source.

Compiling takes milliseconds a module, and a mount does not wait for 30,000 of them. A scan shows what has been compiled before, and what
the worker processes finish in the time that it may take (`compile_seconds`); they go on in the background, and the next scan shows the
rest. Modules over 256 KiB are left to the hosts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from threading import Condition, Thread

from monarch.extension.directory_tree import blake3, load_cached, save_cached
from monarch.fs._index import compile_worker
from monarch.fs._index.cache_folder import trim
from monarch.fs._index.compile_worker import ANSWER, REQUEST
from monarch.fs._tree.node import ID_SIZE, WHOLE_BYTES

# The suffix of a compiled module, after the name without ".py".
SUFFIX = f".{sys.implementation.cache_tag}.pyc".encode()
_HEADER = 16
# A row of the ledger: identity of the source, identity of the result or zeros, bytes of the result.
_ROW = ID_SIZE * 2 + 4
_LEDGER = "ledger"
_MOST_BYTES, _MOST_FILES, _LEDGER_BYTES = 1 << 30, 200_000, 64 << 20
_WORKERS = 2


def is_valid(path: bytes, mtime_ns: int, size: int) -> bool:
    """Whether Python would use a `.pyc` for a source with this time and size. A `.pyc` with a hash counts as valid."""
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER)
    except OSError:
        return False
    if len(header) < _HEADER or header[:4] != MAGIC_NUMBER:
        return False
    flags = int.from_bytes(header[4:8], "little")
    written = int.from_bytes(header[8:12], "little"), int.from_bytes(header[12:], "little")
    return flags in (1, 3) or (flags == 0 and written == (mtime_ns // 1_000_000_000 & 0xFFFFFFFF, size & 0xFFFFFFFF))


class Bytecode:
    """The compiled modules of this user. `read` gives the content of a source; threads of this class call it."""

    def __init__(self, folder: Path, read: Callable[[bytes], bytes | None]) -> None:
        self._folder = folder / f"bytecode-{sys.implementation.cache_tag}-{MAGIC_NUMBER.hex()}"
        self._read = read
        self._changed = Condition()
        # Identity of a source to identity and bytes of the result; zeros for a source that is no module.
        self._known = _rows(load_cached(self._folder / _LEDGER, _LEDGER_BYTES) or b"")
        self._results = {made for made, size in self._known.values() if size}
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._asked: set[bytes] = set()
        self._busy = 0
        self._unsaved = False
        self._closed = False
        self._threads: list[Thread] = []
        self._processes: set[subprocess.Popen[bytes]] = set()

    def result(self, source: bytes) -> tuple[bytes, int] | None:
        """Identity and bytes of what a source was compiled to, zero bytes if it is no module; None if it has not been tried."""
        return self._known.get(source)

    def ask(self, sources: Sequence[tuple[bytes, bytes]]) -> None:
        """Begins to compile sources: identity and name of each."""
        with self._changed:
            new = [(id, name) for id, name in sources if id not in self._asked and id not in self._known]
            self._asked.update(id for id, _ in new)
            self._waiting.extend(new)
            while not self._closed and len(self._threads) < min(_WORKERS, len(self._waiting)):
                self._threads.append(Thread(target=self._work, name="monarch-fs-compile", daemon=True))
                self._threads[-1].start()
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Waits until all has been compiled; False if the time is over before."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or (not self._waiting and not self._busy), seconds)

    def content(self, id: bytes) -> bytes | None:
        """The bytes of a result; None if it is none of these, or no longer on disk."""
        if id not in self._results:
            return None
        with suppress(OSError):
            found = (self._folder / id.hex()).read_bytes()
            if blake3(found) == id:
                return found
        # The next scan does not show it, and starts another compilation.
        with self._changed:
            self._results.discard(id)
            for source in [source for source, (made, _) in self._known.items() if made == id]:
                del self._known[source]
                self._asked.discard(source)
        return None

    def has(self, id: bytes) -> bool:
        return id in self._results

    def save(self) -> None:
        """Keeps what has been compiled for other processes."""
        with self._changed:
            if not self._unsaved:
                return
            self._unsaved = False
            # Another process may have saved in the meantime.
            merged = _rows(load_cached(self._folder / _LEDGER, _LEDGER_BYTES) or b"") | self._known
        rows = b"".join(source + made + size.to_bytes(4, "little") for source, (made, size) in merged.items())
        if len(rows) < _LEDGER_BYTES:
            save_cached(self._folder / _LEDGER, rows)
        trim(self._folder, _MOST_BYTES, _MOST_FILES)

    def close(self) -> None:
        """Ends the workers; what they have not finished is compiled another time."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            for process in self._processes:
                process.kill()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()
        self.save()

    def _work(self) -> None:
        worker: subprocess.Popen[bytes] | None = None
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._waiting)
                    if self._closed:
                        return
                    source, name = self._waiting.popleft()
                    self._busy += 1
                try:
                    text = self._read(source)
                    made = b""
                    if text is not None and len(text) <= WHOLE_BYTES:
                        if worker is None or worker.poll() is not None:
                            worker = self._start(worker)
                        made = _ask(worker, name, text)
                    self._finish(source, made, text is not None)
                except OSError:
                    self._finish(source, b"", False)
                finally:
                    with self._changed:
                        self._busy -= 1
                        self._changed.notify_all()
        finally:
            self._end(worker)

    def _start(self, dead: subprocess.Popen[bytes] | None) -> subprocess.Popen[bytes]:
        self._end(dead)
        # -I -S: without the environment and the site packages of the user.
        command = [sys.executable, "-I", "-S", compile_worker.__file__]
        with self._changed:
            if self._closed:
                raise OSError("the index is closed")
            made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/")
            self._processes.add(made)
        return made

    def _end(self, worker: subprocess.Popen[bytes] | None) -> None:
        if worker is None:
            return
        with self._changed:
            self._processes.discard(worker)
        worker.kill()
        for pipe in (worker.stdin, worker.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        worker.wait()

    def _finish(self, source: bytes, made: bytes, tried: bool) -> None:
        id = blake3(made) if made else bytes(ID_SIZE)
        if 0 < len(made) <= WHOLE_BYTES:
            try:
                self._folder.mkdir(0o700, parents=True, exist_ok=True)
                temporary = self._folder / f".{source.hex()}.{os.getpid()}"
                temporary.write_bytes(made)
                temporary.rename(self._folder / id.hex())
            except OSError:
                return
        elif made:
            id, made = bytes(ID_SIZE), b""
        if tried:
            with self._changed:
                self._known[source] = (id, len(made))
                self._unsaved = True
                if made:
                    self._results.add(id)


def _ask(worker: subprocess.Popen[bytes], name: bytes, source: bytes) -> bytes:
    """The answer of a worker; empty if it ended, as the compiler does on some sources."""
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(REQUEST.pack(len(name), len(source)) + name + source)
        worker.stdin.flush()
        head = worker.stdout.read(ANSWER.size)
        return worker.stdout.read(ANSWER.unpack(head)[0]) if len(head) == ANSWER.size else b""
    except BrokenPipeError:
        return b""


def _rows(data: bytes) -> dict[bytes, tuple[bytes, int]]:
    whole = range(0, len(data) - _ROW + 1, _ROW)
    return {
        data[at : at + ID_SIZE]: (data[at + ID_SIZE : at + 2 * ID_SIZE], int.from_bytes(data[at + 2 * ID_SIZE : at + _ROW], "little"))
        for at in whole
    }
