"""Tables of real directories, and a process that serves one: `python fs_real_tree.py FD TARGET FOLDER TABLE|resume`.

The process takes the path of the next table on a line, switches to it, and prints "shows"; `status` prints the status.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from fs_table_builder import build_table

from monarch.extension.directory_tree import blake3
from monarch.fs._daemon.mounted_tree import MountedTree
from monarch.fs._kernel import connection, poll_loop
from monarch.fs._tree.node import PIECE_BYTES, WHOLE_BYTES, ZERO_ID, Kind, Node
from monarch.fs._tree.operations import DEVICE, MountOptions
from monarch.fs._tree.table import Table
from monarch.fs.backends.choice import make_backend

# Seconds after which a process that did not answer fails its test.
LIMIT = 20.0


def scan(source: Path, chunks: Path) -> Table:
    """The table of a directory; its chunks are written below `chunks`."""
    chunks.mkdir(exist_ok=True)
    nodes: dict[bytes, Node | bytes] = {}
    linked: dict[tuple[int, int], bytes] = {}
    root = os.fsencode(source)
    todo = [b""]
    while todo:
        path = todo.pop()
        full = root + b"/" + path
        found = os.lstat(full)
        kind = {stat.S_IFDIR: Kind.DIRECTORY, stat.S_IFREG: Kind.FILE, stat.S_IFLNK: Kind.SYMLINK}[stat.S_IFMT(found.st_mode)]
        if kind is Kind.FILE and found.st_nlink > 1:
            first = linked.setdefault((found.st_dev, found.st_ino), path)
            if first != path:
                nodes[path] = first
                continue
        size = 0 if kind is Kind.DIRECTORY else found.st_size
        node = Node(kind, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, size, found.st_mtime_ns, blocks=found.st_blocks)
        if kind is Kind.DIRECTORY:
            todo += [path + b"/" * bool(path) + name for name in os.listdir(full)]
            node = node._replace(blocks=0)
        elif kind is Kind.SYMLINK:
            node = node._replace(target=os.readlink(full))
        else:
            node = node._replace(chunks=b"".join(_cut(Path(os.fsdecode(full)).read_bytes(), chunks)))
        nodes[path] = node
    return build_table(nodes)


def _cut(data: bytes, chunks: Path) -> Iterator[bytes]:
    size = len(data) if len(data) <= WHOLE_BYTES else PIECE_BYTES
    for start in range(0, len(data), size or 1):
        piece = data[start : start + size]
        if not any(piece):
            yield ZERO_ID
            continue
        id = blake3(piece)
        if not (chunks / id.hex()).exists():
            (chunks / id.hex()).write_bytes(piece)
        yield id


class _Files:
    """A `ChunkSource` of the files of a folder; every fourth chunk comes as from another machine, after a turn of the loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def local(self, id: bytes, offset: int, size: int) -> bytes | None:
        return None if id[0] % 4 == 0 else self._read(id, offset, size)

    def _read(self, id: bytes, offset: int, size: int) -> bytes:
        fd = os.open(self.folder / id.hex(), os.O_RDONLY)
        try:
            return os.pread(fd, size, offset)
        finally:
            os.close(fd)

    def fetch(self, id: bytes, offset: int, size: int) -> poll_loop.Waiter[bytes]:
        waiter = poll_loop.Waiter[bytes]()
        threading.Thread(target=lambda: waiter.set_result(self._read(id, offset, size))).start()
        return waiter


class RealMount:
    """A mount of the table of a directory; `refresh` scans the directory again."""

    def __init__(self, source: Path, target: Path, folder: Path) -> None:
        self.source, self.target, self.folder = source, target, folder
        self._count = 0
        self.connection = connection.open_connection(str(target), MountOptions(name="a tree"))
        self._serve(self._scanned())

    def _scanned(self) -> str:
        self._count += 1
        path = self.folder / f"table{self._count}"
        path.write_bytes(scan(self.source, self.folder / "chunks").encode())
        return str(path)

    def _serve(self, table: str) -> None:
        command = [sys.executable, __file__, str(self.connection.fd), str(self.target), str(self.folder), table]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process = subprocess.Popen(command, pass_fds=[self.connection.fd], env=environment, **pipes)
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self.process, self._lines), daemon=True)
        self._reader.start()
        self._expect("serves")

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line.strip())
        lines.put("the server has ended")

    def _expect(self, line: str) -> None:
        assert self._lines.get(timeout=LIMIT) == line

    def refresh(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(self._scanned() + "\n")
        self.process.stdin.flush()
        self._expect("shows")

    def restart(self) -> None:
        """Kills the server and starts another on the same connection."""
        self._end()
        self._serve("resume")

    def _end(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def close(self) -> None:
        connection.abort(self.connection.device)
        os.close(self.connection.fd)
        self._end()
        connection.detach(str(self.target), lazy=True)


@contextmanager
def mounted_directory(source: Path, folder: Path) -> Generator[RealMount]:
    (folder / "mount").mkdir()
    mount = RealMount(source, folder / "mount", folder)
    try:
        yield mount
    finally:
        mount.close()


def _on_loop(call: Callable[[], None]) -> None:
    done = threading.Event()

    def run() -> None:
        call()
        done.set()

    poll_loop.call_soon_threadsafe(run)
    done.wait()


def _main(fd: int, target: str, folder: Path, table: str) -> None:
    chunks = _Files(folder / "chunks")
    state = folder / "state"
    resumed = table == "resume"
    tree = MountedTree.restore(state, chunks) if resumed else MountedTree(Table.decode(Path(table).read_bytes()), chunks, state)
    backend = make_backend(os.environ.get("BACKEND", DEVICE), fd, resumed=resumed)

    def commands() -> None:
        for line in sys.stdin:
            change = tree.prepare(Table.decode(Path(line.strip()).read_bytes()))
            _on_loop(lambda c=change: tree.begin(c))  # type: ignore[misc]
            backend.invalidate(change.entries, change.inodes)
            _on_loop(lambda c=change: tree.commit(c))  # type: ignore[misc]
            print("shows", flush=True)

    async def serve() -> None:
        threading.Thread(target=commands, daemon=True).start()
        poll_loop.current_loop().call_later(0, lambda: print("serves", flush=True))
        await backend.run(tree, target, MountOptions())

    with contextlib.suppress(OSError):
        poll_loop.run(serve())
    os._exit(errno.EIO)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])
