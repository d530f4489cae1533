"""The native module and its inner modules: importable by name, so that functions that refer to them can be pickled."""

from __future__ import annotations

import importlib
import inspect
import pickle
from types import BuiltinFunctionType, ModuleType
from typing import Any

import pytest
from fresh import lines, run

NAMES = ["", ".bulk", ".events", ".protocol", ".system"]


def members(module: ModuleType) -> list[Any]:
    return [value for value in vars(module).values() if isinstance(value, type | BuiltinFunctionType)]


@pytest.mark.parametrize("name", [f"monarch._core._native{inner}" for inner in NAMES])
def test_native_modules_and_members_are_importable_by_name(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__name__ == name
    for member in members(module):
        home = importlib.import_module(member.__module__)
        assert getattr(home, member.__name__) is member and pickle.loads(pickle.dumps(member)) is member
        assert inspect.getmodule(member) is home


def test_class_that_names_native_functions_can_be_sent() -> None:
    """A class of a script is pickled with the functions that its methods refer to."""
    done = run("""
from monarch._core._native.events import Event, is_on, now
from monarch.actor import Actor, endpoint, this_host

class Looks(Actor):
    @endpoint
    def look(self):
        return is_on(), now(), Event.__name__

print(this_host().spawn_procs().spawn("looks", Looks).look.call_one().get())
""")
    assert lines(done.stdout) == ["(False, 0, 'Event')"]
