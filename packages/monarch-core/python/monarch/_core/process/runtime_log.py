"""The runtime's own log: its actions and decisions, as events with stable names and fields (docs/logs.md).

Each event goes to stderr as one line of text if `log_filter` permits, and to `runtime.jsonl` in the job's log directory as one line of
JSON if `file_log_level` permits. All processes of a job on a machine append to the same file, each line by one write, which the kernel does
not mix with others. An event below both levels costs a comparison.
"""

from __future__ import annotations

import os
from _thread import RLock

from monarch._core._native.events import is_on, log_line, supervision_handled
from monarch._core.config import config
from monarch._core.errors.complaint import complain
from monarch._core.process.identity import from_base58

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from monarch._core._native.system import ProcessEnd
    from monarch._core.errors.failure import MeshFailure
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.process.process import LocalProcess

LEVELS = {"trace": 5, "debug": 10, "info": 20, "warn": 30, "error": 40, "off": 60}
DEBUG, INFO, WARN, ERROR = 10, 20, 30, 40
_NAMES = {number: name for name, number in LEVELS.items()}
FILE = "runtime.jsonl"
# Whether an event about the outcome of a failure means that it was handled.
_HANDLED = {"failure.handled": True, "failure.unhandled": False}


class LogFilter:
    """The least level that passes, for each target: the part of an event's name before the first dot."""

    __slots__ = ("default", "lowest", "targets", "unknown")

    def __init__(self, text: str, default: int) -> None:
        self.default = default
        self.targets: dict[str, int] = {}
        # The words that are no levels. The other words apply.
        self.unknown: list[str] = []
        for part in filter(None, (p.strip() for p in text.split(","))):
            target, given, word = part.rpartition("=")
            level = LEVELS.get({"warning": "warn"}.get(word.strip().lower(), word.strip().lower()))
            if level is None:
                self.unknown.append(part)
            elif given:
                self.targets[target.strip()] = level
            else:
                self.default = level
        self.lowest = min([self.default, *self.targets.values()])

    def passes(self, target: str, level: int) -> bool:
        return level >= self.targets.get(target, self.default)


_lock = RLock()
_stderr = LogFilter("", WARN)
_file = LogFilter("", LEVELS["off"])
# The least level that any output accepts, at which most calls return.
_lowest = WARN
# The least accepted level for events of which the user is also notified in another way.
_lowest_notified = LEVELS["off"]
_process: LocalProcess | None = None
_base: dict[str, Any] = {}
_fd = -1
_path = ""
# A full disk has cut a line short: the next one begins on a line of its own.
_torn = False
_reported: set[int | None] = set()
# The mesh and rank of procs that this process spawned and that have not ended.
_spawned: dict[int, tuple[str, int]] = {}


def start(process: LocalProcess) -> None:
    """Starts the log of this process. In a fork of the zygote no state of the zygote's log is kept."""
    global _process, _base
    _process = process
    info = process.place.info
    name = "client" if info is None else f"{info.unique_name}/{process.place.rank}"
    _base = {"host": process.host, "pid": process.pid, "proc": name}
    _spawned.clear()
    _configure()
    config.on_change(_changed)


def _changed(values: dict[str, object]) -> None:
    if values.keys() & {"log_filter", "file_log_level", "log_dir"}:
        _configure()


def _configure() -> None:
    global _stderr, _file, _lowest, _lowest_notified, _path, _fd
    with _lock:
        _stderr = LogFilter(config.value("log_filter"), WARN)
        _file = LogFilter(config.value("file_log_level"), LEVELS["off"])
        if _file.lowest < LEVELS["off"]:
            # Imported now, because a failure may be the first line, and no descriptor may be left then to read the module from its file.
            import json as json
        _lowest = min(_stderr.lowest, _file.lowest)
        _lowest_notified = _lowest if _stderr.lowest <= INFO else _file.lowest
        if _process is not None and _process.is_client:
            from monarch._core.process.log_directory import job_directory

            _process.place.log_dir = job_directory(_process.uid)
            _process.native.set_log_dir(_process.place.log_dir)
        path = "" if _process is None else os.path.join(_process.place.log_dir, FILE)
        if path != _path:
            if _fd >= 0:
                os.close(_fd)
            _path, _fd = path, -1
    unknown = [*_stderr.unknown, *_file.unknown]
    if unknown:
        complain(f"monarch: no level of the log: {', '.join(unknown)}: expected {' '.join(LEVELS)}, or target=level,...")


def event(name: str, level: int = INFO, is_notified: bool = False, **fields: object) -> None:
    """Writes an event; `detail` is its text. `is_notified`: the user is notified in another way too, so stderr shows it from `info` on.

    Fields that are None are left out.
    """
    if is_on():
        _record(name, level, fields)
    if level >= (_lowest_notified if is_notified else _lowest):
        _log(name, level, is_notified, fields)


def _record(name: str, level: int, fields: dict[str, object]) -> None:
    given = {key: value for key, value in fields.items() if value is not None}
    text = ""
    try:
        if given:
            from json import dumps

            text = dumps(given, default=str)
    except (ImportError, OSError):
        pass  # recording began after this process had run out of descriptors: the event matters more than its fields
    log_line(name, level, text)


def wants(level: int) -> bool:
    """Whether any output accepts events of this level, for events that take some work."""
    return level >= _lowest


def is_taken(level: int) -> bool:
    """Whether an output or the recorder takes events of this level."""
    return level >= _lowest or is_on()


def _log(name: str, level: int, is_notified: bool, fields: dict[str, object]) -> None:
    target = name.partition(".")[0]
    fields = {key: value for key, value in fields.items() if value is not None}
    shown = min(level, INFO) if is_notified else level
    if _stderr.passes(target, shown):
        complain(_text(name, shown, fields))
    if _process is not None and _process.pid == os.getpid() and _file.passes(target, level):
        _append(_line(name, level, fields))


def _text(name: str, level: int, fields: dict[str, object]) -> str:
    detail = fields.get("detail")
    if level >= WARN and detail:
        return f"monarch: {name}: {detail}"
    words = [f"{key}={value}" for key, value in fields.items() if key != "detail"]
    return " ".join(["monarch:", name, *words, *([str(detail)] if detail else [])])


def _line(name: str, level: int, fields: dict[str, object]) -> bytes:
    import json
    import time

    now = time.time_ns()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 1_000_000_000))
    first = {"time": f"{stamp}.{now // 1000 % 1_000_000:06}Z", "level": _NAMES[level], "event": name}
    return json.dumps({**first, **_base, **fields}, default=str).encode() + b"\n"


def _append(line: bytes) -> None:
    global _fd, _torn
    with _lock:
        try:
            if _fd < 0:
                from monarch._core.process.log_directory import make_private

                make_private(os.path.dirname(_path))
                _fd = os.open(_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            line = b"\n" + line if _torn else line
            written = os.write(_fd, line)
            _torn = written < len(line)
        except OSError as e:
            if e.errno not in _reported:
                _reported.add(e.errno)
                complain(f"monarch: cannot write {_path}: {e.strerror} (os error {e.errno}): events are left out until this is over")


# ---- events with several parts


def procs_spawned(info: MeshInfo) -> None:
    if _lowest <= INFO or _file.lowest < LEVELS["off"]:
        for rank, uid in enumerate(info.procs):
            _spawned[uid] = info.unique_name, rank
            event("proc.spawn", mesh=info.unique_name, rank=rank)


def proc_ended(uid: int, end: ProcessEnd) -> None:
    """Logs the end of a process in the log of its spawner."""
    mesh, rank = _spawned.pop(uid, (None, None))
    if mesh is not None:
        lost = not end.is_stop and end.kind != "returned"
        # The reason of a stop has its bounds before it.
        detail = end.detail.rpartition("\n")[2] or None
        more = {"code": end.exit_code, "signal": end.signal, "core_dumped": end.core_dumped or None, "detail": detail}
        event("proc.end", WARN if lost else INFO, True, mesh=mesh, rank=rank, child=end.pid or None, kind=end.kind, **more)


def proc_unresponsive(uid: int, detail: str, stacks: bytes) -> None:
    """Logs that Python no longer runs in a proc of this process's agent or, if `detail` is empty, that it runs again. `stacks` is JSON or
    empty.
    """
    mesh, rank = _spawned.get(uid, (None, None))
    if not detail:
        event("proc.responsive", mesh=mesh, rank=rank)
    elif _lowest_notified <= WARN:
        import json

        event("proc.unresponsive", WARN, True, mesh=mesh, rank=rank, stacks=json.loads(stacks) if stacks else None, detail=detail)


def failure_event(name: str, level: int, failure: MeshFailure, owner: str) -> None:
    """Logs the outcome of a failure at `owner`, the owner of the mesh. The texts for users are printed elsewhere."""
    if is_on() and name in _HANDLED:
        try:
            mesh = from_base58(failure.mesh_name.rpartition("-")[2])
        except ValueError:  # a failure of no mesh, or one made by a program
            mesh = 0
        for crashed in failure.crashed_ranks:
            supervision_handled(mesh, crashed, owner, _HANDLED[name])
    if level < _lowest_notified and not is_on():
        return
    from monarch._core.errors.failure import cause

    reason = failure.reason
    text = cause(reason, host=failure.host, mesh=failure.name)
    rank = failure.crashed_ranks[0] if failure.crashed_ranks else None
    event(name, level, True, actor=failure.actor, mesh=failure.mesh_name, rank=rank, owner=owner, kind=reason.kind, detail=text)


def _config_warning(text: str) -> None:
    event("config.warning", WARN, True, detail=text)


config.report_warnings(_config_warning)
