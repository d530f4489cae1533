"""The state of this host's processes, as their agent records it; settings, state and log level of a process of the job."""

from monarch._core.extension.host_state import host_stacks, host_state
from monarch._core.extension.proc_settings import SettingState, proc_settings, set_log_level
from monarch._core.extension.proc_state import proc_state

__all__ = ["SettingState", "host_stacks", "host_state", "proc_settings", "proc_state", "set_log_level"]
