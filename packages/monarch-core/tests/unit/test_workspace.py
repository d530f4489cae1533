"""`Workspace` as a value, and its copy on this machine."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest

from monarch._core.sync.workspace import environment_of
from monarch.actor import Workspace


def test_list_of_directories_keeps_their_names() -> None:
    workspace = Workspace(["/code/one", Path("/code/two/")], env=None)
    assert workspace.dirs == {Path("/code/one"): "one", Path("/code/two"): "two"}


def test_mapping_names_the_target_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/somewhere/else")
    workspace = Workspace({"here": "a/b/", "~/there": "c"}, env=None)
    assert workspace.dirs == {tmp_path / "here": "a/b", Path("/somewhere/else/there"): "c"}


def test_nothing() -> None:
    assert Workspace.null().dirs == {}
    assert Workspace.null().env is None
    assert Workspace(env=None) == Workspace.null()


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDA_PREFIX", "/envs/active")
    assert Workspace().env == Path("/envs/active")
    assert Workspace(env="/envs/other").env == Path("/envs/other")
    monkeypatch.delenv("CONDA_PREFIX")
    assert Workspace().env is None


def test_environment_to_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, conda, venv = (tmp_path / name for name in ("named", "conda", "venv"))
    for folder, sign in ((named, "conda-meta"), (conda, "conda-meta"), (venv, "pyvenv.cfg")):
        (folder / sign).mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(venv))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setenv("CONDA_PREFIX", str(conda))
    assert environment_of(Workspace(env=named)) == str(named)
    assert environment_of(Workspace()) == environment_of(Workspace(env=None)) == str(conda)
    monkeypatch.delenv("CONDA_PREFIX")
    assert environment_of(Workspace()) == str(venv)
    monkeypatch.setattr(sys, "prefix", "/usr")
    with pytest.raises(ValueError, match="the workspace has no env, CONDA_PREFIX is not set, and .* is the interpreter of no venv"):
        environment_of(Workspace())
    with pytest.raises(ValueError, match=f"{tmp_path} is no environment: neither a folder conda-meta nor a file pyvenv.cfg"):
        environment_of(Workspace(env=tmp_path))


@pytest.mark.parametrize(
    "dirs",
    [
        [""],
        {"": "a"},
        {"a": ""},
        {"a": "."},
        {"a": "/a"},
        {"a": "../a"},
        {"a": "b/../../c"},
        {"a": ".monarch"},
        {"a": ".environment/b"},
        {"a": "b\0"},
        ["/"],
    ],
)
def test_invalid_paths_are_refused(dirs: object) -> None:
    with pytest.raises(ValueError, match=r"path|directory below WORKSPACE_DIR"):
        Workspace(dirs)  # type: ignore[arg-type]


@pytest.mark.parametrize("dirs", [["a/x", "b/x"], {"a": "x", "b": "x/y"}, {"a": "x/y", "b": "x", "c": "x-y"}, {"a": "x", "./a": "y"}])
def test_places_that_overlap(dirs: object) -> None:
    with pytest.raises(ValueError, match="overlap|twice"):
        Workspace(dirs)  # type: ignore[arg-type]


def test_one_path_is_no_list() -> None:
    with pytest.raises(TypeError, match="list of directories"):
        Workspace("code")


def test_equal_by_content() -> None:
    one, other = Workspace(["/a"], env=None), Workspace({"/a": "a"}, env=None)
    assert one == other and hash(one) == hash(other)
    assert one != Workspace(["/a"], env="/e") and one != Workspace({"/a": "b"}, env=None) and one != "a"
    assert pickle.loads(pickle.dumps(one)) == one
    assert "/a" in repr(one)


def test_merge(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "run.sh").write_text(name)
        (tmp_path / name / "ignored.log").write_text("")
        (tmp_path / name / ".gitignore").write_text("*.log\n")
        (tmp_path / name / "link").symlink_to("sub/run.sh")
    os.chmod(tmp_path / "one/sub/run.sh", 0o755)
    workspace = Workspace({tmp_path / "one": "a/one", tmp_path / "two": "two"}, env=None)
    for _ in range(2):
        workspace.merge(tmp_path / "out")
        out = tmp_path / "out"
        assert sorted(str(p.relative_to(out)) for p in out.rglob("*")) == [
            *("a", "a/one", "a/one/.gitignore", "a/one/link", "a/one/sub", "a/one/sub/run.sh"),
            *("two", "two/.gitignore", "two/link", "two/sub", "two/sub/run.sh"),
        ]
        assert (out / "a/one/link").read_text() == "one" and (out / "two/link").is_symlink()
        assert os.access(out / "a/one/sub/run.sh", os.X_OK) and not os.access(out / "two/sub/run.sh", os.X_OK)
