"""The software of a process: packages, code and variables, which processes of a mesh should have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast


class Software(NamedTuple):
    """Versions of the loaded packages, digests of the loaded modules of the program, variables, and the number of GPUs of the host.

    The value of a variable is its text, or `#` and a digest.
    """

    proc: str
    packages: Mapping[str, str] = {}
    code: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    gpus: int | None = None


def software_of(proc: str, answer: object) -> Software:
    """The software in the answer of a process; empty where it has none, or another form."""
    found = _mapping(_mapping(answer).get("software"))
    gpus = found.get("gpus")
    return Software(
        proc,
        _texts(found.get("packages")),
        _texts(found.get("code")),
        _texts(found.get("variables")),
        gpus if isinstance(gpus, int) else None,
    )


def _texts(given: object) -> Mapping[str, str]:
    return {name: value for name, value in _mapping(given).items() if isinstance(name, str) and isinstance(value, str)}


def _mapping(given: object) -> Mapping[Any, Any]:
    return cast("Mapping[Any, Any]", given) if isinstance(given, dict) else {}
