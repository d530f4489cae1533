"""The title of a process: the words that `ps` shows in place of the code and the import path that started the process.

The words are written where the kernel keeps the command line, which has a fixed size: what does not fit is cut off.
"""

from __future__ import annotations

# Fields of /proc/self/stat after the name of the program: the first address of the command line, and the one after its end.
_ARG_START, _ARG_END = 45, 46


def set_title(*words: str) -> None:
    """Sets the title. It is a help for people: where the kernel refuses, the process keeps its command line."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        if start:
            title = b"\0".join(word.encode(errors="surrogateescape") for word in words)
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(start)
                memory.write(title[: end - start - 1].ljust(end - start, b"\0"))
    except (OSError, ValueError, IndexError):
        return
