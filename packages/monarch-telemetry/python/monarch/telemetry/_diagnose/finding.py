"""A finding of a detector: one thing that is wrong, with its facts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from monarch.telemetry._diagnose.snapshot import Node
from monarch.telemetry._diagnose.wait_graph import WaitGraph


class Fact(NamedTuple):
    """A fact and its source, such as `stacks` or `table failures`."""

    text: str
    source: str


class Finding(NamedTuple):
    """One thing that is wrong, in a sentence that begins with its subject.

    `nodes` are the culprits: nodes that wait for them are consequences. `weight` orders findings that explain as many nodes: the end of a
    process is a stronger fact than a long queue. `command` is the next one to run. The caller of the detector sets `detector`.
    """

    sentence: str
    nodes: tuple[Node, ...]
    facts: tuple[Fact, ...]
    command: str = ""
    weight: int = 50
    # Nodes that this finding explains without waiting for its culprits.
    explains: tuple[Node, ...] = ()
    detector: str = ""


# The test of a detector: a pure function of the snapshot, which the graph has too.
Test = Callable[[WaitGraph], "list[Finding]"]


class Detector(NamedTuple):
    """A detector: its name, its test, and a sentence about what it looks at."""

    name: str
    looks_at: str
    test: Test
