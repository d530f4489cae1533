"""Copies of what workers print: each line is there once, whatever the API server keeps of a long log."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_cluster import MemoryCluster

from monarch.job._job.launcher import Host
from monarch.job.kubernetes.pods.output import Printing, copy_logs

# The number of lines of a log in one read.
WINDOW = 6


class Look:
    """Copies the last lines of a log, as `Cluster.pod_log` gives them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = MemoryCluster()

    def __call__(self, text: str) -> str:
        self.cluster.logs["p", False] = text
        (found,) = copy_logs(self.cluster, [Printing(Host("w", 0), "p", "worker")], str(self.folder))
        return Path(found.path).read_text(encoding="utf-8")


@pytest.fixture
def look(tmp_path: Path) -> Look:
    return Look(tmp_path / "logs")


def numbered(begin: int, end: int) -> str:
    return "".join(f"step {number}\n" for number in range(begin, end))


def test_window_that_moves_adds_each_line_once(look: Look) -> None:
    for end in range(1, 41, 3):
        assert look(numbered(max(0, end - WINDOW), end)) == numbered(0, end)
    # All lines of the copy have left the window: the lines between are unknown.
    assert look(numbered(90, 96)) == numbered(0, 40) + numbered(90, 96)


def test_repeated_first_line_adds_each_line_once(look: Look) -> None:
    lines = [line for epoch in range(20) for line in ("epoch\n", f"loss {epoch}\n", "epoch\n", "saved\n")]
    for end in range(1, len(lines) + 1):
        assert look("".join(lines[max(0, end - WINDOW) : end])) == "".join(lines[:end])


def test_look_at_an_unchanged_log_adds_nothing(look: Look) -> None:
    for text in ("epoch\n" * WINDOW, "", "epoch\n" * WINDOW):
        assert look(text) == "epoch\n" * WINDOW


def test_output_of_the_next_container_is_added(look: Look) -> None:
    assert look("boot\nfault\n") == "boot\nfault\n"
    assert look("boot\n") == "boot\nfault\nboot\n"
    assert look("boot\nready\n") == "boot\nfault\nboot\nready\n"


def test_line_in_progress_is_completed(look: Look) -> None:
    assert look("a\na\nprogress 1") == "a\na\nprogress 1"
    assert look("a\na\nprogress 10%\ndone\n") == "a\na\nprogress 10%\ndone\n"
    assert look("a\nprogress 10%\ndone\nnex") == "a\na\nprogress 10%\ndone\nnex"
    assert look("next\n") == "a\na\nprogress 10%\ndone\nnext\n"


def test_window_within_a_line_adds_each_line_once(look: Look) -> None:
    before = f"one\n{'x' * 40}ü{'y' * 40}\ntwo\n"
    assert look(before) == before
    # The kubelet has cut the line in the middle of a character.
    after = f"\N{REPLACEMENT CHARACTER}{'y' * 40}\ntwo\nthree\n"
    assert look(after) == f"{before}three\n"


def test_long_log_of_few_words_is_aligned(look: Look) -> None:
    # Every line of the window is a place where it might begin: comparing the rest of it at each would be quadratic.
    same = "waiting for the others to arrive\n" * 10_000
    assert look(f"first\n{same}") == f"first\n{same}"
    assert look(f"{same}last\n") == f"first\n{same}last\n"
