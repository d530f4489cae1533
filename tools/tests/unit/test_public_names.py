"""The description of public names has the parts that users rely on and nothing else."""

from __future__ import annotations

import enum
import types
from typing import Any

from tools.public_names import describe

SOURCE = """
import enum

class Base:
    def shared(self, a: int, /, *, b: "str" = "x") -> bool: ...
    def _private(self): ...

class Thing(Base):
    count: int
    def __init__(self, name, *args: int, flag=object()) -> None: ...
    @property
    def size(self) -> int: ...
    @classmethod
    def make(cls, **options: int) -> "Thing": ...
    async def run(self): ...

class Broken(RuntimeError):
    pass

class Color(enum.Enum):
    RED = 1
    def mix(self): ...

Alias = Thing
LIMIT = 3
def open(path, mode="r"): ...
__all__ = ["Thing", "Broken", "Color", "Alias", "LIMIT", "open"]
"""

EXPECTED = """\
module monarch.fake
  Alias = Thing
  class Broken(RuntimeError)
  class Color(Enum)
    RED = 1
    def mix(self)
  LIMIT: int
  class Thing(Base)
    (name, *args: int, flag=<object object>) -> None
    attribute count: int
    classmethod make(cls, **options: int) -> Thing
    async def run(self)
    def shared(self, a: int, /, *, b: str = 'x') -> bool
    attribute size: int
  def open(path, mode='r')"""


def fake(source: str) -> types.ModuleType:
    module = types.ModuleType("monarch.fake")
    names: dict[str, Any] = vars(module)
    exec(compile(f"from __future__ import annotations\n{source}", "fake", "exec"), names)
    return module


def test_every_kind_of_name() -> None:
    text = "\n".join(describe(fake(SOURCE)))
    # Annotations that were already strings in the source keep their quotes.
    assert text.replace("'Thing'", "Thing").replace("'str'", "str") == EXPECTED


def test_moved_method_of_a_base_class_changes_nothing() -> None:
    def members(source: str) -> list[str]:
        return [line for line in describe(fake(source)) if "def f" in line]

    apart = "class A:\n    def f(self): ...\nclass B(A): ...\n__all__ = ['B']\n"
    assert members(apart) == members("class B:\n    def f(self): ...\n__all__ = ['B']\n") == ["    def f(self)"]


def test_members_of_enum_are_listed_once() -> None:
    module = fake("import enum\nclass E(enum.IntEnum):\n    A = 1\n__all__ = ['E']\n")
    assert issubclass(module.E, enum.IntEnum)
    assert list(describe(module)) == ["module monarch.fake", "  class E(IntEnum)", "    A = 1"]
