"""The state of this host's processes and of jobs of this machine; settings, state and log level of a process; reports about it."""

from monarch._core.extension.host_state import host_stacks, host_state
from monarch._core.extension.inspected_job import InspectedJob, inspect_jobs
from monarch._core.extension.proc_settings import SettingState, proc_settings, set_log_level
from monarch._core.extension.proc_state import proc_state
from monarch._core.extension.reports import add_report

__all__ = [
    "InspectedJob",
    "SettingState",
    "add_report",
    "host_stacks",
    "host_state",
    "inspect_jobs",
    "proc_settings",
    "proc_state",
    "set_log_level",
]
