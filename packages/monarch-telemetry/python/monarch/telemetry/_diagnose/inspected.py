"""A snapshot from two looks into a job, each with the objects of `monarch ps --json` and `monarch stack --json`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from monarch.telemetry._diagnose import forms
from monarch.telemetry._diagnose.group_rank import Counted, GroupRank, counted_ranks
from monarch.telemetry._diagnose.snapshot import Actor, Called, End, Frame, Host, Proc, Snapshot, Thread, Wait
from monarch.telemetry._diagnose.software import Software, software_of
from monarch.telemetry._diagnose.supplies import Lookup, Supply, lookups_of, supplies_of
from monarch.telemetry._stacks.frames import parse_faulthandler

_COORDINATE = re.compile(r": (\d+)/(\d+)(?=[,}])", re.ASCII)
# Nanoseconds on a processor between both looks from which a thread works. On a busy machine a thread has a processor for some milliseconds
# at a time; one that wakes to look at a clock or a flag needs some microseconds.
_WORKS = 2_000_000
# The most characters of each end of a text of a program, and of a line of it; the most lines.
_MOST_TEXT, _MOST_LINES = 4000, 20
_POINT = re.compile(r"\{[^{}]*\}$")


class Looked(NamedTuple):
    """One look: the answers of an agent, about itself and about the other hosts of its job."""

    state: Mapping[str, Any] | None
    stacks: Mapping[str, Any] | None


class Name(NamedTuple):
    """The parts of a display such as `<root>.<train.Trainer trainer{'gpus': 0/4}>`; `kind` is empty for a process."""

    kind: str
    name: str
    rank: int | None
    size: int


def parse_name(display: str) -> Name:
    """The parts of the innermost name of a display."""
    inner = display.rpartition("<")[2].removesuffix(">")
    point = _POINT.search(inner)
    plain = inner if point is None else inner[: point.start()]
    kind, _, name = plain.rpartition(" ")
    rank, size = None, 1
    for number, extent in _COORDINATE.findall(point[0] if point else ""):
        rank, size = (rank or 0) * int(extent) + int(number), size * int(extent)
    return Name(kind, name, rank, size)


def snapshot(before: Looked, now: Looked, between: float) -> Snapshot:
    """The state of the second look. Waits are those that both looks have seen; threads are paused where their calls are the same."""
    earlier, stacks = dict(stack_answers(before)), dict(stack_answers(now))
    queues = {(proc["uid"], actor["mesh"]): actor for _, proc in procs_of(before) for actor in _actors(proc)}
    printed = {str(proc["uid"]): _printed(proc) for _, proc in procs_of(before)}
    ran_python = {*_own_stacks(before), *_own_stacks(now)}
    procs: list[Proc] = []
    actors: list[Actor] = []
    waits: list[Wait] = []
    ends: list[End] = []
    supplies: list[Supply] = []
    lookups: list[Lookup] = []
    malformed: list[str] = []
    # A host counts as silent if it has answered neither look.
    silent = {host.name for host in _hosts(before) if host.error}
    late = [f"host {host.name}: {host.error}" for host in _hosts(now) if host.error and host.state == "joined" and host.name not in silent]
    of_hosts, of_hosts_before = _host_resources(now), _host_resources(before)
    hosts = [
        host._replace(
            error=host.error if host.name in silent else "",
            resources=of_hosts.get(host.name, {}),
            resources_before=of_hosts_before.get(host.name, {}),
        )
        for host in _hosts(now)
    ]
    for host, proc in procs_of(now):
        uid = str(proc["uid"])
        if _is_observer(proc):
            continue
        answer = stacks.get(uid)
        try:
            of_proc = _proc(host, proc, answer, earlier.get(uid))._replace(ran_python=uid in ran_python, printed=_printed(proc))
            of_proc = of_proc._replace(printed_before=printed.get(uid, of_proc.printed))
            beside = (answer or {}).get("concurrent", {})
            its = [
                _actor(uid, one, queues.get((uid, one["mesh"])))._replace(concurrent=tuple(beside.get(one["mesh"], ())))
                for one in _actors(proc)
            ]
            of_waits, of_ends = list(_waits(uid, answer, earlier.get(uid))), list(_ends(answer))
            of_supplies, of_lookups = supplies_of(uid, earlier.get(uid), answer), lookups_of(uid, earlier.get(uid), answer)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            # The process made the answer itself, and may be of another release.
            malformed.append(f"process {proc['pid']}: its answer has another form: {error!r}"[:200])
            continue
        procs.append(of_proc)
        actors += its
        waits += of_waits
        ends += of_ends
        supplies += of_supplies
        lookups += of_lookups
    return Snapshot(
        tuple(procs),
        tuple(actors),
        tuple(hosts),
        tuple(waits),
        tuple(ends),
        seconds=between,
        missing=(*malformed, *_left_out(stacks.values()), *_without_waits(procs, between), *late, *_no_client(now)),
        groups=group_ranks((before, now), procs),
        software=_software(earlier, stacks),
        called=_called((*earlier.items(), *stacks.items())),
        is_orphan=_is_orphan(now),
        supplies=tuple(supplies),
        lookups=tuple(lookups),
    )


def _is_orphan(looked: Looked) -> bool:
    """Whether the answer is that of the agent of a host, and not that of a client."""
    return looked.state is not None and bool(looked.state["procs"]) and _is_observer(looked.state["procs"][0])


def _no_client(looked: Looked) -> Iterator[str]:
    """The missing client of an agent: it runs on another machine, or no job uses the host."""
    if looked.state is None or not _is_orphan(looked):
        return
    clients = [str(one) for one in cast("list[object]", looked.state.get("clients") or [])]
    agent = f"the agent of host {looked.state['host']} (pid {looked.state['agent_pid']})"
    if clients:
        yield f"client: {', '.join(clients[:4])}; only {agent} was looked at"
    else:
        yield f"client: {agent} has none; an agent ends the procs of a client that has ended"


def _left_out(answers: Iterable[object]) -> Iterator[str]:
    """The parts that answers lack, such as a report that has raised, once for all processes with the same reason."""
    found: dict[tuple[str, str], list[object]] = {}
    for answer in answers:
        if not isinstance(answer, dict):
            continue
        answer = cast("dict[str, object]", answer)
        given = answer.get("left_out")
        for name, reason in cast("Mapping[object, object]", given if isinstance(given, dict) else {}).items():
            found.setdefault((str(name), str(reason)), []).append(answer.get("pid"))
        for name in forms.misfits(answer):
            found.setdefault((f"resource {name}", "a row of another form"), []).append(answer.get("pid"))
    for (name, reason), pids in found.items():
        more = f" and {len(pids) - 1} more" if len(pids) > 1 else ""
        yield f"process {pids[0]}{more}: {name}: {reason}"[:200]


def _without_waits(procs: Iterable[Proc], between: float) -> Iterator[str]:
    """The processes that have answered, but not with their waits in both looks, as on an overloaded machine: causes may be missed there."""
    known = [one for one in procs if one.answered and not one.silent and one.state == "running" and one.age > 2 * between]
    if pids := [one.pid for one in known if one.stacks_without_gil or bool(one.resources) != bool(one.resources_before)]:
        more = f" and {len(pids) - 1} more" if len(pids) > 1 else ""
        yield f"process {pids[0]}{more}: waits and resources in one of two looks"


def _software(*looks: Mapping[str, Mapping[str, Any]]) -> tuple[Software, ...]:
    """The software of each process in the last look that has it: stacks that are read without the GIL come without."""
    found: dict[str, Software] = {}
    for look in looks:
        for uid, answer in look.items():
            one = software_of(uid, answer)
            if one.packages or uid not in found:
                found[uid] = one
    return tuple(found.values())


def _called(answers: Iterable[tuple[str, Mapping[str, Any]]]) -> Mapping[str, Called]:
    """The actors of the calls that any look has seen, by their processes; a process made the answer itself, and it may have any form."""
    found: dict[str, Called] = {}
    for _, answer in answers:
        try:
            for wait in answer.get("waits", []):
                for rank, uid in wait.get("ranks", []):
                    found[str(uid)] = Called(str(wait["name"]), int(rank), int(wait["size"]))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            continue
    return found


def _is_observer(proc: Mapping[str, Any]) -> bool:
    """Whether a process is an agent or a service: the runtime itself."""
    return proc["name"] == "agent"


def _parts(answer: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The answers of the hosts of a job."""
    if answer is not None:
        yield answer
        for other in answer.get("hosts", []):
            if other["answer"] is not None:
                yield other["answer"]


def procs_of(looked: Looked) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for part in _parts(looked.state):
        for proc in part["procs"]:
            yield part["host"], proc


def _printed(proc: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes and lines; nothing for an agent of another release."""
    size, lines = proc.get("printed") or (0, 0)
    return int(size), int(lines)


def _actors(proc: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return proc["answer"]["actors"] if proc["answer"] else []


def stack_answers(looked: Looked) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The stacks of each process, by its number: its own answer, or those that were read when it became unresponsive."""
    for part in _parts(looked.stacks):
        for proc in part["procs"]:
            answer = proc["answer"] or proc.get("stacks")
            if answer:
                yield str(proc["uid"]), answer


def stack_rows(looked: Looked) -> Iterator[Mapping[str, Any]]:
    """The rows of the processes in the look at their stacks, as their agents have made them."""
    for part in _parts(looked.stacks):
        yield from part["procs"]


def _own_stacks(looked: Looked) -> Iterator[str]:
    """The numbers of the processes that have read their stacks for this look themselves, in Python."""
    for part in _parts(looked.stacks):
        for proc in part["procs"]:
            if isinstance(proc["answer"], Mapping) and "threads" in proc["answer"]:
                yield str(proc["uid"])


def _hosts(looked: Looked) -> Iterator[Host]:
    state = looked.state
    if state is None:
        return
    yield Host(str(state["host"]))
    for other in state.get("hosts", []):
        yield Host(
            str(other["host"] or other["id"]),
            str(other["state"]),
            "" if other["answer"] is not None else str(other["error"] or "no answer"),
        )


def _host_resources(looked: Looked) -> dict[str, Mapping[str, Any]]:
    """The resources of the agent of each host, by the name of the host. The first process of an answer is the agent."""
    found: dict[str, Mapping[str, Any]] = {}
    for part in _parts(looked.stacks):
        answer = part["procs"][0]["answer"] if part["procs"] else None
        found[str(part["host"])] = forms.resources(answer)
    return found


def _proc(host: str, proc: Mapping[str, Any], answer: Mapping[str, Any] | None, earlier: Mapping[str, Any] | None) -> Proc:
    is_client = proc["name"] == "client"
    name = parse_name(proc["name"])
    before = {thread.number: thread for thread in _threads(earlier)}
    threads = tuple(one._replace(paused=_is_paused(before.get(one.number), one)) for one in _threads(answer))
    # A process that runs its set-up answers its agent already.
    is_starting = answer is not None and answer.get("without_gil") == "starting"
    return Proc(
        str(proc["uid"]),
        host,
        int(proc["pid"] or 0),
        str(proc["name"]),
        None if is_client else name.name,
        None if is_client else name.rank,
        name.size,
        "starting" if is_starting else str(proc["state"]),
        float(proc["age"]),
        proc["silent"],
        str(proc["evidence"] or ""),
        str(proc["kernel"] or ""),
        proc["rss"],
        proc["answer"] is not None,
        threads,
        answer is not None and "without_gil" in answer,
        resources=forms.resources(answer),
        resources_before=forms.resources(earlier),
    )


def _is_paused(before: Thread | None, now: Thread) -> bool:
    """Whether a thread has stood still between both looks. A thread that works in a line is found there twice, but has used a processor."""
    if before is None or before.frames != now.frames:
        return False
    return before.ran is None or now.ran is None or now.ran - before.ran < _WORKS


def _threads(answer: Mapping[str, Any] | None) -> Iterator[Thread]:
    if answer is None:
        return
    if "threads" in answer:
        for one in answer["threads"]:
            frames = tuple(Frame(*forms.frame(frame)) for frame in one["frames"])
            yield Thread(int(one["thread"]), str(one["name"] or ""), frames, ran=one.get("ran"), native=one.get("native"))
        return
    for one in parse_faulthandler(answer.get("text") or ""):
        yield Thread(one.thread_id, one.name or "", tuple(Frame(frame.filename, frame.line, frame.name) for frame in one.frames))


def _actor(proc: str, actor: Mapping[str, Any], before: Mapping[str, Any] | None) -> Actor:
    name = parse_name(actor["display"])
    return Actor(
        proc,
        str(actor["mesh"]),
        name.name,
        name.kind,
        name.rank,
        name.size,
        actor["doing"],
        float(actor["doing_for"] or 0.0),
        int(actor["queued"]),
        int(actor["taken"]),
        actor.get("overdue"),
        int(actor["thread"]),
        queued_before=None if before is None else int(before["queued"]),
        taken_before=None if before is None else int(before["taken"]),
    )


def _key(wait: Mapping[str, Any]) -> tuple[object, ...]:
    """What is equal for one wait in two looks: the call and thread, or the lock and thread."""
    return wait["thread"], wait.get("call"), wait.get("lock"), wait.get("holder")


def _waits(proc: str, answer: Mapping[str, Any] | None, earlier: Mapping[str, Any] | None) -> Iterator[Wait]:
    if answer is None or earlier is None:
        return
    known = {_key(one) for one in earlier.get("waits", [])}
    for one in answer.get("waits", []):
        if _key(one) not in known:
            continue
        held_at = one.get("held_at")
        yield Wait(
            proc,
            int(one["thread"]),
            bool(one["blocks"]),
            int(one.get("call", 0)),
            str(one.get("endpoint", "")),
            str(one.get("name", "")),
            str(one.get("mesh", "")),
            int(one.get("size", 1)),
            int(one.get("late", 0)),
            tuple((int(rank), str(uid)) for rank, uid in one.get("ranks", [])),
            one.get("timeout"),
            one.get("lock"),
            one.get("holder"),
            None if held_at is None else Frame(*forms.frame(held_at)),
            tuple(Frame(*forms.frame(frame)) for frame in one.get("frames", [])),
            str(one.get("thing", "")),
        )


def _ends_of(text: str) -> str:
    """The text without its middle, if it is long: a message of a program may have megabytes."""
    return text if len(text) <= 2 * _MOST_TEXT else f"{text[:_MOST_TEXT]}\n{text[-_MOST_TEXT:]}"


def _ends(answer: Mapping[str, Any] | None) -> Iterator[End]:
    for one in cast("list[Mapping[str, Any]]", (answer or {}).get("failures", [])):
        yield End(
            str(one["name"]),
            one["rank"] if one["size"] > 1 else None,
            str(one["kind"]),
            int(one["size"]),
            str(one["mesh"]),
            str(one["actor"]),
            one["class"] is not None,
            bool(one["is_cause"]),
            one["code"],
            one["signal"],
            _ends_of(str(one["detail"])),
            _ends_of(str(one["traceback"])),
            tuple(str(line)[:_MOST_TEXT] for line in one["output"][-_MOST_LINES:]),
            one["host"],
            one["pid"],
        )


def group_ranks(looks: Sequence[Looked], procs: Sequence[Proc]) -> tuple[GroupRank, ...]:
    """The ranks of process groups, each in the looks that have seen it: on an overloaded machine a process may miss one."""
    names = {proc.uid: proc.mesh or "" for proc in procs}
    found: dict[tuple[str, tuple[str, ...], int, int], list[Counted]] = {}
    for looked in looks:
        for uid, answer in stack_answers(looked):
            for key, counted in counted_ranks(answer):
                if uid in names:
                    found.setdefault((uid, (names[uid], *key[0]), *key[1:]), []).append(counted)
    ranks = [GroupRank(uid, group, rank, size, tuple(seen)) for (uid, group, rank, size), seen in found.items()]
    return tuple(sorted(ranks, key=lambda one: (one.group, one.rank)))
