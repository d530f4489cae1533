"""Secrets in texts: the parts of a text that are masked before the text leaves the job.

Masked parts are: values behind a name that means a secret (`HF_TOKEN=…`, `"password": …`, `--api-key …`), credentials in URLs,
authorization and cookie headers, tokens with a well-known prefix, private keys, printed environments, and values of secret variables of a
given environment. A value that is masked for no reason costs less than a secret that is shown; but words of language models (`max_tokens`,
`eos_token`, `token_count`) stay, since logs of training are full of them.

Masking a masked text changes nothing. The time is linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

MASK = "***"
# A shorter value of a variable is too likely to be a part of a word.
_SHORTEST_VALUE = 6
# JSON that is nested deeper is masked as text.
_DEEPEST = 50

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# A name with any of these words is secret, unless it ends with one of _HARMLESS_ENDS.
_ANYWHERE = frozenset({"password", "passwd", "passphrase", "pwd", "secret", "secrets", "credential", "credentials", "apikey"})
# A name that ends with one of these words is secret.
_AT_END = frozenset({"token", "authorization", "cookie", "cookies", "signature", "sig", "jwt", "auth"})
# A name that ends with one of these words and `key` is secret.
_KEYS = frozenset({"api", "access", "private", "secret", "auth", "session", "ssh", "encryption", "signing", "account", "master", "license"})
_HARMLESS_ENDS = frozenset(
    {"file", "path", "dir", "folder", "name", "names", "id", "ids", "count", "length", "len", "type", "kind", "size", "expiry", "version"}
)
# Variables of a shell (POSIX, `cd`).
_DIRECTORIES = frozenset({"PWD", "OLDPWD"})
# Tokens of language models.
_MODEL_TOKENS = frozenset(
    {"eos", "bos", "pad", "unk", "mask", "sep", "cls", "next", "per", "last", "first", "prev", "special", "image", "num", "max", "min"}
    | {"stop", "start", "end", "begin", "new", "unexpected", "fim", "ms", "us", "s"}
)

# A part of every secret name; the match is extended to the whole name.
_KEYWORD = re.compile(r"pass(?:w|phrase)|pwd|secret|credential|token|key|auth|cookie|sig|jwt", re.IGNORECASE | re.ASCII)
_NAME_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_NAME_REST = re.compile(r"[A-Za-z0-9_.\-]*")
# The separator between a name and its value.
_SEPARATOR = re.compile(r"(?:\\*[\"'])?[ \t]{0,3}(?:=>|:=|=|:)[ \t]{0,3}")
# The separator between an option of a command line and its value, also in the text of a Python list.
_OPTION_SEPARATOR = re.compile(r"[ \t]{1,3}(?!-)|\\*[\"'],[ \t]{0,3}(?=[\"'])")
_OPTION = re.compile(r"--[A-Za-z0-9_.\-]+")
_HEADER = re.compile(r"(?:proxy-)?authorization|(?:set-)?cookie", re.IGNORECASE)
_OPENED = re.compile(r"[bBrRuU]{0,2}(\\*[\"'])")
_BARE = re.compile(r"(?:(?:bearer|basic|token|digest|negotiate)[ \t]{1,3})?((?:[^\s&\"'<>,;)}\]]|[,;)}\]](?=[^\s\"'&<>]))+)", re.IGNORECASE)
_LINE = re.compile(r"[^\r\n\"']+")
_NOTHING = re.compile(r"(?:none|null|true|false|nil|undefined)?(?![^\s,;)}\]])", re.IGNORECASE)
_SHORT_NUMBER = re.compile(r"[0-9.]{1,7}(?![^\s,;)}\]])")

_URL = re.compile(r"(?<![A-Za-z0-9])([A-Za-z][A-Za-z0-9+.\-]{0,30}://)([^\s/?#\"'<>]{1,2048})@")
# The URL of a dashboard has its token in the fragment.
_FRAGMENT = re.compile(r"(://[^\s#\"'<>]{1,2048}/#)[A-Za-z0-9_\-]{40,}")
_BEARER = re.compile(r"(?<![A-Za-z0-9])(bearer[ \t]{1,3})(?!token\b)[A-Za-z0-9\-._~+/=]{8,}", re.IGNORECASE)
_KNOWN = re.compile(
    r"(?<![A-Za-z0-9_])(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_\-]{16,}|hf_[A-Za-z0-9]{20,}"
    r"|sk-[A-Za-z0-9_\-]{20,}|xox[abeoprs]-[A-Za-z0-9\-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_\-]{30,}|ya29\.[A-Za-z0-9_\-]{20,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_\-]{30,}|dapi[a-f0-9]{32}|SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}"
    r"|eyJ[A-Za-z0-9_\-]{5,}\.eyJ[A-Za-z0-9_\-]{5,}\.[A-Za-z0-9_\-]*)"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:[^-]|-(?!----END))*(?:-----END[A-Z0-9 ]{0,60}-{0,5})?")
# The body of a key, which a log has line by line. A digest never has letters of both cases.
_KEY_LINE = re.compile(r"(?m)^(?=.*[A-Z])(?=.*[a-z])(?=.*[0-9])[A-Za-z0-9+/]{64}$")
_ENVIRON = re.compile(r"environ\(\{(.*?)(?:\}\)|\Z)", re.DOTALL)
_ENVIRON_VALUE = re.compile(r"(:[ \t]{0,3})('(?:[^'\\]|\\.)*'?|\"(?:[^\"\\]|\\.)*\"?)", re.DOTALL)
_ENVIRONMENTS = frozenset({"env", "environ", "environment"})

# A text without any of these is not masked; RE2 and Python agree on them. A word for a secret counts as a name only before a separator.
_WORD = r"(?:passw|passphrase|pwd|secret|credential|token|key|auth|cookie|sig|jwt)[a-z0-9_.\-]*"
_SUSPECT = (
    rf"(?i){_WORD}(?:\\*[\"'])?\s*[=:]|--[a-z0-9_.\-]*{_WORD}(?:[ \t]|\\*[\"'],)"
    r"|bearer|://[^\s/?#\"'<>]+@|/#[a-z0-9_\-]{40}|environ\(\{|-----BEGIN"
    r"|gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abeoprs]-|AKIA|ASIA|AIza|ya29|npm_|pypi-|dapi|SG\.|eyJ|[a-z0-9+/]{64}"
)
_SUSPECT_TEXT = re.compile(_SUSPECT)


def is_secret(name: str) -> bool:
    """Whether the words of this name (of a variable, setting, key or parameter) mean a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _HARMLESS_ENDS:
        return False
    if _ANYWHERE.intersection(words) or "".join(words).endswith("apikey"):
        return True
    if last == "token":
        return before not in _MODEL_TOKENS
    return last in _AT_END or (last == "key" and before in _KEYS) or (last == "tokens" and before in {"access", "auth", "api", "refresh"})


def is_secret_variable(name: str) -> bool:
    """Whether the name of a variable of an environment means a secret. `PWD` is the working directory there, and elsewhere a password."""
    return name not in _DIRECTORIES and is_secret(name)


class Masking:
    """Masks texts. `values` are secrets that are masked wherever they occur, besides secrets that are found by their form.

    `suspects` is a pattern, for RE2 and Python alike, that matches each text that `text` changes, and some others.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        long = sorted({value for value in values if len(value) >= _SHORTEST_VALUE and value.strip("*")}, key=len, reverse=True)
        found = "|".join(map(re.escape, long))
        self._values = re.compile(found) if long else None
        # The values may occur at any place.
        self.suspects = f"{_SUSPECT}|{found}" if long else _SUSPECT

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Masking:
        """A masking with the values of the secret variables of an environment."""
        return cls(value for name, value in environ.items() if is_secret_variable(name))

    def text(self, text: str) -> str:
        """The text with `***` in the place of each secret."""
        if self._values is not None:
            text = self._values.sub(MASK, text)
        return text if _SUSPECT_TEXT.search(text) is None else self._suspect(text)

    def _suspect(self, text: str) -> str:
        """Masks a text that may have a secret, found by its form."""
        text = _PRIVATE_KEY.sub(f"{MASK} PRIVATE KEY {MASK}", text)
        text = _KEY_LINE.sub(MASK, text)
        text = _ENVIRON.sub(_without_environment, text)
        if "://" in text:
            text = _URL.sub(_without_credentials, text)
            text = _FRAGMENT.sub(rf"\g<1>{MASK}", text)
        text = _BEARER.sub(rf"\g<1>{MASK}", text)
        text = _KNOWN.sub(MASK, text)
        # This comes last: the parts of a masked token are no names.
        return _pairs(text)

    def named(self, name: str, value: str) -> str:
        """The value of a variable, setting or parameter: wholly masked if its name means a secret, else masked as a text."""
        return MASK if value and is_secret(name) else self.text(value)

    def json(self, text: str) -> str:
        """JSON with secrets masked, as JSON; the unchanged text if nothing is masked. A text that is no JSON is masked as a text."""
        if self._values is None and _SUSPECT_TEXT.search(text) is None and '"env' not in text:
            return text
        try:
            found = json.loads(text)
            masked = self._value(found, _DEEPEST)
            return text if masked == found else json.dumps(masked)
        except (ValueError, RecursionError):
            return self.text(text)

    def _value(self, value: Any, depth: int) -> Any:
        if depth == 0:
            raise ValueError("nested too deep")
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return self._list(cast("list[Any]", value), depth - 1)
        if isinstance(value, dict):
            return {self.text(name): self._field(name, one, depth - 1) for name, one in cast("dict[str, Any]", value).items()}
        return value

    def _list(self, values: list[Any], depth: int) -> list[Any]:
        """Masks a list, which may be a command line: an option and its value are two items."""
        found: list[Any] = []
        for index, value in enumerate(values):
            option = values[index - 1] if index else None
            is_named = isinstance(option, str) and _OPTION.fullmatch(option) is not None and is_secret(option)
            hides = is_named and isinstance(value, str) and value != "" and not value.startswith("-")
            found.append(MASK if hides else self._value(value, depth))
        return found

    def _field(self, name: str, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if is_secret(name) and not (name.lower().endswith("token") and isinstance(value, int) and abs(value) < 10_000_000):
            return MASK
        if name.lower() in _ENVIRONMENTS and isinstance(value, dict):
            return {self.text(one): MASK for one in cast("dict[str, Any]", value)}
        return self._value(value, depth)


def _without_credentials(match: re.Match[str]) -> str:
    scheme, credentials = match[1], match[2]
    user, colon, _ = credentials.partition(":")
    if colon:
        return f"{scheme}{user}:{MASK}@"
    # In a URL a user without a password is public for ssh, and a token for HTTP.
    return f"{scheme}{MASK}@" if scheme.lower().startswith("http") else match[0]


def _without_environment(match: re.Match[str]) -> str:
    return match[0].replace(match[1], _ENVIRON_VALUE.sub(lambda value: f"{value[1]}{value[2][0]}{MASK}{value[2][0]}", match[1]), 1)


def _pairs(text: str) -> str:
    """Masks the values behind the names of secrets."""
    parts: list[str] = []
    done = at = 0
    while (keyword := _KEYWORD.search(text, at)) is not None:
        start = keyword.start()
        while start > at and text[start - 1] in _NAME_LETTERS:
            start -= 1
        rest = _NAME_REST.match(text, keyword.end())
        at = keyword.end() if rest is None else rest.end()
        name = text[start:at]
        separator = _SEPARATOR.match(text, at) or (_OPTION_SEPARATOR.match(text, at) if name.startswith("--") else None)
        if separator is None or not is_secret(name):
            continue
        found = _value_at(text, separator.end(), name)
        if found is not None:
            parts += (text[done : found[0]], MASK)
            done = at = found[1]
    parts.append(text[done:])
    return "".join(parts)


def _value_at(text: str, at: int, name: str) -> tuple[int, int] | None:
    """The span of the secret in the value that begins here; None if there is no secret."""
    opened = _OPENED.match(text, at)
    if opened is not None:
        end = _closed(text, opened.end(), opened[1])
        return (opened.end(), end) if end > opened.end() else None
    if _NOTHING.match(text, at) or (name.lower().endswith("token") and _SHORT_NUMBER.match(text, at)):
        return None
    if _HEADER.fullmatch(name.strip("-.")):
        found = _LINE.match(text, at)
        return found.span() if found else None
    found = _BARE.match(text, at)
    return found.span(1) if found else None


def _closed(text: str, at: int, quote: str) -> int:
    """The end of the quoted value that begins here: before its closing quote, or at the end of the text."""
    while (end := text.find(quote, at)) >= 0:
        escapes = end
        while escapes > 0 and text[escapes - 1] == "\\":
            escapes -= 1
        if (end - escapes) % 2 == 0 or len(quote) > 1:
            return end
        at = end + 1
    return len(text)
