"""Mounts for a long time: killed servers and daemons, thousands of mounts, opens during refreshes. The result is the number of errors.

    python bench/fs_soak.py [--only PART]... [--kills 100] [--mounts 10000] [--opens 100000] [--refreshes 100] [--directory DIR]

| part | content |
|---|---|
| kills | the daemon and the server of a mount are killed in turn, at random moments, while four readers compare the content |
| mounts | a tree is mounted and unmounted; descriptors, threads and memory of the daemon before and after |
| opens | four readers open and read files that each refresh replaces; torn content, or content older than before, is counted |

It runs in namespaces of its own for mounts and processes, and needs root.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fs_client import Client
from fs_one import client
from fs_row import Row, table
from fs_served import served
from requirement import packages, program, require, root

READERS = 4
FILES = 64
# Lines of a file: some files have several chunks.
_LINES = (1, 10, 100, 20_000)

# A reader prints the number of reads, of reads with wrong content, and of failed reads. Each file is one line many times: the generation
# and the name. With `still` all files stay unchanged.
_READER = """
import random, sys
from pathlib import Path
top, still, most = Path(sys.argv[1]), sys.argv[2] == "still", int(sys.argv[3])
names = sorted(path.name for path in top.iterdir())
seen, reads, wrong, failed = {}, 0, [], []
print("reads", flush=True)
import select
while not select.select([sys.stdin], [], [], 0)[0] and (not most or reads < most):
    name = random.choice(names)
    reads += 1
    try:
        lines = set((top / name).read_bytes().splitlines())
    except OSError as e:
        failed.append(f"{name}: {e}")
        continue
    number, _, of = min(lines, default=b"").partition(b" ")
    if len(lines) != 1 or of.decode() != name or int(number) < seen.get(name, 0):
        wrong.append(f"{name}: {sorted(lines)[:3]} after {seen.get(name)}")
    else:
        seen[name] = int(number)
for text in (wrong + failed)[:3]:
    print(text, file=sys.stderr)
print(reads, len(wrong), len(failed), flush=True)
"""


def make(source: Path, generation: int) -> None:
    """Writes files of one line many times; each is replaced as a whole."""
    source.mkdir(exist_ok=True)
    for number in range(FILES):
        name = f"f{number}"
        new = source.parent / "new"
        new.write_text(f"{generation} {name}\n" * _LINES[number % len(_LINES)])
        new.rename(source / name)


def readers(target: str, how: str, most: int = 0) -> list[subprocess.Popen[str]]:
    argv = [sys.executable, "-S", "-c", _READER, target, how, str(most)]
    started = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(READERS)]
    for reader in started:
        assert reader.stdout is not None and reader.stdout.readline() == "reads\n"
    return started


def ended(started: list[subprocess.Popen[str]]) -> str:
    """The counts of the readers."""
    counts = [[int(word) for word in reader.communicate("end\n")[0].split()] for reader in started]
    reads, wrong, failed = (sum(column) for column in zip(*counts, strict=True))
    return f"{reads:,} reads, {wrong} of wrong content, {failed} failed"


def kills(top: Path, options: argparse.Namespace) -> Iterable[Row]:
    source, target = top / "source", f"{top}/mounted"
    make(source, 1)
    with client(top) as made:
        made.ask("mount", str(source), target, "hot", "as-is")
        started = readers(target, "still")
        killed = {"mount_server": 0, "daemon": 0}
        for number in range(options.kills):
            time.sleep(random.uniform(0.0, 0.5))
            # The daemon and the server share the connection: it ends when both are killed at once.
            settle(target)
            what = ("mount_server", "daemon")[number % 2]
            os.kill(process_of(what), signal.SIGKILL)
            killed[what] += 1
        yield Row(
            f"readers while servers were killed {killed['mount_server']} times and daemons {killed['daemon']} times", ended(started), "0, 0"
        )
        made.ask("close", target)


def mounts(top: Path, options: argparse.Namespace) -> Iterable[Row]:
    source, target = top / "source", f"{top}/mounted"
    make(source, 1)
    before: list[int] = []
    with client(top) as made:
        begin = time.monotonic()
        for number in range(options.mounts):
            made.ask("mount", str(source), target, "demand", "as-is")
            made.ask("close", target)
            # The first mounts load modules that are loaded on first use.
            if number == min(100, options.mounts // 2):
                before = held()
        seconds = time.monotonic() - begin
        after = held()
    words = [f"{name} {first} to {last}" for name, first, last in zip(("descriptors", "threads", "MiB"), before, after, strict=True)]
    left = Path("/proc/self/mountinfo").read_text().count(str(top))
    yield Row(f"{options.mounts:,} mounts and unmounts, {seconds / options.mounts * 1e3:.0f} ms each: the daemon", ", ".join(words))
    yield Row("rows of the mount table that are left", str(left), "0")


def opens(top: Path, options: argparse.Namespace) -> Iterable[Row]:
    source, target = top / "source", f"{top}/mounted"
    make(source, 1)
    with client(top) as made:
        made.ask("mount", str(source), target, "hot", "as-is")
        started = readers(target, "changes", options.opens // READERS)
        done = 1
        while any(reader.poll() is None for reader in started) and done <= options.refreshes:
            done += 1
            refresh(made, source, target, done)
        yield Row(f"readers during {done - 1} refreshes of all {FILES} files", ended(started), "0, 0")
        stale = sum(not Path(target, f"f{n}").read_text().startswith(f"{done} ") for n in range(FILES))
        yield Row("files that show an older generation after the last refresh", str(stale), "0")
        made.ask("close", target)


def refresh(made: Client, source: Path, target: str, generation: int) -> None:
    # Content that a host lacks when its source changes is EIO for its readers, by design.
    made.ask("complete", target)
    make(source, generation)
    made.ask("refresh", target)


def process_of(module: str) -> int:
    """The process of this home that runs a module of `monarch.fs._daemon`; waits for the next one after a kill."""
    home = f"MONARCH_HOME={os.environ['MONARCH_HOME']}".encode()
    while True:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    is_mine = home in (entry / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if is_mine and f"monarch.fs._daemon.{module}".encode() in words:
                    return int(entry.name)
        time.sleep(0.01)


def settle(target: str) -> None:
    """Returns when the daemon knows a server of the mount that answers."""
    while True:
        try:
            found = served(target)
            if Path("/proc", str(found.pid)).exists():
                return
        except (OSError, RuntimeError, KeyError, TypeError):
            pass
        time.sleep(0.01)


def held() -> list[int]:
    """Descriptors, threads and MiB of the daemon."""
    folder = Path("/proc", str(process_of("daemon")))
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return [len(os.listdir(folder / "fd")), int(status["Threads"]), int(status["VmRSS"].split()[0]) >> 10]


PARTS: dict[str, Callable[[Path, argparse.Namespace], Iterable[Row]]] = {"kills": kills, "mounts": mounts, "opens": opens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(PARTS))
    parser.add_argument("--directory", default="/var/tmp")
    for name, count in (("kills", 100), ("mounts", 10_000), ("opens", 100_000), ("refreshes", 100)):
        parser.add_argument(f"--{name}", type=int, default=count)
    options = parser.parse_args()
    if os.getpid() != 1:
        require(root("mounts are made in namespaces"), program("unshare", packages("fuse")))
        argv = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            sys.executable,
            "-W",
            "ignore",
            __file__,
            *sys.argv[1:],
        ]
        os.execvp(argv[0], argv)
    rows: list[Row] = []
    for name in options.only or PARTS:
        with tempfile.TemporaryDirectory(dir=options.directory, ignore_cleanup_errors=True) as top:
            rows += PARTS[name](Path(top), options)
    print(table(rows))


if __name__ == "__main__":
    main()
