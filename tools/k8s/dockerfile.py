"""Reads the Dockerfiles of `packages/monarch-jobs/images`. Instructions that these do not use are errors."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from tools.k8s.images import Image

_BIND = re.compile(r"--mount=type=bind,source=([^,\s]+),target=(/[^,\s]+)\s+")


class Step(NamedTuple):
    """A command of `RUN`; `binds` are folders of the context and their paths in the image."""

    command: str
    binds: tuple[tuple[str, str], ...]


class Dockerfile(NamedTuple):
    """The parsed file: its base image, the steps, which root runs, and the properties of the image besides its files."""

    base: str
    steps: tuple[Step, ...]
    image: Image
    ports: tuple[int, ...]


class _Reading:
    def __init__(self) -> None:
        self.base = ""
        self.arguments: dict[str, str] = {}
        self.steps: list[Step] = []
        self.image = Image((), ())
        self.ports: list[int] = []

    def take(self, word: str, text: str) -> None:
        """Handles one instruction; ValueError for an unknown one."""
        match word:
            case "ARG" if not self.base and "=" in text:
                name, _, value = text.partition("=")
                self.arguments[name] = value
            case "FROM" if not self.base:
                self.base = re.sub(r"\$\{(\w+)\}", lambda found: self.arguments[found[1]], text)
            case "RUN" if self.image.user in ("", "root"):
                self.steps.append(_step(text))
            case "ENV" if all("=" in pair for pair in shlex.split(text)):
                self.image = self.image._replace(env=(*self.image.env, *shlex.split(text)))
            case "USER":
                self.image = self.image._replace(user=text)
            case "WORKDIR":
                self.image = self.image._replace(workdir=text)
            case "EXPOSE":
                self.ports += map(int, text.split())
            case "ENTRYPOINT":
                self.image = self.image._replace(entrypoint=_words(text))
            case "CMD":
                self.image = self.image._replace(command=_words(text))
            case _:
                raise ValueError(f"no such instruction is known here, or not at this place: {word} {text}")


def read(path: Path) -> Dockerfile:
    """Parses the file; ValueError names the file and the invalid line."""
    found = _Reading()
    for number, instruction in _instructions(path.read_text(encoding="utf-8")):
        word, _, text = instruction.partition(" ")
        try:
            found.take(word, text.strip())
        except (ValueError, KeyError) as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    if not found.base:
        raise ValueError(f"{path}: no FROM")
    return Dockerfile(found.base, tuple(found.steps), found.image, tuple(found.ports))


def _instructions(text: str) -> Generator[tuple[int, str]]:
    """Each instruction as one line, and the number of its first line."""
    start, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        start = start if parts else number
        parts.append(line.strip().removesuffix("\\").strip())
        if not line.rstrip().endswith("\\"):
            yield start, " ".join(parts)
            parts = []
    if parts:
        yield start, " ".join(parts)


def _step(text: str) -> Step:
    binds: list[tuple[str, str]] = []
    while found := _BIND.match(text):
        binds.append((found[1], found[2]))
        text = text[found.end() :]
    if text.startswith(("--", "[")):
        raise ValueError(f"only bind mounts and commands of the shell are known here: RUN {text}")
    return Step(text, tuple(binds))


def _words(text: str) -> tuple[str, ...]:
    words = json.loads(text)
    if not isinstance(words, list):
        raise ValueError(f"a list of words is expected: {text}")
    return tuple(str(word) for word in words)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
