"""Hosts from a scheduler: the public names. Each is loaded on first use, so that importing this module costs next to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.extension.facade import lazy_names as _lazy_names

if TYPE_CHECKING:
    from monarch.job._client.exec import exec_command as exec_command
    from monarch.job._client.keeper import Keeper as Keeper
    from monarch.job._client.keeper import KeeperStatus as KeeperStatus
    from monarch.job._client.keeper import KeptStatus as KeptStatus
    from monarch.job._client.kept_service import KeptService as KeptService
    from monarch.job._client.port_forward import PortForwarder as PortForwarder
    from monarch.job._client.shell import shell as shell
    from monarch.job._files.state_file import DEFAULT_JOB_PATH as DEFAULT_JOB_PATH
    from monarch.job._job.components import MeshAdminConfig as MeshAdminConfig
    from monarch.job._job.components import TelemetryConfig as TelemetryConfig
    from monarch.job._job.feature import FeatureHosts as FeatureHosts
    from monarch.job._job.feature import JobControl as JobControl
    from monarch.job._job.feature import JobFeature as JobFeature
    from monarch.job._job.feature import Offer as Offer
    from monarch.job._job.feature import TelemetryFeature as TelemetryFeature
    from monarch.job._job.job_state import JobState as JobState
    from monarch.job._job.launcher import HealReport as HealReport
    from monarch.job._job.launcher import HostStatus as HostStatus
    from monarch.job._job.launcher import JobStatus as JobStatus
    from monarch.job._job.launcher import Launcher as Launcher
    from monarch.job._job.launcher import Plan as Plan
    from monarch.job._job.launcher import Trouble as Trouble
    from monarch.job._job.trait import JobTrait as JobTrait
    from monarch.job._job.trait import add_feature as add_feature
    from monarch.job._job.trait import keeper_of as keeper_of
    from monarch.job._job.worker_address import SERVICE_PROC_IDS_ENV as SERVICE_PROC_IDS_ENV
    from monarch.job._job.worker_address import SERVICE_PROC_RANK_ENV as SERVICE_PROC_RANK_ENV
    from monarch.job._job.worker_address import deserialize_service_proc_ids as deserialize_service_proc_ids
    from monarch.job._job.worker_address import new_service_proc_id as new_service_proc_id
    from monarch.job._job.worker_address import published_address as published_address
    from monarch.job._job.worker_address import ranked_service_proc_id_from_env as ranked_service_proc_id_from_env
    from monarch.job._job.worker_address import serialize_service_proc_ids as serialize_service_proc_ids
    from monarch.job._job.worker_address import service_proc_addr as service_proc_addr
    from monarch.job._job.worker_address import service_proc_addrs as service_proc_addrs
    from monarch.job._lookup import attach_current_job as attach_current_job
    from monarch.job._lookup import hosts_from_config as hosts_from_config
    from monarch.job._lookup import job_load as job_load
    from monarch.job._lookup import job_loads as job_loads
    from monarch.job._lookup import job_of_kind as job_of_kind
    from monarch.job._lookup import load_current_job as load_current_job
    from monarch.job._lookup import set_current_job as set_current_job
    from monarch.job.attach import AttachJob as AttachJob
    from monarch.job.errors import BackendMissingError as BackendMissingError
    from monarch.job.errors import CredentialsError as CredentialsError
    from monarch.job.errors import ExecError as ExecError
    from monarch.job.errors import FeatureMissingError as FeatureMissingError
    from monarch.job.errors import JobEndedError as JobEndedError
    from monarch.job.errors import JobError as JobError
    from monarch.job.errors import JoinTimeoutError as JoinTimeoutError
    from monarch.job.errors import KeeperError as KeeperError
    from monarch.job.errors import StateFileError as StateFileError
    from monarch.job.errors import SubmitError as SubmitError
    from monarch.job.local import BatchJob as BatchJob
    from monarch.job.local import LocalJob as LocalJob
    from monarch.job.login import LoginJob as LoginJob
    from monarch.job.process import ProcessJob as ProcessJob
    from monarch.job.slurm import SlurmJob as SlurmJob
    from monarch.job.ssh import SSHJob as SSHJob

# Where each name is implemented: generated from the imports above by `python -m tools.generate_docs --write`.
_HOMES = {
    "_client.exec": ("exec_command",),
    "_client.keeper": ("Keeper", "KeeperStatus", "KeptStatus"),
    "_client.kept_service": ("KeptService",),
    "_client.port_forward": ("PortForwarder",),
    "_client.shell": ("shell",),
    "_files.state_file": ("DEFAULT_JOB_PATH",),
    "_job.components": ("MeshAdminConfig", "TelemetryConfig"),
    "_job.feature": ("FeatureHosts", "JobControl", "JobFeature", "Offer", "TelemetryFeature"),
    "_job.job_state": ("JobState",),
    "_job.launcher": ("HealReport", "HostStatus", "JobStatus", "Launcher", "Plan", "Trouble"),
    "_job.trait": ("JobTrait", "add_feature", "keeper_of"),
    "_job.worker_address": (
        "SERVICE_PROC_IDS_ENV",
        "SERVICE_PROC_RANK_ENV",
        "deserialize_service_proc_ids",
        "new_service_proc_id",
        "published_address",
        "ranked_service_proc_id_from_env",
        "serialize_service_proc_ids",
        "service_proc_addr",
        "service_proc_addrs",
    ),
    "_lookup": ("attach_current_job", "hosts_from_config", "job_load", "job_loads", "job_of_kind", "load_current_job", "set_current_job"),
    "attach": ("AttachJob",),
    "errors": (
        "BackendMissingError",
        "CredentialsError",
        "ExecError",
        "FeatureMissingError",
        "JobEndedError",
        "JobError",
        "JoinTimeoutError",
        "KeeperError",
        "StateFileError",
        "SubmitError",
    ),
    "local": ("BatchJob", "LocalJob"),
    "login": ("LoginJob",),
    "process": ("ProcessJob",),
    "slurm": ("SlurmJob",),
    "ssh": ("SSHJob",),
}
# End of the generated table.

if not TYPE_CHECKING:  # type checkers go by the imports above
    __all__, __getattr__, __dir__ = _lazy_names(__name__, _HOMES)
