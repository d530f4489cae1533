"""The start of a proc by a command, in place of a fork of the zygote."""

from __future__ import annotations

import os
import sys

from monarch._core.process.environment import not_for_kernel
from monarch._core.process.python_command import import_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


class BootstrapCommand:
    """A program that runs Monarch's bootstrap: an interpreter, or a wrapper around one.

    `args=None` selects Monarch's own arguments. A None value in `env` removes the variable; `inherit_env=False` starts from an empty
    environment with the variables that Monarch needs.
    """

    def __init__(
        self,
        program: str,
        arg0: str | None = None,
        args: Sequence[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        inherit_env: bool = True,
    ) -> None:
        self.program = program
        self.arg0 = arg0
        self.args = None if args is None else list(args)
        self.env = dict(env or {})
        self.inherit_env = inherit_env

    def with_env(self, env: Mapping[str, str | None]) -> BootstrapCommand:
        """A copy with these variables too."""
        return BootstrapCommand(self.program, self.arg0, self.args, {**self.env, **env}, self.inherit_env)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, BootstrapCommand) else NotImplemented

    __hash__ = None  # pyright: ignore

    def __repr__(self) -> str:
        rest = f"args={self.args!r}, env={self.env!r}, inherit_env={self.inherit_env!r}"
        return f"BootstrapCommand(program={self.program!r}, arg0={self.arg0!r}, {rest})"


def check_command(command: BootstrapCommand) -> None:
    """Checks the fields: a `TypeError` or `ValueError` names the field with which no program can be started."""
    texts: list[tuple[str, Any]] = [("program", command.program)]
    if command.arg0 is not None:
        texts.append(("arg0", command.arg0))
    texts += [(f"args[{i}]", arg) for i, arg in enumerate(command.args or ())]
    for name, value in command.env.items():
        texts.append((f"env name {name!r}", name))
        if value is not None:
            texts.append((f"env[{name!r}]", value))
    for field, text in texts:
        if not isinstance(text, str):
            raise TypeError(f"BootstrapCommand: {field} is {text!r}, which is not a string")
        if "\0" in text:
            raise ValueError(f"BootstrapCommand: {field} has a NUL byte: {text!r}")
        if wrong := not_for_kernel(text):
            raise ValueError(f"BootstrapCommand: {field} is {text!r}: {wrong}")
    for name in command.env:
        if not name or "=" in name:
            raise ValueError(f"BootstrapCommand: {name!r} cannot name a variable of the environment")
    if not command.program:
        raise ValueError("BootstrapCommand: program is empty")


def argv_of(command: BootstrapCommand) -> list[str]:
    """The argument vector of the process."""
    args = command.args
    if args is not None and len(args) == 2 and args[0] == "-m" and args[1].endswith("actor.bootstrap_main"):
        import warnings

        warnings.warn(f"{args} is taken as Monarch's own bootstrap: leave args out", DeprecationWarning, stacklevel=4)
        args = None
    if args is None:
        args = default_arguments()
    return [command.arg0 or command.program, *args]


def environment_of(command: BootstrapCommand) -> dict[str, str]:
    """The environment of the process."""
    base: dict[str, Any] = dict(os.environ) if command.inherit_env else {}
    base.update(command.env)
    return {k: v for k, v in base.items() if v is not None}


def default_arguments() -> list[str]:
    """Arguments with which a Python interpreter runs the bootstrap and finds Monarch's modules in the same places as this process."""
    return ["-c", f"import sys; own = [p for p in sys.path if p], frozenset(sys.modules); sys.path[:] = {import_path()!r}; {_main()}"]


def environment_arguments() -> list[str]:
    """Arguments for an interpreter with modules of its own: the bootstrap finds only the missing modules in this process's places."""
    return ["-c", f"import sys; own = [p for p in sys.path if p], frozenset(sys.modules); sys.path += {import_path()!r}; {_main()}"]


def _main() -> str:
    """The program text of the bootstrap. It ends in an interpreter of another minor version than the client's, which procs must share."""
    return f"from monarch._core.start.command_main import main; main({tuple(sys.version_info[:2])}, own)"


def default_bootstrap_cmd() -> BootstrapCommand:
    """The current interpreter, without changes to the environment."""
    return BootstrapCommand(sys.executable)
