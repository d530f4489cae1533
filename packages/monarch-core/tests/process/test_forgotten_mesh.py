"""A handle to a mesh that its owner has stopped and forgotten, and that returns in a message."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import pytest
from supervision_actors import Child

from monarch.actor import Actor, SupervisionError, endpoint, this_host


class Former(Actor):
    """Owns a child that fails, and gets the handle again after it has forgotten it."""

    def __init__(self, procs: Any) -> None:
        self.child = procs.spawn("child", Child)

    @endpoint
    def lose(self) -> bytes:
        handle = pickle.dumps(self.child)
        with pytest.raises(SupervisionError):
            self.child.fail.call_one().get()
        self.child.stop().get()
        del self.child
        gc.collect()
        return handle

    @endpoint
    def broadcast(self, child: Any) -> str:
        try:
            child.rank.broadcast()
        except SupervisionError as e:
            return str(e)
        return "went well"

    def __supervise__(self, failure: object) -> bool:
        return True


def test_failure_of_a_mesh_is_remembered():
    with this_host().spawn_procs() as procs:
        former = procs.spawn("former", Former, procs)
        handle = pickle.loads(former.lose.call_one().get())
        assert "all its descendants have failed" in former.broadcast.call_one(handle).get()
