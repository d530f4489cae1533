"""What would be submitted, as text."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


class Plan:
    """What a job would submit: `str(plan)` prints it. Deterministic, and free of secrets.

    `kind` names the backend, `text` is the script, the manifest or the commands, `files` has what is written beside it (name to content),
    `redacted` is true where something secret is left out of what is shown.
    """

    __module__ = "monarch.job"
    __slots__ = ("_files", "_kind", "_redacted", "_text")

    def __init__(self, kind: str, text: str, files: Mapping[str, str] | None = None, redacted: bool = False) -> None:
        self._kind = kind
        self._text = text
        self._files = MappingProxyType(dict(files or {}))
        self._redacted = redacted

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def text(self) -> str:
        return self._text

    @property
    def files(self) -> Mapping[str, str]:
        return self._files

    @property
    def redacted(self) -> bool:
        return self._redacted

    def __str__(self) -> str:
        parts = [self._text.rstrip("\n")]
        parts += [f"--- {name} ---\n{content.rstrip(chr(10))}" for name, content in self._files.items()]
        return "\n".join(parts) + "\n"

    def __repr__(self) -> str:
        return f"<Plan of a {self._kind} job, {len(self._text.splitlines())} lines, {len(self._files)} files>"

    def _key(self) -> tuple[Any, ...]:
        return (self._kind, self._text, tuple(self._files.items()), self._redacted)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        return (Plan, (self._kind, self._text, dict(self._files), self._redacted))
