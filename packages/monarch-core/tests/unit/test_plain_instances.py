"""Instances of actor classes that no mesh has: their endpoints name what the caller has to do."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import Actor, endpoint


class Counter(Actor):
    @endpoint
    def add(self, n: int) -> int:
        return n


def test_endpoint_of_plain_object_names_spawn() -> None:
    plain: Any = Counter()
    with pytest.raises(TypeError, match=r"Counter\.add is an endpoint(.|\n)*hint: spawn the class(.|\n)*`actors\.add\.call\(\.\.\.\)`"):
        plain.add(1)
    with pytest.raises(AttributeError, match=r"Counter\.add is an endpoint(.|\n)*hint: spawn the class"):
        plain.add.call_one(1)
    with pytest.raises(AttributeError, match="has no attribute 'cal'"):
        plain.add.cal(1)
