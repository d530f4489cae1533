"""The cost of comparing a tree of 30,000 files in 2,000 directories with its earlier state, and of reading all files.

    python bench/directory_tree.py [--directory DIR] [--rounds 7]

Prints medians in milliseconds: `os.walk` with `os.lstat` in Python, the listings of all directories by the native module, the digests of
all files (1,500 bytes each, in the page cache), and a whole scan of code sync for the unchanged tree.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from time import perf_counter

from monarch.extension.directory_tree import digest_files, list_directories

DIRECTORIES, FILES = 2000, 15


def make(top: str) -> tuple[list[bytes], list[bytes]]:
    directories, files = [os.fsencode(top)], []
    for number in range(DIRECTORIES):
        path = os.path.join(top, f"d{number // 50}", f"e{number}")
        os.makedirs(path)
        directories.append(os.fsencode(path))
        for name in range(FILES):
            files.append(os.fsencode(os.path.join(path, f"f{name}.py")))
            with open(files[-1], "wb") as file:
                file.write(os.urandom(1500))
    return directories, files


def walk(top: str) -> None:
    for directory, _, names in os.walk(top):
        for name in names:
            os.lstat(os.path.join(directory, name))


def look(top: str) -> None:
    from monarch._core.sync.tree import scan

    scan(os.fsencode(top))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default="/var/tmp", help="where the tree is made")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as top, tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        directories, files = make(top)
        tasks: dict[str, Callable[[], object]] = {
            "os.walk and os.lstat": lambda: walk(top),
            "list_directories": lambda: list_directories(directories),
            "digest_files": lambda: digest_files(files),
            "look of code sync": lambda: look(top),
        }
        times: dict[str, list[float]] = {name: [] for name in tasks}
        for _ in range(options.rounds + 1):
            for name, task in tasks.items():
                began = perf_counter()
                task()
                times[name].append(1e3 * (perf_counter() - began))
        for name, found in times.items():
            print(f"{name:22} {statistics.median(found[1:]):8.1f} ms")


if __name__ == "__main__":
    main()
