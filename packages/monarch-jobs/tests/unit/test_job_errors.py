"""Texts and classes of the errors of jobs."""

from __future__ import annotations

import pickle

import pytest

from monarch.actor import AttachError, MonarchError
from monarch.job import (
    BackendMissingError,
    CredentialsError,
    ExecError,
    JobEndedError,
    JobError,
    JoinTimeoutError,
    StateFileError,
    SubmitError,
)


def test_error_has_job_cause_and_hint_in_order() -> None:
    error = SubmitError("refused", title="slurm job abc", cause="sbatch: error: x\ny", hint="ask", command="sbatch", exit_code=1)
    assert str(error) == "slurm job abc: refused\n  sbatch: error: x\n  y\nhint: ask"
    assert (error.code, error.hint, error.command, error.exit_code) == ("submit_failed", "ask", "sbatch", 1)


def test_file_line_and_field_are_in_front() -> None:
    assert str(StateFileError("is odd", path="a.json", line=3, field="job.x")) == "a.json:3: job.x: is odd"
    assert str(StateFileError("is odd", path="a.json")) == "a.json: is odd"


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (JoinTimeoutError("late", joined=1, total=2, hosts={"a[0]": "no output"}), (AttachError, JobError)),
        (BackendMissingError("no sbatch"), (ImportError, JobError)),
        (JobEndedError("over", state="TIMEOUT", reason="TimeLimit"), (JobError, RuntimeError)),
        (CredentialsError("is missing", path="/x"), (JobError,)),
        (ExecError("no such file", host="a", command=("x",), errno=2), (JobError,)),
        (JobError("no", code="no_such_job"), (MonarchError,)),
    ],
)
def test_classes_and_pickling(error: JobError, bases: tuple[type, ...]) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert isinstance(copy, bases)
    assert (str(copy), copy.code, copy.hint, vars(copy)) == (str(error), error.code, error.hint, vars(error))
