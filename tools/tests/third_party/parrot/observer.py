"""Observers of a host's events, found by their entry points."""

from __future__ import annotations

from monarch.extension.events import Batch

heard: list[str] = []


def listen(batch: Batch) -> None:
    """Keeps the words of user events."""
    heard.extend(str(event.fields["name"]) for event in batch.events if event.name == "user.event")


def breaks(batch: Batch) -> None:
    """Raises for every batch."""
    raise ValueError(f"{len(batch.events)} are too many")
