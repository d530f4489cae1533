"""Which paths two tables differ in. Directories with the same digest are not entered."""

from __future__ import annotations

from collections.abc import Iterator

from monarch.fs._tree.node import ZERO_ID, Kind
from monarch.fs._tree.table import Table


def changed_paths(old: Table, new: Table) -> Iterator[bytes]:
    """Relative paths that are new, gone or different, each once; of a directory that is new or gone, all below it too."""
    todo = [(b"", 0, 0)]
    while todo:
        prefix, before, after = todo.pop()
        if (below := _below_equal(old, new, before, after)) is not None:
            todo += [(prefix + name + b"/", one, other) for name, one, other in below]
            continue
        was, now = dict(old.children(before)), dict(new.children(after))
        for name in sorted(was.keys() | now.keys()):
            path = prefix + name
            if name not in now:
                yield from _below(old, was[name], path)
            elif name not in was:
                yield from _below(new, now[name], path)
            elif old.digest(was[name]) != new.digest(now[name]):
                kinds = old.node(was[name]).kind, new.node(now[name]).kind
                if kinds == (Kind.DIRECTORY, Kind.DIRECTORY):
                    todo.append((path + b"/", was[name], now[name]))
                else:
                    yield path


def _below_equal(old: Table, new: Table, before: int, after: int) -> list[tuple[bytes, int, int]] | None:
    """Where two directories have the same entries: the directories in them that differ below, as name and nodes; else None."""
    one, other = old.folder_number(before), new.folder_number(after)
    if one is None or other is None or old.has_links or new.has_links or old.folders[one].digest != new.folders[other].digest:
        return None
    folder, found = old.folders[one], list[tuple[bytes, int, int]]()
    was, now = old.nodes_of(range(one, one + 1)), new.nodes_of(range(other, other + 1))
    pairs = zip(folder.subfolders, old.subfolder_numbers(one), new.subfolder_numbers(other), strict=True)
    for place, first, second in pairs:
        if old.subtree(first) != new.subtree(second):
            found.append((folder.name(place), was[place], now[place]))
    return found


def new_chunks(old: Table, new: Table) -> list[bytes]:
    """Identities of the chunks of files that are new or different, each once, without `ZERO_ID`.

    Most are not in `old`; those of a renamed file are.
    """
    found: dict[bytes, None] = {}
    for path in changed_paths(old, new):
        at = new.resolve(path)
        if at is not None:
            node = new.node(at)
            found.update(dict.fromkeys(node.chunk(number) for number in range(node.chunk_count())))
    found.pop(ZERO_ID, None)
    return list(found)


def _below(table: Table, index: int, path: bytes) -> Iterator[bytes]:
    yield path
    if table.node(index).kind is Kind.DIRECTORY:
        for name, child in table.children(index):
            yield from _below(table, child, path + b"/" + name)
