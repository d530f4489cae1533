"""The matcher of `.gitignore` against git itself, and its rules one by one."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from monarch._core.trees.gitignore import RuleChain, Rules

WORDS = [
    "a",
    "b",
    "foo",
    "foo.py",
    "build",
    ".env",
    "x y",
    "a.b.c",
    "trail ",
    "#hash",
    "!bang",
    "back\\slash",
    "[set]",
    "é",
    "foo*",
    "A",
    "-",
]
ATOMS = [
    *("a", "b", "c", "foo", ".py", "x", "*", "*", "**", "***", "?", "/", "/", "/**/", "**/", "/**", "[ab]", "[!a]", "[^a-f]", "[]a]"),
    *("[a-", "[[:alpha:]]", "[![:space:]x]", "[[:nope:]]", "[a\\-z]", "[\\]]", "[--0]", "[z-a]", "[a-c-e]", "[[:alpha:]-z]"),
    *("\\*", "\\", "\\a", " ", "\\ ", "build", ".env", "é", "#", "!", "[:", "[", "]", "\t", "foo*", "[a/b]", "[[:digit]", "[:alpha:]"),
]


def decided(root: Path, ignores: dict[str, str], paths: list[str]) -> set[str]:
    """The paths that these rules leave out, found by the walk of a sync."""
    left: set[str] = set()
    chains: dict[str, RuleChain | None] = {}

    def chain_of(directory: str) -> RuleChain | None:
        """The rules of a directory; None: the directory itself is left out."""
        if directory not in chains:
            if directory:
                above_path, _, name = directory.rpartition("/")
                above = chain_of(above_path)
                if above is None or above.leaves_out(os.fsencode(directory), os.fsencode(name), True):
                    chains[directory] = None
                    return None
            else:
                above = RuleChain()
            text = ignores.get(directory)
            base = os.fsencode(directory + "/") if directory else b""
            chains[directory] = above if text is None else RuleChain(Rules(text.encode("utf-8")), base, above)
        return chains[directory]

    for path in paths:
        directory, _, name = path.rpartition("/")
        chain = chain_of(directory)
        if chain is None or chain.leaves_out(os.fsencode(path), os.fsencode(name), (root / path).is_dir()):
            left.add(path)
    return left


def gits(root: Path, paths: list[str]) -> set[str]:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "HOME": str(root)}
    data = b"\0".join(os.fsencode(p) for p in paths)
    done = subprocess.run(["git", "check-ignore", "-z", "--stdin"], cwd=root, env=env, input=data, capture_output=True)
    assert done.returncode in (0, 1), done.stderr
    return {os.fsdecode(p) for p in done.stdout.split(b"\0") if p}


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("seed", range(int(os.environ.get("MONARCH_TEST_GITIGNORE_SEEDS", "40"))))
def test_as_git(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, env=env)
    paths: list[str] = []

    def fill(directory: str, depth: int) -> None:
        for name in chosen.sample(WORDS, 6):
            path = f"{directory}/{name}" if directory else name
            paths.append(path)
            if depth and chosen.random() < 0.45:
                (tmp_path / path).mkdir()
                fill(path, depth - 1)
            else:
                (tmp_path / path).write_text("")

    fill("", 3)
    directories = ["", *(p for p in paths if (tmp_path / p).is_dir())]
    ignores: dict[str, str] = {}
    for directory in ["", *chosen.sample(directories[1:], min(3, len(directories) - 1))]:
        lines: list[str] = []
        for _ in range(chosen.randint(1, 5)):
            kind = chosen.random()
            if kind < 0.35:  # near a real path
                line = chosen.choice(paths)
                line = line[chosen.randrange(len(line)) :] if chosen.random() < 0.4 else line
                if chosen.random() < 0.5:
                    at = chosen.randrange(len(line))
                    line = line[:at] + chosen.choice(["*", "?", "**", "/**/", "[a-z]"]) + line[at + chosen.randint(0, 3) :]
            else:
                line = "".join(chosen.choice(ATOMS) for _ in range(chosen.randint(1, 4)))
            line = chosen.choice(["", "", "", "!", "/"]) + line + chosen.choice(["", "", "", "/", " ", "\r", "/*"])
            lines.append(line)
        ignores[directory] = "\n".join(lines) + chosen.choice(["", "\n"])
        (tmp_path / directory / ".gitignore").write_bytes(ignores[directory].encode())
    ours, theirs = decided(tmp_path, ignores, paths), gits(tmp_path, paths)
    assert ours == theirs, (ignores, sorted(ours ^ theirs))


@pytest.mark.parametrize(
    ("text", "left_out", "kept"),
    [
        (b"*.pyc\n", ["a.pyc", "d/a.pyc"], ["a.py"]),
        (b"/build\n", ["build"], ["d/build"]),
        (b"d/build\n", ["d/build"], ["e/d/build", "build"]),
        (b"**/logs/*.txt\n", ["logs/a.txt", "x/y/logs/a.txt"], ["logs/b/a.txt"]),
        (b"a/**/b\n", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a"]),
        (b"*.log\n!keep.log\n", ["a.log"], ["keep.log"]),
        (b"# text\n\\#x\n\\!y\n", ["#x", "!y"], ["# text"]),
        (b"end \nkept\\ \n", ["end", "kept "], ["end ", "kept"]),
        (b"\xef\xbb\xbfbom\r\n", ["bom"], []),
        (b"[[:digit:]]?\n", ["1a"], ["aa", "1"]),
    ],
)
def test_rules(text: bytes, left_out: list[str], kept: list[str]) -> None:
    chain = RuleChain(Rules(text))
    for path in (*left_out, *kept):
        name = path.rpartition("/")[2]
        assert chain.leaves_out(path.encode(), name.encode(), False) is (path in left_out), path


def test_directories_only() -> None:
    chain = RuleChain(Rules(b"out/\n"))
    assert chain.leaves_out(b"x/out", b"out", True)
    assert not chain.leaves_out(b"out", b"out", False)


def test_deeper_files_decide_first() -> None:
    top = RuleChain(Rules(b"*.txt\n"))
    deep = RuleChain(Rules(b"!/a.txt\n"), b"d/", top)
    assert not deep.leaves_out(b"d/a.txt", b"a.txt", False)
    assert deep.leaves_out(b"d/e/a.txt", b"a.txt", False)
    assert top.key != deep.key
