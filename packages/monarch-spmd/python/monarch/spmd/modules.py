"""The modules that the programs of ranks find imported: the argument `preload` of `run`, as a request for the procs of an attempt."""

from __future__ import annotations

import os
from collections.abc import Sequence

from monarch.extension import checked_modules
from monarch.extension.command import Preload
from monarch.extension.program import VARIABLE
from monarch.spmd import start_program
from monarch.spmd.environment import Attempt, RankPlace, variables
from monarch.spmd.torchrun import LaunchSpec

_OF_PROGRAM = (start_program.STACKS_FILE, start_program.DEBUGGER, start_program.DEBUGGER_FILES, VARIABLE)
_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def checked(given: Sequence[str]) -> tuple[str, ...]:
    """The names of the modules, each once; `TypeError` or `ValueError` for other values."""
    return tuple(checked_modules(given))


def request(modules: Sequence[str], spec: LaunchSpec, per_host: int, env: dict[str, str], workdir: str | None) -> Preload | list[str]:
    """The request of the procs; empty for a program that is not Python, or whose file differs between the ranks."""
    if not modules or spec.kind == "command" or (spec.has_macros and "$" in spec.program):
        return []
    place = RankPlace(0, per_host, per_host)
    own = variables(place, "", 0, attempt=Attempt(""), error_file="", environ={**os.environ, **env})
    # This one is for all ranks, and libraries read it when they are loaded.
    threads = {name: own.pop(name) for name in ("OMP_NUM_THREADS",) if name in own}
    varying = {*own, *_OF_PROGRAM, *(_DEVICES if spec.virtual_local_rank else ())}
    folder = {"script": spec.program, "module": "."}.get(spec.kind)
    return Preload(modules, varying, env={**env, **threads}, workdir=workdir, folder=folder)
