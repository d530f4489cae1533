"""The environments of jobs on a host: kept for the next job, removed with the agent."""

from __future__ import annotations

from pathlib import Path

from monarch._core.sync.host_workspaces import HostWorkspaces, lock_of, take_over, take_over_environment


def begin(agent: HostWorkspaces, job: str) -> Path:
    workspace = Path(agent.path, job)
    take_over(str(workspace))
    Path(lock_of(str(workspace))).touch()
    return workspace


def test_environment_is_kept_for_the_next_job_that_syncs_one(tmp_path: Path) -> None:
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
    # Two environments at the end of a job: its own counts.
    (third / ".monarch" / ".environment" / "old").mkdir(parents=True)
    agent.job_over("third")
    fourth = begin(agent, "fourth")
    take_over_environment(str(fourth))
    assert [path.name for path in (fourth / ".environment").iterdir()] == ["bin"]
    agent.close(True)
    assert list((tmp_path / "top").rglob("*")) == []


def test_link_in_the_place_of_an_environment_is_not_followed(tmp_path: Path) -> None:
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
