"""The report of `monarch doctor` about mounts."""

from __future__ import annotations

from collections.abc import Iterator

from monarch.fs._home import home_problem
from monarch.fs._kernel.preflight import may_mount, problems, remarks, serving_backend, user_allow_other
from monarch.fs._kernel.user_entry import entry_problem
from monarch.fs._store.location import store_place
from monarch.fs._tree.operations import DEVICE, PYFUSE3
from monarch.fs.errors import FsError

# With less room than this, a store forwards contents of a tree without keeping them.
_LITTLE_BYTES = 1 << 30
_SERVERS = {DEVICE: "the device itself", PYFUSE3: "pyfuse3"}


def lines() -> Iterator[tuple[str, str, str]]:
    """Subject, text, and what to do; the last is empty where nothing is wrong."""
    missing = [*problems(), *filter(None, (entry_problem(), home_problem()))]
    for line in missing:
        text, _, remedy = line.partition(" (")
        yield "fs", f"mounts do not work: {text}", remedy.removesuffix(")")
    if not missing:
        how = "mount(2)" if may_mount() else f"fusermount3, user_allow_other {'set' if user_allow_other() else 'not set'}"
        yield "fs", f"mounts work, by {how}", ""
        backend, why = serving_backend()
        yield "fs", f"mounts are served by {_SERVERS[backend]}{why and f': {why}'}", ""
        for text, remedy in remarks():
            yield "fs", text, remedy
    yield _store()


def _store() -> tuple[str, str, str]:
    try:
        place = store_place()
    except FsError as e:
        return "fs", f"{e.path}: {e.reason}", e.hint or ""
    where = "in memory" if place.in_memory else "on the disk"
    text = f"store {place.folder}: {_size(place.held)} of at most {_size(place.limit)}, {_size(place.free)} free {where}"
    is_little = min(place.limit, place.held + place.free) < _LITTLE_BYTES
    return "fs", text, "free some space there, or set fs_store_dir and fs_store_bytes" if is_little else ""


def _size(number: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if number >= 1 << power:
            return f"{number / (1 << power):.1f} {unit}"
    return f"{number} bytes"
