"""Changed modules, and the order of their reload."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch._core.sync import module_reload
from monarch._core.sync.path import described, translated


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    from importlib.machinery import SourceFileLoader

    original = SourceFileLoader.path_stats
    monkeypatch.syspath_prepend(str(tmp_path))
    module_reload.watch_imports()
    module_reload.watch_imports()
    before = set(sys.modules)
    yield tmp_path
    SourceFileLoader.path_stats = original  # type: ignore[method-assign]
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(top: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text(text)


LOG = "import builtins\nbuiltins.reload_log.append(__name__)\n"


def test_dependencies_first(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order follows the new source: `r_first` imported nothing before."""
    log: list[str] = []
    monkeypatch.setattr("builtins.reload_log", log, raising=False)
    files = {
        "r_a.py": "import r_pkg.b\nfrom r_pkg import c\n" + LOG,
        "r_pkg/__init__.py": LOG + "from . import b\n",
        "r_pkg/b.py": "def f():\n    from .d import x\n" + LOG,
        "r_pkg/c.py": LOG,
        "r_pkg/d.py": "x = 1\n" + LOG,
        "r_first.py": LOG,
        "r_same.py": LOG,
    }
    write(top, files)
    for name in ("r_first", "r_a", "r_pkg.d", "r_same"):
        importlib.import_module(name)
    assert module_reload.reload_changed([str(top)]) == ([], [])
    log.clear()
    write(top, {name: text + "# changed\n" for name, text in files.items() if name != "r_same.py"})
    write(top, {"r_first.py": "try:\n    from r_pkg import d\nfinally:\n    pass\n" + LOG})
    reloaded, failed = module_reload.reload_changed([str(top)])
    assert failed == [] and log == reloaded and set(log) == {"r_first", "r_a", "r_pkg", "r_pkg.b", "r_pkg.c", "r_pkg.d"}
    for name, dependency in [("r_a", "r_pkg"), ("r_a", "r_pkg.b"), ("r_a", "r_pkg.c"), ("r_pkg", "r_pkg.b"), ("r_first", "r_pkg.d")]:
        assert log.index(dependency) < log.index(name)
    assert module_reload.reload_changed([str(top)]) == ([], [])


def test_cycles_end(top: Path) -> None:
    write(top, {"r_x.py": "import r_y\n", "r_y.py": "import r_x\n"})
    importlib.import_module("r_x")
    write(top, {"r_x.py": "import r_y  #\n", "r_y.py": "import r_x  #\n"})
    assert module_reload.reload_changed([str(top)]) == (["r_y", "r_x"], [])


def test_failures_do_not_stop_others(top: Path) -> None:
    write(top, {"r_bad.py": "a = 1\n", "r_exit.py": "", "r_good.py": "import r_bad\n"})
    for name in ("r_good", "r_exit"):
        importlib.import_module(name)
    write(top, {"r_bad.py": "a = \n", "r_exit.py": "raise SystemExit(3)\n", "r_good.py": "import r_bad\nb = 2\n"})
    for _ in range(2):
        reloaded, failed = module_reload.reload_changed([str(top)])
        assert {name: packed[0] for name, packed in failed} == {"r_bad": "SyntaxError", "r_exit": "SystemExit"}
        assert sys.modules["r_good"].b == 2 and sys.modules["r_bad"].a == 1
    assert reloaded == []


def test_only_existing_files_in_given_directories_count(top: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    write(top, {"r_gone.py": "", "r_changed.py": ""})
    for name in ("r_gone", "r_changed"):
        importlib.import_module(name)
    write(top, {"r_changed.py": "# more\n"})
    (top / "r_gone.py").unlink()
    assert module_reload.changed_modules([str(tmp_path_factory.mktemp("other")), str(top)[:-1]]) == {}
    assert list(module_reload.changed_modules([str(top)])) == ["r_changed"]


@pytest.mark.parametrize(
    ("path", "places", "expected"),
    [
        (
            ["/code", "/lib/python", "/x/site-packages"],
            [("/code", "c", True), ("/other", "o", False)],
            ["/w/c", "/lib/python", "/w/o", "/x/site-packages"],
        ),
        (["/code/src", "/codes"], [("/code/src", "c/src", True), ("/code", "c", None)], ["/w/c/src", "/codes"]),
        (["/lib"], [("/code/src", "c/src", True), ("/code", "c", None), ("/other", "o", False)], ["/w/c/src", "/lib", "/w/o"]),
        ([], [("/a", "a", True), ("/b", "b", True)], ["/w/a", "/w/b"]),
    ],
)
def test_sys_path(path: list[str], places: list[tuple[str, str, bool | None]], expected: list[str]) -> None:
    assert translated(path, places, "/w") == expected
    assert translated(expected, places, "/w") == expected


def test_sys_path_of_hosts_is_described() -> None:
    path = ["/code/src", "/lib", "/other", "/code/tools", "/codes"]
    assert described([("/code", "c"), ("/other", "o"), ("/data", "d")], path) == [
        *(("/code/src", "c/src", True), ("/other", "o", True), ("/code/tools", "c/tools", True)),
        *(("/code", "c", None), ("/data", "d", False)),
    ]
