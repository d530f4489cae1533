"""The `monarch` command: its verbs, and those that other wheels add."""

from monarch._core.cli.reach import Elsewhere
from monarch._core.cli.root import main, run_command

__all__ = ["Elsewhere", "main", "run_command"]
