"""Processes of one mesh that differ in what they should have in common: packages, code of the program, environment, and devices.

A difference is a finding where few processes differ from many: one host from the others, or one rank from all others. A value that is
another one on each host, such as an address, is none. A process or host without an answer may have either value: there is a finding only
if the few are still fewer with all of them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Node
from monarch.telemetry._diagnose.software import Software
from monarch.telemetry._diagnose.wait_graph import WaitGraph

_SOURCE = "software of the processes"
# The least hosts and ranks of which one may differ from the others in a variable of which nothing is known.
_LEAST = 3
# The most names of a sentence.
_MOST = 4
# Variables that belong to a host, to a rank or to a session.
_OWN_NAME = re.compile(
    r"IFNAME|_HCA|NET_DEVICES|VISIBLE_DEVICES|RANK|LOCAL|NODE|ADDR|PORT|HOST|_IP|_ID$|_IDS?_|PID|NAME|UID|FD$|SOCK|TORCHELASTIC|^SSH"
    r"|^XDG|^DBUS|^TERM|^SHLVL$|PWD$|^_$|^DISPLAY$|^TMUX|^LS_COLORS$|^MAIL$|^USER$|^HOME$|^LANG|^LC_|^INVOCATION|^JOURNAL|^SLURM|^PBS"
    r"|^KUBERNETES|TMPDIR|_DIR$|_FILE$|_LOG|^PATH$|^PS1$"
)
_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NO_DEVICE = ("", "-1", "NoDevFiles")


class _Member(NamedTuple):
    """A process of a mesh."""

    uid: str
    host: str
    rank: int


class _Mesh(dict[_Member, Software]):
    """The processes of a mesh that have reported their software, and the numbers of processes and of whole hosts that have not."""

    unknown = 0
    unknown_hosts = 0


class _Odd(NamedTuple):
    """Few processes with one value, and many with another; None where the value is absent."""

    few: tuple[_Member, ...]
    value: object
    many: tuple[_Member, ...]
    usual: object


def packages(graph: WaitGraph) -> list[Finding]:
    """Packages of which few processes have loaded another version."""
    found: list[Finding] = []
    for mesh in _meshes(graph):
        for few, odd in _grouped(_odd_ones({proc: one.packages for proc, one in mesh.items()}, mesh, is_absent_equal=True), mesh):
            name, first = next(iter(odd.items()))
            more = f" and {len(odd) - 1} more packages differ" if len(odd) > 1 else ""
            sentence = (
                f"{_subject(graph, few, mesh)} runs {name} {first.value} where {_count(graph, first.many, mesh)} run {first.usual}{more}"
            )
            facts = [Fact(", ".join(f"{name} {one.value}, elsewhere {one.usual}" for name, one in _first(odd)), _SOURCE)]
            found.append(Finding(sentence, _nodes(few, mesh), tuple(facts), f"pip show {name}", 42))
    return found


def code(graph: WaitGraph) -> list[Finding]:
    """Modules of the program of which few processes have loaded other functions."""
    found: list[Finding] = []
    for mesh in _meshes(graph):
        for few, odd in _grouped(_odd_ones({proc: one.code for proc, one in mesh.items()}, mesh, is_absent_equal=True), mesh):
            names = ", ".join(name for name, _ in _first(odd))
            of = next(iter(odd.values()))
            sentence = f"{_subject(graph, few, mesh)} runs other code of {names} than {_count(graph, of.many, mesh)}"
            facts = [Fact(", ".join(f"functions of {name}: {one.value}, elsewhere {one.usual}" for name, one in _first(odd)), _SOURCE)]
            module = next(iter(odd))
            found.append(Finding(sentence, _nodes(few, mesh), tuple(facts), f'python -c "import {module}; print({module}.__file__)"', 40))
    return found


def environment(graph: WaitGraph) -> list[Finding]:
    """Variables with another value for few processes."""
    found: list[Finding] = []
    client = next((proc.host for proc in graph.index.snapshot.procs if proc.mesh is None), "")
    for mesh in _meshes(graph):
        odd_ones = {
            name: odd
            for name, odd in _odd_ones({proc: one.variables for proc, one in mesh.items()}, mesh, is_absent_equal=False).items()
            if not _OWN_NAME.search(name) and _is_certain(odd, mesh, client)
        }
        for few, odd in _grouped(odd_ones, mesh):
            first = next(iter(odd.items()))
            more = f"; {len(odd) - 1} more variables differ" if len(odd) > 1 else ""
            sentence = f"{_subject(graph, few, mesh)} has {_variable(*first)} {_count(graph, first[1].many, mesh)}{_usual(first[1])}{more}"
            facts = [Fact(", ".join(f"{name} {_shown(one.value)}, elsewhere {_shown(one.usual)}" for name, one in _first(odd)), _SOURCE)]
            found.append(Finding(sentence, _nodes(few, mesh), tuple(facts), f"printenv {first[0]}", 38))
    return found


def devices(graph: WaitGraph) -> list[Finding]:
    """Ranks without a GPU where others have one, and hosts with fewer GPUs than others."""
    found: list[Finding] = []
    for mesh in _meshes(graph):
        for name in _DEVICES:
            given = {proc: one.variables.get(name) for proc, one in mesh.items()}
            without = [proc for proc, value in given.items() if value in _NO_DEVICE]
            has = [proc for proc, value in given.items() if value not in _NO_DEVICE and value is not None]
            if without and len(without) + mesh.unknown < len(has):
                value = given[without[0]]
                text = "is empty" if not value else f"is {value}"
                sentence = f"{_subject(graph, without, mesh)} has no GPU: {name} {text}, where {_count(graph, has, mesh)} have one"
                facts = [Fact(f"{name} is {given[has[0]]!r} for {graph.index.label(('proc', has[0].uid))}", _SOURCE)]
                found.append(Finding(sentence, _nodes(without, mesh), tuple(facts), "nvidia-smi -L", 60))
        odd = _odd({proc: one.gpus for proc, one in mesh.items() if one.gpus is not None}, mesh)
        if (
            odd is not None
            and _is_hosts(odd.few, mesh)
            and isinstance(odd.value, int)
            and isinstance(odd.usual, int)
            and odd.value < odd.usual
        ):
            sentence = f"{_subject(graph, odd.few, mesh)} has {odd.value} GPUs where {_count(graph, odd.many, mesh)} have {odd.usual}"
            found.append(Finding(sentence, _nodes(odd.few, mesh), (Fact("devices in /dev", _SOURCE),), "nvidia-smi -L", 58))
    return found


def _meshes(graph: WaitGraph) -> Iterator[_Mesh]:
    """The processes of each mesh that have reported their software; a mesh of one process has nothing to compare."""
    software = {one.proc: one for one in graph.index.snapshot.software if one.packages}
    meshes: dict[tuple[str, int], _Mesh] = {}
    for proc in graph.index.snapshot.procs:
        if proc.mesh is not None and proc.uid in software:
            meshes.setdefault((proc.mesh, proc.size), _Mesh())[_Member(proc.uid, proc.host, proc.rank or 0)] = software[proc.uid]
    for (name, size), mesh in meshes.items():
        listed = Counter(proc.host for proc in graph.index.snapshot.procs if (proc.mesh, proc.size) == (name, size))
        # A host without an answer lists no processes, and two meshes of one name have more than the size of one.
        unlisted = max(0, size - listed.total())
        mesh.unknown = listed.total() + unlisted - len(mesh)
        mesh.unknown_hosts = len(set(listed) - {proc.host for proc in mesh}) + math.ceil(unlisted / max(listed.values()))
        if len(mesh) > 1:
            yield mesh


def _odd_ones(values: Mapping[_Member, Mapping[str, str]], mesh: _Mesh, *, is_absent_equal: bool) -> dict[str, _Odd]:
    """The names with a value that few processes have. `is_absent_equal`: a process without a name differs from no other one."""
    names = sorted({name for one in values.values() for name in one})
    found: dict[str, _Odd] = {}
    for name in names:
        given = {proc: one.get(name) for proc, one in values.items() if not is_absent_equal or name in one}
        if (odd := _odd(given, mesh)) is not None:
            found[name] = odd
    return found


def _odd(values: Mapping[_Member, object], mesh: _Mesh) -> _Odd | None:
    """The few processes, if there are two values: those of one host, or one rank of three or more."""
    sets: dict[object, list[_Member]] = {}
    for proc, value in values.items():
        sets.setdefault(value, []).append(proc)
    if len(sets) != 2:
        return None
    # Of two sets of one size the first process counts as usual.
    (usual, many), (value, few) = sorted(sets.items(), key=lambda one: (-len(one[1]), _place(one[1][0])))
    if _is_hosts(few, values):
        hosts = [len({proc.host for proc in procs}) for procs in (few, many)]
        is_clear = not mesh.unknown_hosts or hosts[0] + mesh.unknown_hosts < hosts[1]
    else:
        is_clear = len(few) == 1 and len(values) >= _LEAST and (not mesh.unknown or 1 + mesh.unknown < len(many))
    if not is_clear:
        return None
    return _Odd(tuple(few), value, tuple(many), usual)


def _place(proc: _Member) -> tuple[int, str]:
    return proc.rank, proc.uid


def _is_hosts(few: Sequence[_Member], of: Iterable[_Member]) -> bool:
    """Whether these are all processes of their hosts, and there are others."""
    hosts, every = {proc.host for proc in few}, list(of)
    return len({proc.host for proc in every} - hosts) > 0 and all(proc in few for proc in every if proc.host in hosts)


def _is_certain(odd: _Odd, mesh: Mapping[_Member, Software], client: str) -> bool:
    """Whether a variable is one of a library, or the host is one of many; the client's host has variables of a session."""
    if any(isinstance(value, str) and not value.startswith("#") for value in (odd.value, odd.usual)):
        return True
    hosts = {proc.host for proc in odd.few}
    return _is_hosts(odd.few, mesh) and len(hosts) == 1 and client not in hosts and len({proc.host for proc in mesh}) >= _LEAST


def _grouped(odd_ones: Mapping[str, _Odd], mesh: Mapping[_Member, Software]) -> list[tuple[tuple[_Member, ...], dict[str, _Odd]]]:
    """The names by the processes that differ."""
    found: dict[tuple[_Member, ...], dict[str, _Odd]] = {}
    for name, odd in odd_ones.items():
        key = tuple(proc for proc in mesh if proc.host in {one.host for one in odd.few}) if _is_hosts(odd.few, mesh) else odd.few
        found.setdefault(key, {})[name] = odd
    return list(found.items())


def _first(odd: Mapping[str, _Odd]) -> list[tuple[str, _Odd]]:
    return list(odd.items())[:_MOST]


def _variable(name: str, odd: _Odd) -> str:
    if odd.value is None:
        return f"no {name}, which"
    if isinstance(odd.value, str) and not odd.value.startswith("#"):
        return f"{name}={odd.value!r} where"
    return f"another value of {name} than" if odd.usual is not None else f"{name}, which"


def _usual(odd: _Odd) -> str:
    if odd.value is None:
        return " have"
    if odd.usual is None:
        return " do not have" if isinstance(odd.value, str) and odd.value.startswith("#") else " do not have it"
    return "" if isinstance(odd.value, str) and odd.value.startswith("#") else f" have {_shown(odd.usual)}"


def _shown(value: object) -> str:
    if value is None:
        return "is not set"
    return "has another value" if isinstance(value, str) and value.startswith("#") else repr(value)


def _subject(graph: WaitGraph, few: Sequence[_Member], mesh: Mapping[_Member, Software]) -> str:
    if _is_hosts(few, mesh):
        return _hosts(few)
    first = graph.index.full(("proc", few[0].uid))
    return first if len(few) == 1 else f"{first} and {len(few) - 1} more"


def _count(graph: WaitGraph, many: Sequence[_Member], mesh: Mapping[_Member, Software]) -> str:
    hosts = {proc.host for proc in many}
    if len({proc.host for proc in mesh}) > 1 and _is_hosts(many, mesh):
        return _hosts(many) if len(hosts) == 1 else f"{len(hosts)} hosts"
    return graph.index.label(("proc", many[0].uid)) if len(many) == 1 else f"{len(many)} procs"


def _hosts(procs: Sequence[_Member]) -> str:
    names = sorted({proc.host for proc in procs})
    return f"host {names[0]}" if len(names) == 1 else f"hosts {', '.join(names[:_MOST])}"


def _nodes(few: Sequence[_Member], mesh: Mapping[_Member, Software]) -> tuple[Node, ...]:
    """The hosts that differ, else the processes."""
    if _is_hosts(few, mesh):
        return tuple(("host", name) for name in sorted({proc.host for proc in few}))
    return tuple(("proc", proc.uid) for proc in few)


DETECTORS = (
    Detector("packages", "versions of loaded packages that one host or rank has alone", packages),
    Detector("code", "functions of the program's modules that one host or rank has alone", code),
    Detector("environment", "variables that one host or rank has alone", environment),
    Detector("devices", "ranks without a GPU where others have one, hosts with fewer GPUs", devices),
)
