"""The ranking: causes apart from their consequences.

A finding is a consequence of another one if its culprit waits for the culprit of the other, directly or not, and not the reverse.
All other findings are causes: their culprits wait for nothing that was found, or for themselves in a cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from monarch.telemetry._diagnose.finding import Finding
from monarch.telemetry._diagnose.snapshot import Node
from monarch.telemetry._diagnose.wait_graph import WaitGraph

# The gain of a cause with nodes that wait for it, in the unit of `Finding.weight`.
_WAITED_FOR = 15


class Cause(NamedTuple):
    """A finding that no other one explains. `waiting` are the nodes that wait for its culprits, `consequences` the findings it explains."""

    finding: Finding
    waiting: tuple[Node, ...]
    consequences: tuple[Finding, ...]


def ranked(graph: WaitGraph, findings: Sequence[Finding]) -> list[Cause]:
    """The causes, most likely first."""
    behind = [graph.waiting_for(one.nodes) | set(one.explains) for one in findings]
    culprits = [set(one.nodes) for one in findings]
    # The findings that may explain another one have a node with it, or a node of it behind them: hundreds of findings are no pairs then.
    about: dict[Node, set[int]] = {}
    for index in range(len(findings)):
        for node in culprits[index] | behind[index]:
            about.setdefault(node, set()).add(index)
    explained_by: dict[int, int] = {}
    for index, one in enumerate(findings):
        others = {other for node in culprits[index] for other in about[node]}
        for other in sorted(others - {index}):
            found = findings[other]
            if _explains(found, culprits[other], behind[other], one, culprits[index], behind[index]):
                before = explained_by.get(index)
                if before is None or findings[before].weight < found.weight:
                    explained_by[index] = other
    explained: dict[int, list[Finding]] = {}
    for other in explained_by:
        explained.setdefault(_first(explained_by, other), []).append(findings[other])
    causes: list[Cause] = []
    for index, one in enumerate(findings):
        if index not in explained_by:
            consequences = tuple(explained.get(index, ()))
            causes.append(Cause(one, tuple(sorted(behind[index] - set(one.nodes))), consequences))
    # Findings that explain each other in a circle would leave no cause.
    if findings and not causes:
        first = max(range(len(findings)), key=lambda index: findings[index].weight)
        causes = [Cause(findings[first], tuple(sorted(behind[first])), tuple(one for one in findings if one is not findings[first]))]
    return sorted(causes, key=lambda cause: (-_score(cause), cause.finding.sentence))


def _explains(found: Finding, others: set[Node], behind: set[Node], one: Finding, nodes: set[Node], behind_one: set[Node]) -> bool:
    """Whether `found` explains `one`: each with its culprits, and the nodes behind them."""
    if not nodes.isdisjoint(others):
        # Two views of one culprit: the stronger one stands.
        return (found.weight, found.sentence) > (one.weight, one.sentence)
    return not nodes.isdisjoint(behind) and others.isdisjoint(behind_one)


def _first(explained_by: dict[int, int], index: int) -> int:
    """The end of the chain of explanations."""
    seen: set[int] = set()
    while index in explained_by and index not in seen:
        seen.add(index)
        index = explained_by[index]
    return index


def _score(cause: Cause) -> int:
    return cause.finding.weight + (_WAITED_FOR if cause.waiting else 0)
