"""The interpreter of a tree that hosts are to run: is it in the tree, and what must the hosts have besides?

The path is followed component by component, as the kernel does it, with the difference that the root of the tree is watched:
`os.path.realpath` shows where a chain of links ends, not where it leaves the tree. A venv's `bin/python` is such a chain: its last link
leads to the interpreter that the venv was made from.
"""

from __future__ import annotations

import os

# The most links in a chain, as in Linux: a longer one is a loop.
_LINKS = 40


def interpreter_of(source: str, exe: str) -> str:
    """The path that runs as the interpreter: below `source`, or the path outside of it that each host must have.

    `exe` is relative to `source`, or an absolute path below it. `ValueError` where it is not below `source`, is not found there, is no
    regular file, or may not be executed. A link that leads out of the tree needs no file on this machine.
    """
    root = os.path.abspath(source)
    if not exe:
        raise ValueError("exe: empty path")
    path = os.path.normpath(os.path.join(root, exe))
    if not _is_below(root, path):
        raise ValueError(f"exe {exe!r} is not below {root}")
    place = _resolved(root, path, exe)
    if not _is_below(root, place) and not _is_below(os.path.realpath(root), place):
        return place
    if not os.path.isfile(place):
        raise ValueError(f"exe {exe!r} not found below {root}" if not os.path.exists(place) else f"exe {exe!r} is no file: {place}")
    if not os.access(place, os.X_OK):
        raise ValueError(f"exe {exe!r} may not be executed: {place}")
    return place


def _is_below(root: str, path: str) -> bool:
    return path.startswith(root.rstrip("/") + "/")


def _resolved(root: str, path: str, exe: str) -> str:
    """Where the path leads; it ends with the first place that is outside of the tree."""
    # Two names of the root: links in the tree may contain either.
    roots = {root, os.path.realpath(root)}
    rest = os.path.relpath(path, root).split("/")
    place = root
    links = 0
    while rest:
        part = rest.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            place = os.path.dirname(place)
        else:
            place = os.path.join(place, part)
        inside = place in roots or any(_is_below(top, place) for top in roots)
        if not inside:
            # The path to a root may contain the root: an absolute link into the tree passes through its parents.
            if any(_is_below(place, top) for top in roots) or place == "/":
                continue
            return os.path.normpath(os.path.join(place, *rest))
        if os.path.islink(place):
            links += 1
            if links > _LINKS:
                raise ValueError(f"exe {exe!r}: too many symbolic links")
            text = os.readlink(place)
            if not text:
                raise ValueError(f"exe {exe!r}: empty link {place}")
            rest = text.split("/") + rest
            place = "/" if text.startswith("/") else os.path.dirname(place)
    return place
