"""The cost of mounts: opening, edits, reads and imports beside the local disk, 16 hosts, and torchmonarch 0.7.0 in the same run.

    python bench/fs.py [--only PART]... [--files 30000] [--directory DIR]

| part | content |
|---|---|
| mount | a tree of small files on one host, new and again; an edit, until a reader has it |
| reads | warm stat, open, read, beside the local disk and tmpfs |
| cold | reads with dropped caches; processor time of the server per request |
| requests | processor time of the server per request, by back end and placement |
| imports | six packages, warm and cold, in pairs with the local disk |
| hosts | the tree on 16 hosts of namespaces, an edit on all, bytes for each host |
| relay | 1 GiB to 16 hosts, beside a chain of sockets; bytes of each link |
| reference | torchmonarch 0.7.0: the tree, an edit, stat, an import |

Each part is a process in namespaces of its own for mounts and processes, with homes and stores below DIR, and leaves nothing. It
needs root; `requests` needs pyfuse3, `hosts` and `relay` need network namespaces. Missing requirements are named before anything starts,
with the commands that install them. A part that fails or takes longer than `--limit` is a row with the reason. Environments are installed
once, into the user's cache folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fs_row import Row, table
from requirement import Requirement, namespaces, packages, program, pyfuse3, require, root

# A function of two folders, the number of files and the number of rounds.
Part = Callable[[Path, Path, int, int], Iterable[Row]]


def parts() -> dict[str, tuple[Part, int]]:
    """Each part with its number of rounds or pairs."""
    from fs_hosts import hosts
    from fs_imports import imports
    from fs_one import cold, mounts, reads
    from fs_reference import reference
    from fs_relay import relay
    from fs_requests import answering

    return {
        "mount": (mounts, 3),
        "reads": (reads, 9),
        "cold": (cold, 3),
        "requests": (answering, 5),
        "imports": (imports, 12),
        "hosts": (hosts, 2),
        "relay": (relay, 4),
        "reference": (reference, 10),
    }


def needed(names: Iterable[str]) -> list[Requirement]:
    """The requirements of these parts."""
    found = [root("mounts are made in namespaces, and caches are dropped"), program("unshare", packages("fuse"))]
    for name in names:
        if name == "requests":
            found.append(pyfuse3())
        elif name in ("hosts", "relay"):
            found.append(namespaces())
    return found


def load() -> str:
    return f"load {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors"


def run(name: str, options: argparse.Namespace, source: Path, top: Path) -> list[Row]:
    """The rows of a part, which runs as a process of its own: at its end all its child processes end."""
    began, before = time.monotonic(), load()
    with tempfile.TemporaryDirectory(dir=top) as folder:
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-W", "ignore", __file__]
        argv += ["--part", name, str(source), folder, "--files", str(options.files), "--rounds", str(options.rounds or 0)]
        log = Path(folder, "log")
        with log.open("w") as errors:
            started = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True)
            try:
                out, _ = started.communicate(timeout=options.limit)
            except subprocess.TimeoutExpired:
                started.kill()
                out, _ = started.communicate()
                out += json.dumps(Row(name, f"not done within {options.limit} s")) + "\n"
            else:
                if started.returncode:
                    print(log.read_text()[-3000:], file=sys.stderr)
                    out += json.dumps(Row(name, f"ended with {started.returncode}: see above")) + "\n"
        rows = [Row(*json.loads(line)) for line in out.splitlines() if line.startswith('["')]
    print(f"# {name}: {time.monotonic() - began:.0f} s, {before}", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    names = list(parts())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=names, help="this part; may be given again")
    parser.add_argument("--directory", default="/var/tmp", help="where trees, stores and mount points are made")
    parser.add_argument("--files", type=int, default=30_000)
    parser.add_argument("--large", type=int, default=256, help="MiB of the large file")
    parser.add_argument("--rounds", type=int, help="of each part; by default each has its own number")
    parser.add_argument("--limit", type=int, default=300, help="seconds of a part")
    parser.add_argument("--part", nargs=3, metavar=("NAME", "SOURCE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        name, source, folder = options.part
        part, rounds = parts()[name]
        for row in part(Path(source), Path(folder), options.files, options.rounds or rounds):
            print(json.dumps(row), flush=True)
        return
    require(*needed(options.only or names))
    from fs_tree import make_tree

    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=options.directory, ignore_cleanup_errors=True) as top:
        source = Path(top, "source")
        make_tree(source, options.files, options.large << 20)
        for name in options.only or names:
            began = load()
            rows.append(Row(f"**{name}**", began))
            rows += run(name, options, source, Path(top))
    print(table(rows))


if __name__ == "__main__":
    main()
