"""`monarch doctor --preload MODULES`: what a set of modules costs and saves on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import NamedTuple

import click

from monarch._core.call.actor import Actor, endpoint
from monarch._core.config.module_names import checked_modules
from monarch._core.hosts.here import this_host

# The procs whose start and memory are measured, after a first one.
PROCS = 4
_TIMEOUT = 120.0
_MARK = "\nseconds: "
_CODE = "import sys, time; start = time.monotonic(); import {names}; print({mark!r}, time.monotonic() - start)"


class Cost(NamedTuple):
    """Seconds and bytes. `with_seconds` and `with_bytes` are those of one more proc with the modules imported, the others without."""

    import_seconds: float
    first_seconds: float
    with_seconds: float
    with_bytes: int
    without_bytes: int
    has_effect: bool


class Memory(Actor):
    """Measures its process."""

    @endpoint
    def own(self, modules: list[str]) -> tuple[bool, int]:
        """Whether the process has the modules, and the memory that it shares with no other process."""
        has_all = all(name in sys.modules for name in modules)
        for name in modules:
            __import__(name)
        with open("/proc/self/smaps_rollup") as file:
            sizes = [int(line.split()[1]) << 10 for line in file if line.startswith(("Private_Clean", "Private_Dirty"))]
        return has_all, sum(sizes)


def measure(modules: list[str]) -> Cost:
    """Starts procs with the modules and without; `RuntimeError` with the last line of the error if an import fails."""
    code = _CODE.format(names=", ".join(modules), mark=_MARK)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_TIMEOUT)
    _, mark, seconds = done.stdout.rpartition(_MARK)
    if done.returncode or not mark:
        raise RuntimeError((done.stderr.strip() or f"the interpreter ends with exit code {done.returncode}").splitlines()[-1])
    first, _, _ = _spawn(1, modules, modules)
    spent, has_all, own = _spawn(PROCS, modules, modules)
    _, _, plain = _spawn(1, [], modules)
    return Cost(float(seconds), first, spent / PROCS, own // PROCS, plain, has_all)


def _spawn(count: int, preload: list[str], modules: list[str]) -> tuple[float, bool, int]:
    start = time.monotonic()
    with this_host().spawn_procs({"procs": count}, name="doctor", preload=preload) as procs:
        procs.initialized.get(timeout=_TIMEOUT)
        spent = time.monotonic() - start
        found = procs.spawn("memory", Memory).own.call(modules).get(timeout=_TIMEOUT).values()
    return spent, all(has_all for has_all, _ in found), sum(size for _, size in found)


def report(text: tuple[str, ...], as_json: bool) -> int:
    """Prints the figures; gives the exit code: 1 if the modules cannot be preloaded."""
    try:
        modules = checked_modules([name for names in text for name in names.replace(",", " ").split()])
    except ValueError as e:
        raise click.UsageError(str(e)) from None
    if not modules:
        raise click.UsageError("--preload needs at least one name of a module")
    try:
        cost = measure(modules)
    except (RuntimeError, subprocess.TimeoutExpired) as e:
        click.echo(f"monarch: {', '.join(modules)} cannot be imported: {e}", err=True)
        return 1
    if as_json:
        click.echo(json.dumps(cost._asdict(), indent=2))
    else:
        click.echo(f"without preload: each proc imports for {cost.import_seconds:.2f} s and has {_mib(cost.without_bytes)} of its own")
        click.echo(f"with preload:    the first proc of a host starts in {cost.first_seconds:.2f} s")
        click.echo(f"                 each further one in {1000 * cost.with_seconds:.0f} ms, and has {_mib(cost.with_bytes)} of its own")
        if not cost.has_effect:
            click.echo("preload has no effect: the reason is above")
    return 0 if cost.has_effect else 1


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
