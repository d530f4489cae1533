"""The wait for a definition that is in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from monarch.job._cli.k8s_install import _await_established


class Change:
    def __init__(self, *items: dict[str, Any]) -> None:
        self.items = list(items)
        self.object: dict[str, Any] = {}


class Cluster:
    """Shows a definition that is new, and then in use."""

    def watch(self, path: str, **_: Any) -> Iterator[Change]:
        yield Change({"status": {"conditions": None}}, {"status": None})
        yield Change({"status": {"conditions": [{"type": "Established", "status": "True"}]}})
        raise AssertionError("it is in use")


def test_definition_without_conditions_is_waited_for() -> None:
    definition = {"metadata": {"name": "a"}}
    _await_established(Cluster(), definition)  # pyright: ignore
