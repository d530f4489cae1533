"""The graph of waits: an edge leads from a node that waits to one that has to act first.

A thread with a call in flight waits for each actor that has not answered. An actor waits while its thread does, if the wait keeps it from
other messages. A thread that wants a lock waits for the thread that holds it; one that
joins a thread, or wants the result of a task, for that thread. An actor of a process that does not run Python waits for that
process, and each process of a host that does not answer for the host. A rank that waits in a collective waits for each rank of its process
group that has begun fewer collectives. An endpoint that stands in the kernel waits for the process with the lock of its file, or with the
other end of its connection.

All waits of a snapshot were seen in two looks, so all edges existed together at one moment. A cycle of the graph is therefore a deadlock,
unless a wait of it has a time limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from monarch.telemetry._diagnose.groups import collective_waits, node_of
from monarch.telemetry._diagnose.kernel_waits import awaited
from monarch.telemetry._diagnose.snapshot import Index, Node, Snapshot, Wait


class Edge(NamedTuple):
    """`wait` is None for an edge to the process or host of a node."""

    source: Node
    target: Node
    wait: Wait | None = None


class WaitGraph:
    """The edges of a snapshot. Nodes without an edge do not wait."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.index = Index(snapshot)
        self.edges: dict[Node, list[Edge]] = {}
        self._sources: dict[Node, set[Node]] = {}
        for wait in snapshot.waits:
            self._add_wait(wait)
        for one, other, wait in collective_waits(snapshot):
            source = self.index.node_of_thread(wait.proc, wait.thread)
            self._add(Edge(source, node_of(self.index, other, self.index.by_thread.get((one.proc, wait.thread))), wait))
        for edge in awaited(self.index):
            self._add(Edge(*edge))
        silent = {host.name for host in snapshot.hosts if host.state == "joined" and host.error}
        for proc in snapshot.procs:
            if proc.host in silent:
                self._add(Edge(("proc", proc.uid), ("host", proc.host)))
        for actor in snapshot.actors:
            proc = self.index.procs.get(actor.proc)
            if proc is not None and (proc.silent or proc.host in silent):
                self._add(Edge(("actor", actor.proc, actor.mesh), ("proc", actor.proc)))

    def _add_wait(self, wait: Wait) -> None:
        thread: Node = ("thread", wait.proc, str(wait.thread))
        source = self.index.node_of_thread(wait.proc, wait.thread) if wait.blocks else thread
        if wait.lock is not None or wait.thing:
            if wait.holder is not None:
                self._add(Edge(source, self.index.node_of_thread(wait.proc, wait.holder), wait))
            return
        for _, proc in wait.targets:
            actor = self.index.actors.get((proc, wait.mesh))
            if actor is not None and wait.endpoint in actor.concurrent:
                # The call may be in progress already, whatever the actor does beside it.
                continue
            # Without a row of the actor its process does not answer, or has ended.
            self._add(Edge(source, ("proc", proc) if actor is None else ("actor", proc, wait.mesh), wait))

    def _add(self, edge: Edge) -> None:
        self.edges.setdefault(edge.source, []).append(edge)
        self._sources.setdefault(edge.target, set()).add(edge.source)

    def targets(self, node: Node) -> set[Node]:
        """What a node waits for directly."""
        return {edge.target for edge in self.edges.get(node, ())}

    def waiting_for(self, nodes: Iterable[Node]) -> set[Node]:
        """Every node that waits for one of these, directly or through others, without these."""
        return _reached(nodes, self._sources)

    def waited_for_by(self, nodes: Iterable[Node]) -> set[Node]:
        """Every node for which one of these waits, directly or through others, without these."""
        return _reached(nodes, {node: self.targets(node) for node in self.edges})

    def cycles(self) -> list[list[Edge]]:
        """One shortest cycle of each set of nodes that wait for each other, each cycle as its edges."""
        found: list[list[Edge]] = []
        seen: set[Node] = set()
        for start in sorted(self.edges):
            if start in seen:
                continue
            cycle = self._cycle(start)
            if cycle is not None:
                found.append(cycle)
                nodes = {edge.source for edge in cycle}
                # All nodes that wait for the cycle and that it waits for are explained by it.
                seen |= nodes | (self.waiting_for(nodes) & self.waited_for_by(nodes))
        return found

    def _cycle(self, start: Node) -> list[Edge] | None:
        """The shortest way from a node back to itself."""
        before: dict[Node, Edge] = {}
        queue = [start]
        for node in queue:
            for edge in self.edges.get(node, ()):
                if edge.target == start:
                    way = [edge]
                    while way[0].source != start:
                        way.insert(0, before[way[0].source])
                    return way
                if edge.target not in before:
                    before[edge.target] = edge
                    queue.append(edge.target)
        return None


def _reached(nodes: Iterable[Node], neighbours: Mapping[Node, set[Node]]) -> set[Node]:
    start = set(nodes)
    found: set[Node] = set()
    waiting = list(start)
    while waiting:
        for node in neighbours.get(waiting.pop(), ()):
            if node not in found and node not in start:
                found.add(node)
                waiting.append(node)
    return found
