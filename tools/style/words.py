"""Plain words: refuses words that stand for a term of the field, and subjects that are no noun.

Pages, docstrings and comments are checked, and the names of definitions in the Python sources of the wheels: a name is read as its words.

A row is refused if it is unambiguous. These words replace a term too, but ordinary English needs them, so a reader has to look:

| word | why it is not refused | where it replaces a term |
|---|---|---|
| opening | "opening a connection" | handshake |
| cell | of a notebook, of a table | pending call |
| slot | of SLURM, of a class | call id |
| far | "so far", "how far" (refused before a noun, as in `far host`) | remote |
| line | of text | connection for bulk data |
| way, path | "on the way", of a file, `buffer.path` | transport, route |
| still | "still running" (`standstill` is refused) | paused |
| piece | "a piece of work" | fragment |
| fetch | `fetch_add`, of a package | pull, in a rendezvous transfer |
| who | after a noun: "the user who" (refused as the subject of a sentence) | the process, the user |
| word | of a text, of memory | notice |
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tools.style import prose
from tools.style.problem import Problem, is_test
from tools.style.syntax import nodes

# Pattern, and what to write instead; in order of the terms. Words of a phrase may stand on two lines.
REFUSED: tuple[tuple[str, str], ...] = (
    (r"trunks?", "session (between two agents), connection (its TCP connections)"),
    (r"hearts?|pulses?|words?\s+of\s+life|signs?\s+of\s+life", "heartbeat"),
    (r"evidence", "indirect heartbeat"),
    (r"graves?|corpses?|digs?|dug|bury|buried", "tombstone, insert, exited process, reap"),
    (r"doors?", "control socket"),
    (r"guests?", "external process"),
    (r"far\s+(?:side|end|host|owner|memory|process|agent|buffer)s?", "remote"),
    (r"standstill", "paused"),
    (r"movers?", "bulk transport"),
    (r"loans?|loaned|lends?|lent|lending", "rendezvous transfer: offer, pull; shared memory: pass by reference"),
    (r"stretch(?:es)?", "fragment"),
    (r"lanes?", "send queue"),
    (r"parts?\s+ahead", "out-of-band part"),
    (r"hosts?\s+(?:below|above)|trees?\s+of\s+joins", "relayed host, relay, join tree"),
    (r"adopt(?:s|ed|ion|ions|ing)?", "direct connection"),
    (r"patience", "the name of the time-out"),
    (r"stop-?watch|(?:with)?in\s+so\s+long", "deadline, or the time"),
    (r"tells?|told|telling", "notifies, is notified, reports, sends"),
    (r"hears?|heard|speaks?|spoken|spoke|says?|said|saying", "receives, reports, states, contains"),
    (r"bec(?:omes?|ame|oming)\s+of", "the outcome of, the state of"),
    (r"(?:some|any|every)(?:body|one)|no-?body|no[-\s]one|whoever", "the process, thread or user that; no process"),
    (r"mak(?:es?|ing)\s+no\s+sense|nonsense", "malformed: and which field"),
    (r"tombs?|tenants?|census", "tombstone, job on this host, process table"),
)
_Rules = Sequence[tuple[re.Pattern[str], str]]
_PATTERNS: _Rules = [(re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE), instead) for pattern, instead in REFUSED]
# The words of a name: of `snake_case`, of `CamelCase` and of both with abbreviations.
_WORD_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# A name that is a question and no noun: `what_failed`, `who_asks`.
_QUESTION = re.compile(r"^(?:what|who|whom|whose|which)(?= )", re.IGNORECASE)
# Names of other interfaces: `tell` is a method of every file.
_KEPT_NAMES = frozenset({"tell"})
# The begin of a sentence, also after the bar of a table or the mark of a list. A question and a label have no subject to name.
_BEGIN = r"(?:^[ ]*(?:[-*]+[ ]+|\d+\.[ ]+)?|[.;|][ ]+)"
_SUBJECTS: _Rules = [
    (re.compile(rf"{begin}(?P<subject>{pattern})\b(?![^.\n]*\?)", re.MULTILINE), instead)
    for begin, pattern, instead in (
        (r"(?:^[ ]*(?:[-*#]+[ ]+|\d+\.[ ]+)?|[.;:|][ ]+)", "Who", "the process, host or user that"),
        (_BEGIN, r"What(?!\s+(?:always\s+holds|it\s+needs):)|Whatever|Whichever", "the noun: the state, the files, the request that"),
        (_BEGIN, r"Those(?!\s+\w+s\b)|One\s+(?:that|which|who|whose|of\s+which)", "the noun: the hosts that, a host that"),
        (_BEGIN, r"Of\s+(?:an?|the|each|every|all|one|this|these|those|what|it|them)", "the noun first: the exit code of a proc"),
    )
]

# Pages that keep their words: records of the past.
KEPT = frozenset({"CHANGELOG.md", "bench/RESULTS.md"})
_DECISIONS = Path("docs/adr")


def page(path: Path, text: str) -> Iterator[Problem]:
    """Refused words and subjects in the prose of a Markdown page. Decisions keep their sentences."""
    if path.as_posix() not in KEPT:
        yield from _problems(path, prose.markdown(text), _SUBJECTS[:1] if path.parent == _DECISIONS else _SUBJECTS)


def comments(path: Path, text: str) -> Iterator[Problem]:
    """Refused words and subjects in the docstrings and comments of a Python or Rust file."""
    yield from _problems(path, prose.rust(text) if path.suffix == ".rs" else prose.python(text), _SUBJECTS)


def names(path: Path, text: str) -> Iterator[Problem]:
    """Refused words in the names that a Python source of a wheel defines: files, classes, functions, parameters, variables, attributes."""
    if path.parts[:1] != ("packages",) or is_test(path):
        return
    for line, name in [(0, path.stem), *sorted(set(_defined(text)))]:
        for word, instead in refused(name):
            yield Problem(path, line, "plain-names", f"'{word}' in '{name}'; write: {instead}")


@cache
def refused(name: str) -> list[tuple[str, str]]:
    """The refused words of a name, and what to write instead."""
    words = " ".join(words_of(name)) if name not in _KEPT_NAMES else ""
    rules = (*_PATTERNS, (_QUESTION, "the noun that it returns or contains"))
    return [(found[0], instead) for pattern, instead in rules if (found := pattern.search(words))]


def words_of(name: str) -> list[str]:
    return _WORD_OF_NAME.findall(name)


def _defined(text: str) -> Iterator[tuple[int, str]]:
    """Line and name of each definition."""
    for node in nodes(text):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield node.lineno, name
            case _:
                pass


def _problems(path: Path, text: str, subjects: _Rules) -> Iterator[Problem]:
    found = [(match.start(), match[0], instead) for pattern, instead in _PATTERNS for match in pattern.finditer(text)]
    found += [(match.start("subject"), match["subject"], instead) for pattern, instead in subjects for match in pattern.finditer(text)]
    for start, word, instead in sorted(found):
        yield Problem(path, text.count("\n", 0, start) + 1, "plain-words", f"'{' '.join(word.split())}'; write: {instead}")
