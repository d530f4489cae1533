"""Hosts that do not answer, and are not lost yet."""

from __future__ import annotations

from monarch.telemetry._diagnose.finding import Detector, Fact, Finding
from monarch.telemetry._diagnose.snapshot import Node
from monarch.telemetry._diagnose.wait_graph import WaitGraph


def silent(graph: WaitGraph) -> list[Finding]:
    """One finding for each host whose agent gave no answer."""
    found: list[Finding] = []
    for host in graph.index.snapshot.hosts:
        if host.state == "joined" and host.error:
            node: Node = ("host", host.name)
            text = f"host {host.name} does not answer: {host.error}"
            found.append(Finding(text, (node,), (Fact(host.error, "agent of the client"),), "monarch ps --all", 86))
    return found


DETECTORS = (Detector("silent_host", "hosts of the job whose agent gives no answer", silent),)
