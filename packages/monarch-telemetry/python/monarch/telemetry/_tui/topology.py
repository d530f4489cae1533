"""The tree of a job as far as it is loaded: which rows there are, without a terminal and without requests.

A node is known by its reference. Its children are references that are loaded when they come into view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, cast

from monarch.telemetry._http.models import NodePayload
from monarch.telemetry._tables.exit_reason import is_orderly

Kind = Literal["Root", "Host", "Proc", "Actor", "Error", ""]
_READY = "ready"
# The most stopped actors of a proc that are loaded to find the failed ones.
_MOST_STOPPED = 200


class Row(NamedTuple):
    """A row of the tree; the root has depth 0."""

    reference: str
    depth: int


class Node(NamedTuple):
    """A node as it was at a time, in seconds of the caller's clock. `error` is why a later request had no answer."""

    payload: NodePayload | None
    at: float
    error: str | None = None

    @property
    def kind(self) -> Kind:
        return kind_of(self.payload)

    @property
    def facts(self) -> Mapping[str, Any]:
        return facts_of(self.payload)


def kind_of(payload: NodePayload | None) -> Kind:
    """The one tag of the properties."""
    found: Any = "" if payload is None else next(iter(payload["properties"]), "")
    return found if found in ("Root", "Host", "Proc", "Actor", "Error") else ""


def facts_of(payload: NodePayload | None) -> Mapping[str, Any]:
    """The properties without their tag."""
    if payload is None:
        return {}
    properties: Any = payload["properties"]
    found: Any = next(iter(properties.values()), None)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


class Topology:
    """Nodes and what of them is shown. One thread."""

    def __init__(self) -> None:
        self.root: str | None = None
        self.show_system = self.show_stopped = False
        self._nodes: dict[str, Node] = {}
        self._expanded: set[str] = set()
        # Display names of actors by number.
        self.names: dict[str, str] = {}
        self._rows: list[Row] | None = None
        self._places: dict[str, int] = {}

    # The known nodes

    def node(self, reference: str) -> Node | None:
        return self._nodes.get(reference)

    def put(self, reference: str, payload: NodePayload, at: float) -> None:
        """A node as it is now."""
        self._nodes[reference] = Node(payload, at)
        self._rows = None

    def put_root(self, payload: NodePayload, at: float) -> None:
        """The root; at first it is expanded."""
        reference = payload["identity"]
        if reference != self.root:
            self.root = reference
            self._expanded.add(reference)
        self.put(reference, payload, at)
        self._prune()

    def fail(self, reference: str, error: str, at: float) -> None:
        """A node that could not be loaded: its last state stays."""
        known = self._nodes.get(reference)
        self._nodes[reference] = Node(None if known is None else known.payload, at, error)
        self._rows = None

    def drop(self, reference: str) -> None:
        """A node that no longer exists."""
        self._nodes.pop(reference, None)
        for parent, known in self._nodes.items():
            payload = known.payload
            if payload is not None and reference in payload["children"]:
                rest: Any = {**payload, "children": [one for one in payload["children"] if one != reference]}
                self._nodes[parent] = known._replace(payload=rest)
        self._rows = None

    def _prune(self) -> None:
        """Forgets what is below no node any more."""
        reached: set[str] = set()
        waiting = [] if self.root is None else [self.root]
        while waiting:
            reference = waiting.pop()
            if reference in reached:
                continue
            reached.add(reference)
            known = self._nodes.get(reference)
            if known is not None and known.payload is not None:
                waiting += known.payload["children"]
        self._nodes = {reference: node for reference, node in self._nodes.items() if reference in reached}
        self._expanded &= reached

    def unnamed(self, references: Iterable[str]) -> list[str]:
        """Numbers of the actors among these whose names are not known."""
        found = (self._nodes.get(one) for one in references)
        numbers = [str(one.facts.get("instance_id", "")) for one in found if one is not None and one.kind == "Actor"]
        return [number for number in dict.fromkeys(numbers) if number.isdigit() and number not in self.names]

    # The displayed rows

    @property
    def rows(self) -> list[Row]:
        """The rows from top to bottom."""
        if self._rows is None:
            self._rows = []
            if self.root is not None:
                self._add(self._rows, self.root, 0)
            self._places = {row.reference: place for place, row in enumerate(self._rows)}
        return self._rows

    def _add(self, rows: list[Row], reference: str, depth: int) -> None:
        # Without recursion: the answer of a server could be deep, or contain a cycle.
        waiting = [Row(reference, depth)]
        seen: set[str] = set()
        while waiting:
            row = waiting.pop()
            if row.reference in seen:
                continue
            seen.add(row.reference)
            rows.append(row)
            if row.reference in self._expanded:
                waiting += [Row(child, row.depth + 1) for child in reversed(self.children(row.reference))]

    def place(self, reference: str | None) -> int | None:
        """The number of the row of a node; None where it is not shown."""
        _ = self.rows
        return None if reference is None else self._places.get(reference)

    def children(self, reference: str) -> list[str]:
        """The children that are shown: those that have failed always, those of the runtime and those that have stopped on demand."""
        node = self._nodes.get(reference)
        if node is None or node.payload is None:
            return []
        system = set(_texts(node.facts.get("system_children")))
        stopped = set(_texts(node.facts.get("stopped_children")))
        return [one for one in node.payload["children"] if self._is_shown(one, one in system, one in stopped)]

    def _is_shown(self, reference: str, is_system: bool, is_stopped: bool) -> bool:
        node = self._nodes.get(reference)
        if node is not None and node.payload is not None:
            if is_failed(node):
                return True
            is_system = is_system or bool(node.facts.get("is_system"))
            is_stopped = is_stopped or has_ended(node)
        return (self.show_system or not is_system) and (self.show_stopped or not is_stopped)

    def hidden_failures(self) -> list[str]:
        """Stopped actors that may have failed, below procs that are expanded: they have to be loaded to know."""
        found: list[str] = []
        for row in self.rows:
            if row.reference in self._expanded and (node := self._nodes[row.reference]).facts.get("failed_actor_count"):
                stopped = _texts(node.facts.get("stopped_children"))[:_MOST_STOPPED]
                found += [one for one in stopped if one not in self._nodes]
        return found

    def is_expandable(self, reference: str) -> bool:
        node = self._nodes.get(reference)
        return node is not None and node.payload is not None and bool(node.payload["children"])

    def is_expanded(self, reference: str) -> bool:
        return reference in self._expanded

    def expand(self, reference: str, expanded: bool = True) -> None:
        """Shows or hides the children of a node."""
        if expanded and self.is_expandable(reference):
            self._expanded.add(reference)
        else:
            self._expanded.discard(reference)
        self._rows = None

    def collapse_all(self) -> None:
        """Shows the root and its children only."""
        self._expanded = set() if self.root is None else {self.root}
        self._rows = None

    def set_shown(self, *, system: bool | None = None, stopped: bool | None = None) -> None:
        """Whether nodes of the runtime and stopped nodes are shown."""
        self.show_system = self.show_system if system is None else system
        self.show_stopped = self.show_stopped if stopped is None else stopped
        self._rows = None

    def parent(self, reference: str) -> str | None:
        """The node above, by its payload."""
        node = self._nodes.get(reference)
        return None if node is None or node.payload is None else node.payload["parent"]

    def title(self, reference: str) -> str:
        """The name of a node."""
        node = self._nodes.get(reference)
        return "" if node is None else title_of(node, self.names)


def title_of(node: Node, names: Mapping[str, str]) -> str:
    """The name of a node: that of its host, proc or actor."""
    facts = node.facts
    if node.kind == "Actor":
        number = str(facts.get("instance_id", ""))
        return names.get(number) or f"{facts.get('actor_type') or 'actor'} {number}"
    found = {"Root": "job", "Host": facts.get("name") or facts.get("addr"), "Proc": facts.get("proc_name")}.get(node.kind)
    return str(found or "")


def is_failed(node: Node) -> bool:
    """Whether a node is in a state that a reader has to see."""
    facts = node.facts
    if node.kind == "Actor":
        return str(facts.get("actor_status", "")).lower() == "failed"
    if node.kind == "Proc":
        reason = facts.get("exit_reason")
        return bool(facts.get("is_poisoned") or facts.get("failed_actor_count") or (reason and not is_orderly(str(reason))))
    if node.kind == "Host":
        return str(facts.get("state", _READY)) != _READY
    return node.kind == "Error"


def has_ended(node: Node) -> bool:
    """Whether a proc or an actor runs no longer."""
    if node.kind == "Proc":
        return bool(node.facts.get("exit_reason"))
    return node.kind == "Actor" and str(node.facts.get("actor_status", "")).lower() in ("stopped", "failed")


def _texts(value: Any) -> list[str]:
    return [str(one) for one in cast("list[object]", value)] if isinstance(value, list) else []
