"""The lints of STYLE.md that no other tool has.

    python -m tools.check_style [FILE...]      all files of the checkout by default

Prints one line per finding and exits 1 if there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from tools.project import ROOT, files
from tools.style import glossary, identifiers, python, references, rust, titles, tree, words
from tools.style.problem import Check, Problem

EVERY: tuple[Check, ...] = (tree.name, tree.size, tree.addresses, tree.private_core)
BY_SUFFIX: dict[str, tuple[Check, ...]] = {
    ".md": (words.page, glossary.rows),
    ".py": (python.contents, python.sleeps, python.polls, python.error_texts, words.comments, words.names, titles.python_tests),
    ".rs": (rust.contents, rust.unwraps, rust.sleeps, identifiers.rust_names, words.comments, titles.rust_tests),
}


def check(root: Path, paths: Collection[Path]) -> Iterator[Problem]:
    """Problems of the files at `paths`, which are relative to `root`; files that are not text have none."""
    by_suffix = {**BY_SUFFIX, ".md": (*BY_SUFFIX[".md"], *references.checks(root))}
    for path in paths:
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for one in (*EVERY, *by_suffix.get(path.suffix, ())):
            yield from one(path, text)
    yield from tree.equal_test_names(paths)


def main(arguments: list[str]) -> int:
    paths = [Path(name).resolve().relative_to(ROOT) for name in arguments] or list(files())
    problems = list(check(ROOT, paths))
    for problem in problems:
        print(problem)
    print(f"style: {len(paths)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
