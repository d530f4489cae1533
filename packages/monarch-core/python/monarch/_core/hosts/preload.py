"""The modules that procs find imported: the argument `preload` of a spawn, or the setting of this name."""

from __future__ import annotations

from monarch._core.config import config
from monarch._core.config.module_names import checked_modules
from monarch._core.process.current import simulated_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any


class Preload:
    """Modules that procs find imported, for programs that run in processes of these procs.

    A proc of such a spawn can start one Python program (`CommandLine.is_preloaded`) as a fork of the interpreter with the modules. The
    modules are imported with the variables `env` added to the environment of the proc, in the directory `workdir`, and with the import
    path of a fresh interpreter, behind the directory `folder`, which may be named by a file in it. The program has the same environment,
    but for the variables in `varying`.

    >>> Preload(["json"], ["RANK"], folder="/work")
    Preload(['json'])
    """

    def __init__(
        self,
        modules: Sequence[str],
        varying: Collection[str],
        *,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        folder: str | None = None,
    ) -> None:
        self.modules = checked_modules(modules)
        self.varying = frozenset(varying)
        self.env = dict(env or {})
        self.workdir = workdir
        self.folder = folder

    def __repr__(self) -> str:
        return f"Preload({self.modules!r})"


def wanted_modules(given: Sequence[str] | Preload | None, of_hosts: Callable[[], list[str]], has_command: bool) -> Preload | list[str]:
    """The checked modules of a spawn, by default those of the hosts.

    `of_hosts` gives the modules of the hosts. `has_command`: a command starts the procs, which no interpreter with modules can replace.
    """
    if isinstance(given, Preload):
        modules: Preload | list[str] = given
    elif given is not None:
        modules = checked_modules(given)
        if modules and has_command:
            raise ValueError(f"preload={modules!r}: bootstrap_command starts another program, which imports its modules itself")
    else:
        modules = [] if has_command else of_hosts()
    here = simulated_process()
    return [] if here is not None and here.execution.world is not None else modules


def request(preload: Preload | list[str], path: list[str], is_whole: bool, workspace: Any, is_forked: bool) -> dict[str, Any]:
    """The part of a proc's plan for the zygote. `is_forked`: the ordinary way is a fork."""
    programs = isinstance(preload, Preload)
    folder = preload.folder if isinstance(preload, Preload) else None
    return {
        "modules": preload.modules if isinstance(preload, Preload) else preload,
        "programs": sorted(preload.varying) if isinstance(preload, Preload) else [],
        "path": ([] if folder is None else [folder]) if programs else path,
        "is_whole_path": is_whole,
        "workspace": workspace,
        "fork": is_forked,
        "limit": config.spawn_ready_seconds() or 0.0,
    }
