"""Collectives that cannot end, or that wait for the same rank again and again: ranks that disagree about the call, and late ranks.

All ranks of a process group have to begin the same collectives in the same order. The fewer ranks are the culprits where two sets disagree.
A rank that is late is none by itself: it may work, or wait for something else, which is then the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.group_rank import Call, GroupRank
from monarch.telemetry._diagnose.groups import by_group, has_waited_long, node_of
from monarch.telemetry._diagnose.snapshot import Actor, Node, seconds
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# Calls between two ranks, which are no collectives.
_BETWEEN_TWO = ("send", "recv", "isend", "irecv", "send_object_list", "recv_object_list")
# Collectives to which all ranks pass tensors of one size.
_EQUAL = ("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "gather", "scatter")
# The least looks at all ranks together, and the least ranks, for a rank that is late again and again. If each rank waited half of its time,
# by chance, four ranks with three looks each would show such a rank in one of a thousand diagnoses.
_LOOKS, _RANKS = 12, 4
_SOURCE = "process groups"


def mismatched(graph: WaitGraph) -> list[Finding]:
    """One finding for each set of ranks of which a collective waits."""
    return [finding for group in by_group(graph.index.snapshot.groups) if (finding := _finding(graph, group)) is not None]


def _finding(graph: WaitGraph, group: Sequence[GroupRank]) -> Finding | None:
    waiting = [one for one in group if one.waits is not None and one.waits.name not in _BETWEEN_TWO]
    for begun in sorted({one.now.begun for one in waiting}, reverse=True):
        together = [one for one in waiting if one.now.begun == begun]
        found = _differing(graph, together, begun)
        if found is not None:
            return found
    return _absent(graph, group, waiting) or _late(graph, group)


def _differing(graph: WaitGraph, ranks: Sequence[GroupRank], begun: int) -> Finding | None:
    """Ranks whose collective of one number is another one."""
    number = f"collective {begun} of {_group(ranks[0])}"

    def other_call(few: Call, many: Call, of: str) -> str:
        return f"calls {few.name}{{}} where {of} {many.name}: {number}"

    def other_root(few: Call, many: Call, of: str) -> str:
        return f"calls {few.name}{{}} with root {few.root} where {of} it with root {many.root}: {number}"

    def other_tensor(few: Call, many: Call, of: str) -> str:
        return f"calls {few.name}{{}} with {few.described} where {of} it with {many.described}: {number}"

    tests: tuple[tuple[Callable[[Call], object], Callable[[Call, Call, str], str]], ...] = (
        (lambda call: call.name, other_call),
        (lambda call: call.root, other_root),
        (lambda call: (call.size, call.dtype) if call.name in _EQUAL else None, other_tensor),
    )
    for property_of, text in tests:
        sets: dict[object, list[GroupRank]] = {}
        for one in ranks:
            if one.waits is not None:
                sets.setdefault(property_of(one.waits), []).append(one)
        if len(sets) > 1:
            # Of sets of one size that with the last rank is named.
            few, *_, many = sorted(sets.values(), key=lambda ones: (len(ones), -ones[0].rank))
            first, others = few[0].waits, many[0].waits
            assert first is not None and others is not None
            verb = "calls" if len(many) == 1 else "call"
            sentence = f"{_subject(graph, few)} {text(first, others, f'{_count(graph, many)} {verb}').format(_at(graph, few[0]))}"
            facts = [Fact(f"{_count(graph, ones)} in {_call(ones)}{_at(graph, ones[0])}", _SOURCE) for ones in (many, few)]
            return _made(graph, sentence, few, facts, ranks, 84)
    return None


def _absent(graph: WaitGraph, group: Sequence[GroupRank], waiting: Sequence[GroupRank]) -> Finding | None:
    """Ranks that have not begun a collective for which the others wait, and that will not."""
    most = max((one.now.begun for one in waiting), default=0)
    early = [one for one in waiting if one.now.begun == most]
    late = [one for one in group if one.now.begun < most and one not in waiting]
    if not early or not late or any(look.begun != one.now.begun for one in late for look in one.looks):
        return None
    call = early[0].waits
    assert call is not None
    where = _at(graph, early[0])
    beside = _actor_of(graph, early[0])
    actors = [graph.index.actors.get((one.proc, beside.mesh)) if beside else None for one in late]
    if all(actor is not None and _is_idle(actor) for actor in actors):
        state, weight = "runs no endpoint", 80
    elif (place := _standing(graph, late, beside)) and has_waited_long(graph.index.snapshot, late):
        state, weight = f"stands in {place}", 40
    else:
        return None
    count = f"{late[0].now.begun} collectives of {_group(late[0])}"
    if len(late) <= len(early):
        sentence = (
            f"{_subject(graph, late, beside)} {'has' if len(late) == 1 else 'have'} not called {call.name}{where}, "
            f"for which {_count(graph, early)} {'waits' if len(early) == 1 else 'wait'}: it has begun {count}, they {most}, and it {state}"
        )
        culprits = late
    else:
        sentence = (
            f"{_subject(graph, early)} {'waits' if len(early) == 1 else 'wait'} in {call.name}{where}, which {_count(graph, late)} have "
            f"not called: they have begun {count}, it {most}, and they {state.replace('runs', 'run').replace('stands', 'stand')}"
        )
        culprits = early
    looks = len(early[0].looks)
    facts = [
        Fact(f"the same in {looks} looks within {seconds(graph.index.snapshot.group_seconds or graph.index.snapshot.seconds)}", _SOURCE)
    ]
    return _made(graph, sentence, culprits, facts, [*early, *late], weight, beside)


def _late(graph: WaitGraph, group: Sequence[GroupRank]) -> Finding | None:
    """One rank that works in all looks while all others wait, although the group makes progress."""
    looks = sum(len(one.looks) for one in group)
    slow, *more = [one for one in group if all(look.call is None for look in one.looks)] or [None]
    if slow is None or more or len(group) < _RANKS or looks < _LOOKS:
        return None
    others = [one for one in group if one is not slow]
    if any(look.call is None for one in others for look in one.looks) or any(one.looks[0].begun == one.now.begun for one in group):
        return None
    beside = next((actor for one in others if (actor := _actor_of(graph, one))), None)
    place = graph.index.place(node_of(graph.index, slow, beside))
    numbers = ", ".join(str(look.begun) for look in others[0].looks)
    sentence = (
        f"{_subject(graph, [slow], beside)} is slower than the other ranks: {_count(graph, others)} waited for it in all looks"
        f"{f'; it works in {place}' if place else ''}"
    )
    facts = [
        Fact(f"in {looks} looks at {len(group)} ranks all others were in collectives of {_group(slow)} ({numbers}), it in none", _SOURCE)
    ]
    return _made(graph, sentence, [slow], facts, group, 35, beside)


def _is_idle(actor: Actor) -> bool:
    return actor.doing is None and not actor.queued and actor.taken == actor.taken_before


def _standing(graph: WaitGraph, late: Sequence[GroupRank], beside: Actor | None) -> str:
    """The place of late ranks whose threads stand still, empty where one does not."""
    places: list[str] = []
    for one in late:
        node = node_of(graph.index, one, beside)
        thread = graph.index.thread_of(node)
        if thread is None or not thread.paused:
            return ""
        places.append(graph.index.place(node))
    return places[0]


def _made(
    graph: WaitGraph,
    sentence: str,
    culprits: Sequence[GroupRank],
    facts: Sequence[Fact],
    ranks: Sequence[GroupRank],
    weight: int,
    beside: Actor | None = None,
) -> Finding:
    nodes = tuple(node_of(graph.index, one, beside) for one in culprits)
    waiting: tuple[Node, ...] = tuple(node_of(graph.index, one, beside) for one in ranks if one not in culprits and one.waits is not None)
    return Finding(sentence, nodes, tuple(facts), "monarch stack", weight, waiting)


def _actor_of(graph: WaitGraph, one: GroupRank) -> Actor | None:
    call = one.now.call
    return None if call is None else graph.index.by_thread.get((one.proc, call.thread))


def _subject(graph: WaitGraph, ones: Sequence[GroupRank], beside: Actor | None = None) -> str:
    """`trainer rank 1 of 8 (pid 7)`, or `trainer rank 1 and 2 more`."""
    first = graph.index.full(node_of(graph.index, ones[0], beside))
    return first if len(ones) == 1 else f"{first} and {len(ones) - 1} more"


def _count(graph: WaitGraph, ones: Sequence[GroupRank]) -> str:
    return graph.index.label(node_of(graph.index, ones[0])) if len(ones) == 1 else f"{len(ones)} ranks"


def _call(ones: Sequence[GroupRank]) -> str:
    call = ones[0].waits
    return "" if call is None else f"{call.name} with {call.described}"


def _at(graph: WaitGraph, one: GroupRank) -> str:
    place = graph.index.place(node_of(graph.index, one))
    return f" in {place}" if place else ""


def _group(one: GroupRank) -> str:
    return f"process group {one.group[1]} of {one.size} ranks"


DETECTORS = (
    Detector("collective", "ranks of process groups that call another collective than the others, or that do not call it", mismatched),
)
