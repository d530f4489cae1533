"""Imports that messages cause, in several threads."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import pytest

from monarch._core.pickle import imports, pickling


class Gates(ModuleType):
    """The events by which modules of a test wait for it."""

    def __init__(self) -> None:
        super().__init__("gates_of_imports")
        self.begun, self.go = Event(), Event()
        self.loaded: list[Any] = []


SLOW = "import gates_of_imports as gates\ngates.begun.set()\ngates.go.wait()\nclass Slow: pass\n"
QUICK = "class Quick: pass\n"
WITHIN = "import gates_of_imports as gates\nfrom monarch._core.pickle import pickling\ngates.loaded.append(pickling.loads({message!r}))\n"


def global_of(module: str, name: str) -> bytes:
    """The pickle of a class by reference, without the import of its module here."""
    return b"\x80\x05" + b"".join(b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name)) + b"\x93."


@pytest.fixture
def gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gates]:
    before = set(sys.modules)
    made = Gates()
    monkeypatch.setitem(sys.modules, "gates_of_imports", made)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "slow_import.py").write_text(SLOW)
    (tmp_path / "quick_import.py").write_text(QUICK)
    (tmp_path / "import_within.py").write_text(WITHIN.format(message=global_of("quick_import", "Quick")))
    yield made
    for name in {"slow_import", "quick_import", "import_within"} - before:
        sys.modules.pop(name, None)


@pytest.fixture
def slow(gates: Gates) -> Iterator[Any]:
    """The class of a module whose import has begun in another thread, and ends at the end of the test."""
    with ThreadPoolExecutor() as threads:
        loading = threads.submit(pickling.loads, global_of("slow_import", "Slow"))
        gates.begun.wait()
        try:
            yield loading
        finally:
            gates.go.set()
        assert loading.result().__name__ == "Slow"


@pytest.mark.usefixtures("slow")
def test_import_loads_messages_without_its_turn(gates: Gates) -> None:
    importlib.import_module("import_within")
    assert [cls.__name__ for cls in gates.loaded] == ["Quick"]


def test_import_waits_for_its_turn(gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    within = imports._within_import

    def noted() -> bool:
        gates.go.set()
        return within()

    with ThreadPoolExecutor() as threads:
        threads.submit(pickling.loads, global_of("slow_import", "Slow"))
        gates.begun.wait()
        monkeypatch.setattr(imports, "_within_import", noted)
        try:
            assert pickling.loads(global_of("quick_import", "Quick")).__name__ == "Quick"
            assert imports.complete_module("slow_import") is not None
        finally:
            gates.go.set()


@pytest.mark.usefixtures("slow")
def test_wait_for_a_turn_has_an_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(imports, "IMPORT_TIMEOUT", 0.0)
    assert pickling.loads(global_of("quick_import", "Quick")).__name__ == "Quick"
    monkeypatch.setattr(imports, "IMPORT_TIMEOUT", 1e6)
    with pytest.raises(ModuleNotFoundError):
        pickling.loads(global_of("no_such_module_to_import", "Nothing"))
    (warning,) = caplog.messages
    assert warning == "the import of quick_import no longer waits for that of slow_import, which has taken 0.0 s in another thread"


@pytest.mark.usefixtures("slow")
def test_loaded_modules_need_no_turn() -> None:
    assert pickling.loads(global_of("collections", "OrderedDict")).__name__ == "OrderedDict"


def test_modules_of_functions_by_value_import_in_turn(gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr(imports._turn, "take", taken.append)
    quick_import: Any = importlib.import_module("quick_import")
    data, buffers = pickling.dumps(lambda: quick_import.Quick)  # pyright: ignore[reportUnknownLambdaType]
    del sys.modules["quick_import"]
    assert pickling.loads(data, buffers)().__name__ == "Quick" and taken == ["quick_import"]


def test_messages_do_not_touch_a_begun_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = ModuleType("torch")
    spec: Any = ModuleSpec("torch", None)
    spec._initializing = True
    torch.__spec__ = spec
    dispatch: Any = ModuleType("torch.utils._python_dispatch")
    dispatch._disable_current_modes = lambda: pytest.fail("imports of torch have begun")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", dispatch)
    data, buffers = pickling.dumps(((Path("a"),), {}))
    assert pickling.loads(data, buffers) == ((Path("a"),), {})
