"""Proves from the history of a chaos run that the runtime kept its promises, or names the broken one.

    python bench/chaos_check.py HISTORY...

A history is in the order in which its records were written, across all processes, so "before" below means a place in the file. The checker
computes the possible deaths, and the place of each, from the script's actions: it killed processes, requested ends of actors, and stopped
meshes. From there a death spreads down to the meshes of the dead actor, and up to an owner that does not handle it. A stop spreads down
only.

| property | meaning |
|---|---|
| order | a receiver handles the messages of one sender in the order sent |
| once | a handled message was sent, to that receiver, and is handled once, before it is answered; only a death loses messages |
| notice | an owner is notified of each death once, and of no other, and no other process is notified |
| after | the dead handle nothing: not after the notice of their death, and not after their clean-up |
| health | a slice with a member whose death its owner knows is refused; a living slice is not |
| ends | every operation ends, unless its sender does |
| limits | an actor that gets no thread fails with `SpawnError`, and can be stopped |
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

Record = dict[str, Any]
Rank = tuple[str, int]

ROOT = "root"
# Errors that a death or a stop explains.
EXPLAINED = ("SupervisionError", "SpawnError", "DeliveryError")
# Nanoseconds, shorter than any bound of a drain.
DRAIN_NS = 900_000_000


class Violation(NamedTuple):
    property: str
    text: str


class Operation(NamedTuple):
    """An operation of a sender; `end` is the place of its end, None if it has none."""

    sender: str
    n: int
    kind: str
    mesh: str
    ranks: list[int]
    begin: int
    end: int | None


def read(path: str | Path) -> list[Record]:
    """The records of a file. A line cut short by its writer's death was not written. Empty lines separate records."""
    records: list[Record] = []
    for line in Path(path).read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def name(rank: Rank) -> str:
    return f"{rank[0]}[{rank[1]}]"


def rank_of(who: str) -> Rank:
    mesh, _, rank = who.partition("[")
    return mesh, int(rank[:-1])


class Ends:
    """The place from which each object may be dead or stopped, before the script settled."""

    def __init__(self, history: History, until: int, up: bool) -> None:
        self.history = history
        self.up = up
        # For a member of a mesh of actors or processes: dead by failure, and gone for any reason.
        self.dead: dict[Rank, int] = {}
        self.gone: dict[Rank, int] = {}
        # Meshes that were stopped, or whose owner ended.
        self.stopped: set[str] = set()
        for place, record in enumerate(history.records[:until]):
            event = record["e"]
            if event == "kill":
                for procs, rank in record["procs"]:
                    self._end((procs, rank), place, True)
            elif event == "doom":
                where = (record["mesh"], record["rank"])
                if record["how"] == "exit":
                    where = history.proc_of(where) or where
                self._end(where, place, True)
            elif event == "begin" and record["kind"] == "stop":
                self._stop(record["mesh"], place)

    def _stop(self, mesh: str, place: int) -> None:
        self.stopped.add(mesh)
        for rank in range(self.history.size(mesh)):
            self._end((mesh, rank), place, False)

    def _end(self, where: Rank, place: int, failed: bool) -> None:
        ends = self.dead if failed else self.gone
        if ends.get(where, place + 1) <= place:
            return
        ends[where] = place
        self.gone[where] = min(place, self.gone.get(where, place))
        for actor in self.history.on_proc.get(where, ()):
            self._end(actor, place, failed)
        for mesh in self.history.owned.get(name(where), ()):
            self._stop(mesh, place)
        owner = self.history.owner(where[0])
        if failed and self.up and owner not in (ROOT, None) and self.history.mode(owner) != "handle":
            self._end(rank_of(owner), place, True)


class History:
    """The records of one run, or of one part of it that is independent of the next one, indexed by their objects."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = list(records)
        self.spawned: dict[str, Record] = {}
        self.on_proc: dict[Rank, list[Rank]] = defaultdict(list)
        self.owned: dict[str, list[str]] = defaultdict(list)
        self.begun: dict[tuple[str, int], int] = {}
        self.ended: dict[tuple[str, int], int] = {}
        self.handled: dict[Rank, list[int]] = defaultdict(list)
        self.notices: dict[Rank, list[int]] = defaultdict(list)
        self.cleaned: dict[Rank, list[int]] = defaultdict(list)
        self.started: dict[Rank, int] = {}
        # The place at which the script had waited for all operations, and began to stop everything.
        self.quiet = len(self.records)
        for place, record in enumerate(self.records):
            self._file(place, record)
        self.ends = Ends(self, len(self.records), up=True)

    def _file(self, place: int, record: Record) -> None:
        event = record["e"]
        where = (record.get("mesh", ""), record.get("rank", -1))
        if event in ("spawn", "spawn_procs"):
            self.spawned[where[0]] = record
            self.owned[record["owner"]].append(where[0])
            for rank, proc in enumerate(record.get("base", ())):
                self.on_proc[record["procs"], proc].append((where[0], rank))
        elif event == "begin":
            self.begun[record["who"], record["n"]] = place
        elif event == "end":
            self.ended[record["who"], record["n"]] = place
        elif event == "handle":
            self.handled[where].append(place)
        elif event == "notice":
            self.notices[where].append(place)
        elif event == "cleanup":
            self.cleaned[where].append(place)
        elif event == "init":
            self.started[where] = place
        elif event == "quiet":
            self.quiet = place

    def size(self, mesh: str) -> int:
        record = self.spawned.get(mesh)
        return 0 if record is None else record["size"] if "size" in record else len(record["base"])

    def owner(self, mesh: str) -> Any:
        record = self.spawned.get(mesh)
        return None if record is None else record["owner"]

    def mode(self, who: str) -> str:
        """The reaction of an actor to the failures of its meshes."""
        record = self.spawned.get(rank_of(who)[0])
        return "none" if record is None else record.get("mode", "none")

    def proc_of(self, actor: Rank) -> Rank | None:
        record = self.spawned.get(actor[0])
        return None if record is None or "base" not in record else (record["procs"], record["base"][actor[1]])

    def operations(self) -> Iterable[Operation]:
        for (sender, n), place in self.begun.items():
            record = self.records[place]
            yield Operation(sender, n, record["kind"], record["mesh"], record["ranks"], place, self.ended.get((sender, n)))

    # ---- required notices

    def missing_notices(self) -> list[str]:
        """Deaths before the script settled of which their owners were not notified."""
        down = Ends(self, self.quiet, up=False)
        full = Ends(self, self.quiet, up=True)
        missing: list[str] = []
        todo = self._direct_deaths()
        done: set[Rank] = set()
        while todo:
            where = todo.pop()
            if where in done:
                continue
            done.add(where)
            owner = self.owner(where[0])
            if owner is None or {where[0], (self.proc_of(where) or where)[0]} & down.stopped:
                continue
            if owner == ROOT:
                if not self.notices[where]:
                    missing.append(f"root was not told of the death of {name(where)}")
                continue
            actor, mode = rank_of(owner), self.mode(owner)
            if actor in (full if mode == "handle" else down).gone or self._ended_otherwise(full, where, actor) or self._was_stopped(actor):
                continue
            if mode == "none":
                todo.append(actor)
            elif mode == "handle":
                if not self.notices[where]:
                    missing.append(f"{owner} was not told of the death of {name(where)}")
            elif any(self.notices[m, r] for m in self.owned[owner] for r in range(self.size(m))):
                todo.append(actor)
            else:
                missing.append(f"{owner} was told of no death, though {name(where)} died")
        return missing

    def _was_stopped(self, actor: Rank) -> bool:
        """Whether the actor ended as by a stop, before the script settled.

        This explains a death that the script cannot know, such as that of an actor whose `__init__` had not run yet.
        """
        return any(place < self.quiet and not self.records[place]["failed"] for place in self.cleaned[actor])

    def _ended_otherwise(self, ends: Ends, where: Rank, actor: Rank) -> bool:
        """Whether the owner of a dead object, or an owner above, ended for another reason than this death."""
        place = ends.dead.get(where)
        while ends.gone.get(actor, place) == place:
            owner = self.owner(actor[0])
            if owner in (ROOT, None):
                return False
            actor = rank_of(owner)
        return True

    def _direct_deaths(self) -> list[Rank]:
        """Actors that the script killed, and that existed."""
        found: list[Rank] = []
        dooms = {(r["who"], r["n"]): (r["mesh"], r["rank"], r["how"]) for r in self.records if r["e"] == "doom"}
        for record in self.records[: self.quiet]:
            procs: list[Rank] = []
            if record["e"] == "kill":
                procs = [(p, r) for p, r in record["procs"]]
            elif record["e"] == "handle" and (record["sender"], record["n"]) in dooms:
                if record["what"] == "exit":
                    procs = [p for p in [self.proc_of((record["mesh"], record["rank"]))] if p is not None]
                else:
                    found.append((record["mesh"], record["rank"]))
            # An actor whose `__init__` ran existed; for another one a refused spawn may replace the notice.
            place = record["t"]
            found += [a for p in procs for a in self.on_proc.get(p, ()) if a in self.started and self.time(self.started[a]) < place]
        return found

    def time(self, place: int) -> int:
        return self.records[place]["t"]


def check(records: Iterable[Record]) -> list[Violation]:
    """The violations in the history; none if there are no broken promises."""
    history = History(records)
    found: list[Violation] = []
    for rule in (_order, _once, _answers, _lost, _drained, _notice, _after, _health, _ends, _limits):
        found += [Violation(rule.__doc__ or "", text) for text in rule(history)]
    return found


def _order(history: History) -> Iterable[str]:
    """order"""
    for receiver, places in history.handled.items():
        last: dict[str, int] = {}
        for place in places:
            record = history.records[place]
            sender, n = record["sender"], record["n"]
            if n < last.get(sender, 0):
                yield f"{name(receiver)} handled {n} of {sender} after {last[sender]}"
            last[sender] = max(n, last.get(sender, 0))


def _once(history: History) -> Iterable[str]:
    """once"""
    chosen: dict[tuple[str, int], Rank] = {}
    for receiver, places in history.handled.items():
        seen: set[tuple[str, int]] = set()
        for place in places:
            record = history.records[place]
            key = (record["sender"], record["n"])
            message = f"{record['n']} of {record['sender']}"
            if key in seen:
                yield f"{name(receiver)} handled {message} twice"
            seen.add(key)
            begun = history.begun.get(key)
            if begun is None or begun > place:
                yield f"{name(receiver)} handled {message}, which was not sent"
                continue
            sent = history.records[begun]
            if sent["mesh"] != receiver[0] or receiver[1] not in sent["ranks"]:
                yield f"{name(receiver)} handled {message}, which was not for it"
            if sent["kind"] == "choose" and chosen.setdefault(key, receiver) != receiver:
                yield f"{name(receiver)} and {name(chosen[key])} handled {message}, which was for one of them"


def _answers(history: History) -> Iterable[str]:
    """once"""
    handled = {(receiver, history.records[p]["sender"], history.records[p]["n"]): p for receiver, ps in history.handled.items() for p in ps}
    for op in history.operations():
        record = None if op.end is None else history.records[op.end]
        if record is None or op.kind in ("stop", "broadcast") or record.get("answers") is None:
            continue
        answers = record["answers"]
        for mesh, rank, n in answers:
            place = handled.get(((mesh, rank), op.sender, op.n))
            if n != op.n or mesh != op.mesh or place is None or place > (op.end or 0):
                yield f"{op.sender} got the answer {[mesh, rank, n]} to {op.n}, which that actor had not handled"
        got = [rank for _, rank, _ in answers]
        wanted = {"call": len(op.ranks), "stream": len(op.ranks) - record.get("failed", 0)}.get(op.kind, 1)
        if len(got) != wanted or len(set(got)) != len(got) or not set(got) <= set(op.ranks):
            yield f"{op.sender} got answers of {got} to {op.kind} {op.n} of {op.ranks}"


def _lost(history: History) -> Iterable[str]:
    """once"""
    handled = {(receiver, history.records[p]["sender"], history.records[p]["n"]) for receiver, ps in history.handled.items() for p in ps}
    early = Ends(history, history.quiet, up=True)
    for op in history.operations():
        # Messages of the root to its own meshes are handled before these stop; messages of others may be too late.
        if op.sender != ROOT or op.kind != "broadcast" or history.owner(op.mesh) != ROOT or op.end is None or op.begin > history.quiet:
            continue
        if not history.records[op.end]["ok"]:
            continue
        for rank in op.ranks:
            if (op.mesh, rank) not in early.gone and ((op.mesh, rank), op.sender, op.n) not in handled:
                yield f"{op.mesh}[{rank}] lives and did not handle broadcast {op.n} of {op.sender}"


def _drained(history: History) -> Iterable[str]:
    """once"""
    handled = {(receiver, history.records[p]["sender"], history.records[p]["n"]) for receiver, ps in history.handled.items() for p in ps}
    stops: dict[str, int] = {}
    for op in history.operations():
        if op.sender == ROOT and op.kind == "stop":
            for mesh in (op.mesh, *(m for m, record in history.spawned.items() if record.get("procs") == op.mesh)):
                stops[mesh] = min(op.begin, stops.get(mesh, op.begin))
    for op in history.operations():
        stop = stops.get(op.mesh, -1)
        if op.sender != ROOT or op.kind != "broadcast" or history.owner(op.mesh) != ROOT or op.begin > stop or op.end is None:
            continue
        for where in [(op.mesh, rank) for rank in op.ranks if history.records[op.end]["ok"]]:
            # A long drain may have been cut short, and the dead handle nothing.
            cleaned = [p for p in history.cleaned[where] if history.time(p) - history.time(stop) < DRAIN_NS]
            if cleaned and where not in history.ends.dead and (where, op.sender, op.n) not in handled:
                yield f"{name(where)} was stopped and did not handle broadcast {op.n} of {op.sender}, which was sent before"


def _notice(history: History) -> Iterable[str]:
    """notice"""
    for where, places in history.notices.items():
        owner = history.owner(where[0])
        for place in places:
            told = history.records[place]["who"]
            if told != owner:
                yield f"{told} was told of {name(where)}, which {owner} owns"
            if history.ends.dead.get(where, place) >= place:
                yield f"{told} was told of the death of {name(where)}, which lives"
        if len(places) > 1:
            yield f"{owner} was told {len(places)} times of the death of {name(where)}"
    if history.quiet < len(history.records):
        yield from history.missing_notices()


def _after(history: History) -> Iterable[str]:
    """after"""
    for receiver, places in history.handled.items():
        # An actor that fails without its hook being asked fails in the middle of a message.
        in_hand = 1 if history.mode(name(receiver)) == "none" and history.owned.get(name(receiver)) else 0
        for what, ends, spared in (
            ("the notice of its death", history.notices[receiver], in_hand),
            ("its clean-up", history.cleaned[receiver], 0),
        ):
            # The clock decides: a process may be frozen between the read of the clock and the record.
            late = [p for p in places if ends and history.time(p) > history.time(ends[0])]
            if len(late) > spared:
                record = history.records[late[0]]
                yield f"{name(receiver)} handled {record['n']} of {record['sender']} after {what}"
    for receiver, places in history.cleaned.items():
        if len(places) > 1:
            yield f"{name(receiver)} was cleaned up {len(places)} times"


def _health(history: History) -> Iterable[str]:
    """health"""
    for op in history.operations():
        if op.end is None or op.kind in ("stop", "abandon"):
            continue
        record = history.records[op.end]
        failed = not record["ok"] or record.get("failed", 0)
        known = [r for r in op.ranks for p in history.notices[op.mesh, r] if p < op.begin and history.records[p]["who"] == op.sender]
        if known and not failed:
            yield f"{op.kind} {op.n} of {op.sender} to {op.mesh}{op.ranks} went well, though it knew of the death of {known}"
        errors = [record["error"]] if not record["ok"] else record.get("errors", [])
        for error in errors:
            if error == history.records[op.begin].get("expected"):
                continue
            if error not in EXPLAINED:
                yield f"{op.kind} {op.n} of {op.sender} to {op.mesh}{op.ranks} raised {error}: {record.get('text')}"
            elif not any(history.ends.gone.get((op.mesh, r), op.end) < op.end for r in op.ranks):
                yield f"{op.kind} {op.n} of {op.sender} to {op.mesh}{op.ranks} failed, though all of them live: {record.get('text')}"


def _ends(history: History) -> Iterable[str]:
    """ends"""
    for op in history.operations():
        if op.end is None and (op.sender == ROOT or rank_of(op.sender) not in history.ends.gone):
            yield f"{op.kind} {op.n} of {op.sender} to {op.mesh}{op.ranks} did not end"


def _limits(history: History) -> Iterable[str]:
    """limits"""
    return (record["text"] for record in history.records if record["e"] == "wrong")


# ---- the time of the detection of deaths


def detection(records: Iterable[Record]) -> tuple[list[float], list[float]]:
    """Seconds from the kill of a process to the end of each call of the root that waited for it, and to each notice of it."""
    history = History(records)
    kills: dict[Rank, int] = {}
    for place, record in enumerate(history.records):
        for procs, rank in record["procs"] if record["e"] == "kill" else ():
            kills.setdefault((procs, rank), place)
    calls: list[float] = []
    for op in history.operations():
        if op.sender != ROOT or op.end is None or history.records[op.end]["ok"] or op.kind not in ("call", "call_one"):
            continue
        hit = [kills[p] for r in op.ranks if (p := history.proc_of((op.mesh, r))) in kills]
        if hit and op.begin < min(hit) < op.end:
            calls.append((history.records[op.end]["t"] - history.records[min(hit)]["t"]) / 1e9)
    notices = [
        (history.records[place]["t"] - history.records[kills[p]]["t"]) / 1e9
        for where, places in history.notices.items()
        for place in places
        if (p := history.proc_of(where)) in kills and kills[p] < place and history.records[place]["kind"] == "signal"
    ]
    return calls, notices


def main() -> int:
    bad = 0
    for path in sys.argv[1:]:
        for violation in check(read(path)):
            print(f"{path}: {violation.property}: {violation.text}")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
