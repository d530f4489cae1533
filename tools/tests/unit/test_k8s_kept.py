"""Kept programs: built once, checked, built again if they are damaged."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tools.k8s.build import command_package, main_module
from tools.k8s.kept import Kept, cache_folder


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_folder()


class Builds:
    """Makes `tool`, and counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, folder: Path) -> None:
        self.count += 1
        (folder / "modules").mkdir()
        (folder / "bin" / "tool").write_text("program")
        (folder / "bin" / "link").symlink_to("tool")


def test_program_is_built_once_without_its_build_files(cache: Path) -> None:
    make = Builds()
    kept = Kept("tool", "1", make)
    assert kept.bin() is None
    assert kept.damage() == "tool has not been built"
    assert kept.build() == kept.build() == kept.bin()
    assert make.count == 1
    assert sorted(path.name for path in kept.build().iterdir()) == ["link", "tool"]
    assert {path.name for path in cache.iterdir()} == {kept.folder.name, "lock"}


def test_unused_builds_of_other_recipes_are_removed() -> None:
    old, used, other = Kept("tool", "1", Builds()), Kept("tool", "2", Builds()), Kept("another", "1", Builds())
    for kept in (old, used, other):
        kept.build()
        for file in kept.folder.iterdir():
            os.utime(file, (0, 0))
    assert used.bin() is not None
    Kept("tool", "3", Builds()).build()
    assert (old.bin(), other.bin() is None) == (None, False)
    assert used.bin() is not None


@pytest.mark.parametrize("hurt", ["change", "remove", "sums"])
def test_damaged_program_is_built_again(hurt: str) -> None:
    make = Builds()
    kept = Kept("tool", "1", make)
    tool = kept.build() / "tool"
    if hurt == "change":
        tool.write_text("progrem")
    elif hurt == "remove":
        tool.unlink()
    else:
        (kept.folder / "sums.json").write_text("{")
    assert "damaged" in kept.damage()
    kept.build()
    assert make.count == 2
    assert kept.damage() == ""
    assert tool.read_text() == "program"


def test_another_recipe_is_another_program() -> None:
    one, two = Kept("tool", "1", Builds()), Kept("tool", "2", Builds())
    one.build()
    assert two.bin() is None
    assert one.folder != two.folder


def test_interrupted_build_does_not_count(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "bin" / "tool").write_text("half")
        raise KeyboardInterrupt

    kept = Kept("tool", "1", fail)
    with pytest.raises(KeyboardInterrupt):
        kept.build()
    assert kept.bin() is None
    assert [path.name for path in cache.iterdir()] == ["lock"]
    # A killed process leaves this.
    (cache / ".building" / "bin").mkdir(parents=True)
    (cache / ".building" / "bin" / "other").touch()
    assert [path.name for path in sorted(Kept("tool", "1", Builds()).build().iterdir())] == ["link", "tool"]


def test_concurrent_builds_run_once() -> None:
    make = Builds()
    kept = Kept("tool", "1", make)
    threads = [threading.Thread(target=kept.build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert make.count == 1
    assert kept.damage() == ""


def test_main_module_has_the_versions_of_the_release() -> None:
    theirs = "module k8s.io/kubernetes\n\ngo 1.26\n\nrequire k8s.io/api v0.0.0\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n"
    ours = main_module(theirs)
    assert ours.startswith("module kube\n\ngo 1.26\n")
    assert "\tk8s.io/api => k8s.io/api v0.36.3\n" in ours
    assert "staging" not in ours
    assert "k8s.io/kubernetes v1.36.3" in ours


def test_command_becomes_a_package() -> None:
    source = "// Package main\npackage main\n\nfunc main() {\n\tmaintain()\n}\n"
    assert command_package("kube-proxy", source) == "// Package main\npackage kubeproxy\n\nfunc Main() {\n\tmaintain()\n}\n"
