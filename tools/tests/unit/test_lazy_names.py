"""The table of a facade has each name that its imports state, and no other."""

from __future__ import annotations

import importlib

import pytest

from tools import lazy_names

FACADE = '''"""A facade."""

import os
from far.away import thing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from a.b.two import Second as Second
    from a.b.one import first as first
    from a.b.one import First as First
    from a.facade import config as config
'''


def test_table_has_the_names_of_the_imports():
    assert lazy_names.homes(FACADE, "a.b") == '_HOMES = {\n    "one": ("First", "first"),\n    "two": ("Second",),\n}\n'


def test_long_row_has_a_line_for_each_name():
    names = [f"a_name_that_is_long_{i}" for i in range(9)]
    text = "if TYPE_CHECKING:\n" + "".join(f"    from a.b import {name} as {name}\n" for name in names)
    rows = "".join(f'        "{name}",\n' for name in names)
    assert lazy_names.homes(text, "a") == f'_HOMES = {{\n    "b": (\n{rows}    ),\n}}\n'


@pytest.mark.parametrize("module", ["monarch.actor", "monarch.extension", "monarch.job", "monarch.rdma"])
def test_every_listed_name_is_there(module: str):
    facade = importlib.import_module(module)
    assert sorted(dir(facade)) == sorted(facade.__all__)
    assert all(hasattr(facade, name) for name in facade.__all__)
