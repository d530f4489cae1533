"""torchmonarch 0.7.0's `monarch.remotemount` on one host, in an environment of its own. Rows with the same name are comparable.

REFERENCE-PYTHON bench/fs_reference.py serve SOURCE TARGET      mounts, and then carries out one command a line: refresh, close
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PIN = "torchmonarch==0.7.0"
NAME = "torchmonarch 0.7.0"


def serve(source: str, target: str) -> None:
    """Prints a line of JSON for the mount and for each command: seconds."""
    from monarch.actor import this_host
    from monarch.remotemount import remotemount  # pyright: ignore

    handler: Any = remotemount(this_host(), source, target)

    def timed(action: Any) -> None:
        begin = time.perf_counter()
        action()
        print(json.dumps(["seconds", time.perf_counter() - begin]), flush=True)

    timed(handler.open)
    for line in sys.stdin:
        timed(getattr(handler, line.strip()))


class Reference:
    """A client of the reference with a mount."""

    def __init__(self, python: str, source: Path, target: str) -> None:
        argv = [python, "-W", "ignore", __file__, "serve", str(source), target]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.opened = self._answer()

    def _answer(self) -> float:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('["seconds", '):
                return json.loads(line)[1]
        raise RuntimeError(f"{NAME} ended with {self._process.wait()}")

    def ask(self, command: str) -> float:
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        return self._answer()

    def end(self) -> None:
        """Unmounts; the client may not end by itself."""
        self.ask("close")
        self._process.kill()
        self._process.communicate()


def _mounts(python: str, source: Path, folder: Path, files: int, rounds: int) -> list[Any]:
    import fs_reads
    from fs_client import here
    from fs_one import edit_text
    from fs_row import Row, milliseconds, ratio
    from fs_tree import LARGE, SMALL

    opened: list[float] = []
    refreshes: list[float] = []
    edits: list[float] = []
    reads: list[tuple[dict[str, float], dict[str, float]]] = []
    for number in range(3):
        target = f"{folder}/reference-{number}"
        made = Reference(python, source / SMALL, target)
        opened.append(made.opened)
        for edit in range(3):
            path, text = f"d{edit}/f9.py", edit_text(2000 + number * 10 + edit)
            refreshed, seen = fs_reads.edited(
                source / SMALL / path, f"{target}/{path}", text, lambda client=made: client.ask("refresh"), [here]
            )
            if edit:
                refreshes.append(refreshed)
                edits.extend(seen)
        made.end()
    made = Reference(python, source, target := f"{folder}/reference")
    for _ in range(min(rounds, 5)):
        here_ = fs_reads.warm(f"{target}/{SMALL}", files, f"{target}/{LARGE}/file")
        reads.append((here_, fs_reads.warm(str(source / SMALL), files, str(source / LARGE / "file"))))
    made.end()
    rows = [
        Row(f"{NAME}: {files:,} files mounted on one host", milliseconds(opened)),
        Row(f"{NAME}: edit of a file of 5 kB, until `refresh()` is done", milliseconds(refreshes)),
        Row(f"{NAME}: the same, until a reader has it", milliseconds(edits)),
    ]
    for name in reads[0][0]:
        mounted, disk = (statistics.median(pair[at][name] for pair in reads) * 1e6 for at in (0, 1))
        rows.append(
            Row(f"{NAME}: {name}, warm", f"{mounted:.1f} us; disk {disk:.1f}, ratio {ratio([(a[name], b[name]) for a, b in reads])}")
        )
    return rows


def _imports(python: str, folder: Path, pairs: int) -> list[Any]:
    import fs_reads
    from fs_imports import MODULES, PINS
    from fs_row import Row, ratio
    from fs_tree import environment

    source = environment("fs-imports", *PINS)
    target = f"{folder}/reference-environment"
    made = Reference(python, source, target)
    here, there = f"{target}/bin/python", f"{source}/bin/python"
    first = fs_reads.imported(here, MODULES)
    found: list[tuple[float, float]] = []
    for number in range(pairs):
        seen = {interpreter: fs_reads.imported(interpreter, MODULES) for interpreter in ((here, there) if number % 2 else (there, here))}
        found.append((seen[here], seen[there]))
    made.end()
    seconds: Sequence[float] = [statistics.median(pair[at] for pair in found) * 1e3 for at in (0, 1)]
    return [
        Row(f"{NAME}: the environment mounted; first import", f"{made.opened * 1e3:,.0f} ms; {first * 1e3:,.0f} ms"),
        Row(f"{NAME}: warm import of {MODULES}", f"{seconds[0]:,.0f} ms; disk {seconds[1]:,.0f}, ratio {ratio(found)}, {pairs} pairs"),
    ]


def reference(source: Path, folder: Path, files: int, rounds: int) -> Iterator[Any]:
    from fs_row import Row
    from fs_tree import environment

    try:
        python = f"{environment('fs-reference', PIN)}/bin/python"
    except RuntimeError as e:
        yield Row(NAME, f"not measured: {e}")
        return
    for part in (lambda: _mounts(python, source, folder, files, rounds), lambda: _imports(python, folder, rounds)):
        try:
            yield from part()
        except (RuntimeError, OSError, subprocess.CalledProcessError) as e:
            yield Row(NAME, f"not measured: {e}")


if __name__ == "__main__":
    serve(*sys.argv[2:])
