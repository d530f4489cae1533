"""The table of a look: what directories decide together is added to what each of them holds.

Hard links get the number of their group, directories that could not be read are marked, and `__pycache__` directories get the compiled
modules. A directory that none of this changes keeps its folder, so a table after one edit shares nearly all folders with the one before.
"""

from __future__ import annotations

from monarch.fs._index.bytecode import SUFFIX, Bytecode, is_valid
from monarch.fs._index.scan import Look, root_item
from monarch.fs._index.seen import Seen
from monarch.fs._tree.folder import ATTRIBUTES, EMPTY, LINKED, Folder, Item, folder_of, link_group, pack_node
from monarch.fs._tree.node import WHOLE_BYTES, Kind, Node
from monarch.fs._tree.table import Table

_PYCACHE = b"__pycache__"

# For each directory with modules: its folder, that of its `__pycache__`, whether all modules are compiled, and the entries to add.
Overlays = dict[bytes, tuple[Folder, Folder | None, bool, list[Item]]]
# The changed folder of a directory, with the folder and the changes from which it was made.
Adjusted = dict[bytes, tuple[Folder, list[Item], list[bytes], Folder]]


class Assembly:
    """Makes tables of looks, and keeps what the next one can use."""

    def __init__(self, bytecode: Bytecode | None) -> None:
        self._bytecode = bytecode
        self._overlays: Overlays = {}
        self._adjusted: Adjusted = {}

    def missing(self, look: Look) -> list[tuple[bytes, bytes]]:
        """Identity and name of each module that has to be compiled."""
        if self._bytecode is None:
            return []
        overlays: Overlays = {}
        missing: list[tuple[bytes, bytes]] = []
        for rel, seen in look.seen.items():
            if b".py" not in seen.folder.names or rel.endswith(_PYCACHE):
                continue
            cache = look.seen.get(_join(rel, _PYCACHE))
            cache_folder = cache.folder if cache is not None else None
            old = self._overlays.get(rel)
            if old is not None and old[2] and old[0] is seen.folder and old[1] is cache_folder:
                overlays[rel] = old
                continue
            items, left = self._overlay(look, rel, seen.folder, cache_folder)
            missing += left
            overlays[rel] = (seen.folder, cache_folder, not left, items)
        self._overlays = overlays
        return missing

    def _overlay(self, look: Look, rel: bytes, folder: Folder, cache: Folder | None) -> tuple[list[Item], list[tuple[bytes, bytes]]]:
        assert self._bytecode is not None
        items: list[Item] = []
        missing: list[tuple[bytes, bytes]] = []
        place = folder.find(_PYCACHE)
        if place is not None and (cache is None or folder.node(place).kind != Kind.DIRECTORY):
            return [], []
        for number, name in enumerate(folder.all_names()):
            if not name.endswith(b".py") or len(name) + len(SUFFIX) > 250:
                continue
            node = folder.node(number)
            if node.kind != Kind.FILE or not 0 < node.size <= WHOLE_BYTES or not node.readable or not any(node.chunks):
                continue
            made = name[:-3] + SUFFIX
            if (
                cache is not None
                and cache.find(made) is not None
                and is_valid(look.place(_join(rel, _PYCACHE, made)), node.mtime_ns, node.size)
            ):
                continue
            result = self._bytecode.result(node.chunks)
            if result is None:
                missing.append((node.chunks, name))
            elif result[1]:
                id, size = result
                shown = Node(Kind.FILE, node.mode & 0o666, node.uid, node.gid, size, node.mtime_ns, 1, -(-size // 4096) * 8, b"", id)
                items.append(Item(made, *pack_node(shown)))
        return items, missing

    def table(self, look: Look) -> Table:
        """The table, with the modules that have been compiled."""
        self.missing(look)
        links = _links(look)
        root = root_item(look.top)
        adjusted: Adjusted = {}
        folders: list[Folder] = []
        attributes = {b"": root.attributes}
        queue: list[bytes] = [b""]
        for rel in queue:
            seen = look.seen.get(rel)
            base = seen.folder if seen is not None else EMPTY
            changes, removed = self._changes(look, rel, seen, links.get(rel, []), attributes)
            folder = base
            if changes or removed:
                old = self._adjusted.get(rel)
                if old is not None and old[0] is base and old[1] == changes and old[2] == removed:
                    folder = old[3]
                else:
                    entries = {name: base.item(place) for place, name in enumerate(base.all_names())} | {
                        item.name: item for item in changes
                    }
                    folder = folder_of(entries[name] for name in sorted(entries) if name not in removed)
                adjusted[rel] = (base, changes, removed, folder)
            folders.append(folder)
            prefix = rel + b"/" if rel else b""
            queue.extend(prefix + folder.name(place) for place in folder.subfolders)
        self._adjusted = adjusted
        return Table((root.attributes, root.tail), folders)

    def _changes(
        self, look: Look, rel: bytes, seen: Seen | None, links: list[Item], attributes: dict[bytes, bytes]
    ) -> tuple[list[Item], list[bytes]]:
        changes, removed = list(links), list[bytes]()
        if seen is not None and look.closed:
            for child in seen.children:
                error = look.closed.get(child)
                if error is not None:
                    item = seen.folder.item(seen.folder.find(child.rpartition(b"/")[2]) or 0)
                    if error.errno in look.GONE:
                        removed.append(item.name)
                    else:
                        flags = bytes([item.attributes[1] | 1])
                        changes.append(item._replace(attributes=item.attributes[:1] + flags + item.attributes[2:]))
        overlay = self._overlays.get(rel)
        if overlay is not None and overlay[3] and overlay[1] is None:
            own = look.seen[rel.rpartition(b"/")[0]].folder if rel else None
            place = own.find(rel.rpartition(b"/")[2]) if own is not None else None
            above = own.node(place) if own is not None and place is not None else None
            root = Node(Kind.DIRECTORY, 0o755, 0, 0, 0, 0)
            source = above or root
            shown = Node(Kind.DIRECTORY, source.mode & 0o777, source.uid, source.gid, 0, source.mtime_ns)
            if above is None:
                packed = attributes[b""]
                changes.append(Item(_PYCACHE, packed[:1] + b"\0" + packed[2:], b""))
            else:
                changes.append(Item(_PYCACHE, *pack_node(shown)))
        if rel == _PYCACHE or rel.endswith(b"/" + _PYCACHE):
            parent = self._overlays.get(rel[: -len(_PYCACHE)].rstrip(b"/"))
            if parent is not None:
                changes += parent[3]
        return changes, removed


def _links(look: Look) -> dict[bytes, list[Item]]:
    """The entries of files with several names in the tree, by directory. Names with different attributes were seen at different times."""
    groups: dict[tuple[int, int, bytes], list[tuple[bytes, int]]] = {}
    for rel, seen in look.seen.items():
        for place, device, inode in seen.linked:
            groups.setdefault((device, inode, seen.folder.attributes(place) + seen.folder.tail(place)), []).append((rel, place))
    found: dict[bytes, list[Item]] = {}
    for members in groups.values():
        if len(members) > 1:
            group = link_group(sorted(_join(rel, look.seen[rel].folder.name(place)) for rel, place in members))
            for rel, place in members:
                item = look.seen[rel].folder.item(place)
                numbers = list(ATTRIBUTES.unpack(item.attributes))
                numbers[1], numbers[5], numbers[9] = numbers[1] | LINKED, len(members), group
                found.setdefault(rel, []).append(item._replace(attributes=ATTRIBUTES.pack(*numbers)))
    return found


def _join(*parts: bytes) -> bytes:
    return b"/".join(part for part in parts if part)
