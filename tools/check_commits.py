"""Checks the messages of new commits, those of HEAD that BASE does not have: merges are left out.

    python -m tools.check_commits BASE

The subject has at most 72 characters and the form `component: change`. A body below an empty line states the reason.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.project import ROOT

# The width at which `git log` in a terminal of 80 columns cuts nothing, with its indentation on both sides.
LONGEST_SUBJECT = 72
_FORM = re.compile(r"[a-z][\w./-]*(?:, [a-z][\w./-]*)*: \S")


def problems(message: str) -> Iterator[str]:
    """The problems of a commit message."""
    subject, _, rest = message.strip().partition("\n")
    if len(subject) > LONGEST_SUBJECT:
        yield f"the subject has {len(subject)} characters, at most {LONGEST_SUBJECT}"
    if not _FORM.match(subject):
        yield "the subject has to be `component: change`"
    if subject.endswith("."):
        yield "the subject ends with a full stop"
    if not rest.strip():
        yield "there is no body, which states the reason"
    elif not rest.startswith("\n"):
        yield "the line below the subject is not empty"


def check(base: str, root: Path = ROOT) -> list[str]:
    """A line for each problem of a new commit, the oldest commit first; `CalledProcessError` of git."""
    argv = ("git", "log", "--reverse", "--no-merges", "-z", "--format=%h%n%B", f"{base}..HEAD")
    output = subprocess.run(argv, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: list[str] = []
    for commit in filter(None, output.split("\0")):
        name, _, message = commit.partition("\n")
        found += [f"{name} {message.partition(chr(10))[0]!r}: {problem}" for problem in problems(message)]
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m tools.check_commits BASE", file=sys.stderr)
        return 2
    try:
        found = check(arguments[0])
    except subprocess.CalledProcessError as error:
        return error.returncode
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
