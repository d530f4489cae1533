"""Notifies procs that code has changed: they import new modules, and reload changed ones on request."""

from __future__ import annotations

import marshal

from monarch._core._native.protocol import GATHER, OK
from monarch._core.process.process import WORKSPACE, LocalProcess
from monarch._core.process.request_fields import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from monarch._core._native import PendingCall
    from monarch._core.sync.path import Place

    # Host, proc, pid, module, and the packed exception (`pack_exception`).
    Failed = tuple[str, str, int, str, tuple[str, str, str, bytes | None]]


def ask_procs(
    process: LocalProcess,
    procs: Sequence[int],
    places: list[Place],
    is_mirrored: bool,
    reload: bool,
    wait: Callable[[PendingCall], Any],
) -> list[Failed]:
    """Notifies procs; gives the modules that could not be reloaded. Procs that end meanwhile are left out."""
    if not procs:
        return []
    cell = process.native.cell(GATHER, len(procs), list(procs))
    for rank, proc in enumerate(procs):
        process.native.request(proc, WORKSPACE, marshal.dumps((rank, places, is_mirrored, reload)), cell.slot)
    wait(cell)
    failed: list[Failed] = []
    for result in cell.results():
        if result is not None and result.status == OK:
            failed += marshal.loads(result.raw())
    return failed


def handle_request(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    """Handles the notice in a proc, on its housekeeping thread, which must not run code of modules."""
    rank, places, is_mirrored, reload = fields(body, int, list, bool, bool)

    def run() -> None:
        failed: list[Failed] = []
        try:
            failed = _update(process, places, is_mirrored, reload)
        finally:
            process.native.reply(sender, slot, rank, OK, marshal.dumps(failed))

    try:
        process.execution.start_thread(run)
    except RuntimeError as e:  # no thread can be started, and the requester waits
        from monarch._core.pickle.remote_exception import pack_exception

        failed = [(process.host, process.name, process.pid, "any module", pack_exception(e))]
        process.native.reply(sender, slot, rank, OK, marshal.dumps(failed))


def _update(process: LocalProcess, places: list[Place], is_mirrored: bool, reload: bool) -> list[Failed]:
    import importlib

    from monarch._core.sync import module_reload
    from monarch._core.sync import path as workspace_path

    if is_mirrored:
        workspace_path.accept(places)
        tops = workspace_path.mirrors(places)
    else:
        tops = [local for local, _, _ in places]
    if not reload:
        importlib.invalidate_caches()
        return []
    info = process.place.info
    proc = info.display(process.place.rank) if info is not None else process.name
    _, failed = module_reload.reload_changed(tops)
    return [(process.host, proc, process.pid, module, packed) for module, packed in failed]
