"""What is known of a node, as lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from monarch.telemetry._tui import amounts
from monarch.telemetry._tui.lines import EMPTY, Line, Role, Span, line, lines, padded, span
from monarch.telemetry._tui.texts import Texts
from monarch.telemetry._tui.topology import Node, title_of

Facts = Mapping[str, Any]
KEY_CELLS = 18


class _Lines:
    """Lines that are being made."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.found: list[Line] = []

    def fact(self, key: str, value: object, role: Role = "") -> None:
        """A name from the table of texts, and a value; nothing for a value that is not known."""
        if value is not None and value != "":
            # A value may have several lines.
            head = padded(self.texts(key), KEY_CELLS)
            for text in str(value).split("\n"):
                self.found.append((Span(head, "key"), span(text, role)))
                head = " " * KEY_CELLS

    def head(self, key: str) -> None:
        self.found += [EMPTY, (Span(self.texts(key), "title"),)]


def details(node: Node, names: Mapping[str, str], texts: Texts, now: float) -> list[Line]:
    """The lines of a node. `now` is in seconds since the epoch, by the clock of this machine."""
    found = _Lines(texts)
    title = title_of(node, names)
    found.found.append((Span(f"{texts('kind_' + (node.kind or 'Error').lower())}  ", "dim"), span(title, "title")))
    if node.error is not None:
        found.fact("no_answer", node.error, "warn")
    if node.payload is None:
        return found.found
    makers: dict[str, Callable[[_Lines, Facts, float], None]] = {"Root": _root, "Host": _host, "Proc": _proc, "Actor": _actor}
    makers.get(node.kind, _error)(found, node.facts, now)
    payload = node.payload
    if node.kind in ("Root", "Host", "Proc"):
        found.fact("children", _children(node, texts))
    found.fact("reference", payload["identity"], "dim")
    as_of = amounts.epoch(payload["as_of"])
    if as_of is not None:
        found.fact("as_of", f"{amounts.moment(as_of)} ({_age(texts, now - as_of)})", "dim")
    if node.kind == "Actor":
        _recorder(found, node.facts)
    return found.found


def _age(texts: Texts, seconds: float) -> str:
    return texts("ago", time=amounts.duration(seconds) if seconds >= 1 else "0 s")


def _children(node: Node, texts: Texts) -> str:
    facts = node.facts
    count = len(node.payload["children"]) if node.payload is not None else 0
    more = [
        f"{len(facts[key])} {texts(word)}"
        for key, word in (("system_children", "system"), ("stopped_children", "stopped"))
        if facts.get(key)
    ]
    return f"{count}" + (f" ({', '.join(more)})" if more else "")


def _root(found: _Lines, facts: Facts, now: float) -> None:
    found.fact("hosts", facts.get("num_hosts"))
    _moment(found, "started", facts.get("started_at"), now)
    found.fact("user", facts.get("started_by"))


def _moment(found: _Lines, key: str, text: str | None, now: float) -> None:
    at = amounts.epoch(text)
    found.fact(key, text if at is None else f"{amounts.moment(at)} ({_age(found.texts, now - at)})")


def _host(found: _Lines, facts: Facts, now: float) -> None:
    state = str(facts.get("state") or "")
    found.fact("status", state, "good" if state == "ready" else "bad")
    found.fact("reason", facts.get("reason"), "bad")
    found.fact("address", facts.get("addr"))
    found.fact("procs", facts.get("num_procs"))
    _memory(found, facts)


def _memory(found: _Lines, facts: Facts) -> None:
    memory = cast("Facts", facts.get("memory") or {})
    if memory.get("process_rss_bytes") is not None:
        found.fact("memory", amounts.size(memory["process_rss_bytes"]))
    if memory.get("process_vm_size_bytes") is not None:
        found.fact("virtual_memory", amounts.size(memory["process_vm_size_bytes"]))


def _proc(found: _Lines, facts: Facts, now: float) -> None:
    texts = found.texts
    reason = facts.get("exit_reason")
    if reason:
        found.fact("status", f"{texts('ended')}: {reason}", "bad")
    elif facts.get("is_poisoned"):
        found.fact("status", texts("poisoned"), "bad")
    else:
        found.fact("status", texts("running"), "good")
    found.fact("pid", facts.get("pid"))
    found.fact("actors", facts.get("num_actors"))
    found.fact("failed_actors", facts.get("failed_actor_count") or None, "bad")
    found.fact("stopped_kept", facts.get("stopped_retention_cap"))
    debug = cast("Facts", facts.get("debug") or {})
    _memory(found, debug)
    found.fact("queue", debug.get("actor_work_queue_depth_total"))
    found.fact("queue_most", debug.get("actor_work_queue_depth_max"))
    found.fact("queue_high", debug.get("actor_work_queue_depth_high_water_mark"))
    age = debug.get("last_nonzero_queue_depth_age_ms")
    if age is not None:
        found.fact("queue_busy", _age(texts, age / 1000))


def _actor(found: _Lines, facts: Facts, now: float) -> None:
    status = str(facts.get("actor_status", "?"))
    failed = status.lower() == "failed"
    found.fact("status", status, "bad" if failed else "busy" if status.lower() == "processing" else "")
    found.fact("type", facts.get("actor_type"))
    found.fact("id", facts.get("instance_id"))
    if facts.get("is_system"):
        found.fact("owner", found.texts("runtime"))
    processed = int(facts.get("messages_processed") or 0)
    found.fact("messages", f"{processed:,}")
    taken = float(facts.get("total_processing_time_us") or 0) / 1e6
    mean = f" ({amounts.duration(taken / processed)} {found.texts('each')})" if processed else ""
    found.fact("processing_time", f"{amounts.duration(taken)}{mean}")
    found.fact("queue", facts.get("queue_depth"))
    _moment(found, "created", facts.get("created_at"), now)
    found.fact("last_handler", facts.get("last_message_handler"))
    _execution(found, facts.get("execution"), now)
    _failure(found, facts.get("failure_info"))
    _ordering(found, facts.get("inbound_ordering"))


def _execution(found: _Lines, execution: Facts | None, now: float) -> None:
    if not execution or not execution.get("active_count"):
        return
    found.head("in_progress")
    for one in execution.get("active_handlers") or ():
        since = amounts.epoch(one.get("oldest_since"))
        taken = "" if since is None else f" {amounts.duration(max(now - since, 0))}"
        found.found.append((Span("  "), span(f"{one.get('active_count')} x {one.get('name')}", "busy"), span(taken)))
    if execution.get("truncated"):
        found.found.append(line("  …", "dim"))


def _failure(found: _Lines, failure: Facts | None) -> None:
    if not failure:
        return
    found.head("failure")
    found.fact("message", failure.get("error_message"), "bad")
    cause = failure.get("root_cause_name") or failure.get("root_cause_actor")
    found.fact("first_cause", found.texts("itself") if not failure.get("is_propagated") else cause)
    at = amounts.epoch(failure.get("occurred_at"))
    found.fact("when", None if at is None else amounts.moment(at))


def _ordering(found: _Lines, ordering: Facts | None) -> None:
    if not ordering or not ordering.get("returned_buffered_message_count"):
        return
    found.head("ordering")
    found.fact("buffered", ordering.get("returned_buffered_message_count"), "warn")
    for one in ordering.get("sessions") or ():
        if one.get("buffered_count"):
            sender = one.get("sender") or one.get("session_id")
            text = f"{sender}: {one.get('buffered_count')}, # {one.get('expected_next_seq')} {found.texts('is_missing')}"
            found.found.append((Span("  "), span(text)))


def _recorder(found: _Lines, facts: Facts) -> None:
    """What the actor did last, the newest first."""
    recorded = facts.get("flight_recorder")
    if not recorded:
        return
    found.head("flight_recorder")
    try:
        rows: Any = json.loads(recorded)
        shown = [_event(cast("Facts", row)) for row in rows]
    except (ValueError, TypeError, AttributeError, KeyError):
        found.found += lines(str(recorded))
        return
    found.found += shown


def _event(row: Facts) -> Line:
    role: Role = "bad" if str(row.get("name", "")).lower() in ("failed", "error", "critical") else ""
    detail = f" {row['detail']}" if row.get("detail") else ""
    return (
        span(f"  {amounts.clock_time(int(row['timestamp_us']))} ", "dim"),
        span(f"{padded(str(row.get('kind', '')), 8)} ", "key"),
        span(f"{row.get('name', '')}{detail}", role),
    )


def _error(found: _Lines, facts: Facts, now: float) -> None:
    found.fact("status", facts.get("code"), "warn")
    found.fact("message", facts.get("message"), "warn")
