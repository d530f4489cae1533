"""The command line that a guard executes, and its check: an impossible command is refused before any process starts."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from monarch._core.process.environment import not_for_kernel


class CommandLine(NamedTuple):
    """The command line for a guard. None among the words stands for the path of `script`, a name and a text."""

    argv: Sequence[str | None]
    env: Mapping[str, str]
    workdir: str | None = None
    script: tuple[str, bytes] | None = None
    # `argv[0]` of the program, if it differs from its path.
    program_name: str | None = None
    # A Python program, `python -u FILE ...`: a fork of the interpreter with modules, where the proc was spawned with `Preload`.
    is_preloaded: bool = False


def check_command_line(line: object) -> None:
    """Checks a command line. `TypeError` or `ValueError` names the field and the word that no command can have."""
    if not isinstance(line, CommandLine):
        raise TypeError(f"{line!r}: expected a CommandLine, not {_type(line)}")
    _check_script(line.script)
    _check_argv(line.argv, line.script is not None)
    if not isinstance(line.env, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"env={line.env!r}: expected a mapping of names to texts, not {_type(line.env)}")
    for name, value in line.env.items():
        _check_text(f"the name env[{name!r}]", name)
        if not name or "=" in name:
            raise ValueError(f"env[{name!r}]: no variable of the environment has {'an empty name' if not name else 'a = in its name'}")
        _check_text(f"env[{name!r}]", value)
    for field in ("workdir", "program_name"):
        text = getattr(line, field)
        if text is not None:
            _check_text(field, text)
            if not text:
                raise ValueError(f"{field}='': expected None or a text that is not empty")


def check_signal(name: str, number: object) -> None:
    """Checks the number of a signal. `TypeError` or `ValueError` names the argument."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{name}={number!r}: expected the number of a signal, not {_type(number)}")
    if number not in signal.valid_signals():
        raise ValueError(f"{name}={number!r}: no signal has this number")


def _check_argv(argv: Any, has_script: bool) -> None:
    if isinstance(argv, (str, bytes)) or not isinstance(argv, Sequence):
        raise TypeError(f"argv={argv!r}: expected a sequence of words, the first of which is the program, not {_type(argv)}")
    if not argv:
        raise ValueError(f"argv={argv!r}: expected at least one word, the program")
    words: list[object] = list(argv)  # pyright: ignore[reportUnknownArgumentType]
    for index, word in enumerate(words):
        if word is None:
            if not has_script:
                raise ValueError(f"argv[{index}]=None: None is the place of the script, and script is None")
        else:
            _check_text(f"argv[{index}]", word)


def _check_script(script: Any) -> None:
    if script is None:
        return
    parts: tuple[object, ...] = script if isinstance(script, tuple) else ()  # pyright: ignore[reportUnknownVariableType]
    if len(parts) != 2 or not isinstance(parts[1], bytes):
        raise TypeError(f"script={script!r}: expected None or a name and bytes")
    name = _check_text("the name of script", parts[0])
    if name in ("", ".", "..") or "/" in name:
        raise ValueError(f"script: {name!r} is no name of a file")


def _check_text(what: str, text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{what}: expected a text, not {_type(text)}")
    if wrong := not_for_kernel(text):
        raise ValueError(f"{what}={text!r}: {wrong}")
    return text


def _type(found: object) -> str:
    return type(found).__name__
