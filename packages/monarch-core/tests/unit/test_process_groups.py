"""Process groups and software of a process, as inspections show them: stand-ins for PyTorch, and modules made by the test."""

from __future__ import annotations

import builtins
import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from monarch._core.observe.process_groups import process_groups
from monarch._core.observe.software import software

C10D = """
def all_reduce(tensor, op=None, group=None, async_op=False):
    _wait()

def all_gather_object(object_list, obj, group=None):
    all_reduce(tensor=obj, group=group)

def _wait():
    begun.set()
    ended.wait()
"""


class Group:
    def __init__(self, begun: int | None) -> None:
        self.begun = begun

    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return 4

    def _get_sequence_number_for_group(self) -> int:
        if self.begun is None:
            raise RuntimeError("not supported")
        return self.begun


@pytest.fixture
def c10d(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    module: Any = ModuleType("torch.distributed.distributed_c10d")
    module.__file__ = str(tmp_path / "distributed_c10d.py")
    exec(compile(C10D, module.__file__, "exec"), vars(module))
    module.begun, module.ended = threading.Event(), threading.Event()
    default, other = Group(12), Group(None)
    module._world = SimpleNamespace(pg_names={default: "0", other: "1"}, pg_group_ranks={default: {3: 1, 2: 0}}, default_pg=default)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield module
    module.ended.set()


def test_process_without_torch_has_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d", raising=False)
    assert process_groups() == []


@pytest.mark.parametrize("name", ["all_reduce", "all_gather_object"])
def test_collective_in_progress_has_its_tensor(c10d: Any, name: str) -> None:
    """The innermost public call counts: it is the one with the number."""
    tensor = SimpleNamespace(shape=(2, 3), dtype="torch.float32")
    arguments = ([tensor], tensor) if name == "all_gather_object" else (tensor,)
    thread = threading.Thread(target=getattr(c10d, name), args=arguments)
    thread.start()
    c10d.begun.wait()
    first, second = process_groups()
    c10d.ended.set()
    thread.join()
    assert (first["name"], first["rank"], first["size"], first["begun"]) == ("0", 1, 4, 12)
    assert first["calls"] == [{"thread": thread.ident, "call": "all_reduce", "shape": [2, 3], "dtype": "float32"}]
    assert second["begun"] is None and second["calls"] == []


def module_of(text: str, name: str, file: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = file
    exec(compile(text, file, "exec"), vars(module))
    return module


def code_of(monkeypatch: pytest.MonkeyPatch, text: str, file: str = "/srv/a/losses.py") -> str | None:
    # The process of all tests has more modules than an answer.
    monkeypatch.setattr("monarch._core.observe.software._MOST_MODULES", 1 << 20)
    monkeypatch.setitem(sys.modules, "losses", module_of(text, "losses", file))
    return software()["code"].get("losses")


def test_digest_follows_functions_and_not_places(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "class Loss:\n    def of(self, x):\n        return x / 2\n"
    first = code_of(monkeypatch, text)
    assert first is not None
    assert code_of(monkeypatch, "\n\n" + text, "/srv/b/losses.py") == first
    assert code_of(monkeypatch, text.replace("2", "3")) != first
    assert code_of(monkeypatch, "RATE = 3\n") is None
    assert code_of(monkeypatch, text, "/usr/lib/python3/site-packages/losses.py") is None


def test_digest_is_made_once_for_each_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("monarch._core.observe.software._MOST_MODULES", 1 << 20)
    monkeypatch.setattr(builtins, "digest", lambda: software()["code"].get("losses_of_test"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "losses_of_test.py"
    file.write_text("def part(x):\n    return x\n\nseen = digest()\n\ndef loss(x):\n    return x\n")
    module = importlib.import_module("losses_of_test")
    try:
        first = digest_of_test()
        # The look within the import has kept no digest.
        assert module.seen != first
        with monkeypatch.context() as once:
            once.setattr("monarch._core.observe.software._text", lambda code, deepest: pytest.fail(f"{code} is read again"))
            assert digest_of_test() == first
        file.write_text("def loss(x):\n    return x / 2 + 1\n")
        importlib.reload(module)
        assert digest_of_test() != first
    finally:
        del sys.modules["losses_of_test"]


def digest_of_test() -> str:
    return str(software()["code"]["losses_of_test"])


def test_values_of_known_variables_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"NCCL_ALGO": "Ring", "DATA_VERSION": "7", "HF_TOKEN": "abcdefgh", "HF_ENDPOINT": "https://a:b@c"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    shown = software()["variables"]
    assert shown["NCCL_ALGO"] == "Ring" and shown["DATA_VERSION"].startswith("#") and len(shown["DATA_VERSION"]) == 9
    assert len(shown["HF_TOKEN"]) == len(shown["HF_ENDPOINT"]) == 5


def test_versions_of_loaded_packages_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch._core.observe.software._MOST_PACKAGES", 1 << 20)
    monkeypatch.setitem(sys.modules, "kernels", module_of('__version__ = "1.4"\n', "kernels", "/x/site-packages/kernels.py"))
    assert software()["packages"]["kernels"] == "1.4" and "python" in software()["packages"]
