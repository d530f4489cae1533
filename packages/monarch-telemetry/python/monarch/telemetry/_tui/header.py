"""The header: which job this is, since when it runs, what is shown, and whether it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.telemetry._tui import amounts
from monarch.telemetry._tui.lines import Line, Role, Span, span
from monarch.telemetry._tui.topology import Node, Topology

if TYPE_CHECKING:
    from monarch.telemetry._tui.api import Coverage
    from monarch.telemetry._tui.page import Context

# Seconds after which the header shows that an answer is pending.
_SLOW = 1.5
_BETWEEN = Span("  ")


class Contact:
    """When the server answered last. Times are in seconds of the caller's clock."""

    def __init__(self) -> None:
        self.last: float | None = None
        self.asked: float | None = None
        self.began: float | None = None
        self.error: str | None = None
        self.failures = 0
        self.coverage: Coverage | None = None

    def asks(self, now: float) -> None:
        self.asked = now
        self.began = now if self.began is None else self.began

    def answers(self, now: float) -> None:
        self.last, self.error = now, None

    def fails(self, error: Exception, now: float) -> None:
        self.error = str(error).split("\n", 1)[0]


def header(context: Context, topology: Topology, contact: Contact, root: Node | None, now: float) -> list[Line]:
    """Two lines."""
    return [_job(context, root, now), _state(context, topology, contact, now)]


def _job(context: Context, root: Node | None, now: float) -> Line:
    texts = context.texts
    parts = [Span(" monarch", "title"), _BETWEEN, span(context.api.url)]
    if root is not None:
        started = amounts.epoch(root.facts.get("started_at"))
        if started is not None:
            parts += [_BETWEEN, Span(texts("up", time=amounts.duration(max(1.0, now - started))))]
        parts += [_BETWEEN, span(root.facts.get("started_by") or "")]
    return tuple(parts)


def _state(context: Context, topology: Topology, contact: Contact, now: float) -> Line:
    texts = context.texts
    parts: list[Span] = [Span(" ")]

    def add(text: str, role: Role = "") -> None:
        parts.extend((span(text, role), _BETWEEN))

    # Errors are first: a narrow terminal cuts the end.
    if contact.error is not None:
        since = contact.last if contact.last is not None else contact.began
        add(texts("lost", time=amounts.duration(max(now - (since or now), 0)), error=contact.error), "bad")
    elif contact.asked is not None and now - contact.asked > _SLOW:
        add(texts("slow", time=amounts.duration(now - contact.asked)), "warn")
    elif contact.last is None:
        add(texts("connecting"), "dim")
    coverage = contact.coverage
    if contact.error is None and coverage is not None:
        if coverage.missing:
            add(texts("missing", hosts=", ".join(host for host, _ in coverage.missing)), "bad")
        else:
            add(texts("answering", answered=coverage.answered, asked=coverage.asked), "good")
        if contact.failures:
            add(texts("failures", n=f"{contact.failures:,}"), "bad")
    add(texts("system_on" if topology.show_system else "system_off"), "key" if topology.show_system else "dim")
    add(texts("stopped_on" if topology.show_stopped else "stopped_off"), "key" if topology.show_stopped else "dim")
    if context.seconds:
        add(texts("every", time=amounts.duration(context.seconds)), "dim")
    return tuple(parts)
