"""The check of the messages of new commits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.check_commits import LONGEST_SUBJECT, check, problems

BODY = "\n\nThe reason.\n"


@pytest.mark.parametrize("subject", ["core: end the run", "net, wire: send it", "monarch-tensor: a.b", "fs/push: x", "core: " + 66 * "x"])
def test_good_message_has_no_problem(subject: str) -> None:
    assert list(problems(subject + BODY)) == []


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (f"core: {LONGEST_SUBJECT * 'x'}{BODY}", "at most 72"),
        (f"End the run{BODY}", "component: change"),
        (f"core:{BODY}", "component: change"),
        (f"two words: end the run{BODY}", "component: change"),
        (f"core: end the run.{BODY}", "full stop"),
        ("core: end the run\n", "no body"),
        ("core: end the run\nThe reason.\n", "not empty"),
    ],
)
def test_bad_message_is_refused(message: str, words: str) -> None:
    found = list(problems(message))
    assert len(found) == 1 and words in found[0]


def test_new_commits_alone_are_checked(tmp_path: Path) -> None:
    def git(*argv: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false")
        subprocess.run(("git", *identity, *argv), cwd=tmp_path, check=True, capture_output=True)

    git("init", "--quiet", "--initial-branch", "work")
    for message in ("Old", f"core: one{BODY}", "Second", f"core: two{BODY}"):
        git("commit", "--quiet", "--allow-empty", "--message", message)
    assert check("HEAD", tmp_path) == []
    found = check("HEAD~3", tmp_path)
    assert len(found) == 2 and all("'Second'" in line for line in found)
