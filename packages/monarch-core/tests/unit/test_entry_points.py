"""Entry points of other wheels: found without the library, loaded once, left out and named if they are broken."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points as by_library
from importlib.metadata import version
from pathlib import Path

import pytest

from monarch._core.config import entry_points
from monarch._core.config.entry_points import BrokenEntry, LoadedEntry, RefusedVersion, load_entries, load_entry
from monarch._core.config.version_range import fits
from monarch.extension import entry_names
from tools import installed_wheel

GROUP = "monarch.test"
MODULES = {
    "good_words": "class Words:\n    said = 'hello'\n",
    "bad_words": "def load():\n    raise LookupError('no dictionary')\n\nload()\n",
}


def install(folder: Path, name: str, **arguments: object) -> None:
    folder.mkdir(exist_ok=True)
    entries = {"good": "good_words:Words.said", "raises": "bad_words:load", "gone": "no_words:load", "odd": "good_words:no_such"}
    installed_wheel.install(folder, name, {GROUP: entries}, MODULES, **arguments)  # type: ignore[arg-type]


def broken(name: str) -> BrokenEntry:
    found = load_entry(GROUP, name)
    assert isinstance(found, BrokenEntry), found
    return found


def test_each_entry_point_is_loaded_or_named(tmp_path: Path) -> None:
    install(tmp_path, "some-words", version="1.2")
    with installed_wheel.used(tmp_path):
        assert entry_names(GROUP) == ["gone", "good", "odd", "raises"] and load_entry(GROUP, "other") is None
        good = load_entry(GROUP, "good")
        assert isinstance(good, LoadedEntry) and (good.value, good.wheel) == ("hello", "some-words 1.2")
        assert load_entry(GROUP, "good") is good
        raises = broken("raises")
        assert raises.describe() == ("some-words 1.2: entry point 'raises' of monarch.test (bad_words:load): LookupError: no dictionary")
        assert "bad_words.py" in raises.traceback and "line 2, in load" in raises.report()
        assert "ModuleNotFoundError: No module named 'no_words'" in broken("gone").describe()
        assert "AttributeError" in broken("odd").describe()
        assert raises.todo.startswith("`pip install -U some-words`, or another version of it that was built for monarch-core ")
        assert {found.name for found in load_entries(GROUP) if isinstance(found, BrokenEntry)} == {"raises", "gone", "odd"}
        assert {found.name for found in entry_points.broken()} == {"raises", "gone", "odd"}
    assert entry_names(GROUP) == []


@pytest.mark.parametrize("error", ["OSError(24, 'Too many open files')", "MemoryError()"])
def test_failed_entry_for_missing_resources_loads_again(error: str, tmp_path: Path) -> None:
    source = f"import os\nif 'MONARCH_TEST_WANT' in os.environ:\n    raise {error}\nfound = 7\n"
    module = f"poor_in_{error.partition('(')[0].lower()}"
    installed_wheel.install(tmp_path, "poor-words", {GROUP: {"poor": f"{module}:found"}}, {module: source})
    with installed_wheel.used(tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_TEST_WANT", "1")
        assert error.partition("(")[0] in broken("poor").describe()
        patch.delenv("MONARCH_TEST_WANT")
        found = load_entry(GROUP, "poor")
        assert isinstance(found, LoadedEntry) and found.value == 7 and load_entry(GROUP, "poor") is found
        assert entry_points.broken() == []


def test_error_without_a_text_is_described(tmp_path: Path) -> None:
    source = "class Mute(Exception):\n    def __str__(self):\n        raise RuntimeError\n\nraise Mute\n"
    installed_wheel.install(tmp_path, "mute-words", {GROUP: {"mute": "mute_words:found"}}, {"mute_words": source})
    with installed_wheel.used(tmp_path):
        assert broken("mute").describe().endswith("(mute_words:found): Mute: <exception str() failed>")
        assert "mute_words.py" in broken("mute").report()


def test_entry_that_fails_later_is_listed_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(tmp_path, "some-words")
    with installed_wheel.used(tmp_path):
        good = load_entry(GROUP, "good")
        assert isinstance(good, LoadedEntry)
        try:
            raise LookupError("no dictionary")
        except LookupError as e:
            entry_points.leave_out(good.broken(e))
        assert [found.name for found in entry_points.broken()] == ["good"]
        assert "left out: some-words 1.0: entry point 'good' of monarch.test" in caplog.text and "Traceback" in caplog.text


def test_wheel_for_another_core_version_is_refused(tmp_path: Path) -> None:
    install(tmp_path, "old-words", requires=["click>=8", "Monarch_Core (>=7,<8)", 'monarch-core<0.0.1; extra == "old"'])
    with installed_wheel.used(tmp_path):
        found = broken("good")
        assert isinstance(found.error, RefusedVersion)
        installed = version("monarch-core")
        assert str(found.error) == (
            f"old-words 1.0 was built for monarch-core>=7,<8, and monarch-core {installed} is installed: "
            f"`pip install -U old-words`, or another version of it that was built for monarch-core {installed}"
        )
        # Its code is not run, though it could be.
        assert "bad_words" not in broken("raises").traceback


def test_wheel_with_matching_or_no_requirement_loads(tmp_path: Path) -> None:
    install(tmp_path, "new-words", requires=['monarch-core>=0.0.1,<900 ; python_version >= "3"', "monarch-core[x]!=800"])
    with installed_wheel.used(tmp_path):
        assert isinstance(load_entry(GROUP, "good"), LoadedEntry)


def test_first_wheel_by_name_wins(tmp_path: Path) -> None:
    for name in ("b-words", "a-words", "c-words"):
        (tmp_path / name).mkdir()
        installed_wheel.install(tmp_path / name, name, {GROUP: {"word": "good_words:Words"}}, MODULES)
    with (
        installed_wheel.used(tmp_path / "c-words"),
        installed_wheel.used(tmp_path / "a-words"),
        installed_wheel.used(tmp_path / "b-words"),
    ):
        found = load_entry(GROUP, "word")
        assert isinstance(found, LoadedEntry) and found.wheel == "a-words 1.0"


def test_folder_listing_equals_importlib_metadata() -> None:
    entry_points.forget()
    for group in ("monarch.cli", "monarch.doctor", "monarch.launcher", "monarch.bulk"):
        assert entry_points.entry_names(group) == sorted({entry.name for entry in by_library(group=group)})


def test_importlib_metadata_is_not_loaded() -> None:
    code = (
        "import sys; from monarch._core.config.entry_points import groups; groups(); "
        "sys.exit(bool({'importlib.metadata', 'email', 'zipfile', 'logging', 're'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"], check=False).returncode == 0


@pytest.mark.parametrize(
    ("version", "clauses", "whether"),
    [
        ("0.1.0", ">=0.1,<0.2", True),
        ("0.2.0", ">=0.1,<0.2", False),
        ("0.2.0rc1", ">=0.1,<0.2", False),
        ("0.2.0rc1", "<0.2.0rc2", True),
        ("0.2.0", ">0.2.0rc2", True),
        ("0.2.0.dev3", ">=0.2", False),
        ("0.2.post1", ">0.2", True),
        ("1.4.5", "~=1.4.2", True),
        ("1.5.0", "~=1.4.2", False),
        ("1.4.1", "~=1.4.2", False),
        ("1.9", "~=1.4", True),
        ("0.1.7", "==0.1.*", True),
        ("0.2.7", "==0.1.*", False),
        ("0.1.7", "!=0.1.*", False),
        ("0.1", "==0.1.0", True),
        ("0.1", "!=0.1.0", False),
        ("0.1.0+local", "<=0.1", True),
        ("0.1", "", True),
        ("0.1", "===whatever", True),
        ("unknown", ">=5", True),
    ],
)
def test_ranges_of_versions(version: str, clauses: str, whether: bool) -> None:
    assert fits(version, clauses) is whether


@pytest.mark.parametrize("clauses", [">=0.1,<0.2", "~=0.1.2", "==0.1.*", "!=0.1.3", ">0.1", "<=0.1.9", "<0.2.0rc1", ">=1.0a2"])
def test_ranges_agree_with_pip(clauses: str) -> None:
    from packaging.specifiers import SpecifierSet

    for base in ("0.1", "0.1.0", "0.1.2", "0.1.3", "0.1.9", "0.2", "0.2.0", "1.0", "1.0.0"):
        for phase in ("", "a1", "b2", "rc1", ".dev4"):
            if phase and clauses.startswith((">0", "<=0.1.9")):
                continue
            assert fits(base + phase, clauses) is SpecifierSet(clauses, prereleases=True).contains(base + phase), base + phase
