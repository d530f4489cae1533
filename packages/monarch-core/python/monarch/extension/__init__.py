"""The interface for other wheels. Each name is loaded on first use, so that importing this module is cheap.

No other part of core is for other wheels: no module outside monarch-core imports `monarch._core`. See docs/extending.md.
"""

from __future__ import annotations

from monarch._core.config.facade import lazy_names as _lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import thread_limit as thread_limit
    from monarch._core.config.entry_points import BrokenEntry as BrokenEntry
    from monarch._core.config.entry_points import LoadedEntry as LoadedEntry
    from monarch._core.config.entry_points import entry_names as entry_names
    from monarch._core.config.entry_points import load_entry as load_entry
    from monarch._core.config.module_names import checked_modules as checked_modules
    from monarch._core.config.setting import Setting as Setting
    from monarch._core.config.wheel import install_hint as install_hint
    from monarch._core.config.wheel import missing_wheel as missing_wheel
    from monarch._core.config.wheel import needs_wheel as needs_wheel
    from monarch._core.debug.pdb_file import PDB_FILE as PDB_FILE
    from monarch._core.errors.extension import PromiseDropped as PromiseDropped
    from monarch._core.errors.extension import PromiseFailed as PromiseFailed
    from monarch._core.errors.extension import RequestError as RequestError
    from monarch._core.errors.extension import ServiceError as ServiceError
    from monarch._core.errors.known_rows import error_text as error_text
    from monarch._core.errors.table import ErrorRow as ErrorRow
    from monarch._core.extension.host_folders import remove_with_host as remove_with_host
    from monarch._core.extension.ids import HostId as HostId
    from monarch._core.extension.ids import JobId as JobId
    from monarch._core.extension.ids import ProcId as ProcId
    from monarch._core.extension.ids import Rank as Rank
    from monarch._core.extension.listening import HostEnd as HostEnd
    from monarch._core.extension.listening import HostJoined as HostJoined
    from monarch._core.extension.listening import Listening as Listening
    from monarch._core.extension.listening import ProcJoined as ProcJoined
    from monarch._core.extension.listening import listen as listen
    from monarch._core.extension.membership import Member as Member
    from monarch._core.extension.membership import end_of as end_of
    from monarch._core.extension.membership import is_ending as is_ending
    from monarch._core.extension.membership import is_simulated as is_simulated
    from monarch._core.extension.membership import member as member
    from monarch._core.extension.membership import places as places
    from monarch._core.extension.membership import reach as reach
    from monarch._core.extension.membership import watch as watch
    from monarch._core.extension.proc_end import ProcEnd as ProcEnd
    from monarch._core.extension.promise import Promise as Promise
    from monarch._core.extension.promise import promise as promise
    from monarch._core.extension.request import Request as Request
    from monarch._core.extension.request import ask as ask
    from monarch._core.extension.request import serve as serve
    from monarch._core.extension.service import Service as Service
    from monarch._core.extension.service import service as service
    from monarch._core.extension.setting import seconds as seconds
    from monarch._core.extension.setting import setting as setting
    from monarch._core.extension.thread import when_done as when_done
    from monarch._core.hosts.proc_setup import ProcSetup as ProcSetup
    from monarch._core.process.peer import is_own_peer as is_own_peer
    from monarch._core.process.python_command import python_command as python_command
    from monarch._core.process.signal_thread import SignalThread as SignalThread
    from monarch._core.start.command_main import run_proc as run_proc

# The version of this interface: a wheel that was built for another major version is refused.
VERSION = (0, 1)

# Where each name is implemented: generated from the imports above by `python -m tools.generate_docs --write`.
_HOMES = {
    "_native": ("thread_limit",),
    "config.entry_points": ("BrokenEntry", "LoadedEntry", "entry_names", "load_entry"),
    "config.module_names": ("checked_modules",),
    "config.setting": ("Setting",),
    "config.wheel": ("install_hint", "missing_wheel", "needs_wheel"),
    "debug.pdb_file": ("PDB_FILE",),
    "errors.extension": ("PromiseDropped", "PromiseFailed", "RequestError", "ServiceError"),
    "errors.known_rows": ("error_text",),
    "errors.table": ("ErrorRow",),
    "extension.host_folders": ("remove_with_host",),
    "extension.ids": ("HostId", "JobId", "ProcId", "Rank"),
    "extension.listening": ("HostEnd", "HostJoined", "Listening", "ProcJoined", "listen"),
    "extension.membership": ("Member", "end_of", "is_ending", "is_simulated", "member", "places", "reach", "watch"),
    "extension.proc_end": ("ProcEnd",),
    "extension.promise": ("Promise", "promise"),
    "extension.request": ("Request", "ask", "serve"),
    "extension.service": ("Service", "service"),
    "extension.setting": ("seconds", "setting"),
    "extension.thread": ("when_done",),
    "hosts.proc_setup": ("ProcSetup",),
    "process.peer": ("is_own_peer",),
    "process.python_command": ("python_command",),
    "process.signal_thread": ("SignalThread",),
    "start.command_main": ("run_proc",),
}
# End of the generated table.

if not TYPE_CHECKING:  # type checkers go by the imports above
    __all__, __getattr__, __dir__ = _lazy_names(__name__, _HOMES, "monarch._core")
    __all__.append("VERSION")
