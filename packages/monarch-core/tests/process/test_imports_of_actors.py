"""Actors of one proc whose modules import each other, loaded at the same time."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from eventually import eventually

from monarch.actor import Actor, endpoint, this_host

# In a proc, its import continues when another thread waits for the locks of these modules, or for its turn to import them.
PACKAGE = """
import sys
from ring_of_actors.waiting import others_wait

if "monarch._core._bootstrap_main" in sys.modules:
    with open({begun!r}, "w"):
        pass
    while not others_wait():
        pass

from ring_of_actors.part import Second, Value
from monarch.actor import Actor, endpoint

class First(Actor):
    @endpoint
    def answer(self):
        return Second.__name__
"""
PART = """
import ring_of_actors
from monarch.actor import Actor, endpoint

class Second(Actor):
    @endpoint
    def answer(self):
        return ring_of_actors.First.__name__

class Value:
    @property
    def answer(self):
        return ring_of_actors.First.__name__
"""
WAITING = """
import sys, threading

def others_wait():
    frames = sys._current_frames()
    frames.pop(threading.get_ident())
    return any(frame.f_code.co_name in ("acquire", "take") for frame in frames.values())
"""


class Plain(Actor):
    @endpoint
    def answer_of(self, value: Any) -> str:
        return value.answer

    @endpoint
    def wait_for(self, path: str) -> None:
        eventually("the import of the package", Path(path).exists)


@pytest.fixture
def begun(tmp_path: Path) -> str:
    """The file that appears when the import of the package has begun in the proc."""
    return str(tmp_path / "begun")


@pytest.fixture
def ring(tmp_path: Path, begun: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = tmp_path / "ring_of_actors"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE.format(begun=begun))
    (folder / "part.py").write_text(PART)
    (folder / "waiting.py").write_text(WAITING)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("ring_of_actors", "ring_of_actors.part", "ring_of_actors.waiting"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("ring_of_actors")


def test_classes_of_modules_in_a_cycle_load_together(ring: Any, begun: str) -> None:
    procs = this_host().spawn_procs()
    plain = procs.spawn("plain", Plain)
    first = procs.spawn("first", ring.First)
    plain.wait_for.call_one(begun).get()
    second = procs.spawn("second", ring.Second)
    assert (first.answer.call_one().get(), second.answer.call_one().get()) == ("Second", "First")
    procs.stop().get()


def test_arguments_wait_for_modules_of_other_actors(ring: Any, begun: str) -> None:
    procs = this_host().spawn_procs()
    plain = procs.spawn("plain", Plain)
    first = procs.spawn("first", ring.First)
    plain.wait_for.call_one(begun).get()
    assert (plain.answer_of.call_one(ring.Value()).get(), first.answer.call_one().get()) == ("First", "Second")
    procs.stop().get()
