"""Commands of users in child processes: a guard that kills all descendants, their output, signals, exit codes and terminals."""

from monarch._core.extension.command_line import CommandLine
from monarch._core.extension.command_output import LONGEST, Lines, OutputBuffer, OutputPipe, prefixed
from monarch._core.extension.console import Console
from monarch._core.extension.guarded_process import CannotStart, GuardedProcess, end_in_steps, exit_code
from monarch._core.extension.run_command import TIMED_OUT, Finished, run_command
from monarch._core.extension.terminal_process import HUNG_UP, TerminalProcess
from monarch._core.hosts.preload import Preload

__all__ = [
    "HUNG_UP",
    "LONGEST",
    "TIMED_OUT",
    "CannotStart",
    "CommandLine",
    "Console",
    "Finished",
    "GuardedProcess",
    "Lines",
    "OutputBuffer",
    "OutputPipe",
    "Preload",
    "TerminalProcess",
    "end_in_steps",
    "exit_code",
    "prefixed",
    "run_command",
]
