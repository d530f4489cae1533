"""The parts of the benchmark that need one host: opening, edits, warm and cold reads."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import fs_reads
from fs_client import Client, here
from fs_row import Row, milliseconds, ratio, requests
from fs_served import served
from fs_tree import LARGE, SMALL, fill

_EDIT = "EDIT = %06d\n"
# Lines of a file of 5 kB.
_EDIT_LINES = 385


def edit_text(number: int) -> str:
    return (_EDIT % number) * _EDIT_LINES


@contextmanager
def client(folder: Path) -> Generator[Client]:
    """A client of this machine with a home and a store of its own, which this process uses too."""
    home = tempfile.mkdtemp(dir=folder)
    os.environ["MONARCH_HOME"] = home
    made = Client(here, dict(os.environ))
    try:
        yield made
    finally:
        made.end()


def mounts(source: Path, folder: Path, files: int, rounds: int) -> list[Row]:
    """Measures mounts. Each round has a new home without the tree. The second mount of a round finds the index and the store."""
    first: list[float] = []
    again: list[float] = []
    filled: list[float] = []
    refreshes: list[float] = []
    edits: list[float] = []
    sent: list[int] = []
    target = f"{folder}/mounted"
    for number in range(rounds):
        with client(folder) as made:
            first.append(made.ask("mount", str(source / SMALL), target, "hot", "as-is"))
            filled.append(made.ask("complete", target))
            made.ask("close", target)
            again.append(made.ask("mount", str(source / SMALL), target, "hot", "as-is"))
            made.ask("complete", target)
            for edit in range(3):
                path, text = f"d{edit}/f7.py", edit_text(number * 10 + edit)
                reports: list[dict[str, int]] = []
                refreshed, seen = fs_reads.edited(
                    source / SMALL / path, f"{target}/{path}", text, lambda found=reports: found.append(made.ask("refresh", target)), [here]
                )
                # The first edit of a round is the warm-up.
                if edit:
                    refreshes.append(refreshed)
                    edits.extend(seen)
                    sent.append(reports[0]["bytes_sent"])
            made.ask("close", target)
    return [
        Row(f"{files:,} files mounted on one host, nothing known before", milliseconds(first), "1,000 ms"),
        Row("after that, until every byte is there", milliseconds(filled)),
        Row("the same tree again", milliseconds(again)),
        Row("edit of a file of 5 kB, until `refresh()` is done", milliseconds(refreshes)),
        Row("the same, until a reader that looks each millisecond has it", milliseconds(edits), "150 ms on 16 mounts"),
        Row("bytes sent for the edit", f"{statistics.median(sent):,.0f}", "64 KiB a host"),
    ]


def reads(source: Path, folder: Path, files: int, rounds: int) -> list[Row]:
    """Warm reads, beside the local disk and tmpfs: the three in turn, each the median of five passes, and the median of the rounds."""
    target = f"{folder}/mounted"
    found: dict[str, list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory, client(folder) as made:
        # 3,000 files are read.
        for number in range(min(files, 3000)):
            (place := Path(memory, f"d{number // 100}")).mkdir(exist_ok=True)
            (place / f"f{number % 100}.py").write_bytes((source / SMALL / place.name / f"f{number % 100}.py").read_bytes())
        fill(Path(memory, "large"), (source / LARGE / "file").stat().st_size)
        made.ask("mount", str(source), target, "hot", "as-is")
        made.ask("complete", target)
        places = (
            (f"{target}/{SMALL}", f"{target}/{LARGE}/file"),
            (str(source / SMALL), str(source / LARGE / "file")),
            (memory, f"{memory}/large"),
        )
        for name in fs_reads.warm(places[0][0], files, places[0][1]):
            found[name] = []
        before = served(target)
        for _ in range(rounds):
            seen = [fs_reads.warm(top, files, big) for top, big in places]
            for name, values in found.items():
                values.append((seen[0][name], seen[1][name], seen[2][name]))
        did = served(target).since(before)
        made.ask("close", target)
    goals = {"stat": "3 us", "os.open, read, close": "1.5 of the disk", "1 MiB read": "1.05 of tmpfs"}
    rows: list[Row] = []
    for name, values in found.items():
        here_, disk, memory_ = (statistics.median(value[at] for value in values) * 1e6 for at in range(3))
        text = f"{here_:.1f} us; disk {disk:.1f}, ratio {ratio([v[:2] for v in values])}"
        text += f"; tmpfs {memory_:.1f}, ratio {ratio([(v[0], v[2]) for v in values])}"
        rows.append(Row(f"{name}, warm", text, goals.get(name, "")))
    rows.append(Row(f"requests of {rounds} rounds of these reads", requests(did.requests)))
    return rows


def cold(source: Path, folder: Path, files: int, rounds: int) -> list[Row]:
    """Cold reads: the store has all files; the pages of the mount are dropped, alone or with those of the disk."""
    target = f"{folder}/mounted"
    small, large, local = f"{target}/{SMALL}", f"{target}/{LARGE}/file", str(source / LARGE / "file")
    nbytes = os.stat(local).st_size
    walks: list[tuple[float, float]] = []
    processor: list[float] = []
    kept: list[float] = []
    dropped: list[tuple[float, float]] = []
    kinds = ""
    with client(folder) as made:
        made.ask("mount", str(source), target, "hot", "as-is")
        made.ask("complete", target)
        for _ in range(rounds):
            fs_reads.drop_caches()
            before = served(target)
            there = fs_reads.walked(small, files)
            did = served(target).since(before)
            total = sum(n for kind, n in did.requests.items() if kind not in ("forget", "batch_forget", "interrupt"))
            processor.append(did.processor / max(total, 1))
            kinds = requests(did.requests)
            fs_reads.drop_caches()
            walks.append((there, fs_reads.walked(str(source / SMALL), files)))
            fs_reads.drop_caches()
            there = fs_reads.read_through(large)
            fs_reads.drop_caches()
            dropped.append((there, fs_reads.read_through(local)))
            # The pages of the store are there now; the reader drops those of the mount.
            fs_reads.read_through(large)
            kept.append(fs_reads.read_through(large))
        made.ask("close", target)
    each = [statistics.median(pair[at] for pair in walks) / files * 1e6 for at in (0, 1)]
    speed = [nbytes / statistics.median(pair[at] for pair in dropped) / 1e6 for at in (0, 1)]
    return [
        Row(
            f"stat and read of {files:,} small files, all caches dropped",
            f"{each[0]:.0f} us a file; disk {each[1]:.0f}, ratio {ratio(walks)}",
        ),
        Row("requests of one such pass", kinds),
        Row("processor time of the server a request", f"{statistics.median(processor) * 1e6:.1f} us", "20 us"),
        Row("sequential read, all caches dropped", f"{speed[0]:,.0f} MB/s; disk {speed[1]:,.0f}, time {ratio(dropped)} of the disk"),
        Row(
            "sequential read, the store in memory, the mount's pages dropped",
            f"{nbytes / statistics.median(kept) / 1e6:,.0f} MB/s",
            "1,200 MB/s",
        ),
    ]
