"""Contexts: directories with a job each, and the link to the active one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch.job import DEFAULT_JOB_PATH, JobError, LocalJob, StateFileError, job_load, load_current_job, set_current_job
from monarch.job._files import contexts


def test_first_write_makes_the_default_context(folder: Path) -> None:
    assert contexts.names() == []
    assert contexts.active() is None
    LocalJob(("a",)).dump(DEFAULT_JOB_PATH)
    assert os.readlink(DEFAULT_JOB_PATH) == "default/state.json"
    assert (contexts.names(), contexts.active()) == (["default"], "default")
    assert job_load()._sizes() == {"a": 1}
    assert os.stat(".monarch").st_mode & 0o077 == 0


def test_each_context_has_a_job_of_its_own() -> None:
    for name in ("one", "two"):
        contexts.create(name)
        contexts.use(name)
        LocalJob((name,)).dump(DEFAULT_JOB_PATH)
    assert job_load()._sizes() == {"two": 1}
    contexts.use("one")
    assert job_load()._sizes() == {"one": 1}
    assert job_load(".monarch/job_state.pkl")._sizes() == {"one": 1}
    contexts.remove("one")
    assert (contexts.names(), contexts.active()) == (["two"], None)
    assert not os.path.lexists(DEFAULT_JOB_PATH)
    with pytest.raises(JobError, match="no context 'one', there is: two") as found:
        contexts.use("one")
    assert found.value.code == "no_such_job"
    with pytest.raises(JobError, match="a context 'two' already"):
        contexts.create("two")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "/x", ".hidden", "logs", "job_state.json", "a b", "x" * 101, "a\n"])
def test_names_that_are_none(name: str, folder: Path) -> None:
    for use in (contexts.create, contexts.use, contexts.remove, contexts.state_path):
        with pytest.raises(JobError, match="cannot name a context"):
            use(name)
    assert os.listdir(folder) == []


def test_context_with_other_files_is_not_removed() -> None:
    contexts.create("a")
    Path(".monarch/a/mine").write_text("")
    with pytest.raises(StateFileError, match="cannot be removed\n  Directory not empty"):
        contexts.remove("a")


def test_file_at_the_links_path_is_kept() -> None:
    os.mkdir(".monarch")
    Path(DEFAULT_JOB_PATH).write_text("{}")
    contexts.create("a")
    contexts.use("a")
    assert (contexts.active(), contexts.names()) == ("a", ["a", "default"])
    assert Path(contexts.state_path("default")).read_text() == "{}"
    os.unlink(DEFAULT_JOB_PATH)
    Path(DEFAULT_JOB_PATH).write_text("[]")
    with pytest.raises(StateFileError, match="the context 'default' has another one"):
        contexts.use("a")
    assert (Path(DEFAULT_JOB_PATH).read_text(), Path(contexts.state_path("default")).read_text()) == ("[]", "{}")


def test_links_that_lead_elsewhere_name_no_context() -> None:
    os.mkdir(".monarch")
    for target in ("../outside.json", "a/b/state.json", "/x/state.json", "state.json", "../x/state.json"):
        os.symlink(target, DEFAULT_JOB_PATH)
        assert contexts.active() is None
        os.unlink(DEFAULT_JOB_PATH)


def test_current_job_is_set_and_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "jobs_of_mine.py").write_text("from monarch.job import LocalJob\njob = LocalJob(('a',))\nother = 3\n")
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(JobError, match="no current job is set"):
        load_current_job()
    set_current_job("jobs_of_mine.job")
    assert Path(".monarch/default/spec").read_text() == "jobs_of_mine.job\n"
    import jobs_of_mine  # type: ignore[import-not-found]

    assert load_current_job() is jobs_of_mine.job
    for bad, error in (
        ("jobs_of_mine", ValueError),
        ("jobs_of_mine.nothing", ImportError),
        ("no_such_module_here.x", ImportError),
        ("jobs_of_mine.other", TypeError),
        ("os.system('x').y", ValueError),
    ):
        with pytest.raises(error):
            set_current_job(bad)
    assert load_current_job() is jobs_of_mine.job
