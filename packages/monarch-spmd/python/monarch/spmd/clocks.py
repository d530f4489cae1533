"""The offsets of the clocks of hosts from the clock of the client, by answers that carry their time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Reading(NamedTuple):
    """The time that a host gave in an answer, which was asked for and had come by the client's clock; seconds of the epoch."""

    host: str
    asked: float
    at: float
    answered: float


def offsets(readings: Iterable[Reading]) -> dict[str, float]:
    """By host, the seconds that its clock is ahead, of those that all its readings allow the one nearest to zero.

    A host may have taken any part of the time between question and answer, so that one reading leaves that much room. Within it the clocks
    agree: those of the ranks of one host are one clock, and those of a cluster are kept together far better than a busy host answers.
    """
    bounds: dict[str, tuple[float, float]] = {}
    for host, asked, at, answered in readings:
        least, most = bounds.get(host, (float("-inf"), float("inf")))
        bounds[host] = max(least, at - answered), min(most, at - asked)
    return {host: max(least, min(most, 0.0)) for host, (least, most) in bounds.items()}
