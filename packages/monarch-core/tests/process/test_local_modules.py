"""An actor whose module only the client has."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from worker_processes import Workers

import monarch.actor
from monarch.actor import Actor, ActorError, SupervisionError, endpoint

MODULE = """
from monarch.actor import Actor, endpoint

class Local(Actor):
    @endpoint
    def answer(self):
        return 1

class Value:
    pass
"""
HINT = "hint: 'only_here' is not on this machine: `sync_workspace`, or a mount"


class Takes(Actor):
    @endpoint
    def take(self, value: object) -> None:
        pass


def test_module_of_the_client_only_has_its_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "only_here.py").write_text(MODULE)
    module = importlib.import_module("only_here")
    # A pod, too, has none of the client's folders.
    (tmp_path / "only_here.py").unlink()
    try:
        with Workers(1) as workers:
            hosts = workers.attach()
            procs = hosts.spawn_procs()
            with pytest.raises(SupervisionError) as raised:
                procs.spawn("local", module.Local).answer.call_one().get()
            text = str(raised.value)
            assert "No module named 'only_here'" in text and HINT in text and text.count("hint:") == 1
            with pytest.raises(ActorError) as refused:
                procs.spawn("takes", Takes).take.call_one(module.Value()).get()
            assert HINT in str(refused.value)
            # Their loss with the workers would be a failure of a later test.
            hosts.shutdown().get()
    finally:
        sys.modules.pop("only_here", None)
