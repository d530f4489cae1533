"""The errors of this wheel, by its entry point of the group `monarch.errors`. Most hints depend on the cause, and stand in the error."""

from __future__ import annotations

from monarch.extension import ErrorRow
from monarch.job.errors import (
    NO_JOB,
    BackendMissingError,
    CredentialsError,
    ExecError,
    FeatureMissingError,
    JobEndedError,
    JobError,
    JoinTimeoutError,
    KeeperError,
    StateFileError,
    SubmitError,
)

ROWS = (
    ErrorRow("job_failed", JobError, "a job could not be submitted, reached, read or ended", "{title}: {what}"),
    ErrorRow(NO_JOB, JobError, "there is no such job, state file or context, or no current job is set", "{title}: {what}"),
    ErrorRow("submit_failed", SubmitError, "the scheduler refused the job", "{title}: {what}"),
    ErrorRow("job_ended", JobEndedError, "the job is over", "{title}: {what}"),
    ErrorRow("join_timeout", JoinTimeoutError, "hosts of the job did not join in time", "{title}: {what}"),
    ErrorRow("credentials", CredentialsError, "the credentials are missing, another user's, or readable by others", "{path}: {what}"),
    ErrorRow("state_file", StateFileError, "a state file cannot be read or written", "{path}: {what}"),
    ErrorRow("backend_missing", BackendMissingError, "what a backend needs is not installed", "{title}: {what}"),
    ErrorRow("feature_missing", FeatureMissingError, "no wheel that is installed has a job feature", "{title}: {what}"),
    ErrorRow("keeper_failed", KeeperError, "the keeper of a job cannot be started or asked, or a service of it failed", "{title}: {what}"),
    ErrorRow("exec_failed", ExecError, "a command could not be started on a host", "{title}: {what}"),
)
