"""The checked arguments of `run`: a command as a launch, and the hosts that it runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from monarch.spmd.errors import LaunchArgumentError
from monarch.spmd.torchrun import LaunchSpec, parse_torchrun

if TYPE_CHECKING:
    from monarch.actor import HostMesh

_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def launch_of(command: Sequence[str], environ: Mapping[str, str] | None = None) -> LaunchSpec:
    """A command line as a launch: `torchrun ...`, `python script.py ...` with one rank a host, or any other program with one rank a host.

    TypeError and ValueError for what is no command line, `LaunchArgumentError` for an option of torchrun.
    """
    if isinstance(command, str) or not all(isinstance(word, str) for word in command):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"command={command!r}: expected a list of words, like ['torchrun', '--nproc-per-node=4', 'train.py']")
    for word in command:
        if "\0" in word:
            raise ValueError(f"command: the word {word!r} has a null character")
    words = list(command)
    if not words or not words[0]:
        raise ValueError("command: a launch names a program, like ['torchrun', '--nproc-per-node=4', 'train.py']")
    name = os.path.basename(words[0])
    if name == "torchrun":
        return parse_torchrun(words[1:], environ=environ)
    if name.startswith("python") and len(words) > 2 and words[1] == "-m" and words[2] in _TORCHRUN_MODULES:
        return parse_torchrun(words[3:], environ=environ)
    # `$$` in `sh -c 'echo $$'` is no macro of torchrun.
    return replace(_without_torchrun(words, name), has_macros=False)


def _without_torchrun(words: list[str], name: str) -> LaunchSpec:
    if name.startswith("python"):
        return _python(words)
    if words[0] == "-m":
        return _module(words[1:])
    if words[0].endswith(".py"):
        return LaunchSpec(words[0], tuple(words[1:]))
    return LaunchSpec(words[0], tuple(words[1:]), kind="command")


def _python(words: list[str]) -> LaunchSpec:
    rest = words[1:]
    if rest and rest[0] == "-u":
        rest = rest[1:]
    if rest and rest[0] == "-m":
        return _module(rest[1:])
    if not rest or rest[0].startswith("-"):
        # An interpreter with options of its own is a program like any other.
        return LaunchSpec(words[0], tuple(words[1:]), kind="command")
    return LaunchSpec(rest[0], tuple(rest[1:]))


def _module(words: list[str]) -> LaunchSpec:
    if not words:
        raise LaunchArgumentError("-m", "a module is missing")
    return LaunchSpec(words[0], tuple(words[1:]), kind="module")


def host_count(hosts: HostMesh, spec: LaunchSpec) -> int:
    """How many hosts of the mesh a launch runs on: all, or as many as `--nnodes` has at most. `LaunchArgumentError` for too few."""
    there = hosts.extent.nelements
    if not spec.has_hosts:
        return there
    option = "--standalone" if spec.standalone else "--nnodes"
    if there < spec.min_hosts:
        raise LaunchArgumentError(f"{option}={spec.min_hosts}", f"the mesh has {there} {'host' if there == 1 else 'hosts'}")
    if there > spec.max_hosts and len(hosts.extent.labels) != 1:
        raise LaunchArgumentError(f"{option}={spec.max_hosts}", f"the mesh has {there} hosts", hint="give a slice of the mesh")
    return min(there, spec.max_hosts)


def on_one_host(spec: LaunchSpec, world_size: int) -> LaunchSpec:
    """The same world with all its ranks on one host."""
    return replace(spec, per_host=world_size, has_hosts=False, min_hosts=1, max_hosts=1, master_addr=None, master_port=None)
