"""The environments of jobs on a host: kept for the next job, removed with the agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch._core.sync.host_workspaces import HostWorkspaces, keep_until_end, lock_of, take_over, take_over_environment


def begin(agent: HostWorkspaces, job: str) -> Path:
    workspace = Path(agent.path, job)
    take_over(str(workspace))
    Path(lock_of(str(workspace))).touch()
    return workspace


def test_environment_is_kept_for_the_next_job(tmp_path: Path) -> None:
    agent = HostWorkspaces(str(tmp_path / "top"), "host")
    first = begin(agent, "first")
    take_over_environment(str(first))
    assert not (first / ".environment").exists()
    (first / ".environment" / "bin").mkdir(parents=True)
    (first / ".environment" / "bin" / "python").touch()
    agent.job_over("first")
    assert not first.exists()
    # A job without an environment has none, and keeps that of the first.
    second = begin(agent, "second")
    assert not (second / ".environment").exists()
    agent.job_over("second")
    third = begin(agent, "third")
    take_over_environment(str(third))
    assert (third / ".environment" / "bin" / "python").exists()
    take_over_environment(str(third))
    # A job with two environments keeps its own.
    (third / ".monarch" / ".environment" / "old").mkdir(parents=True)
    agent.job_over("third")
    fourth = begin(agent, "fourth")
    take_over_environment(str(fourth))
    assert [path.name for path in (fourth / ".environment").iterdir()] == ["bin"]
    agent.close(True)
    assert list((tmp_path / "top").rglob("*")) == []


def test_link_at_an_environments_path_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "precious").mkdir(parents=True)
    agent = HostWorkspaces(str(tmp_path / "top"), "host")
    first = begin(agent, "first")
    (first / ".environment").symlink_to(outside)
    agent.job_over("first")
    assert (first / ".environment").is_symlink() and (outside / "precious").is_dir()
    second = begin(agent, "second")
    (second / ".environment").symlink_to(outside)
    agent.close(True)
    assert (outside / "precious").is_dir()


def test_noted_folders_go_with_the_agent(tmp_path: Path) -> None:
    agent = HostWorkspaces(str(tmp_path / "top"), "host")
    for name in ("run/first", "run/second", "used/inner", "kept"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    for name in ("run/first", "run/second", "run/second", "used/inner"):
        keep_until_end(agent.path, str(tmp_path / name), 1)
    (tmp_path / "used/other").touch()
    agent.close(True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "top", "used"]
    assert list((tmp_path / "used").iterdir()) == [tmp_path / "used/other"]
    assert list((tmp_path / "top").rglob("*")) == []


def test_next_agent_removes_folders_of_its_predecessor(tmp_path: Path) -> None:
    killed = HostWorkspaces(str(tmp_path / "top"), "host")
    (tmp_path / "run").mkdir()
    keep_until_end(killed.path, str(tmp_path / "run"), 0)
    following = HostWorkspaces(str(tmp_path / "top"), "host")
    following.remove_left()
    assert (tmp_path / "run").is_dir()
    assert killed._lock is not None
    os.close(killed._lock)
    following.remove_left()
    assert not (tmp_path / "run").exists()
    assert not Path(killed.path).exists()


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_folder_that_replaced_a_recorded_one_stays(tmp_path: Path, kind: str) -> None:
    agent = HostWorkspaces(str(tmp_path / "top"), "host")
    outside, run = tmp_path / "outside", tmp_path / "run"
    for path in (outside, run):
        path.mkdir()
    keep_until_end(agent.path, str(run), 0)
    run.rename(tmp_path / "moved")
    if kind == "folder":
        run.mkdir()
    else:
        run.symlink_to(outside)
    agent.close(True)
    assert run.exists() and outside.is_dir()
    assert list((tmp_path / "top").rglob("*")) == []


def test_removed_folders_are_noted_no_longer(tmp_path: Path) -> None:
    agent = HostWorkspaces(str(tmp_path / "top"), "host")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        keep_until_end(agent.path, str(tmp_path / name), 0)
        (tmp_path / name).rename(tmp_path / f"moved {name}")
    assert len(os.listdir(Path(agent.path, "folders"))) == 1
    agent.close(True)
