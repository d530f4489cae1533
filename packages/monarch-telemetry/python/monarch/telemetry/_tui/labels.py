"""The line of a node in the tree: name, then its state in words, so that no colour is needed to read it."""

from __future__ import annotations

from monarch.telemetry._tui.lines import Line, Role, Span, span
from monarch.telemetry._tui.texts import Texts
from monarch.telemetry._tui.topology import Node, Row, Topology, has_ended, is_failed

# The roles of the ordinary statuses of actors.
_ROLES: dict[str, Role] = {"idle": "dim", "processing": "busy", "failed": "bad", "stopped": "dim", "unknown": "dim", "client": "dim"}


def row_label(topology: Topology, row: Row, texts: Texts) -> Line:
    """The line of a row: indentation, `+` or `-` for a branch, `!` for a failure."""
    node = topology.node(row.reference)
    branch = "  "
    if topology.is_expandable(row.reference):
        branch = "- " if topology.is_expanded(row.reference) else "+ "
    head = Span("  " * row.depth + branch, "dim")
    if node is None:
        return head, Span("…", "dim")
    if node.payload is None:
        return head, span(f"? {node.error or texts('unknown')}", "warn")
    failed = is_failed(node)
    found = [head]
    if failed:
        found.append(Span("! ", "bad"))
    if name := topology.title(row.reference):
        found.append(span(name, "title" if node.kind == "Root" else ""))
    notes = _notes(node, texts)
    for number, (text, role) in enumerate(notes):
        found += [Span(", " if number else "  "), span(text, role)]
    if node.error is not None:
        found += [Span("  "), span(f"? {texts('old')}", "warn")]
    return tuple(found)


def _notes(node: Node, texts: Texts) -> list[tuple[str, Role]]:
    facts = node.facts
    if node.kind == "Root":
        return [(texts.count("host", facts.get("num_hosts")), "dim")]
    if node.kind == "Host":
        state = str(facts.get("state", ""))
        return [(state, "bad" if is_failed(node) else "good"), (texts.count("proc", facts.get("num_procs")), "dim")]
    if node.kind == "Proc":
        if has_ended(node):
            return [(f"{texts('ended')}: {facts.get('exit_reason')}", "bad" if is_failed(node) else "dim")]
        found: list[tuple[str, Role]] = []
        if failures := facts.get("failed_actor_count"):
            found.append((f"{failures} {texts('failed')}", "bad"))
        elif facts.get("is_poisoned"):
            found.append((texts("poisoned"), "bad"))
        return [*found, (texts.count("actor", facts.get("num_actors")), "dim")]
    if node.kind == "Actor":
        status = str(facts.get("actor_status", "?"))
        shown: list[tuple[str, Role]] = [(status, _ROLES.get(status.lower(), "warn"))]
        if depth := facts.get("queue_depth"):
            shown.append((f"{depth} {texts('waiting')}", "warn"))
        return shown
    return [(f"{facts.get('code', '?')}: {facts.get('message', '')}", "warn")]
