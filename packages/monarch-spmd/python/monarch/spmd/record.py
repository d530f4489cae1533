"""`failure.json`: what is needed to run a failed launch again on one machine.

Texts are masked as captures are, and beyond: a value is hidden whose name or option has a part that may mean a secret.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, cast

from monarch.extension.masking import MASK, Masking, is_secret_variable
from monarch.spmd.errors import RankFailure, SPMDError

SCHEMA = 1
# The number of failures that are kept: the earliest of ranks that failed by themselves.
_KEPT_FAILURES = 64
MASKED = MASK
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|PASS$|_PWD$|(^|_)PAT$|CREDENTIAL|KEY$|PRIVATE|AUTH|COOKIE|SESSION", re.IGNORECASE)
# An option whose last word is one of these, which excludes `--max-tokens` and `--token-dim`. Hydra and similar libraries have
# `db.password=X` and `++token=X`.
_SECRET_OPTION = re.compile(
    r"(?:--?|\+{0,2})(?:[\w.-]*[_.-])?(?:token|secret|passw\w*|passphrase|credentials?|(?:api|access|private)?key|cookie)", re.IGNORECASE
)
# Shorter values would hide parts of other words.
_SHORTEST = 6
# A password in a URL.
_IN_URL = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]+(?=@)")
# Credentials in headers and in queries of URLs, by their names.
_BEARER = re.compile(r"(?<=\b)((?:bearer|basic)\s+)[\w.~+/=-]{6,}", re.IGNORECASE)
_IN_QUERY = re.compile(r"([?&][\w.-]*(?:token|secret|passw|credential|key|sig|signature)[\w.-]*=)[^&\s#\"']+", re.IGNORECASE)
_BY_FORM = Masking()
_SEEDS = re.compile(r"SEED", re.IGNORECASE)
_WHEELS = ("monarch-core", "monarch-spmd", "torch", "numpy")


class Replay(NamedTuple):
    """The launch that a `failure.json` describes."""

    command: list[str]
    env: dict[str, str]
    workdir: str | None
    hosts: int
    per_host: int


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """The variables, with the values hidden that look like secrets: by their name, or a password in a URL."""
    return {name: MASKED if _is_secret(name) else _without_names(value) for name, value in env.items()}


def _is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None or is_secret_variable(name)


def _without_names(text: str) -> str:
    """A text without secrets that are known by their form, or by what stands before them: a name, a scheme, a parameter of a URL."""
    return _BY_FORM.text(_IN_QUERY.sub(rf"\1{MASKED}", _BEARER.sub(rf"\1{MASKED}", _IN_URL.sub(MASKED, text))))


class Mask:
    """Hides what looks like a secret, wherever it stands: values of variables and options by their names, what URLs and headers have.

    The options are those of `command`. Each line of a value of several lines is hidden, and its `repr`.
    """

    def __init__(self, env: Mapping[str, str], command: Sequence[str] = ()) -> None:
        secrets = {value for name, value in {**os.environ, **env}.items() if _is_secret(name)}
        secrets.update(value for _, _, value in _secret_options(command))
        forms = {form for value in secrets for form in (value, repr(value)[1:-1], *value.splitlines())}
        self._values = sorted((form for form in forms if len(form) >= _SHORTEST), key=len, reverse=True)

    def text(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, MASKED)
        return _without_names(text)

    def words(self, words: Sequence[str]) -> list[str]:
        """A command line: also the values of options such as `--token X` and `--api-key=X`."""
        hidden = {index: f"{before}{MASKED}" for index, before, _ in _secret_options(words)}
        return [hidden[index] if index in hidden else self.text(word) for index, word in enumerate(words)]


def _secret_options(words: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Of each option that looks like a secret: the place of its value in a command line, what stands before it in its word, the value."""
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        if equals and _SECRET_OPTION.fullmatch(option):
            yield index, f"{option}=", value
        elif index and words[index - 1].startswith("-") and _SECRET_OPTION.fullmatch(words[index - 1]) and not word.startswith("-"):
            yield index, "", word


def write(
    folder: Path,
    *,
    command: list[str],
    env: Mapping[str, str],
    workdir: str | None,
    hosts: int,
    per_host: int,
    run_id: str,
    attempt: int,
    failures: list[RankFailure],
    stacks: str,
) -> Path:
    """Writes the record into `folder`, which only this user reads; its path. OSError where that is not possible."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "failure.json"
    shown, mask = masked(env), Mask(env, command)
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "run_id": run_id,
        "attempt": attempt,
        "command": mask.words(command),
        "workdir": workdir or os.getcwd(),
        "env": shown,
        "seeds": {name: value for name, value in shown.items() if _SEEDS.search(name)},
        "versions": _versions(),
        "world": {"hosts": hosts, "per_host": per_host, "size": hosts * per_host},
        "rank": failures[0].rank,
        "failures": [_plain(one, mask) for one in failures[:_KEPT_FAILURES]],
        "stacks": mask.text(stacks),
    }
    draft = path.with_suffix(".draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(found, file, indent=1)
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return path


def read(path: Path) -> Replay:
    """The launch of a record; `SPMDError` names the file and what is wrong with it."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SPMDError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SPMDError(f"{path} is no record of a failure: {error}") from None
    try:
        if found["schema"] != SCHEMA:
            raise SPMDError(f"{path} has schema {found['schema']!r}; this version reads schema {SCHEMA}")
        command, env, world = found["command"], found["env"], found["world"]
        if not (isinstance(command, list) and isinstance(env, dict)):
            raise TypeError
        words = [str(word) for word in cast("list[object]", command)]
        hosts, per_host = int(world["hosts"]), int(world["per_host"])
        if not words or hosts < 1 or per_host < 1:
            raise ValueError
        return Replay(words, _texts(cast("dict[object, object]", env)), found["workdir"], hosts, per_host)
    except (KeyError, TypeError, ValueError):
        raise SPMDError(f"{path} is no record of a failure: a field is missing, or of another type") from None


def _texts(env: Mapping[object, object]) -> dict[str, str]:
    """Values that were hidden are left to the environment of the replay."""
    return {str(name): str(value) for name, value in env.items() if MASKED not in str(value)}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for wheel in _WHEELS:
        try:
            found[wheel] = version(wheel)
        except PackageNotFoundError:
            continue
    return found


def _plain(failure: RankFailure, mask: Mask) -> dict[str, Any]:
    reason = failure.reason
    detail = None if reason.detail is None else mask.text(reason.detail)
    return {
        **{name: getattr(failure, name) for name in ("rank", "place", "host", "pid", "kind", "exitcode", "at")},
        "message": mask.text(failure.message),
        "traceback": mask.text(failure.traceback),
        "reason": {"kind": reason.kind, "code": reason.code, "signal": reason.signal, "detail": detail},
        "output": [mask.text(line) for line in failure.output],
    }
