"""What mounts cost: opening, edits, and reads beside the local disk.

    python bench/fs.py [--files 30000] [--rounds 5] [--directory DIR]

Prints medians: the time until a tree of small files is mounted, the first time and again; the time from an edit on the client to the new
content in a reader on the host, a process that polls the file; and for a warm stat, an open, read and close (`os.open`), a buffered open,
and reads of 1 MiB, the time on the mount, on the local disk, and the ratio of the two, in pairs. A store of its own is used, in DIR.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from monarch.actor import this_host
from monarch.fs import mount

# Runs on its own: the client must not wait for its mounts. Prints seconds an operation, by name.
READER = """
import json, os, sys, time
top, files, big = sys.argv[1], int(sys.argv[2]), sys.argv[3]
paths = [f"{top}/d{n // 100}/f{n % 100}.py" for n in range(min(files, 3000))]
def timed(action, items):
    begin = time.perf_counter()
    for item in items: action(item)
    return (time.perf_counter() - begin) / len(items)
def plain(path):
    fd = os.open(path, os.O_RDONLY); os.read(fd, 1 << 20); os.close(fd)
def buffered(path):
    with open(path, "rb") as file: file.read()
def pieces(path):
    fd = os.open(path, os.O_RDONLY)
    while os.read(fd, 1 << 20): pass
    os.close(fd)
for path in paths: os.stat(path); plain(path)
pieces(big)
print(json.dumps({"stat": timed(os.stat, paths), "open, read, close": timed(plain, paths), "buffered open": timed(buffered, paths),
                  "1 MiB read": timed(pieces, [big] * 3) / 64}))
"""
WAITER = """
import sys, time
path, wanted = sys.argv[1:]
print("ready", flush=True)
while open(path).read() != wanted: pass
print(time.time(), flush=True)
"""


def make(top: Path, files: int) -> None:
    for number in range(files):
        if number % 100 == 0:
            (top / f"d{number // 100}").mkdir(parents=True)
        (top / f"d{number // 100}" / f"f{number % 100}.py").write_text(f"VALUE = {number}\n" * 60)
    (top / "big").write_bytes(os.urandom(64 << 20))


def edited(path: Path, shown: str, text: str, refresh: object) -> float:
    """Seconds from the edit to a reader that has the new content."""
    with subprocess.Popen([sys.executable, "-c", WAITER, shown, text], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
        begin = time.time()
        path.write_text(text)
        refresh()  # type: ignore[operator]
        return float(reader.stdout.readline()) - begin


def reads(top: str, files: int) -> dict[str, float]:
    argv = [sys.executable, "-c", READER, top, str(files), f"{top}/big"]
    return json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default="/var/tmp", help="where tree, store and mount point are made")
    parser.add_argument("--files", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    opened: list[float] = []
    edits: list[float] = []
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        os.environ["MONARCH_FS_STORE_DIR"] = f"{folder}/store"
        source, target = Path(folder, "source"), f"{folder}/mounted"
        make(source, options.files)
        for number in range(options.rounds):
            begin = time.perf_counter()
            mounted = mount(this_host(), source, target, pyc="as-is")
            mounted.ready.get()
            opened.append(time.perf_counter() - begin)
            if number < options.rounds - 1:
                mounted.close().get()
        mounted.complete().get()
        for number in range(options.rounds):
            path = f"d{number}/f7.py"
            edits.append(edited(source / path, f"{target}/{path}", f"EDIT = {number}\n" * 300, lambda: mounted.refresh().get()))
        for _ in range(options.rounds):
            pairs.append((reads(target, options.files), reads(str(source), options.files)))
        mounted.close().get()
    print(f"{options.files} files mounted: first {opened[0] * 1e3:.0f} ms, again {statistics.median(opened[1:]) * 1e3:.0f} ms")
    print(f"edit to read: {statistics.median(edits) * 1e3:.0f} ms ({min(edits) * 1e3:.0f} to {max(edits) * 1e3:.0f})")
    for name in pairs[0][0]:
        here, disk = (statistics.median(pair[at][name] for pair in pairs) * 1e6 for at in (0, 1))
        ratio = statistics.median(pair[0][name] / pair[1][name] for pair in pairs)
        print(f"{name}: {here:.1f} us, on the disk {disk:.1f} us, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
