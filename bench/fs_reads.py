"""Readers of mounts, each a process of its own: the client of a mount must not wait for it. Also used for torchmonarch 0.7.0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Seconds per operation, by name. Buffers are made before: only the file system is measured.
_WARM = """
import json, os, sys, time
top, files, big = sys.argv[1], int(sys.argv[2]), sys.argv[3]
paths = [f"{top}/d{n // 100}/f{n % 100}.py" for n in range(min(files, 3000))]
buffer, small = bytearray(1 << 20), bytearray(1 << 16)
def timed(action, items, times):
    best = []
    for _ in range(times):
        begin = time.perf_counter()
        for item in items: action(item)
        best.append((time.perf_counter() - begin) / len(items))
    return sorted(best)[len(best) // 2]
def plain(path):
    fd = os.open(path, os.O_RDONLY); os.readv(fd, [small]); os.close(fd)
def buffered(path):
    with open(path, "rb") as file: file.read()
def pieces(path):
    fd = os.open(path, os.O_RDONLY)
    while os.readv(fd, [buffer]): pass
    os.close(fd)
def missing(path):
    try: os.stat(path + "c")
    except FileNotFoundError: pass
for path in paths: os.stat(path); plain(path); missing(path)
pieces(big)
print(json.dumps({"stat": timed(os.stat, paths, 5), "failed look-up": timed(missing, paths, 5),
                  "os.open, read, close": timed(plain, paths, 5), "buffered open": timed(buffered, paths, 3),
                  "1 MiB read": timed(pieces, [big], 5) / max(os.stat(big).st_size >> 20, 1)}))
"""
# Seconds to stat and read every small file.
_WALK = """
import os, sys, time
top, files = sys.argv[1], int(sys.argv[2])
buffer = bytearray(1 << 16)
begin = time.perf_counter()
for n in range(files):
    path = f"{top}/d{n // 100}/f{n % 100}.py"
    os.stat(path)
    fd = os.open(path, os.O_RDONLY); os.readv(fd, [buffer]); os.close(fd)
print(time.perf_counter() - begin)
"""
# Seconds to read a file from its begin to its end, after its own pages were dropped.
_SEQUENTIAL = """
import os, sys, time
buffer = bytearray(1 << 20)
fd = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
begin = time.perf_counter()
while os.readv(fd, [buffer]): pass
print(time.perf_counter() - begin)
"""
# Checks every millisecond: a busy reader would take one of two processors from the measured processes.
_WAITER = """
import sys, time
path, wanted = sys.argv[1:]
print("ready", flush=True)
while True:
    with open(path) as file:
        if file.read() == wanted: break
    time.sleep(0.001)
print(time.monotonic(), flush=True)
"""


def _run(code: str, *words: str, python: str = sys.executable) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")}
    return subprocess.run([python, "-c", code, *words], check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def warm(top: str, files: int, big: str) -> dict[str, float]:
    return json.loads(_run(_WARM, top, str(files), big))


def walked(top: str, files: int) -> float:
    return float(_run(_WALK, top, str(files)))


def read_through(path: str) -> float:
    return float(_run(_SEQUENTIAL, path))


# Opens modules without a buffer, as procs do at their start.
_UNBUFFERED = """
import _io, ctypes
hook = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)(lambda path, _: _io.FileIO(path))
ctypes.pythonapi.PyFile_SetOpenCodeHook(hook, None)
"""


def imported(python: str, modules: str, *, in_proc: bool = False) -> float:
    """Seconds of a fresh interpreter to import the modules; `in_proc`: it opens them as procs do."""
    code = f"import time; begin = time.perf_counter()\nimport {modules}\nprint(time.perf_counter() - begin)"
    return float(_run((_UNBUFFERED if in_proc else "") + code, python=python))


def drop_caches() -> None:
    """Drops the pages, names and inodes of all file systems, after written data has gone to the disk."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def edited(path: Path, shown: str, text: str, refresh: Callable[[], object], start: list[Callable[..., Any]]) -> tuple[float, list[float]]:
    """Seconds of the refresh, and of the time from the edit to the new content in a reader on each host; `start` starts processes there."""
    argv = [sys.executable, "-S", "-c", _WAITER, shown, text]
    readers = [popen(*argv, stdout=subprocess.PIPE) for popen in start]
    for reader in readers:
        assert reader.stdout.readline() == "ready\n"
    begin = time.monotonic()
    path.write_text(text)
    refresh()
    refreshed = time.monotonic() - begin
    seen = [float(reader.communicate()[0]) - begin for reader in readers]
    return refreshed, seen
