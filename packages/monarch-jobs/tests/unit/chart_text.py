"""The part of Helm's templates that our chart uses, to compare its text without Helm. Any other text is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

_ACTION = re.compile(r"(\{\{-? .*? -?\}\})")


def rendered(text: str, values: Mapping[str, Any]) -> str:
    """`values` has Values, Release and Chart."""
    pieces = iter(_pieces(text))
    found = "".join(_block(pieces, values, {}, None))
    assert next(pieces, None) is None
    return found


def _pieces(text: str) -> list[str]:
    """Texts and actions in turn; the spaces that actions swallow are gone."""
    pieces = _ACTION.split(text)
    for index in range(1, len(pieces), 2):
        if pieces[index].startswith("{{-"):
            pieces[index - 1] = pieces[index - 1].rstrip()
        if pieces[index].endswith("-}}"):
            pieces[index + 1] = pieces[index + 1].lstrip()
    return pieces


def _block(pieces: Iterator[str], values: Mapping[str, Any], dot: Any, until: str | None) -> list[str]:
    """What the pieces give, to the `end` of the block."""
    found: list[str] = []
    for piece in pieces:
        if not piece.startswith("{{"):
            found.append(piece)
            continue
        action = piece.strip("{}").strip("-").strip()
        word, _, rest = action.partition(" ")
        if action == "end":
            assert until is not None, "an `end` without a block"
            return found
        if word == "if":
            inner = _block(pieces, values, dot, word)
            found += inner if _value(rest, values, dot) else []
        elif word == "range":
            # The parts of the body are used for each item.
            body = _body(pieces)
            for item in _value(rest, values, dot):
                found += _block(iter([*body, "{{ end }}"]), values, item, word)
        else:
            found.append(_text(_value(action, values, dot)))
    assert until is None, f"`{until}` without an `end`"
    return found


def _body(pieces: Iterator[str]) -> list[str]:
    body: list[str] = []
    for piece in pieces:
        assert not re.match(r"\{\{-? (if|range) ", piece), "a block in a range"
        if re.fullmatch(r"\{\{-? end -?\}\}", piece):
            return body
        body.append(piece)
    raise AssertionError("`range` without an `end`")


def _value(expression: str, values: Mapping[str, Any], dot: Any) -> Any:
    first, *pipes = (part.strip() for part in expression.split("|"))
    function, _, path = first.rpartition(" ")
    found = _path(path, values, dot)
    if function:
        found = _called(function, [], found)
    for pipe in pipes:
        name, *arguments = pipe.split()
        found = _called(name, [_path(argument, values, dot) for argument in arguments], found)
    return found


def _path(path: str, values: Mapping[str, Any], dot: Any) -> Any:
    if path == ".":
        return dot
    if path.isdecimal():
        return int(path)
    assert path.startswith("."), f"unknown: {path}"
    found: Any = values
    for name in path[1:].split("."):
        found = found[name]
    return found


def _called(name: str, arguments: list[Any], value: Any) -> Any:
    if name == "toYaml":
        return yaml.safe_dump(value, default_flow_style=False).rstrip("\n")
    if name == "nindent":
        return "\n" + "\n".join(" " * arguments[0] + line for line in value.splitlines())
    if name == "default":
        return value or arguments[0]
    if name == "quote":
        return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    raise AssertionError(f"unknown function {name}")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
